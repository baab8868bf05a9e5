//! Reads a capture as a workload: arrivals, lengths, shared prefixes, and turns of sessions.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use vcr_base::finish_reason::FinishReason;

use super::http::{HttpRecord, RecordedCall};
use super::reader::CapturePosition;
use super::reader::CaptureReader;
use super::record::{CaptureLine, RequestRecord};
use super::sessions::{NamedSessions, TurnTimes};
use crate::assemble::{Assembler, Row};
use crate::{
    AnswerEnd, AnswerTimes, ItemRange, MediaItem, OutputTime, RowProblem, Sessions, Trace, TraceError, TraceOptions,
    TraceWarning, WarningKind,
};

struct Request {
    position: CapturePosition,
    name: Option<Box<str>>,
    session: Option<Box<str>>,
    turn_times: TurnTimes,
    prompt_tokens: u32,
    output_tokens: u32,
    /// The hashes of the prompt's full blocks, as a range of `Workload::hashes`.
    chain: Range<usize>,
    /// Whether the hash of the prompt's partial last block follows the hashes of the full blocks.
    has_hashed_tail: bool,
    /// Whether no other prompt can share the partial last block, because no `prompt_hash` identifies it.
    has_own_tail: bool,
    /// The answer, as a range of `Workload::output_token_ids`.
    answer: Range<usize>,
    items: Vec<MediaItem>,
    /// The times of the answer, and the range of the outputs in `Workload::output_times`.
    times: Option<(AnswerTimes, Range<usize>)>,
    priority: i64,
    call: Option<Arc<RecordedCall>>,
}

struct Turn {
    session: Box<str>,
    /// Time from the end of the previous turn; `None` for the first turn.
    think_ns: Option<u64>,
}

#[derive(Default)]
struct Workload {
    requests: Vec<Request>,
    /// Block hashes of all prompts. The hash of a prompt's partial last block, if known, follows those of its full
    /// blocks.
    hashes: Vec<u64>,
    output_token_ids: Vec<u32>,
    output_times: Vec<OutputTime>,
    /// Names of the capture's files, by the file index of positions.
    names: Vec<String>,
}

pub(crate) fn read(mut reader: CaptureReader<'_>, options: &TraceOptions) -> Result<Trace, TraceError> {
    let mut options = options.clone();
    if let Some(tokens) = reader.meta().block_size_tokens.and_then(NonZeroU32::new) {
        options.block_size_tokens = Some(tokens);
    }
    let mut workload = Workload::default();
    // The HTTP exchange of a request is on the line before the request.
    let mut exchange: Option<HttpRecord> = None;
    while let Some((position, line)) = reader.next_placed()? {
        if let CaptureLine::Http(record) = line {
            exchange = options.calls.then_some(*record);
        } else if let CaptureLine::Request(record) = line {
            let its = exchange.take().filter(|exchange| record.id.as_ref() == Some(&exchange.id));
            let call = its.and_then(HttpRecord::call).map(Arc::new);
            workload.names.resize(position.file as usize + 1, String::new());
            reader.file_name().clone_into(&mut workload.names[position.file as usize]);
            workload.add(position, *record, call, &options);
        }
    }
    let mut assembler = Assembler::new(&options);
    for warning in reader.summary().warnings {
        let kind = WarningKind::Capture(warning.to_string().into());
        assembler.note(TraceWarning { kind, first_line: warning.first_line, rows: warning.lines });
    }
    workload.assemble(&options, &mut assembler)?;
    assembler.finish(reader.file_name())
}

impl Workload {
    fn add(
        &mut self,
        position: CapturePosition,
        record: RequestRecord,
        call: Option<Arc<RecordedCall>>,
        options: &TraceOptions,
    ) {
        let block_size_tokens = options.block_size_or_default().get();
        let start = self.hashes.len();
        self.hashes.extend(record.block_hashes.iter().map(|hash| hash.0));
        let chain = start..self.hashes.len();
        let full_blocks = (record.prompt_tokens / block_size_tokens) as usize;
        let has_content = chain.len() == full_blocks && (full_blocks > 0 || record.prompt_hash.is_some());
        let has_tail = has_content && !record.prompt_tokens.is_multiple_of(block_size_tokens);
        let tail_hash = record.prompt_hash.filter(|_| has_tail);
        self.hashes.extend(tail_hash.map(|hash| hash.0));
        let answer_start = self.output_token_ids.len();
        self.output_token_ids.extend(record.output_token_ids.iter().flatten());
        let times = options.answer_times.then(|| self.add_times(&record)).flatten();
        self.requests.push(Request {
            times,
            position,
            turn_times: TurnTimes {
                arrival_ns: record.arrival_ns,
                duration_ns: record.duration_ns(),
                think_ns: record.think_ns,
            },
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            // Hashes are ignored if there are more or fewer than the prompt has blocks.
            chain: if has_content { chain } else { start..start },
            has_hashed_tail: tail_hash.is_some(),
            has_own_tail: has_tail && tail_hash.is_none(),
            answer: answer_start..self.output_token_ids.len(),
            items: record.mm_items,
            priority: record.priority,
            name: record.external_id.or(record.id).map(Into::into),
            session: record.session.map(Into::into),
            call,
        });
    }

    fn add_times(&mut self, record: &RequestRecord) -> Option<(AnswerTimes, Range<usize>)> {
        let outputs = record.output_times()?;
        let last_ns = outputs.last().map_or(0, |(after_ns, _)| *after_ns);
        let times = AnswerTimes {
            queue_ns: record.queue_ns.unwrap_or(0),
            end_ns: record.end_ns.map_or(last_ns, |end_ns| end_ns.max(last_ns)),
            cached_tokens: record.cached_tokens,
            end: match record.finish_reason.as_deref().and_then(FinishReason::parse) {
                Some(FinishReason::Stop | FinishReason::Length | FinishReason::Repetition) => AnswerEnd::Whole,
                Some(FinishReason::Error) => AnswerEnd::Failed,
                Some(FinishReason::Abort) => AnswerEnd::Aborted,
                None if record.error.is_some() => AnswerEnd::Failed,
                // Sources without finish reasons still tell when a request ended.
                None if record.is_over() => AnswerEnd::Whole,
                None => AnswerEnd::Aborted,
            },
            outputs: ItemRange::default(),
        };
        let start = self.output_times.len();
        self.output_times.extend(outputs.into_iter().map(|(after_ns, num_tokens)| OutputTime { after_ns, num_tokens }));
        Some((times, start..self.output_times.len()))
    }

    /// Adds the requests to the assembler: in order of arrival, or in file order if an arrival is unknown.
    fn assemble(&mut self, options: &TraceOptions, assembler: &mut Assembler) -> Result<(), TraceError> {
        if self.requests.iter().all(|request| request.turn_times.arrival_ns.is_some()) {
            self.requests.sort_by_key(|request| request.turn_times.arrival_ns);
        }
        for (index, turn) in self.turns(options).into_iter().enumerate() {
            let request = &self.requests[index];
            let pushed = self.row(request, turn).and_then(|row| assembler.push(request.position.line, row));
            pushed.map_err(|(field, problem)| TraceError::Row {
                name: self.names[request.position.file as usize].clone(),
                line: request.position.line,
                field: field.map(name_in_captures),
                problem,
            })?;
        }
        Ok(())
    }

    fn row<'a>(&'a self, request: &'a Request, turn: Turn) -> Result<Row<'a>, (Option<&'static str>, RowProblem)> {
        let beyond = |field, range: &str| (Some(field), RowProblem::Malformed(format!("the number is beyond {range}")));
        let timestamp_ns = request.turn_times.arrival_ns.map(i64::try_from).transpose();
        let ids_end = request.chain.end + usize::from(request.has_hashed_tail);
        Ok(Row {
            request_id: request.name.clone(),
            session_id: Some(turn.session),
            input_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            hash_ids: &self.hashes[request.chain.start..ids_end],
            own_blocks: u32::from(request.has_own_tail),
            output_token_ids: &self.output_token_ids[request.answer.clone()],
            items: &request.items,
            call: request.call.clone(),
            timestamp_ns: timestamp_ns.map_err(|_| beyond("arrival_ns", "292 years"))?,
            delay_ns: turn.think_ns,
            times: request.times.as_ref().map(|(times, outputs)| (*times, &self.output_times[outputs.clone()])),
            priority: i32::try_from(request.priority).map_err(|_| beyond("priority", "32 bits"))?,
            ..Row::default()
        })
    }

    /// The session of each request: the session of its previous turn, or else a new one.
    fn turns(&self, options: &TraceOptions) -> Vec<Turn> {
        let ignores_arrivals = !options.first_timestamp_required;
        let mut named = NamedSessions::new(ignores_arrivals);
        // The map is looked up, never iterated, so its order has no effect.
        let mut last_of_chain: HashMap<(usize, u64), usize> = HashMap::new();
        let mut begun: HashSet<&str> = HashSet::new();
        let mut is_continued = vec![false; self.requests.len()];
        let mut turns: Vec<Turn> = Vec::with_capacity(self.requests.len());
        let unnamed = unnamed_prefix(self.requests.iter().filter_map(|request| request.session.as_deref()));
        for (index, request) in self.requests.iter().enumerate() {
            let parent = match (options.sessions, &request.session) {
                (Sessions::None, _) | (Sessions::Recorded, None) => None,
                (_, Some(name)) => named.add(name, index, request.turn_times),
                (Sessions::ByPrefix, None) => {
                    let chain = &self.hashes[request.chain.clone()];
                    // A hash covers everything before it, so hash and depth identify the whole chain.
                    let parent = (1..chain.len()).rev().find_map(|depth| last_of_chain.get(&(depth, chain[depth - 1])));
                    let parent = parent.copied().filter(|parent| !is_continued[*parent]);
                    if let Some(last) = chain.last() {
                        last_of_chain.insert((chain.len(), *last), index);
                    }
                    parent.and_then(|parent| {
                        let before = &self.requests[parent].turn_times;
                        Some((parent, request.turn_times.think_after(before, ignores_arrivals)?))
                    })
                }
            };
            turns.push(match parent {
                Some((parent, think_ns)) => {
                    is_continued[parent] = true;
                    Turn { session: turns[parent].session.clone(), think_ns: Some(think_ns) }
                }
                None => {
                    let name = request.session.as_deref().filter(|name| begun.insert(*name));
                    let session = name.map_or_else(|| format!("{unnamed}{index}"), str::to_owned);
                    Turn { session: session.into(), think_ns: None }
                }
            });
        }
        turns
    }
}

/// The prefix for names of unnamed sessions, before the number of the first request. It has one `#` more than any
/// given name starts with, so no given name starts with it.
fn unnamed_prefix<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let hashes = names.map(|name| name.len() - name.trim_start_matches('#').len()).max();
    "#".repeat(hashes.unwrap_or(0) + 1)
}

fn name_in_captures(field: &'static str) -> &'static str {
    match field {
        "timestamp" => "arrival_ns",
        "input_length" => "prompt_tokens",
        other => other,
    }
}
