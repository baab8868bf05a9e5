//! The GPUs of a run's pools and their cost, for people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vcr_base::units::format_usd;

/// The GPUs of a pool during a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PoolDeployment {
    /// Name of the pool.
    pub pool: String,
    /// Name of the GPU.
    pub gpu: String,
    /// Number of GPUs of each engine.
    pub gpus_per_engine: u32,
    /// Name of the latency model.
    pub latency: String,
    /// The reason for this latency model; None if the script states a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_reason: Option<String>,
    /// Price of a GPU-hour in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_gpu_hour_usd: Option<f64>,
    /// Source of the price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_source: Option<String>,
    /// GPU-hours of the pool.
    pub gpu_hours: f64,
    /// Cost of the GPU-hours in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

impl PoolDeployment {
    fn text(&self) -> String {
        let Self { pool, gpu, gpus_per_engine, latency, .. } = self;
        let reason = self.latency_reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let price = match (self.price_per_gpu_hour_usd, &self.price_source) {
            (Some(usd), Some(source)) => format!("{} for a GPU and hour ({source})", format_usd(usd)),
            _ => "price not known".to_owned(),
        };
        let hours = self.gpu_hours;
        format!(
            "{pool}: {gpus_per_engine} x {gpu} for each engine, times by {latency}{reason}, {price}, {hours:.3} GPU hours"
        )
    }
}

/// GPUs and cost of a run by its gauges, then a line for each pool.
pub(crate) fn lines(gauges: &BTreeMap<String, f64>, pools: &[PoolDeployment]) -> Vec<String> {
    let usd = |name: &str, of: &str| gauges.get(name).map(|usd| format!("{} {of}", format_usd(*usd)));
    let parts = [
        gauges.get("gpus").map(|gpus| format!("GPUs: {gpus:.1} on average")),
        usd("cost_per_hour_usd", "per hour"),
        usd("cost_per_million_output_tokens_usd", "per million output tokens"),
        usd("cost_usd", "for the run"),
    ];
    let whole = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    [whole].into_iter().filter(|text| !text.is_empty()).chain(pools.iter().map(PoolDeployment::text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut gauges = BTreeMap::new();
        assert!(lines(&gauges, &[]).is_empty());
        let mut pool = PoolDeployment {
            pool: "decode".to_owned(),
            gpu: "gb10".to_owned(),
            gpus_per_engine: 2,
            latency: "roofline".to_owned(),
            latency_reason: Some("no tables: none".to_owned()),
            gpu_hours: 0.5,
            ..PoolDeployment::default()
        };
        gauges.insert("gpus".to_owned(), 4.0);
        let unpriced =
            "decode: 2 x gb10 for each engine, times by roofline (no tables: none), price not known, 0.500 GPU hours";
        assert_eq!(lines(&gauges, std::slice::from_ref(&pool)), ["GPUs: 4.0 on average", unpriced]);
        pool.price_per_gpu_hour_usd = Some(2.5);
        pool.price_source = Some("stated".to_owned());
        gauges.insert("cost_usd".to_owned(), 1.25);
        gauges.insert("cost_per_hour_usd".to_owned(), 10.0);
        let priced = lines(&gauges, &[pool]);
        assert_eq!(priced[0], "GPUs: 4.0 on average, $10.00 per hour, $1.25 for the run");
        assert!(priced[1].contains("$2.50 for a GPU and hour (stated)"), "{priced:?}");
    }
}
