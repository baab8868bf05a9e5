//! Assembles rows into a trace with dense content ids, sessions, and times relative to the start.

use crate::capture::RecordedCall;
use crate::dense::DenseIds;
use crate::dependencies;
use crate::trace::media;
use crate::{
    AnswerTimes, Dependency, HashIdRange, HashIdScope, ItemRange, MediaItem, OutputTime, RowProblem, Strictness, Trace,
    TraceError, TraceOptions, TraceRequest, TraceWarning, WarningKind,
};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Row<'a> {
    pub(crate) request_id: Option<Box<str>>,
    pub(crate) session_id: Option<Box<str>>,
    /// An identifier that the sessions of one play share.
    pub(crate) play_id: Option<Box<str>>,
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
    /// The content ids as the source numbers them; empty if the source has none.
    pub(crate) hash_ids: &'a [u64],
    /// Number of blocks after `hash_ids` that no other prompt shares.
    pub(crate) own_blocks: u32,
    pub(crate) output_token_ids: &'a [u32],
    pub(crate) items: &'a [MediaItem],
    pub(crate) timestamp_ns: Option<i64>,
    pub(crate) delay_ns: Option<u64>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    pub(crate) policy_class: Option<Box<str>>,
    pub(crate) times: Option<(AnswerTimes, &'a [OutputTime])>,
    pub(crate) call: Option<Arc<RecordedCall>>,
    /// Recorded duration of the request; kept only for free turns.
    pub(crate) recorded_ns: Option<u64>,
}

pub(crate) type FieldProblem = (Option<&'static str>, RowProblem);

struct OpenSession {
    session: u32,
    last_request: u32,
    last_timestamp_ns: Option<i64>,
    tokens: u64,
}

pub(crate) struct Assembler {
    trace: Trace,
    first_timestamp_required: bool,
    answer_times: bool,
    calls: bool,
    is_strict: bool,
    hash_id_scope: HashIdScope,
    dense_hash_ids: DenseIds,
    // These maps are looked up, never iterated, so their order has no effect.
    plays: HashMap<Box<str>, u32>,
    open_sessions: HashMap<Box<str>, OpenSession>,
    dense_policy_classes: HashMap<Box<str>, u32>,
    warning_index: HashMap<Box<str>, usize>,
    /// Absolute times of first turns, by request. Made relative when all are known.
    first_turns: Vec<(u32, i64)>,
}

impl Assembler {
    pub(crate) fn new(options: &TraceOptions) -> Self {
        Assembler {
            trace: Trace { block_size_tokens: options.block_size_or_default().get(), ..Trace::default() },
            first_timestamp_required: options.first_timestamp_required,
            answer_times: options.answer_times,
            calls: options.calls,
            is_strict: options.strictness == Strictness::Strict,
            hash_id_scope: options.hash_id_scope.unwrap_or_default(),
            dense_hash_ids: DenseIds::default(),
            plays: HashMap::new(),
            open_sessions: HashMap::new(),
            dense_policy_classes: HashMap::new(),
            warning_index: HashMap::new(),
            first_turns: Vec::new(),
        }
    }

    /// Lets turns wait only for their dependencies, not for the previous turn.
    pub(crate) fn with_free_turns(mut self) -> Self {
        self.trace.has_free_turns = true;
        self
    }

    pub(crate) fn with_deltas(mut self, is_delta: bool) -> Self {
        self.trace.is_delta = is_delta;
        self
    }

    pub(crate) fn num_requests(&self) -> u32 {
        // The number was checked when each request was added.
        self.trace.requests.len() as u32
    }

    /// Counts a warning. There is one entry per kind and field, counted at most once per row. In strict reading,
    /// returns `problem` instead.
    pub(crate) fn warn(
        &mut self,
        kind: WarningKind,
        line: u32,
        problem: impl FnOnce() -> FieldProblem,
    ) -> Result<(), FieldProblem> {
        if self.is_strict {
            return Err(problem());
        }
        self.count_warning(kind, line);
        Ok(())
    }

    pub(crate) fn warn_of_field(&mut self, name: &str, line: u32) -> Result<(), FieldProblem> {
        let problem = || (None, RowProblem::UnknownField { name: name.into() });
        self.warn(WarningKind::UnknownField(name.into()), line, problem)
    }

    fn count_warning(&mut self, kind: WarningKind, line: u32) {
        // No field or event name starts with this character.
        let key = match &kind {
            WarningKind::UnknownField(name) => name.clone(),
            WarningKind::InputLengthClamped => "\0\0clamped".into(),
            WarningKind::SurplusHashIds => "\0\0surplus".into(),
            WarningKind::BlockSizeInferred(_) => "\0\0block size".into(),
            WarningKind::UnknownEvent(name) => format!("\0{name}").into(),
            WarningKind::RelativeTimestamps => "\0\0relative".into(),
            WarningKind::FailedRequest => "\0\0failed".into(),
            WarningKind::ParentNotFound => "\0\0parent".into(),
            WarningKind::PromptLengthEstimated => "\0\0estimated".into(),
            WarningKind::Capture(text) => text.clone(),
        };
        let warnings = &mut self.trace.warnings;
        let index = *self.warning_index.entry(key).or_insert_with(|| {
            warnings.push(TraceWarning { kind, first_line: line, rows: 0 });
            warnings.len() - 1
        });
        warnings[index].rows += 1;
    }

    pub(crate) fn note(&mut self, warning: TraceWarning) {
        self.trace.warnings.push(warning);
    }

    pub(crate) fn push(&mut self, line: u32, row: Row<'_>) -> Result<(), FieldProblem> {
        self.add(line, row, None)
    }

    pub(crate) fn push_with_ids(&mut self, line: u32, row: Row<'_>, ids: HashIdRange) -> Result<(), FieldProblem> {
        self.add(line, row, Some(ids))
    }

    fn add(&mut self, line: u32, row: Row<'_>, ids: Option<HashIdRange>) -> Result<(), FieldProblem> {
        if row.input_tokens == 0 {
            return Err((Some("input_length"), RowProblem::EmptyPrompt));
        }
        let index = index_of(self.trace.requests.len(), "requests")?;
        let (session, turn, delay_ns) = self.place(index, &row)?;
        let hash_ids = match ids {
            Some(range) => range,
            None => {
                let scope = self.scope(session, &row);
                self.push_hash_ids(scope, row.hash_ids, row.own_blocks)?
            }
        };
        let start = index_of(self.trace.output_token_ids.len(), "output token ids")?;
        let len = index_of(row.output_token_ids.len(), "output token ids")?;
        self.trace.output_token_ids.extend_from_slice(row.output_token_ids);
        let items = self.push_items(row.items, row.input_tokens)?;
        let policy_class = row.policy_class.map(|name| self.policy_class(name));
        if self.answer_times {
            let times = row.times.map(|(times, outputs)| self.push_outputs(times, outputs)).transpose()?;
            self.trace.answer_times.push(times);
        }
        if self.calls {
            self.trace.calls.push(row.call);
        }
        if self.trace.has_free_turns {
            self.trace.recorded_ns.push(row.recorded_ns);
        }
        self.trace.requests.push(TraceRequest {
            request_id: row.request_id,
            line,
            session,
            turn,
            next_turn: None,
            arrival_ns: None,
            delay_ns,
            dependencies: ItemRange::default(),
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            hash_ids,
            output_token_ids: ItemRange { start, len },
            items,
            priority: row.priority,
            strict_priority: row.strict_priority,
            policy_class,
        });
        Ok(())
    }

    /// Finds the row's session and turn, and the delay after the previous turn. The delay is the explicit one, or
    /// else the difference of the two timestamps, or else 0 (Dynamo's rule).
    fn place(&mut self, index: u32, row: &Row<'_>) -> Result<(u32, u32, u64), FieldProblem> {
        if let Some(id) = &row.session_id
            && let Some(open) = self.open_sessions.get_mut(id)
        {
            let previous = &mut self.trace.requests[open.last_request as usize];
            let turn = previous.turn + 1;
            if self.trace.has_free_turns {
                open.last_request = index;
                self.first_turns.extend(row.timestamp_ns.map(|timestamp_ns| (index, timestamp_ns)));
                return Ok((open.session, turn, 0));
            }
            let delay_ns = match (row.delay_ns, open.last_timestamp_ns, row.timestamp_ns) {
                (Some(delay_ns), _, _) => delay_ns,
                (None, Some(before), Some(now)) => u64::try_from(i128::from(now) - i128::from(before))
                    .map_err(|_| (Some("timestamp"), RowProblem::TurnBackwards { turn }))?,
                (None, _, _) => 0,
            };
            open.tokens += u64::from(row.input_tokens) + u64::from(row.output_tokens);
            if self.trace.is_delta && open.tokens > u64::from(u32::MAX) {
                return Err((Some("input_length"), RowProblem::TooMany { what: "tokens in a conversation" }));
            }
            previous.next_turn = Some(index);
            open.last_request = index;
            open.last_timestamp_ns = row.timestamp_ns;
            return Ok((open.session, turn, delay_ns));
        }

        if row.delay_ns.is_some_and(|delay_ns| delay_ns > 0) {
            return Err((Some("delay"), RowProblem::DelayOnFirstTurn));
        }
        match row.timestamp_ns {
            Some(timestamp_ns) => self.first_turns.push((index, timestamp_ns)),
            None if self.first_timestamp_required && !self.trace.has_free_turns => {
                return Err((Some("timestamp"), RowProblem::MissingFirstTimestamp));
            }
            None => {}
        }
        let session = self.trace.sessions;
        // There are at most as many sessions as requests, whose number is checked.
        self.trace.sessions += 1;
        self.trace.session_ids.push(row.session_id.clone());
        if let Some(id) = &row.session_id {
            self.open_sessions.insert(
                id.clone(),
                OpenSession {
                    session,
                    last_request: index,
                    last_timestamp_ns: row.timestamp_ns,
                    tokens: u64::from(row.input_tokens) + u64::from(row.output_tokens),
                },
            );
        }
        Ok((session, 0, 0))
    }

    fn push_items(&mut self, items: &[MediaItem], input_tokens: u32) -> Result<ItemRange, FieldProblem> {
        if items.is_empty() {
            return Ok(ItemRange::default());
        }
        media::check(items, input_tokens).map_err(|(index, field, problem)| {
            (Some("mm_items"), RowProblem::Item { index: index as u64, field, problem })
        })?;
        let start = index_of(self.trace.items.len(), "multimodal items")?;
        let len = index_of(items.len(), "multimodal items")?;
        self.trace.items.extend_from_slice(items);
        Ok(ItemRange { start, len })
    }

    fn push_outputs(&mut self, times: AnswerTimes, outputs: &[OutputTime]) -> Result<AnswerTimes, FieldProblem> {
        let start = index_of(self.trace.output_times.len(), "outputs")?;
        let len = index_of(outputs.len(), "outputs")?;
        self.trace.output_times.extend_from_slice(outputs);
        Ok(AnswerTimes { outputs: ItemRange { start, len }, ..times })
    }

    /// Numbers the content ids of a prompt, and adds `own_blocks` ids that no other prompt has. With a `scope`, ids
    /// are equal only inside the scope.
    pub(crate) fn push_hash_ids(
        &mut self,
        scope: Option<u64>,
        ids: &[u64],
        own_blocks: u32,
    ) -> Result<HashIdRange, FieldProblem> {
        let dense = &mut self.dense_hash_ids;
        // All ids may be new.
        index_of(dense.distinct() as usize + ids.len() + own_blocks as usize, "hash ids")?;
        let mut rest = ids.iter();
        let mut own = 0..own_blocks;
        let numbers = std::iter::from_fn(|| match (rest.next(), scope) {
            (Some(id), None) => Some(dense.number(*id)),
            (Some(id), Some(scope)) => Some(dense.number_in(scope, *id)),
            (None, _) => own.next().map(|_| dense.fresh()),
        });
        Ok(self.trace.hash_ids.push(numbers))
    }

    /// Numbers the ids of a conversation with this many blocks: the shared blocks of its group, then its own
    /// blocks.
    pub(crate) fn push_conversation(
        &mut self,
        group: Option<u32>,
        shared_blocks: u32,
        blocks: u32,
    ) -> Result<HashIdRange, FieldProblem> {
        let dense = &mut self.dense_hash_ids;
        index_of(dense.distinct() as usize + blocks as usize, "hash ids")?;
        Ok(self.trace.hash_ids.push((0..blocks).map(|block| match group {
            Some(group) if block < shared_blocks => dense.number_in(u64::from(group), u64::from(block)),
            _ => dense.fresh(),
        })))
    }

    pub(crate) fn block_size_tokens(&self) -> u32 {
        self.trace.block_size_tokens
    }

    /// The scope of a row's content ids; None if ids mean the same in the whole trace.
    fn scope(&mut self, session: u32, row: &Row<'_>) -> Option<u64> {
        match (self.hash_id_scope, &row.play_id) {
            (HashIdScope::Trace, _) => None,
            (HashIdScope::Play, Some(play_id)) => Some((1 << 32) | u64::from(self.play(play_id))),
            (HashIdScope::Play, None) | (HashIdScope::Session, _) => Some(u64::from(session)),
        }
    }

    fn play(&mut self, play_id: &str) -> u32 {
        if let Some(play) = self.plays.get(play_id) {
            return *play;
        }
        let play = self.plays.len() as u32;
        self.plays.insert(play_id.into(), play);
        play
    }

    fn policy_class(&mut self, name: Box<str>) -> u32 {
        let names = &mut self.trace.policy_classes;
        *self.dense_policy_classes.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        })
    }

    /// Sets the dependencies of requests, as (request, dependency) in any order. If dependencies form a cycle,
    /// returns one request of the cycle and the problem.
    pub(crate) fn attach(&mut self, edges: Vec<(u32, Dependency)>) -> Result<(), (u32, RowProblem)> {
        dependencies::attach(&mut self.trace, edges)
            .map_err(|cycle| (cycle.requests[0], RowProblem::Cycle { path: cycle.path(&self.trace) }))
    }

    pub(crate) fn line_of(&self, request: u32) -> u32 {
        self.trace.requests[request as usize].line
    }

    /// Ends the trace. Shifts times so that the earliest first turn arrives at 0.
    pub(crate) fn finish(mut self, name: &str) -> Result<Trace, TraceError> {
        if self.trace.requests.is_empty() {
            return Err(TraceError::Empty { name: name.to_owned() });
        }
        self.trace.distinct_hash_ids = self.dense_hash_ids.distinct();
        let requests = &mut self.trace.requests;
        let waits = |index: u32| requests[index as usize].dependencies.len > 0;
        let earliest_ns = self.first_turns.iter().filter(|(index, _)| !waits(*index)).map(|(_, ns)| *ns).min();
        for (index, timestamp_ns) in self.first_turns {
            // Only requests that wait for others can have an earlier timestamp.
            let since = |earliest_ns| if timestamp_ns < earliest_ns { 0 } else { timestamp_ns.abs_diff(earliest_ns) };
            requests[index as usize].arrival_ns = earliest_ns.map(since);
        }
        self.trace.requests.shrink_to_fit();
        self.trace.hash_ids.shrink_to_fit();
        self.trace.output_token_ids.shrink_to_fit();
        Ok(self.trace)
    }
}

/// Converts an index. Arrays have 32-bit indices, so a larger trace is refused.
fn index_of(len: usize, what: &'static str) -> Result<u32, FieldProblem> {
    // The maximum is refused as an index, so that the number of items also fits.
    match u32::try_from(len) {
        Ok(index) if index < u32::MAX => Ok(index),
        _ => Err((None, RowProblem::TooMany { what })),
    }
}
