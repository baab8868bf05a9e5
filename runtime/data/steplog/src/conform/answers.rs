//! The model's answers in a recording, given to the replay.

use std::collections::{BTreeMap, HashMap, VecDeque};

use vcr_core::TokenSource;

use super::capture::Capture;

/// Token ids from this value on stand for unknown tokens.
pub(super) const FIRST_UNKNOWN_TOKEN: u32 = 0xf000_0000;
/// The stop token of a request whose real stop token is unknown.
const UNKNOWN_STOP_TOKEN: u32 = u32::MAX;

pub(super) struct RecordedTokens {
    answers: Vec<Answer>,
    /// The ends that no request has used yet, by request id.
    ends: HashMap<String, VecDeque<End>>,
    /// Number of tokens that the step being applied emitted, by tag.
    pub(super) emitted: HashMap<u64, u32>,
    /// Number of drafts that each request takes into its next step, by tag.
    pub(super) drafts: HashMap<u64, u32>,
}

struct Answer {
    /// The known tokens. Tokens after them are unknown.
    tokens: Vec<u32>,
    /// The index of the token that stopped the request; None if that token is known or if no token stopped the
    /// request.
    unknown_stop_at: Option<u32>,
}

struct End {
    tokens: u32,
    is_stop: bool,
}

impl RecordedTokens {
    pub(super) fn of(capture: &Capture) -> Self {
        Self { answers: Vec::new(), ends: ends(capture), emitted: HashMap::new(), drafts: HashMap::new() }
    }

    /// Prepares the answer of request `id`, which gets the next tag. Returns the token that stops the request, if
    /// any.
    pub(super) fn add(&mut self, capture: &Capture, id: &str) -> Option<u32> {
        // The samples of one request (`n` above 1) share the caller's id, so their outputs are unknown.
        let has_own = capture.caller_id(id) == id;
        let tokens = capture.outputs.get(id).filter(|_| has_own).cloned().unwrap_or_default();
        let end = self.ends.get_mut(id).and_then(VecDeque::pop_front).filter(|end| end.is_stop);
        let last = end.and_then(|end| end.tokens.checked_sub(1));
        let stop = last.and_then(|last| {
            let (last, before) = tokens.get(..=last as usize)?.split_last()?;
            // With `min_tokens`, the token may also occur earlier without stopping the request.
            (!before.contains(last)).then_some(*last)
        });
        let unknown_stop_at = last.filter(|_| stop.is_none());
        self.answers.push(Answer { tokens, unknown_stop_at });
        stop.or(unknown_stop_at.map(|_| UNKNOWN_STOP_TOKEN))
    }
}

/// Lists the ends of all requests. An id may be used again after its request ended.
fn ends(capture: &Capture) -> HashMap<String, VecDeque<End>> {
    let mut tokens: HashMap<&str, u32> = HashMap::new();
    let mut ends: HashMap<String, VecDeque<End>> = HashMap::new();
    for (_, step) in &capture.log.steps {
        for name in &step.aborted {
            let end = End { tokens: tokens.remove(name.as_str()).unwrap_or(0), is_stop: false };
            ends.entry(name.clone()).or_default().push_back(end);
        }
        for (name, emitted) in &step.emitted {
            let total = tokens.entry(name).or_default();
            *total = total.saturating_add(*emitted);
        }
        for (name, reason) in &step.stopped {
            let end = End { tokens: tokens.remove(name.as_str()).unwrap_or(0), is_stop: reason == "stop" };
            ends.entry(name.clone()).or_default().push_back(end);
        }
    }
    ends
}

impl TokenSource for RecordedTokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        let answer = &self.answers[tag as usize];
        if answer.unknown_stop_at == Some(output_index) {
            return UNKNOWN_STOP_TOKEN;
        }
        let known = answer.tokens.get(output_index as usize).copied();
        known.unwrap_or(FIRST_UNKNOWN_TOKEN | output_index)
    }

    fn accepted_drafts(&mut self, tag: u64, _num_drafts: u32) -> u32 {
        self.emitted.get(&tag).map_or(0, |tokens| tokens.saturating_sub(1))
    }

    fn proposed_drafts(&mut self, tag: u64, _most: u32) -> u32 {
        self.drafts.get(&tag).copied().unwrap_or(0)
    }
}

/// The token with which the simulated model stops a request.
pub(super) const STOP_TOKEN: u32 = 7;
/// The first token of a segment is the segment's number times this value.
pub(super) const SEGMENT_TOKENS: u32 = 4096;
/// The segment of a request's outputs is the request's id plus this value.
const FIRST_OUTPUT_SEGMENT: u32 = 100_000;

/// The model's answers in the line that is being replayed.
#[derive(Default)]
pub(super) struct RecordedAnswers {
    pub(super) stop_at: HashMap<u64, u32>,
    pub(super) sampled: BTreeMap<u64, u32>,
    pub(super) drafts: HashMap<u64, u32>,
    /// Number of proposed or verified drafts that do not fit the grammar, by request.
    pub(super) invalid: HashMap<u64, u32>,
}

impl TokenSource for RecordedAnswers {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        if self.stop_at.get(&tag) == Some(&output_index) {
            return STOP_TOKEN;
        }
        let segment = FIRST_OUTPUT_SEGMENT.wrapping_add(tag as u32);
        segment.wrapping_mul(SEGMENT_TOKENS).wrapping_add(output_index)
    }

    fn accepted_drafts(&mut self, tag: u64, _num_drafts: u32) -> u32 {
        self.sampled.get(&tag).map_or(0, |tokens| tokens.saturating_sub(1))
    }

    fn valid_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        num_drafts.saturating_sub(self.invalid.get(&tag).copied().unwrap_or(0))
    }

    fn proposed_drafts(&mut self, tag: u64, _most: u32) -> u32 {
        self.drafts.get(&tag).copied().unwrap_or(0)
    }
}
