//! Autoscalers that need nothing but a target: so much work for each engine.
//!
//! Both ask for more engines at once, and for fewer only when that was enough at
//! each of the latest ticks, as Kubernetes' autoscaler does.

use std::collections::VecDeque;
use std::sync::Arc;

use vcr_core::scale::{Autoscaler, ScaleError, ScaleView};

use crate::config::ScalerFactory;

/// The most ticks that an autoscaler remembers.
const MOST_DELAY_TICKS: u32 = 1_000_000;

/// What an engine is to have its share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetMetric {
    /// Requests under way: running, or waiting in engines or in front of them.
    Requests,
    /// Prompt tokens yet to be computed, there too.
    PrefillTokens,
}

impl TargetMetric {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Requests, Self::PrefillTokens];

    /// The name of the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "target_requests",
            Self::PrefillTokens => "target_prefill_tokens",
        }
    }

    fn of(self, view: &ScaleView) -> u64 {
        match self {
            Self::Requests => view.running_requests + view.waiting_requests,
            Self::PrefillTokens => view.outstanding_prefill_tokens,
        }
    }
}

/// A target of work per engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetPolicy {
    /// Of what.
    pub metric: TargetMetric,
    /// How much of it an engine is to have; above 0.
    pub target: f64,
    /// For how many ticks before the present one fewer engines must have been
    /// enough, too, before there are fewer.
    pub scale_down_delay_ticks: u32,
}

impl TargetPolicy {
    /// Checks the numbers.
    ///
    /// # Errors
    /// The name of the one that is wrong, and what it must be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(self.target.is_finite() && self.target > 0.0) {
            return Err(("target", format!("must be a finite number above 0, but is {}", self.target)));
        }
        if self.scale_down_delay_ticks > MOST_DELAY_TICKS {
            let text = format!("is {}, but at most {MOST_DELAY_TICKS} is possible", self.scale_down_delay_ticks);
            return Err(("scale_down_delay_ticks", text));
        }
        Ok(())
    }

    /// Makes the autoscaler of a pool.
    #[must_use]
    pub fn factory(self) -> ScalerFactory {
        Arc::new(move |_seat| {
            self.check().map_err(|(name, text)| ScaleError {
                autoscaler: self.metric.name().to_owned(),
                reason: format!("`{name}` {text}"),
            })?;
            Ok(Box::new(Target { policy: self, wanted: VecDeque::new() }))
        })
    }
}

struct Target {
    policy: TargetPolicy,
    /// Engines that would have been enough at the latest ticks, newest last.
    wanted: VecDeque<u32>,
}

impl Autoscaler for Target {
    fn desired(&mut self, view: &ScaleView) -> Result<u32, ScaleError> {
        let enough = (self.policy.metric.of(view) as f64 / self.policy.target).ceil();
        // A cast of what is too large gives the largest number.
        self.wanted.push_back(enough as u32);
        if self.wanted.len() > self.policy.scale_down_delay_ticks as usize + 1 {
            self.wanted.pop_front();
        }
        Ok(self.wanted.iter().copied().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use vcr_core::Seat;

    use super::*;

    fn policy(metric: TargetMetric, target: f64, scale_down_delay_ticks: u32) -> TargetPolicy {
        TargetPolicy { metric, target, scale_down_delay_ticks }
    }

    fn answers(policy: TargetPolicy, views: &[ScaleView]) -> Vec<u32> {
        let mut scaler = (policy.factory())(&Seat::of_seed(1)).expect("it can be made");
        views.iter().map(|view| scaler.desired(view).expect("it decides")).collect()
    }

    fn busy(running_requests: u64, waiting_requests: u64) -> ScaleView {
        ScaleView { running_requests, waiting_requests, outstanding_prefill_tokens: 7, ..ScaleView::default() }
    }

    #[test]
    fn requests_are_shared_out_and_rounded_up() {
        let views = [busy(0, 0), busy(8, 0), busy(8, 1), busy(0, 17)];
        assert_eq!(answers(policy(TargetMetric::Requests, 8.0, 0), &views), [0, 1, 2, 3]);
    }

    #[test]
    fn prefill_tokens_are_another_measure() {
        let view = |outstanding_prefill_tokens| ScaleView { outstanding_prefill_tokens, ..busy(9, 9) };
        let views = [view(0), view(1000), view(1001), view(u64::MAX)];
        assert_eq!(answers(policy(TargetMetric::PrefillTokens, 1000.0, 0), &views), [0, 1, 2, u32::MAX]);
    }

    #[test]
    fn fewer_engines_wait_for_the_delay_and_more_do_not() {
        let views = [busy(40, 0), busy(8, 0), busy(16, 0), busy(8, 0), busy(8, 0), busy(24, 0)];
        assert_eq!(answers(policy(TargetMetric::Requests, 8.0, 2), &views), [5, 5, 5, 2, 2, 3]);
    }

    #[test]
    fn a_bad_target_is_named() {
        for target in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(policy(TargetMetric::Requests, target, 0).check().expect_err("it is bad").0, "target");
        }
        let error = (policy(TargetMetric::Requests, 0.0, 0).factory())(&Seat::of_seed(1)).err().expect("it is bad");
        let text = "autoscaler `target_requests` failed: `target` must be a finite number above 0, but is 0";
        assert_eq!(error.to_string(), text);
    }
}
