//! Rows become a trace: dense ids, sessions, times relative to the start.

use crate::{ItemRange, RowProblem, Trace, TraceError, TraceOptions, TraceRequest, TraceWarning, WarningKind};
use std::collections::HashMap;

/// One decoded row, whatever its format.
#[derive(Default)]
pub(crate) struct Row<'a> {
    pub(crate) request_id: Option<Box<str>>,
    pub(crate) session_id: Option<Box<str>>,
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
    /// The source's own ids; none if it says nothing about content.
    pub(crate) hash_ids: &'a [u64],
    /// Whether one more block follows those, with content that no other has.
    pub(crate) has_own_tail: bool,
    pub(crate) output_token_ids: &'a [u32],
    pub(crate) timestamp_ns: Option<i64>,
    pub(crate) delay_ns: Option<u64>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    pub(crate) policy_class: Option<Box<str>>,
}

/// A field and what is wrong with it.
pub(crate) type FieldProblem = (Option<&'static str>, RowProblem);

/// Where a session stands while the file is read.
struct OpenSession {
    session: u32,
    last_request: u32,
    last_timestamp_ns: Option<i64>,
}

/// Collects rows into a [`Trace`].
pub(crate) struct Assembler {
    trace: Trace,
    first_timestamp_required: bool,
    // These maps are looked up, never iterated, so their order cannot show.
    dense_hash_ids: HashMap<u64, u32>,
    open_sessions: HashMap<Box<str>, OpenSession>,
    dense_policy_classes: HashMap<Box<str>, u32>,
    warning_index: HashMap<Box<str>, usize>,
    /// Absolute first-turn times by request; relative once all are known.
    first_turns: Vec<(u32, i64)>,
}

impl Assembler {
    pub(crate) fn new(options: &TraceOptions) -> Self {
        Assembler {
            trace: Trace { block_size_tokens: options.block_size_tokens.get(), ..Trace::default() },
            first_timestamp_required: options.first_timestamp_required,
            dense_hash_ids: HashMap::new(),
            open_sessions: HashMap::new(),
            dense_policy_classes: HashMap::new(),
            warning_index: HashMap::new(),
            first_turns: Vec::new(),
        }
    }

    /// Counts a warning; one entry per kind and field, at most once per row.
    pub(crate) fn warn(&mut self, kind: WarningKind, line: u32) {
        // No JSON field or CSV column can collide with the two fixed keys.
        let key = match &kind {
            WarningKind::UnknownField(name) => name.clone(),
            WarningKind::InputLengthClamped => "\0clamped".into(),
            WarningKind::SurplusHashIds => "\0surplus".into(),
            WarningKind::Capture(text) => text.clone(),
        };
        let warnings = &mut self.trace.warnings;
        let index = *self.warning_index.entry(key).or_insert_with(|| {
            warnings.push(TraceWarning { kind, first_line: line, rows: 0 });
            warnings.len() - 1
        });
        warnings[index].rows += 1;
    }

    /// Adds a warning that is counted already.
    pub(crate) fn note(&mut self, warning: TraceWarning) {
        self.trace.warnings.push(warning);
    }

    /// Adds the row of `line`.
    pub(crate) fn push(&mut self, line: u32, row: Row<'_>) -> Result<(), FieldProblem> {
        if row.input_tokens == 0 {
            return Err((Some("input_length"), RowProblem::EmptyPrompt));
        }
        let index = index_of(self.trace.requests.len(), "requests")?;
        let (session, turn, delay_ns) = self.place(index, &row)?;
        let hash_ids = self.push_hash_ids(row.hash_ids, row.has_own_tail)?;
        let start = index_of(self.trace.output_token_ids.len(), "output token ids")?;
        let len = index_of(row.output_token_ids.len(), "output token ids")?;
        self.trace.output_token_ids.extend_from_slice(row.output_token_ids);
        let policy_class = row.policy_class.map(|name| self.policy_class(name));
        self.trace.requests.push(TraceRequest {
            request_id: row.request_id,
            line,
            session,
            turn,
            next_turn: None,
            arrival_ns: None,
            delay_ns,
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            hash_ids,
            output_token_ids: ItemRange { start, len },
            priority: row.priority,
            strict_priority: row.strict_priority,
            policy_class,
        });
        Ok(())
    }

    /// Finds the row's session and turn, and how long it waits after the
    /// previous turn: the explicit delay, else the difference of the two
    /// timestamps, else nothing (Dynamo's rule).
    fn place(&mut self, index: u32, row: &Row<'_>) -> Result<(u32, u32, u64), FieldProblem> {
        if let Some(id) = &row.session_id
            && let Some(open) = self.open_sessions.get_mut(id)
        {
            let previous = &mut self.trace.requests[open.last_request as usize];
            let turn = previous.turn + 1;
            let delay_ns = match (row.delay_ns, open.last_timestamp_ns, row.timestamp_ns) {
                (Some(delay_ns), _, _) => delay_ns,
                (None, Some(before), Some(now)) => u64::try_from(i128::from(now) - i128::from(before))
                    .map_err(|_| (Some("timestamp"), RowProblem::TurnBackwards { turn }))?,
                (None, _, _) => 0,
            };
            previous.next_turn = Some(index);
            open.last_request = index;
            open.last_timestamp_ns = row.timestamp_ns;
            return Ok((open.session, turn, delay_ns));
        }

        if row.delay_ns.is_some() {
            return Err((Some("delay"), RowProblem::DelayOnFirstTurn));
        }
        match row.timestamp_ns {
            Some(timestamp_ns) => self.first_turns.push((index, timestamp_ns)),
            None if self.first_timestamp_required => {
                return Err((Some("timestamp"), RowProblem::MissingFirstTimestamp));
            }
            None => {}
        }
        let session = self.trace.sessions;
        // There are no more sessions than requests, whose count is checked.
        self.trace.sessions += 1;
        if let Some(id) = &row.session_id {
            self.open_sessions
                .insert(id.clone(), OpenSession { session, last_request: index, last_timestamp_ns: row.timestamp_ns });
        }
        Ok((session, 0, 0))
    }

    fn push_hash_ids(&mut self, ids: &[u64], has_own_tail: bool) -> Result<ItemRange, FieldProblem> {
        let range = ItemRange {
            start: index_of(self.trace.hash_ids.len(), "hash ids")?,
            len: index_of(ids.len() + usize::from(has_own_tail), "hash ids")?,
        };
        let distinct = &mut self.trace.distinct_hash_ids;
        self.trace.hash_ids.extend(ids.iter().map(|id| {
            *self.dense_hash_ids.entry(*id).or_insert_with(|| {
                *distinct += 1;
                *distinct - 1
            })
        }));
        if has_own_tail {
            self.trace.hash_ids.push(*distinct);
            *distinct += 1;
        }
        Ok(range)
    }

    fn policy_class(&mut self, name: Box<str>) -> u32 {
        let names = &mut self.trace.policy_classes;
        *self.dense_policy_classes.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        })
    }

    /// Shifts times so that the earliest first turn arrives at 0.
    pub(crate) fn finish(mut self, name: &str) -> Result<Trace, TraceError> {
        if self.trace.requests.is_empty() {
            return Err(TraceError::Empty { name: name.to_owned() });
        }
        let earliest_ns = self.first_turns.iter().map(|(_, ns)| *ns).min();
        for (index, timestamp_ns) in self.first_turns {
            let since_ns = earliest_ns.map(|earliest_ns| timestamp_ns.abs_diff(earliest_ns));
            self.trace.requests[index as usize].arrival_ns = since_ns;
        }
        self.trace.requests.shrink_to_fit();
        self.trace.hash_ids.shrink_to_fit();
        self.trace.output_token_ids.shrink_to_fit();
        Ok(self.trace)
    }
}

/// Flat arrays are indexed with 32 bits; a trace beyond that is refused, never
/// wrapped.
fn index_of(len: usize, what: &'static str) -> Result<u32, FieldProblem> {
    // One below the maximum, so that a count of items fits as well.
    match u32::try_from(len) {
        Ok(index) if index < u32::MAX => Ok(index),
        _ => Err((None, RowProblem::TooMany { what })),
    }
}
