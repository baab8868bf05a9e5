//! Synthetic workloads of Dynamo's replay, whose requests have one size.
//!
//! Requests have the sizes and shared prefixes of Dynamo's own generator, but different random draws. Every turn
//! has its own prompt of `input_tokens`. Its leading blocks are the shared blocks of the session's group. A request
//! is generated when it is due.

use vcr_core::seed;

use super::{TracePacing, WorkloadConfig, WorkloadSource};

/// A synthetic workload. The fields are named like the options of `python -m dynamo.replay`.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticInput {
    /// Prompt tokens of each turn.
    pub input_tokens: u32,
    /// Output tokens of each turn; may be 0.
    pub output_tokens: u32,
    /// Number of sessions.
    pub request_count: u32,
    /// Number of turns of each session.
    pub turns_per_session: u32,
    /// Number of sessions in flight; arrivals are then ignored.
    pub replay_concurrency: Option<u64>,
    /// Sessions per second, with exponential gaps; the first session starts at 0.
    pub request_rate: Option<f64>,
    /// Milliseconds between the starts of two sessions.
    pub arrival_interval_ms: Option<f64>,
    /// The seed of the gaps only.
    pub arrival_seed: u64,
    /// The share of a prompt's blocks that its group shares, from 0 to 1.
    pub shared_prefix_ratio: f64,
    /// Number of groups of sessions that share a prefix; 0 for no sharing.
    pub num_prefix_groups: u32,
    /// Milliseconds between the end of a turn and the start of the next.
    pub inter_turn_delay_ms: f64,
    /// Factor by which arrival times and delays are divided.
    pub arrival_speedup_ratio: f64,
    /// Block size of the engines, in tokens. Prompts share whole blocks.
    pub block_size_tokens: u32,
    /// The seed that assigns sessions to groups.
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
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum SyntheticProblem {
    #[error("invalid `{field}`: expected at least 1")]
    Zero { field: &'static str },
    #[error("{requests} requests in all; at most {most} are simulated")]
    TooLarge {
        /// The requested number.
        requests: u64,
        /// The limit.
        most: u64,
    },
    /// Not exactly one setting for the start of sessions is given.
    #[error(
        "exactly one of `replay_concurrency`, `request_rate` and `arrival_interval_ms` says when requests start, \
         but {given} are given"
    )]
    Starts {
        /// Number of these settings that are given.
        given: usize,
    },
    #[error("invalid `{field}`: expected {range}, got {value}")]
    OutOfRange {
        field: &'static str,
        /// The invalid number.
        value: f64,
        /// The valid range.
        range: &'static str,
    },
}

/// Maximum number of requests of all sessions together.
const MAX_REQUESTS: u64 = u32::MAX as u64;

impl SyntheticInput {
    /// Makes a workload with this name.
    pub fn workload(&self, name: &str) -> Result<WorkloadConfig, Vec<SyntheticProblem>> {
        self.check()?;
        Ok(WorkloadConfig::new(name, WorkloadSource::Generated(self.clone())))
    }

    pub(crate) fn pacing(&self) -> TracePacing {
        let speedup = self.arrival_speedup_ratio;
        match self.replay_concurrency {
            Some(concurrency) => TracePacing::ClosedLoop { concurrency, speedup },
            None => TracePacing::Recorded { speedup },
        }
    }

    pub(crate) fn num_requests(&self) -> u64 {
        u64::from(self.request_count) * u64::from(self.turns_per_session)
    }

    /// When a session starts, before any speed-up. 0 if the start is drawn.
    pub(crate) fn planned_ns(&self, session: u64) -> u64 {
        self.arrival_interval_ms.map_or(0, |interval_ms| ns_of_ms(interval_ms * session as f64))
    }

    /// Time between the end of a turn and the start of the next, before any speed-up.
    pub(crate) fn delay_ns(&self) -> u64 {
        ns_of_ms(self.inter_turn_delay_ms)
    }

    /// Content of a turn's blocks: first the shared blocks of its group, then its own. Turns are numbered session
    /// by session.
    pub(crate) fn blocks_of(&self, row: u32) -> impl Iterator<Item = u64> {
        let shared = u64::from(self.num_shared_blocks());
        let own = u64::from(self.input_tokens.div_ceil(self.block_size_tokens)) - shared;
        let groups = u64::from(self.num_prefix_groups);
        let draw = seed::derive(self.seed, "prefix group", u64::from(row / self.turns_per_session));
        let group = ((u128::from(draw) * u128::from(groups)) >> 64) as u64;
        // The numbers below this belong to groups.
        let first_own = groups * shared + u64::from(row) * own;
        (group * shared..(group + 1) * shared).chain(first_own..first_own + own)
    }

    pub(crate) fn check(&self) -> Result<(), Vec<SyntheticProblem>> {
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
        // The longest wait that a trace can express.
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
        let requests = self.num_requests();
        if requests > MAX_REQUESTS {
            problems.push(SyntheticProblem::TooLarge { requests, most: MAX_REQUESTS });
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    pub(crate) fn num_shared_blocks(&self) -> u32 {
        let blocks = self.input_tokens.div_ceil(self.block_size_tokens.max(1));
        let shared = (f64::from(blocks) * self.shared_prefix_ratio).round() as u32;
        if self.num_prefix_groups == 0 { 0 } else { shared.min(blocks) }
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
    fn groups_share_leading_blocks_and_nothing_else() {
        let grouped = SyntheticInput {
            shared_prefix_ratio: 0.5,
            num_prefix_groups: 3,
            request_count: 60,
            turns_per_session: 2,
            request_rate: None,
            arrival_interval_ms: Some(2.5),
            inter_turn_delay_ms: 1.5,
            ..input()
        };
        // Each prompt has 16 blocks of 64 tokens; its group shares 8 of them.
        let prompts: Vec<Vec<u64>> = (0..120).map(|row| grouped.blocks_of(row).collect()).collect();
        assert!(prompts.iter().all(|blocks| blocks.len() == 16));
        let mut groups: Vec<&[u64]> = prompts.iter().map(|blocks| &blocks[..8]).collect();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), 3);
        let mut own: Vec<u64> = prompts.iter().flat_map(|blocks| blocks[8..].iter().copied()).collect();
        own.sort_unstable();
        assert_eq!(own, (24..24 + 8 * 120).collect::<Vec<_>>());
        assert!(prompts.chunks(2).all(|turns| turns[0][..8] == turns[1][..8]), "a session has one group");
        assert_eq!((grouped.planned_ns(1), grouped.delay_ns()), (2_500_000, 1_500_000));
        let alone = SyntheticInput { shared_prefix_ratio: 0.5, ..input() };
        assert_eq!(alone.blocks_of(999).last(), Some(15_999), "without groups nothing is shared");
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
        let vast = SyntheticInput { request_count: u32::MAX, turns_per_session: 2, ..input() };
        assert!(matches!(vast.check().unwrap_err()[..], [SyntheticProblem::TooLarge { .. }]));
        assert!(input().workload("w").is_ok());
    }
}
