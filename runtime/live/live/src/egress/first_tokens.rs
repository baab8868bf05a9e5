//! Holds back first tokens, if their delay is longer than that of other tokens (`overheads.first_token`).
//!
//! Owns their messages until they are sent: after the delay, or right before the next message to the same API
//! server that could carry a second token.

use std::collections::VecDeque;

use vcr_wire::{ProtocolRules, StepEncoder, StepEnd};

/// A message and its send time, counted from the start of serving.
struct Held {
    at_ns: u64,
    frame: Vec<u8>,
}

struct Channel {
    encoder: StepEncoder,
    /// Messages in the order of their send times.
    held: VecDeque<Held>,
}

impl Channel {
    fn new(rules: &'static ProtocolRules) -> Self {
        Self { encoder: StepEncoder::new(rules), held: VecDeque::new() }
    }
}

pub(crate) struct FirstTokens {
    channels: Vec<Channel>,
    delay_ns: u64,
}

impl FirstTokens {
    pub(crate) fn new(channels: usize, delay_ns: u64, rules: &'static ProtocolRules) -> Self {
        Self { channels: (0..channels).map(|_| Channel::new(rules)).collect(), delay_ns }
    }

    /// Changes the protocol version. Nothing may have been gathered yet.
    pub(crate) fn set_version(&mut self, rules: &'static ProtocolRules) {
        self.channels.iter_mut().for_each(|channel| *channel = Channel::new(rules));
    }

    pub(crate) fn encoder(&mut self, channel: u32) -> &mut StepEncoder {
        &mut self.channels[channel as usize].encoder
    }

    /// Holds the outputs of a step for a channel, if there are any.
    pub(crate) fn hold(&mut self, channel: usize, end: StepEnd<'_>, now_ns: u64) {
        let channel = &mut self.channels[channel];
        if channel.encoder.is_empty() {
            return;
        }
        let mut frame = Vec::new();
        channel.encoder.finish(end, &mut frame);
        channel.held.push_back(Held { at_ns: now_ns.saturating_add(self.delay_ns), frame });
    }

    pub(crate) fn next_of(&mut self, channel: usize) -> Option<Vec<u8>> {
        self.channels[channel].held.pop_front().map(|held| held.frame)
    }

    /// Takes a message that is due, with its channel.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        let is_due = |channel: &Channel| channel.held.front().is_some_and(|held| held.at_ns <= now_ns);
        let channel = self.channels.iter().position(is_due)?;
        self.next_of(channel).map(|frame| (channel, frame))
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.channels.iter().filter_map(|channel| channel.held.front()).map(|held| held.at_ns).min()
    }
}
