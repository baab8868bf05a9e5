//! GPUs of the pools of a run, and their cost.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Report;
use crate::config::RunConfig;
use crate::ledger::metrics::{Counter, Gauge};

const NS_PER_HOUR: f64 = 3.6e12;

/// The GPUs of an engine, and the source of its step times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuDeployment {
    /// Name of the GPU.
    pub gpu: String,
    /// Number of GPUs of each engine.
    pub gpus_per_engine: u32,
    /// Latency model: `tables`, `roofline`, `fitted`, or `given` for a value of the script.
    pub latency: String,
    /// The reason why this latency model was chosen, if the script does not name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_reason: Option<String>,
    /// Price of one GPU per hour in US dollars, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_gpu_hour_usd: Option<f64>,
    /// Source of the price: `stated`, or the cloud and the month of its price list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_source: Option<String>,
}

impl GpuDeployment {
    /// Price of one engine per hour in US dollars, if known.
    #[must_use]
    pub fn engine_usd_per_hour(&self) -> Option<f64> {
        self.price_per_gpu_hour_usd.map(|price| price * f64::from(self.gpus_per_engine))
    }
}

/// The GPUs of a pool over a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolDeployment {
    /// Name of the pool.
    pub pool: String,
    /// The GPUs of the pool's engines.
    #[serde(flatten)]
    pub deployment: GpuDeployment,
    /// GPU hours in the measured part of the run. Each engine counts from the decision to start it until it is off.
    pub gpu_hours: f64,
    /// Cost of the GPU hours in US dollars, if the price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// The reason why the metrics of GPUs and cost are not known; empty if they are known.
pub(super) fn absent(config: &RunConfig) -> BTreeMap<&'static str, String> {
    let pools = config.topology.pools();
    let names =
        |gauges: &'static [Gauge], reason: String| gauges.iter().map(move |gauge| (gauge.info().name, reason.clone()));
    if let Some(pool) = pools.iter().find(|pool| pool.deployment.is_none()) {
        let reason = format!("the pool `{}` has no `deployment: deployment(...)`", pool.name);
        return names(Gauge::OF_GPUS, reason).collect();
    }
    let unpriced = |deployment: &&GpuDeployment| deployment.price_per_gpu_hour_usd.is_none();
    match pools.iter().filter_map(|pool| pool.deployment.as_ref()).find(unpriced) {
        Some(GpuDeployment { gpu, .. }) => {
            let reason = format!("no list price of `{gpu}` is known; state `price_per_hour` in `deployment(...)`");
            names(Gauge::OF_COST, reason).collect()
        }
        None => BTreeMap::new(),
    }
}

impl Report {
    /// Adds GPUs and cost. `engine_ns` has the provisioned time of each pool's engines within the `measured_ns` of
    /// the run. The fingerprint omits these values, because it covers the data from which they follow.
    pub(super) fn add_deployments(&mut self, config: &RunConfig, engine_ns: &[u128], measured_ns: u64) {
        let (mut gpus, mut usd_per_hour) = (0.0, 0.0);
        for (pool, &engine_ns) in config.topology.pools().into_iter().zip(engine_ns) {
            let Some(deployment) = pool.deployment.clone() else { continue };
            let gpu_ns = (engine_ns * u128::from(deployment.gpus_per_engine)) as f64;
            let price = deployment.price_per_gpu_hour_usd;
            gpus += gpu_ns / measured_ns as f64;
            usd_per_hour += price.unwrap_or(0.0) * (gpu_ns / measured_ns as f64);
            let gpu_hours = gpu_ns / NS_PER_HOUR;
            let cost_usd = price.map(|price| price * gpu_hours);
            self.deployments.push(PoolDeployment { pool: pool.name.clone(), deployment, gpu_hours, cost_usd });
        }
        self.absent = absent(config);
        let cost_usd: f64 = self.deployments.iter().filter_map(|pool| pool.cost_usd).sum();
        let output_tokens = self.metrics.count(Counter::OutputTokens) as f64;
        let values = [
            (Gauge::Gpus, gpus),
            (Gauge::Cost, cost_usd),
            (Gauge::CostPerHour, usd_per_hour),
            (Gauge::CostPerMillionOutputTokens, cost_usd / output_tokens * 1e6),
        ];
        for (gauge, value) in values {
            if value.is_finite() && !self.absent.contains_key(gauge.info().name) {
                self.metrics.gauges.insert(gauge.info().report_name(), value);
            }
        }
    }
}
