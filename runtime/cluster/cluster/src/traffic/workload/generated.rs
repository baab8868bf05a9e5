//! Turns of generated workloads. Each turn is generated when it is due.

use std::collections::VecDeque;

use vcr_base::random::Stream;

use super::super::turn::{FollowUp, Turn};
use super::Common;
use crate::config::SyntheticInput;

/// The starts of sessions. Some are drawn before they are due, to forecast them.
struct Starts {
    gaps: Stream,
    /// Drawn start times of the sessions from `first` on.
    drawn: VecDeque<u64>,
    first: u64,
    last_ns: u64,
}

impl Starts {
    fn new(input: &SyntheticInput) -> Self {
        // The first session starts at 0.
        let drawn = VecDeque::from([0]);
        Self { gaps: Stream::new(input.arrival_seed, "arrivals"), drawn, first: 0, last_ns: 0 }
    }

    /// The start of a session, if it exists. Starts before `started` are forgotten.
    fn at_ns(&mut self, input: &SyntheticInput, session: u64, started: u64) -> Option<u64> {
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

pub(super) struct Generated {
    input: SyntheticInput,
    starts: Starts,
}

impl Generated {
    pub(super) fn new(input: SyntheticInput) -> Self {
        Self { starts: Starts::new(&input), input }
    }

    pub(super) fn num_sessions(&self) -> u64 {
        u64::from(self.input.request_count)
    }

    /// Number of sessions that a closed loop starts at once. None for an open loop.
    pub(super) fn closed_loop(&self) -> Option<u64> {
        self.input.replay_concurrency
    }

    /// The start of an open loop's session, relative to the workload's start. Starts before `started` are forgotten.
    pub(super) fn planned_ns(&mut self, session: u64, started: u64) -> Option<u64> {
        let at_ns = self.starts.at_ns(&self.input, session, started)?;
        Some(self.input.pacing().scale(at_ns))
    }

    pub(super) fn session(&self, number: u64, common: &Common) -> Turn {
        self.turn(number as u32 * self.input.turns_per_session, common)
    }

    /// A turn. Turns are numbered session by session.
    pub(super) fn turn(&self, row: u32, common: &Common) -> Turn {
        let input = &self.input;
        let mut prompt = common.empty_prompt(common.content_salt);
        // The blocks of the answer are hashed after those of the prompt, so there must be room for them.
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
            priority: common.priority,
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
