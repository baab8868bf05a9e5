//! Reads tables with a row for each request. Columns are recognised by their names. The name of a time ends in its
//! unit (`arrival_ns`, `ttft_ms`, ...). All times except arrivals count from the arrival.

use crate::capture::{BlockHash, FinishReason, GapSummary, RequestRecord};
use crate::{OUTPUT_COLUMNS, PROMPT_COLUMNS, RequestRow};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

use super::begin;
use crate::import::error::{Place, Problem};
use crate::import::output::{Out, Tally, checked};
use crate::import::readers::dataset::table::RowSink;
use crate::import::readers::requests::blocks::{BlockSizes, PromptBlocks};
use crate::import::time::{clock_ns, duration_ns};
use crate::import::{ImportError, ImportOptions};

/// Arrivals beyond 31 years are times on some clock. They are made relative to the first arrival.
const MAX_SINCE_START_NS: i128 = 1_000_000_000_000_000_000;

/// Columns by which the table of a run is recognised.
const RUN_COLUMNS: [&str; 3] = ["workload", "status", "scheduled_ms"];

pub(super) struct Table<'a, 'o> {
    name: &'a str,
    columns: &'a [(String, String)],
    /// The names of columns in all rows so far. Collected only if the user named columns.
    seen: BTreeSet<String>,
    out: &'a mut Out<'o>,
    /// Whether any row so far has data of an answer.
    is_answered: bool,
    block_sizes: BlockSizes,
    /// Rows that wait until the number of tokens of an id is known.
    waiting: Vec<(RequestRecord, PromptBlocks)>,
    has_begun: bool,
    /// The time that is subtracted from arrivals.
    start_ns: Option<i128>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Id,
    ExternalId,
    Session,
    Rank,
    Concurrency,
    PromptTokens,
    CachedTokens,
    ExternalCachedTokens,
    OutputTokens,
    FinishReason,
    Error,
    Preemptions,
    Priority,
    Lora,
    PromptHash,
    HashIds,
    PromptTokenIds,
    Time(Time, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Arrival,
    Think,
    Queue,
    Ttft,
    MeanGap,
    /// A result that a capture cannot contain.
    MaxGap,
    End,
}

const TIMES: [(&str, Time); 14] = [
    ("arrival", Time::Arrival),
    ("arrival_time", Time::Arrival),
    ("timestamp", Time::Arrival),
    ("think", Time::Think),
    ("queue", Time::Queue),
    ("ttft", Time::Ttft),
    ("itl", Time::MeanGap),
    ("itl_mean", Time::MeanGap),
    ("mean_itl", Time::MeanGap),
    ("tpot", Time::MeanGap),
    ("itl_max", Time::MaxGap),
    ("end", Time::End),
    ("e2e", Time::End),
    ("latency", Time::End),
];
const UNITS: [(&str, u32); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl Column {
    fn of(title: &str) -> Option<Self> {
        Some(match title {
            "id" | "request_id" => Self::Id,
            "external_id" => Self::ExternalId,
            "session" | "session_id" => Self::Session,
            "rank" => Self::Rank,
            "concurrency" => Self::Concurrency,
            "cached_tokens" => Self::CachedTokens,
            "external_cached_tokens" => Self::ExternalCachedTokens,
            "finish_reason" => Self::FinishReason,
            "error" => Self::Error,
            "preemptions" => Self::Preemptions,
            "priority" => Self::Priority,
            "lora" => Self::Lora,
            "prompt_hash" => Self::PromptHash,
            "hash_ids" => Self::HashIds,
            "prompt_token_ids" => Self::PromptTokenIds,
            _ if PROMPT_COLUMNS.contains(&title) => Self::PromptTokens,
            _ if OUTPUT_COLUMNS.contains(&title) => Self::OutputTokens,
            _ => {
                let (stem, unit) = title.rsplit_once('_')?;
                let (_, ns_per_unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
                let (_, time) = TIMES.iter().find(|(name, _)| *name == stem)?;
                Self::Time(*time, *ns_per_unit)
            }
        })
    }

    fn is_of_answer(self) -> bool {
        matches!(self, Self::FinishReason | Self::Time(Time::Queue | Time::Ttft | Time::MeanGap | Time::End, _))
    }
}

impl<'a, 'o> Table<'a, 'o> {
    pub(super) fn new(name: &'a str, options: &'a ImportOptions, out: &'a mut Out<'o>) -> Self {
        Self {
            name,
            columns: &options.columns,
            seen: BTreeSet::new(),
            out,
            is_answered: false,
            block_sizes: BlockSizes::new(options.block_size_tokens),
            waiting: Vec::new(),
            has_begun: false,
            start_ns: None,
        }
    }

    /// The standard name of a column; None if another column is mapped to that name.
    fn standard_name<'t>(&'t self, title: &'t str) -> Option<&'t str> {
        match self.columns.iter().find(|(_, own)| own == title) {
            Some((standard, _)) => Some(standard),
            None => self.columns.iter().all(|(standard, _)| standard != title).then_some(title),
        }
    }

    pub(super) fn has_lengths(&self, row: &Map<String, Value>) -> bool {
        let mut columns = row.keys().filter_map(|own| Column::of(self.standard_name(own)?));
        columns.any(|column| matches!(column, Column::PromptTokens | Column::OutputTokens))
    }

    pub(super) fn finish(mut self) -> Result<(), ImportError> {
        self.check_columns()?;
        self.check_mapped()?;
        self.pass_on()
    }

    /// Checks that rows have the columns that the user named.
    ///
    /// # Errors
    /// If no row has one of these columns.
    fn check_mapped(&self) -> Result<(), ImportError> {
        let missing = self.columns.iter().find(|(_, own)| !self.seen.contains(own));
        let Some((standard, own)) = missing.filter(|_| !self.seen.is_empty()) else { return Ok(()) };
        let seen: Vec<&str> = self.seen.iter().map(String::as_str).collect();
        let text = format!("no column `{own}` for `{standard}`: expected one of {}", seen.join(", "));
        Err(Problem::new(own, text).at(self.name, Place::File))
    }

    /// Checks the standard names that the user gave.
    ///
    /// # Errors
    /// If one of them is not a standard name.
    fn check_columns(&self) -> Result<(), ImportError> {
        let unknown = self.columns.iter().find(|(standard, _)| Column::of(standard).is_none());
        let Some((standard, own)) = unknown else { return Ok(()) };
        let expected = "expected a name such as arrival_ms, prompt_tokens, output_tokens, ttft_ms, e2e_s or hash_ids";
        let text = format!("invalid name `{standard}` for the column `{own}`: {expected}");
        Err(Problem::new(own, text).at(self.name, Place::File))
    }

    fn pass_on(&mut self) -> Result<(), ImportError> {
        let block_size_tokens = self.block_sizes.chosen();
        if !std::mem::replace(&mut self.has_begun, true) {
            begin(self.out, !self.is_answered, block_size_tokens)?;
        }
        for (mut record, blocks) in self.waiting.drain(..) {
            if let Some(block_size_tokens) = block_size_tokens {
                blocks.hash(&mut record, block_size_tokens);
            }
            self.out.request(record)?;
        }
        Ok(())
    }

    pub(super) fn tally(&mut self) -> &mut Tally {
        &mut self.out.tally
    }

    fn record(&mut self, row: &Map<String, Value>) -> Result<(RequestRecord, PromptBlocks), Problem> {
        let mut record = RequestRecord::default();
        let mut blocks = PromptBlocks::Unknown;
        let (mut has_prompt, mut has_output) = (false, false);
        let mut mean_gap_ns = None;
        let is_of_run = RUN_COLUMNS.iter().all(|column| row.contains_key(*column));
        // If a row has both a duration and an end, the end is on the clock of the arrival.
        let has_duration = row.keys().filter_map(|own| self.standard_name(own)).any(is_duration);
        for (own, value) in row {
            let Some(title) = self.standard_name(own).map(str::to_owned) else { continue };
            let title = title.as_str();
            let Some(cell) = Cell::of(title, value)? else { continue };
            let Some(column) = Column::of(title) else {
                if TIMES.iter().any(|(name, _)| *name == title) {
                    let text = format!("invalid column `{title}`: expected a unit in its name, such as `{title}_ms`");
                    return Err(Problem::new(title, text));
                }
                let is_known = is_of_run && RequestRow::FIELDS.iter().any(|(field, _)| *field == title);
                if !is_known {
                    self.out.tally.note(&format!("values of the column `{title}`"));
                }
                continue;
            };
            match column {
                Column::Id => record.id = Some(cell.text()),
                Column::ExternalId => record.external_id = Some(cell.text()),
                Column::Session => record.session = Some(cell.text()),
                Column::Rank => record.rank = cell.count()?,
                Column::Concurrency => record.concurrency = Some(cell.count()?),
                Column::PromptTokens => (record.prompt_tokens, has_prompt) = (cell.count()?, true),
                Column::CachedTokens => record.cached_tokens = cell.count()?,
                Column::ExternalCachedTokens => record.external_cached_tokens = cell.count()?,
                Column::OutputTokens => (record.output_tokens, has_output) = (cell.count()?, true),
                Column::FinishReason => record.finish_reason = Some(cell.finish_reason()?),
                Column::Error => record.error = Some(cell.text()),
                Column::Preemptions => record.preemptions = cell.count()?,
                Column::Priority => record.priority = cell.signed()?,
                Column::Lora => record.lora = Some(cell.text()),
                Column::PromptHash => record.prompt_hash = Some(cell.hash()?),
                Column::HashIds => blocks = PromptBlocks::Ids(cell.ids()?),
                Column::PromptTokenIds => blocks = PromptBlocks::Tokens(cell.token_ids()?),
                Column::Time(Time::Arrival, unit) => record.arrival_ns = Some(self.arrival_ns(&cell, unit)?),
                Column::Time(Time::Think, unit) => record.think_ns = Some(cell.duration_ns(unit)?),
                Column::Time(Time::Queue, unit) => record.queue_ns = Some(cell.duration_ns(unit)?),
                Column::Time(Time::Ttft, unit) => record.ttft_ns = Some(cell.duration_ns(unit)?),
                Column::Time(Time::End, _) if has_duration && !is_duration(title) => {}
                Column::Time(Time::End, unit) => record.end_ns = Some(cell.duration_ns(unit)?),
                Column::Time(Time::MeanGap, unit) => mean_gap_ns = Some(cell.duration_ns(unit)?),
                Column::Time(Time::MaxGap, _) => {}
            }
        }
        for (is_given, names) in [(has_prompt, &PROMPT_COLUMNS[..]), (has_output, &OUTPUT_COLUMNS)] {
            if !is_given {
                return Err(Problem::new(names[0], format!("the row has none; name it one of {}", names.join(", "))));
            }
        }
        record.gap_summary = mean_gap_ns.and_then(|mean_ns| gaps(&record, mean_ns));
        self.block_sizes.see(&blocks, record.prompt_tokens)?;
        Ok((checked(record)?, blocks))
    }

    fn arrival_ns(&mut self, cell: &Cell<'_>, ns_per_unit: u32) -> Result<u64, Problem> {
        let at_ns = cell.clock_ns(ns_per_unit)?;
        let is_since_start = (0..MAX_SINCE_START_NS).contains(&at_ns);
        let start_ns = *self.start_ns.get_or_insert(if is_since_start { 0 } else { at_ns });
        let early =
            || Problem::new(cell.title, "the arrival is before that of the first row; sort the rows by arrival");
        u64::try_from(at_ns - start_ns).map_err(|_| early())
    }
}

impl RowSink for Table<'_, '_> {
    fn add(&mut self, place: Place, row: &Map<String, Value>) -> Result<(), ImportError> {
        let titles = row.keys().filter_map(|own| self.standard_name(own));
        self.is_answered |= titles.filter_map(Column::of).any(Column::is_of_answer);
        if !self.columns.is_empty() {
            for title in row.keys().filter(|title| !title.is_empty()) {
                if !self.seen.contains(title) {
                    self.seen.insert(title.clone());
                }
            }
        }
        match self.record(row) {
            Ok(parts) => self.waiting.push(parts),
            Err(problem) => return self.refuse(place, problem),
        }
        if self.block_sizes.is_clear() { self.pass_on() } else { Ok(()) }
    }

    fn refuse(&mut self, place: Place, problem: Problem) -> Result<(), ImportError> {
        self.out.tally.refuse(problem.at(self.name, place))
    }
}

/// Whether a column is certainly the time from the arrival to the end.
fn is_duration(title: &str) -> bool {
    title.starts_with("e2e_") || title.starts_with("latency_")
}

/// The gaps with this mean. Their number follows from the time between first output and end. If that is unknown,
/// there is a gap before each token except the first.
fn gaps(record: &RequestRecord, mean_ns: u64) -> Option<GapSummary> {
    let most = record.output_tokens.checked_sub(1).filter(|most| *most > 0)?;
    let count = match (record.ttft_ns, record.end_ns) {
        (Some(ttft_ns), Some(end_ns)) if mean_ns > 0 => {
            let count = end_ns.saturating_sub(ttft_ns).saturating_add(mean_ns / 2) / mean_ns;
            u32::try_from(count).unwrap_or(most).clamp(1, most)
        }
        _ => most,
    };
    Some(GapSummary { mean_ns, count })
}

struct Cell<'v> {
    title: &'v str,
    value: &'v Value,
}

impl<'v> Cell<'v> {
    /// Returns None if the cell has no value, which means `null` or an empty text.
    fn of(title: &'v str, value: &'v Value) -> Result<Option<Self>, Problem> {
        match value {
            Value::Null => Ok(None),
            Value::String(text) if text.trim().is_empty() => Ok(None),
            Value::Array(_) if matches!(Column::of(title), Some(Column::HashIds | Column::PromptTokenIds)) => {
                Ok(Some(Self { title, value }))
            }
            Value::Array(_) | Value::Object(_) if Column::of(title).is_some() => {
                Err(Problem::new(title, "invalid value: expected a text or a number"))
            }
            _ => Ok(Some(Self { title, value })),
        }
    }

    fn text(&self) -> String {
        match self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    fn invalid(&self, expected: &str) -> Problem {
        Problem::new(self.title, format!("invalid value `{}`: expected {expected}", self.text()))
    }

    /// Reads a number: (the whole number, if it is written or stored as one, the number as a double).
    fn number(&self) -> Option<(Option<i128>, f64)> {
        match self.value {
            Value::String(text) => {
                let text = text.trim();
                let number: f64 = text.parse().ok()?;
                Some((text.parse().ok(), number))
            }
            Value::Number(number) => {
                let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
                Some((whole, number.as_f64()?))
            }
            _ => None,
        }
    }

    /// Reads a whole number. Tables of other tools may store it as a double.
    fn whole(&self) -> Option<i128> {
        let (whole, number) = self.number()?;
        let is_whole = number.fract() == 0.0 && number.abs() < 9e15;
        whole.or(is_whole.then_some(number as i128))
    }

    fn count(&self) -> Result<u32, Problem> {
        let count = self.whole().and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| self.invalid("a whole number from 0 to 4294967295"))
    }

    fn signed(&self) -> Result<i64, Problem> {
        let number = self.whole().and_then(|number| i64::try_from(number).ok());
        number.ok_or_else(|| self.invalid("a whole number"))
    }

    fn duration_ns(&self, ns_per_unit: u32) -> Result<u64, Problem> {
        let (whole, number) = self.number().ok_or_else(|| self.invalid("a number"))?;
        match whole {
            Some(whole) if (0..MAX_SINCE_START_NS / i128::from(ns_per_unit)).contains(&whole) => {
                u64::try_from(whole * i128::from(ns_per_unit)).map_err(|_| self.invalid("a duration"))
            }
            _ => duration_ns(self.title, number, f64::from(ns_per_unit)),
        }
    }

    fn clock_ns(&self, ns_per_unit: u32) -> Result<i128, Problem> {
        let (whole, number) = self.number().ok_or_else(|| self.invalid("a number"))?;
        match whole.and_then(|whole| whole.checked_mul(i128::from(ns_per_unit))) {
            Some(ns) if ns.abs() < 4_000_000_000_000_000_000 => Ok(ns),
            _ => clock_ns(self.title, number, ns_per_unit),
        }
    }

    fn finish_reason(&self) -> Result<String, Problem> {
        let text = self.text();
        FinishReason::parse(&text).map(|_| text).ok_or_else(|| self.invalid(FinishReason::EXPECTED))
    }

    /// Reads whole numbers from an array, or from a text such as `[1, 2]` or `1 2`.
    fn ids(&self) -> Result<Vec<u64>, Problem> {
        let invalid = || self.invalid("whole numbers, as an array or separated by spaces");
        match self.value {
            Value::Array(items) => items.iter().map(|item| item.as_u64().ok_or_else(invalid)).collect(),
            Value::String(text) => {
                let items = text.split([' ', ',', ';', '[', ']']).filter(|item| !item.is_empty());
                items.map(|item| item.parse().map_err(|_| invalid())).collect()
            }
            _ => Err(invalid()),
        }
    }

    fn token_ids(&self) -> Result<Vec<u32>, Problem> {
        let ids = self.ids()?.into_iter().map(u32::try_from).collect::<Result<Vec<_>, _>>();
        ids.map_err(|_| self.invalid("token ids below 4294967296"))
    }

    fn hash(&self) -> Result<BlockHash, Problem> {
        let hash = u64::from_str_radix(&self.text(), 16).ok().filter(|_| self.value.is_string());
        hash.map(BlockHash).ok_or_else(|| self.invalid("16 hexadecimal digits"))
    }
}
