//! Autoscaling to a single target: an amount of work per engine.
//!
//! Owns the rule of one autoscaler, independent of its environment. It adds engines at once. It removes
//! engines only if fewer would have been enough at each of the latest ticks, as Kubernetes' autoscaler does.
//!
//! The code needs no std and uses only integers, one `f64` division and comparisons, so a native build and a
//! WebAssembly build decide the same.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;

/// Maximum number of engines that is ever requested.
pub const ENGINES_MAX: u32 = 1_000_000;

/// Maximum number of ticks that an autoscaler remembers.
const MAX_DELAY_TICKS: u32 = 1_000_000;

/// The metric whose value per engine is kept near a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum TargetMetric {
    /// Number of requests in progress: running, or waiting in engines or in front of them.
    #[default]
    Requests,
    /// Number of prompt tokens to compute, including those in front of engines.
    PrefillTokens,
}

impl TargetMetric {
    /// All metrics.
    pub const ALL: [Self; 2] = [Self::Requests, Self::PrefillTokens];

    /// The name of the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "target_requests",
            Self::PrefillTokens => "target_prefill_tokens",
        }
    }

    fn of(self, work: &PoolWork) -> u64 {
        match self {
            Self::Requests => work.running_requests.saturating_add(work.waiting_requests),
            Self::PrefillTokens => work.outstanding_prefill_tokens,
        }
    }
}

/// The load of a pool's engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolWork {
    /// Number of running requests.
    pub running_requests: u64,
    /// Number of requests that wait in engines or in front of them.
    pub waiting_requests: u64,
    /// Number of prompt tokens to compute.
    pub outstanding_prefill_tokens: u64,
}

/// A target for the work per engine.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct TargetPolicy {
    /// The metric.
    #[cfg_attr(feature = "serde", serde(default))]
    pub metric: TargetMetric,
    /// The target value of the metric per engine. Above 0.
    pub target: f64,
    /// The pool shrinks only if fewer engines would also have been enough at this many previous ticks.
    #[cfg_attr(feature = "serde", serde(default))]
    pub scale_down_delay_ticks: u32,
}

impl TargetPolicy {
    /// Checks the numbers.
    ///
    /// # Errors
    /// The name of the invalid number, and the allowed values.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(self.target.is_finite() && self.target > 0.0) {
            return Err(("target", format!("expected a finite number above 0, got {}", self.target)));
        }
        if self.scale_down_delay_ticks > MAX_DELAY_TICKS {
            let text = format!("expected at most {MAX_DELAY_TICKS}, got {}", self.scale_down_delay_ticks);
            return Err(("scale_down_delay_ticks", text));
        }
        Ok(())
    }
}

/// The autoscaler of one pool.
#[derive(Clone, Debug)]
pub struct TargetScaler {
    policy: TargetPolicy,
    /// Number of engines that would have been enough at each of the latest ticks, newest last.
    wanted: VecDeque<u32>,
}

impl TargetScaler {
    /// An autoscaler without observations.
    ///
    /// # Errors
    /// The invalid number of the policy, and the allowed values.
    pub fn new(policy: TargetPolicy) -> Result<Self, String> {
        policy.check().map_err(|(name, text)| format!("invalid `{name}`: {text}"))?;
        Ok(Self { policy, wanted: VecDeque::new() })
    }

    /// The desired number of running and starting engines, at most [`ENGINES_MAX`].
    pub fn desired(&mut self, work: &PoolWork) -> u32 {
        let share = self.policy.metric.of(work) as f64 / self.policy.target;
        self.wanted.push_back(rounded_up(share).min(ENGINES_MAX));
        if self.wanted.len() > self.policy.scale_down_delay_ticks as usize + 1 {
            self.wanted.pop_front();
        }
        self.wanted.iter().copied().max().unwrap_or(0)
    }
}

/// Rounds a non-negative number up; `ceil` needs std. A number that is too large becomes the largest `u32`.
pub(crate) fn rounded_up(number: f64) -> u32 {
    let whole = number as u32;
    if f64::from(whole) < number { whole.saturating_add(1) } else { whole }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn answers(metric: TargetMetric, target: f64, scale_down_delay_ticks: u32, work: &[PoolWork]) -> Vec<u32> {
        let policy = TargetPolicy { metric, target, scale_down_delay_ticks };
        let mut scaler = TargetScaler::new(policy).expect("a good policy");
        work.iter().map(|work| scaler.desired(work)).collect()
    }

    fn busy(running_requests: u64, waiting_requests: u64) -> PoolWork {
        PoolWork { running_requests, waiting_requests, outstanding_prefill_tokens: 7 }
    }

    #[test]
    fn requests_are_shared_out_and_rounded_up() {
        let work = [busy(0, 0), busy(8, 0), busy(8, 1), busy(0, 17)];
        assert_eq!(answers(TargetMetric::Requests, 8.0, 0, &work), [0, 1, 2, 3]);
        assert_eq!(answers(TargetMetric::Requests, 2.5, 0, &[busy(5, 0), busy(6, 0)]), [2, 3]);
    }

    #[test]
    fn prefill_tokens_are_another_measure() {
        let tokens = |outstanding_prefill_tokens| PoolWork { outstanding_prefill_tokens, ..busy(9, 9) };
        let work = [tokens(0), tokens(1000), tokens(1001), tokens(u64::MAX)];
        assert_eq!(answers(TargetMetric::PrefillTokens, 1000.0, 0, &work), [0, 1, 2, ENGINES_MAX]);
    }

    #[test]
    fn fewer_engines_wait_for_the_delay_and_more_do_not() {
        let work = [busy(40, 0), busy(8, 0), busy(16, 0), busy(8, 0), busy(8, 0), busy(24, 0)];
        assert_eq!(answers(TargetMetric::Requests, 8.0, 2, &work), [5, 5, 5, 2, 2, 3]);
    }

    #[test]
    fn a_bad_number_is_named() {
        let policy = |target, scale_down_delay_ticks| TargetPolicy {
            metric: TargetMetric::Requests,
            target,
            scale_down_delay_ticks,
        };
        for target in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(policy(target, 0).check().expect_err("it is bad").0, "target");
        }
        assert_eq!(policy(1.0, u32::MAX).check().expect_err("it is bad").0, "scale_down_delay_ticks");
        let text = "invalid `target`: expected a finite number above 0, got 0";
        assert_eq!(TargetScaler::new(policy(0.0, 0)).expect_err("it is bad"), text);
    }
}
