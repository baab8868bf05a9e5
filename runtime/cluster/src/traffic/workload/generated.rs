//! Turns of generated workloads, made when they are due.

use std::collections::VecDeque;

use vcr_random::Stream;

use super::super::turn::{FollowUp, Turn};
use super::Workload;
use crate::config::SyntheticInput;

/// The starts of sessions, of which some are foreseen before they are due.
pub(super) struct Starts {
    gaps: Stream,
    /// Those of the sessions from `first` on that have been drawn.
    drawn: VecDeque<u64>,
    first: u64,
    last_ns: u64,
}

impl Starts {
    pub(super) fn new(input: &SyntheticInput) -> Self {
        // The first one is at 0.
        let drawn = VecDeque::from([0]);
        Self { gaps: Stream::new(input.arrival_seed, "arrivals"), drawn, first: 0, last_ns: 0 }
    }

    /// When a session starts, if there is one. None before `started` is asked for again.
    pub(super) fn at_ns(&mut self, input: &SyntheticInput, session: u64, started: u64) -> Option<u64> {
        if session >= u64::from(input.request_count) {
            return None;
        }
        let Some(rate_per_s) = input.request_rate else { return Some(input.planned_ns(session)) };
        while self.first + self.drawn.len() as u64 <= session {
            let gap_ns = (self.gaps.exponential() * 1e9 / rate_per_s).round() as u64;
            self.last_ns = self.last_ns.saturating_add(gap_ns);
            self.drawn.push_back(self.last_ns);
        }
        while self.first < started.min(session) {
            self.drawn.pop_front();
            self.first += 1;
        }
        self.drawn.get((session - self.first) as usize).copied()
    }
}

impl Workload {
    /// A turn of a generated session; turns are numbered session by session.
    pub(super) fn generated_turn(&self, input: &SyntheticInput, row: u32) -> Turn {
        let mut prompt = self.empty_prompt(self.content_salt);
        // The answer's blocks are hashed behind those of the prompt.
        prompt.reserve(input.input_tokens.saturating_add(input.output_tokens));
        let mut left = input.input_tokens;
        for block in input.blocks_of(row) {
            let len = left.min(input.block_size_tokens);
            prompt.push_run(block, 0, len);
            left -= len;
        }
        let (session, turn) = (row / input.turns_per_session, row % input.turns_per_session);
        let is_last = turn + 1 == input.turns_per_session;
        let follow_up = match is_last {
            true => FollowUp::None,
            false => {
                let delay_ns = input.pacing().scale(input.delay_ns());
                FollowUp::TraceRow { row: row + 1, copy: 0, delay_ns, conversation: None }
            }
        };
        Turn {
            prompt,
            max_tokens: input.output_tokens,
            stop_after: None,
            priority: self.config.priority,
            strict_priority: 0,
            policy_class: None,
            class: 0,
            adapter: None,
            session: u64::from(session),
            turn,
            earlier: None,
            follow_up,
            played_row: None,
        }
    }
}
