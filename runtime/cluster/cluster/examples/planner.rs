//! A planning autoscaler: it forecasts the prompt tokens of the next intervals and asks for enough engines.

use std::sync::Arc;

use vcr_base::random::Distribution;
use vcr_cluster::{
    Arrivals, Curve, Gaps, Limit, PoolConfig, Report, RequestMix, RunConfig, ScalingConfig, SimError, Topology,
    WorkloadConfig, WorkloadSource, observe::Unobserved, simulate,
};
use vcr_core::scale::{Autoscaler, PoolView, ScaleError};
use vcr_core::{EngineConfig, EngineConfigInput, factory::copies};
use vcr_latency::{Polynomial, PolynomialInput};

/// Prompt tokens that one engine can compute in an interval.
const TOKENS_PER_ENGINE: f64 = 60_000.0;

/// Holt's linear trend of the prompt tokens that arrive in each interval.
#[derive(Clone, Copy, Default)]
struct Planner {
    level: f64,
    trend: f64,
}

impl Autoscaler for Planner {
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError> {
        let (tokens, before) = (view.arrived_prompt_tokens as f64, self.level);
        self.level = 0.5 * tokens + 0.5 * (self.level + self.trend);
        self.trend = 0.3 * (self.level - before) + 0.7 * self.trend;
        // An engine takes two intervals to start. Waiting requests are load, too.
        let expected = self.level + 2.0 * self.trend + view.outstanding_prefill_tokens as f64;
        Ok((expected / TOKENS_PER_ENGINE).ceil().max(1.0) as u32)
    }
}

fn day(planned: bool) -> Result<Report, SimError> {
    let engine = EngineConfig::new(EngineConfigInput::default()).expect("the defaults are valid");
    let model = Polynomial::new(PolynomialInput::default()).expect("the defaults are valid");
    let scaling = ScalingConfig {
        interval_ns: 10_000_000_000,
        min_engines: 1,
        max_engines: 8,
        startup_ns: 20_000_000_000,
        policy: Arc::new(|_context| Ok(Box::new(Planner::default()))),
    };
    let pool = PoolConfig::new("gpus", if planned { 1 } else { 8 }, engine, copies(model));
    let pool = PoolConfig { scaling: planned.then_some(scaling), ..pool };
    let exponential = |mean| Distribution::Exponential { mean };
    let rate = Curve::stages(0.5, &[(300_000_000_000, 12.0)]);
    let arrivals = Arrivals::Varying { rate, gaps: Gaps::Exponential, limit: Limit::default() };
    let classes = RequestMix::new(exponential(2_000.0), exponential(100.0)).into();
    let load = WorkloadConfig::new("load", WorkloadSource::Synthetic { arrivals, classes });
    simulate(RunConfig { workloads: vec![load], ..RunConfig::new("day", Topology::Aggregated(pool)) }, &mut Unobserved)
}

pub(crate) fn main() {
    let [planned, fixed] = [true, false].map(|planned| day(planned).expect("nothing fails").pools[0].worker_seconds);
    println!("{planned:.0} s of engines planned, {fixed:.0} s fixed");
    assert!(planned < 0.8 * fixed, "the planner saves engines");
}
