//! Synthetic workloads of Dynamo's replay: requests of one size.
//!
//! They are made as a [`Trace`], with the same sizes and the same sharing as
//! Dynamo's own generator gives, though not the same draws: every turn has a
//! prompt of its own of `input_tokens`, whose leading blocks are those of the
//! session's group.

use std::sync::Arc;

use vcr_core::seed;
use vcr_random::Stream;
use vcr_trace::{ItemRange, Trace, TraceRequest};

use crate::config::{Answers, TracePacing, WorkloadConfig, WorkloadSource};

/// A synthetic workload, as `python -m dynamo.replay` is asked for one. Each
/// field is called as the option.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticInput {
    /// Prompt tokens of each turn.
    pub input_tokens: u32,
    /// Output tokens of each turn; may be 0.
    pub output_tokens: u32,
    /// Sessions; requests where each has one turn.
    pub request_count: u32,
    /// Turns of a session.
    pub turns_per_session: u32,
    /// Sessions in flight; arrivals are then ignored.
    pub replay_concurrency: Option<u64>,
    /// Sessions per second, with exponential gaps; the first starts at 0.
    pub request_rate: Option<f64>,
    /// Milliseconds between the starts of two sessions.
    pub arrival_interval_ms: Option<f64>,
    /// The seed of the gaps, and of nothing else.
    pub arrival_seed: u64,
    /// The part of a prompt's blocks that its group shares, from 0 to 1.
    pub shared_prefix_ratio: f64,
    /// Groups of sessions that share; 0 for none that do.
    pub num_prefix_groups: u32,
    /// Milliseconds between the end of a turn and the next.
    pub inter_turn_delay_ms: f64,
    /// Divides arrivals and delays.
    pub arrival_speedup_ratio: f64,
    /// Tokens of a block, of which prompts share whole ones: the engines'.
    pub block_size_tokens: u32,
    /// The seed of the groups.
    pub seed: u64,
}

impl Default for SyntheticInput {
    fn default() -> Self {
        Self {
            input_tokens: 0,
            output_tokens: 0,
            request_count: 0,
            turns_per_session: 1,
            replay_concurrency: None,
            request_rate: None,
            arrival_interval_ms: None,
            arrival_seed: 42,
            shared_prefix_ratio: 0.0,
            num_prefix_groups: 0,
            inter_turn_delay_ms: 0.0,
            arrival_speedup_ratio: 1.0,
            block_size_tokens: 64,
            seed: 42,
        }
    }
}

/// A problem of a [`SyntheticInput`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SyntheticProblem {
    /// A number that must not be 0.
    #[error("`{field}` must be at least 1")]
    Zero {
        /// Its name.
        field: &'static str,
    },
    /// A number out of range.
    #[error("{blocks} prompt blocks in all; at most {most} are simulated: ask for fewer or shorter requests")]
    TooLarge {
        /// Those that were asked for.
        blocks: u128,
        /// The limit.
        most: u64,
    },
    /// None or several of the ways to start sessions.
    #[error(
        "exactly one of `replay_concurrency`, `request_rate` and `arrival_interval_ms` says when requests start, \
         but {given} are given"
    )]
    Starts {
        /// Number that is given.
        given: usize,
    },
    /// A number out of its range.
    #[error("`{field}` is {value}; it must be {range}")]
    OutOfRange {
        /// Its name.
        field: &'static str,
        /// The number.
        value: f64,
        /// The expected value.
        range: &'static str,
    },
}

/// Blocks of all prompts together; each costs four bytes.
const MAX_BLOCKS: u64 = 500_000_000;

impl SyntheticInput {
    /// The workload, called `name`.
    ///
    /// # Errors
    /// Every problem found.
    pub fn workload(&self, name: &str) -> Result<WorkloadConfig, Vec<SyntheticProblem>> {
        self.check()?;
        let speedup = self.arrival_speedup_ratio;
        let pacing = match self.replay_concurrency {
            Some(concurrency) => TracePacing::ClosedLoop { concurrency, speedup },
            None => TracePacing::Recorded { speedup },
        };
        let trace = Arc::new(self.trace());
        let answers = Answers::Simulated;
        let source = WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers };
        Ok(WorkloadConfig::new(name, source))
    }

    fn check(&self) -> Result<(), Vec<SyntheticProblem>> {
        let mut problems = Vec::new();
        for (field, value) in [
            ("input_tokens", self.input_tokens),
            ("request_count", self.request_count),
            ("turns_per_session", self.turns_per_session),
            ("block_size_tokens", self.block_size_tokens),
        ] {
            if value == 0 {
                problems.push(SyntheticProblem::Zero { field });
            }
        }
        if self.replay_concurrency == Some(0) {
            problems.push(SyntheticProblem::Zero { field: "replay_concurrency" });
        }
        let starts =
            [self.replay_concurrency.is_some(), self.request_rate.is_some(), self.arrival_interval_ms.is_some()];
        let given = starts.into_iter().filter(|is_given| *is_given).count();
        if given != 1 {
            problems.push(SyntheticProblem::Starts { given });
        }
        let positive = |value: f64| value.is_finite() && value > 0.0;
        // The longest wait that a trace can say.
        let is_wait = |value: f64| (0.0..=9.2e12).contains(&value);
        let numbers = [
            ("request_rate", self.request_rate, positive as fn(f64) -> bool, "positive and finite"),
            ("arrival_speedup_ratio", Some(self.arrival_speedup_ratio), positive, "positive and finite"),
            ("arrival_interval_ms", self.arrival_interval_ms, is_wait, "at least 0 and below 292 years"),
            ("inter_turn_delay_ms", Some(self.inter_turn_delay_ms), is_wait, "at least 0 and below 292 years"),
            (
                "shared_prefix_ratio",
                Some(self.shared_prefix_ratio),
                |ratio| (0.0..=1.0).contains(&ratio),
                "from 0 to 1",
            ),
        ];
        for (field, value, is_right, range) in numbers {
            if let Some(value) = value.filter(|value| !is_right(*value)) {
                problems.push(SyntheticProblem::OutOfRange { field, value, range });
            }
        }
        let blocks = u128::from(self.request_count)
            * u128::from(self.turns_per_session)
            * u128::from(self.input_tokens.div_ceil(self.block_size_tokens.max(1)));
        let blocks = blocks.max(u128::from(self.num_prefix_groups) * u128::from(self.num_shared_blocks()));
        if blocks > u128::from(MAX_BLOCKS) {
            problems.push(SyntheticProblem::TooLarge { blocks, most: MAX_BLOCKS });
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Sessions one after another, as a file of them would have them.
    fn trace(&self) -> Trace {
        let blocks = self.input_tokens.div_ceil(self.block_size_tokens);
        let shared_blocks = self.num_shared_blocks();
        let num_requests = self.request_count as usize * self.turns_per_session as usize;
        let mut trace = Trace {
            requests: Vec::with_capacity(num_requests),
            // The blocks of groups come first; how many there are is checked.
            distinct_hash_ids: self.num_prefix_groups * shared_blocks,
            block_size_tokens: self.block_size_tokens,
            sessions: self.request_count,
            ..Trace::default()
        };
        let mut gaps = Stream::new(self.arrival_seed, "arrivals");
        let mut arrival_ns = 0;
        for session in 0..self.request_count {
            if session > 0 {
                arrival_ns = self.next_arrival_ns(session, arrival_ns, &mut gaps);
            }
            let draw = seed::derive(self.seed, "prefix group", u64::from(session));
            let group = ((u128::from(draw) * u128::from(self.num_prefix_groups)) >> 64) as u32;
            for turn in 0..self.turns_per_session {
                let first_shared = group * shared_blocks;
                let first_own = trace.distinct_hash_ids;
                trace.distinct_hash_ids += blocks - shared_blocks;
                let shared = first_shared..first_shared + shared_blocks;
                let hash_ids = trace.hash_ids.push(shared.chain(first_own..trace.distinct_hash_ids));
                let index = trace.requests.len() as u32;
                let is_first = turn == 0;
                let is_last = turn + 1 == self.turns_per_session;
                trace.requests.push(TraceRequest {
                    request_id: None,
                    line: index + 1,
                    session,
                    turn,
                    next_turn: (!is_last).then_some(index + 1),
                    arrival_ns: is_first.then_some(arrival_ns),
                    delay_ns: if is_first { 0 } else { ns_of_ms(self.inter_turn_delay_ms) },
                    dependencies: ItemRange::default(),
                    input_tokens: self.input_tokens,
                    output_tokens: self.output_tokens,
                    hash_ids,
                    output_token_ids: ItemRange::default(),
                    priority: 0,
                    strict_priority: 0,
                    policy_class: None,
                });
            }
        }
        trace
    }

    /// Leading blocks of each prompt that its group shares.
    fn num_shared_blocks(&self) -> u32 {
        let blocks = self.input_tokens.div_ceil(self.block_size_tokens.max(1));
        let shared = (f64::from(blocks) * self.shared_prefix_ratio).round() as u32;
        if self.num_prefix_groups == 0 { 0 } else { shared.min(blocks) }
    }

    fn next_arrival_ns(&self, session: u32, last_ns: u64, gaps: &mut Stream) -> u64 {
        match (self.request_rate, self.arrival_interval_ms) {
            (Some(rate_per_s), _) => last_ns.saturating_add((gaps.exponential() * 1e9 / rate_per_s).round() as u64),
            (None, Some(interval_ms)) => ns_of_ms(interval_ms * f64::from(session)),
            (None, None) => 0,
        }
    }
}

fn ns_of_ms(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> SyntheticInput {
        SyntheticInput {
            input_tokens: 1000,
            output_tokens: 4,
            request_count: 1000,
            request_rate: Some(10.0),
            ..SyntheticInput::default()
        }
    }

    #[test]
    fn poisson_arrivals_have_the_asked_rate_and_depend_on_their_seed_alone() {
        let trace = input().trace();
        let arrivals = |trace: &Trace| trace.requests.iter().filter_map(|r| r.arrival_ns).collect::<Vec<_>>();
        let last_s = arrivals(&trace)[999] as f64 / 1e9;
        assert!((90.0..110.0).contains(&last_s), "{last_s}");
        assert_eq!(arrivals(&trace)[0], 0);
        assert_eq!(arrivals(&SyntheticInput { seed: 7, ..input() }.trace()), arrivals(&trace));
        assert_ne!(arrivals(&SyntheticInput { arrival_seed: 7, ..input() }.trace()), arrivals(&trace));
    }

    #[test]
    fn groups_share_leading_blocks_and_nothing_else() {
        let trace = SyntheticInput {
            shared_prefix_ratio: 0.5,
            num_prefix_groups: 3,
            request_count: 60,
            turns_per_session: 2,
            request_rate: None,
            arrival_interval_ms: Some(2.5),
            inter_turn_delay_ms: 1.5,
            ..input()
        }
        .trace();
        // 16 blocks of 64 tokens, 8 of them of the group.
        let prompts: Vec<Vec<u32>> = trace.requests.iter().map(|request| trace.hash_ids(request).to_vec()).collect();
        assert!(prompts.iter().all(|ids| ids.len() == 16));
        let mut groups: Vec<&[u32]> = prompts.iter().map(|ids| &ids[..8]).collect();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), 3);
        let mut own: Vec<u32> = prompts.iter().flat_map(|ids| ids[8..].iter().copied()).collect();
        own.sort_unstable();
        assert_eq!(own, (24..24 + 8 * 120).collect::<Vec<_>>());
        assert_eq!(trace.distinct_hash_ids, 24 + 8 * 120);
        assert!(prompts.chunks(2).all(|turns| turns[0][..8] == turns[1][..8]), "a session has one group");
        assert_eq!((trace.requests[2].arrival_ns, trace.requests[3].delay_ns), (Some(2_500_000), 1_500_000));
        let alone = SyntheticInput { shared_prefix_ratio: 0.5, ..input() }.trace();
        assert_eq!(alone.distinct_hash_ids, 16_000, "without groups nothing is shared");
    }

    #[test]
    fn every_problem_is_reported() {
        let wrong = SyntheticInput {
            request_count: 0,
            replay_concurrency: Some(0),
            shared_prefix_ratio: 1.5,
            inter_turn_delay_ms: -1.0,
            arrival_speedup_ratio: f64::NAN,
            ..input()
        };
        let problems = wrong.workload("w").map(|_| ()).unwrap_err();
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 6, "{text:?}");
        assert!(text[2].contains("exactly one of") && text[2].contains("but 2 are given"), "{text:?}");
        let vast = SyntheticInput { request_count: u32::MAX, ..input() };
        assert!(matches!(vast.check().unwrap_err()[..], [SyntheticProblem::TooLarge { .. }]));
        assert!(input().workload("w").is_ok());
    }
}
