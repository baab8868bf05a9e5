//! The autoscalers of `vcr_policy::target_load`, natively. The guest `target-load` has the
//! same source and decides the same.

use std::sync::Arc;

use vcr_core::scale::{Autoscaler, DESIRED_ENGINES_MAX, ScaleError, ScaleView};
use vcr_policy::target_load::{ENGINES_MAX, PoolWork, TargetPolicy, TargetScaler};

use crate::config::ScalerFactory;

const _: () = assert!(ENGINES_MAX <= DESIRED_ENGINES_MAX, "what a guest asks for is taken");

/// Makes the autoscalers of a policy.
#[must_use]
pub fn target_autoscaler(policy: TargetPolicy) -> ScalerFactory {
    Arc::new(move |_plugin_context| {
        let failed = |reason| ScaleError { autoscaler: policy.metric.name().to_owned(), reason };
        Ok(Box::new(Target(TargetScaler::new(policy).map_err(failed)?)))
    })
}

struct Target(TargetScaler);

impl Autoscaler for Target {
    fn desired(&mut self, view: &ScaleView) -> Result<u32, ScaleError> {
        Ok(self.0.desired(&PoolWork {
            running_requests: view.running_requests,
            waiting_requests: view.waiting_requests,
            outstanding_prefill_tokens: view.outstanding_prefill_tokens,
        }))
    }
}

#[cfg(test)]
mod tests {
    use vcr_core::PluginContext;
    use vcr_policy::target_load::TargetMetric;

    use super::*;

    #[test]
    fn each_measure_is_that_of_the_pool() {
        let view = ScaleView {
            running_requests: 3,
            waiting_requests: 5,
            outstanding_prefill_tokens: 100,
            ..ScaleView::default()
        };
        let desired = |metric, target| {
            let policy = TargetPolicy { metric, target, scale_down_delay_ticks: 0 };
            let mut scaler = target_autoscaler(policy)(&PluginContext::of_seed(1)).expect("it can be made");
            scaler.desired(&view).expect("it decides")
        };
        assert_eq!(desired(TargetMetric::Requests, 1.0), 8);
        assert_eq!(desired(TargetMetric::PrefillTokens, 1.0), 100);
    }

    #[test]
    fn a_bad_target_is_named() {
        let policy = TargetPolicy { metric: TargetMetric::Requests, target: 0.0, scale_down_delay_ticks: 0 };
        let error = target_autoscaler(policy)(&PluginContext::of_seed(1)).err().expect("it is bad");
        let text = "autoscaler `target_requests` failed: invalid `target`: expected a finite number above 0, got 0";
        assert_eq!(error.to_string(), text);
    }
}
