//! First tokens that are longer on their way than others (`overheads.first_token`).
//!
//! Owns their messages until they leave: after that time, or right before the next message
//! to the same API server that could carry a second token.

use std::collections::VecDeque;

use vcr_wire::{ProtocolRules, StepEncoder, StepEnd};

/// A message, and when it leaves on the clock of faults.
struct Held {
    at_ns: u64,
    frame: Vec<u8>,
}

/// State of one lane.
struct Lane {
    encoder: StepEncoder,
    /// In the order of their times.
    held: VecDeque<Held>,
}

impl Lane {
    fn new(rules: &'static ProtocolRules) -> Self {
        Self { encoder: StepEncoder::new(rules), held: VecDeque::new() }
    }
}

/// The first tokens of all lanes.
pub(crate) struct FirstTokens {
    lanes: Vec<Lane>,
    delay_ns: u64,
}

impl FirstTokens {
    pub(crate) fn new(lanes: usize, delay_ns: u64, rules: &'static ProtocolRules) -> Self {
        Self { lanes: (0..lanes).map(|_| Lane::new(rules)).collect(), delay_ns }
    }

    /// Changes the protocol version. Nothing has been gathered.
    pub(crate) fn set_version(&mut self, rules: &'static ProtocolRules) {
        self.lanes.iter_mut().for_each(|lane| *lane = Lane::new(rules));
    }

    /// Gathers first tokens for a lane.
    pub(crate) fn encoder(&mut self, lane: u32) -> &mut StepEncoder {
        &mut self.lanes[lane as usize].encoder
    }

    /// Holds what a step has gathered for a lane, if it has anything.
    pub(crate) fn hold(&mut self, lane: usize, end: StepEnd<'_>, now_ns: u64) {
        let lane = &mut self.lanes[lane];
        if lane.encoder.is_empty() {
            return;
        }
        let mut frame = Vec::new();
        lane.encoder.finish(end, &mut frame);
        lane.held.push_back(Held { at_ns: now_ns.saturating_add(self.delay_ns), frame });
    }

    /// Takes the oldest message of a lane.
    pub(crate) fn next_of(&mut self, lane: usize) -> Option<Vec<u8>> {
        self.lanes[lane].held.pop_front().map(|held| held.frame)
    }

    /// Takes a message whose time has come, with its lane.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        let is_due = |lane: &Lane| lane.held.front().is_some_and(|held| held.at_ns <= now_ns);
        let lane = self.lanes.iter().position(is_due)?;
        self.next_of(lane).map(|frame| (lane, frame))
    }

    /// When the next message leaves.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| lane.held.front()).map(|held| held.at_ns).min()
    }
}
