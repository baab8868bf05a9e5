//! A guest that scales a pool to a target load per engine.
//!
//! The config is a `vcr_policy::target_load::TargetPolicy`, for example
//! `{"metric": "requests", "target": 8, "scale_down_delay_ticks": 3}`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;

use vcr_guest_sdk::{PoolView, ScalerGuest, export_autoscaler};
use vcr_policy::target_load::{PoolWork, TargetPolicy, TargetScaler};

struct TargetLoad(TargetScaler);

impl ScalerGuest for TargetLoad {
    type Config = TargetPolicy;

    fn configure(config: TargetPolicy, _seed: u64) -> Result<Self, String> {
        TargetScaler::new(config).map(Self)
    }

    fn desired(&mut self, pool: &PoolView) -> Result<u32, String> {
        Ok(self.0.desired(&PoolWork {
            running_requests: pool.running_requests,
            waiting_requests: pool.waiting_requests,
            outstanding_prefill_tokens: pool.outstanding_prefill_tokens,
        }))
    }
}

export_autoscaler!(TargetLoad);

#[cfg(test)]
mod tests {
    use vcr_policy::target_load::TargetMetric;

    use super::*;

    #[test]
    fn waiting_and_running_requests_count() {
        let config = TargetPolicy { metric: TargetMetric::Requests, target: 4.0, scale_down_delay_ticks: 0 };
        let mut guest = TargetLoad::configure(config, 1).expect("a good config");
        let pool = PoolView { running_requests: 8, waiting_requests: 1, ..PoolView::default() };
        assert_eq!(guest.desired(&pool), Ok(3));
    }

    #[test]
    fn a_bad_target_is_named() {
        let config = TargetPolicy { metric: TargetMetric::Requests, target: 0.0, scale_down_delay_ticks: 0 };
        let error = TargetLoad::configure(config, 1).err().expect("it is bad");
        assert_eq!(error, "invalid `target`: expected a finite number above 0, got 0");
    }
}
