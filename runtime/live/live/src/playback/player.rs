//! Playback of answers at their recorded times.
//!
//! These requests never enter the engine core. Their outputs come at recorded times after the arrival, so they
//! affect neither each other nor scheduled requests. Their use of KV blocks is not simulated. Cache hits are
//! reported as recorded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use vcr_core::{AnyEngine, TokenSource};
use vcr_wire::EventType;

use crate::playback::capture::{RecordedEnd, RecordedTimes};
use crate::stepping::output::OutputParts;
use crate::stepping::results::StepResults;

#[derive(Debug)]
struct Playing {
    arrived_ns: u64,
    times: RecordedTimes,
    end: RecordedEnd,
    next_output: usize,
}

impl Playing {
    /// The time of the next output, or of the end.
    fn due_ns(&self) -> u64 {
        let after_ns = self.times.outputs.get(self.next_output).map_or(self.times.end_ns, |output| output.after_ns);
        self.arrived_ns.saturating_add(after_ns)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Player {
    playing: BTreeMap<u64, Playing>,
    /// Number of requests without output so far.
    num_waiting: usize,
    /// Times, sequence numbers and tags. Entries of aborted requests are skipped.
    due: BinaryHeap<Reverse<(u64, u64, u64)>>,
    num_scheduled: u64,
    /// Tokens of one output, kept to reuse the allocation.
    tokens: Vec<u32>,
}

impl Player {
    pub(crate) fn len(&self) -> usize {
        self.playing.len()
    }

    /// Number of requests without output so far, and of requests with some.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.num_waiting, self.playing.len() - self.num_waiting)
    }

    /// Starts to play the answer of a request that arrives now.
    pub(crate) fn start(&mut self, tag: u64, now_ns: u64, times: RecordedTimes, end: RecordedEnd) {
        let playing = Playing { arrived_ns: now_ns, times, end, next_output: 0 };
        self.schedule(playing.due_ns(), tag);
        self.playing.insert(tag, playing);
        self.num_waiting += 1;
    }

    fn schedule(&mut self, due_ns: u64, tag: u64) {
        self.num_scheduled += 1;
        self.due.push(Reverse((due_ns, self.num_scheduled, tag)));
    }

    pub(crate) fn remove(&mut self, tag: u64) {
        if let Some(playing) = self.playing.remove(&tag) {
            self.num_waiting -= usize::from(playing.next_output == 0);
        }
    }

    pub(crate) fn tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.playing.keys().copied()
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, ..))| *due_ns)
    }

    /// Takes the next request whose output or end is due.
    fn pop(&mut self, now_ns: u64) -> Option<u64> {
        while let Some(&Reverse((due_ns, _, tag))) = self.due.peek()
            && due_ns <= now_ns
        {
            self.due.pop();
            if self.playing.contains_key(&tag) {
                return Some(tag);
            }
        }
        None
    }

    /// Gathers all outputs that are due; `None` if there are none. Only the settings of `engine` are read.
    pub(crate) fn play_due(
        &mut self,
        parts: &mut OutputParts<'_>,
        engine: &AnyEngine,
        now_ns: u64,
    ) -> Option<StepResults> {
        if self.next_due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return None;
        }
        let mut results = StepResults::default();
        while let Some(tag) = self.pop(now_ns) {
            self.play_one(tag, parts, engine, now_ns, &mut results);
        }
        Some(results)
    }

    /// Gathers the next output of a request, or its end.
    fn play_one(
        &mut self,
        tag: u64,
        parts: &mut OutputParts<'_>,
        engine: &AnyEngine,
        now_ns: u64,
        results: &mut StepResults,
    ) {
        let (Some(playing), Some(request)) = (self.playing.get_mut(&tag), parts.requests.get_mut(tag)) else { return };
        let Some(output) = playing.times.outputs.get(playing.next_output) else {
            results.ended_apart.push((tag, playing.end.reason));
            return;
        };
        self.num_waiting -= usize::from(playing.next_output == 0);
        playing.next_output += 1;
        self.tokens.clear();
        self.tokens.extend((0..output.num_tokens).map(|index| parts.tokens.token(tag, request.output_tokens + index)));
        let is_last = playing.next_output == playing.times.outputs.len();
        let finish = (is_last && playing.end.comes_with_tokens()).then_some(playing.end.reason);
        if request.is_first_output && parts.egress.sends_stats() {
            let admitted_ns = playing.arrived_ns + playing.times.queue_ns;
            request.event(EventType::Scheduled, admitted_ns as f64 / 1e9);
            let (prompt_tokens, cached_tokens) = (request.prompt_tokens, request.local_cached_tokens);
            parts.egress.stats().looked_up(prompt_tokens.into(), cached_tokens.into());
        }
        let due_ns = playing.due_ns();
        if parts.emit(engine, tag, &self.tokens, finish, now_ns, results).is_none() {
            self.schedule(due_ns, tag);
        }
    }
}
