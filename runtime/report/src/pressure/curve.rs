//! A pool over time, in a few intervals of equal length.

use serde::Serialize;

/// Intervals of a curve, at most.
const MAX_BUCKETS: usize = 12;

/// The state of a pool at one instant, or in one tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) queued: u64,
    pub(super) active: u64,
    pub(super) kv_usage: f64,
}

/// An interval: means and maxima over the pool's samples in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// Its beginning.
    pub from: f64,
    /// Mean of waiting requests.
    pub queued_mean: f64,
    /// Maximum of waiting requests.
    pub queued_max: u64,
    /// Mean of running requests.
    pub active_mean: f64,
    /// Maximum of running requests.
    pub active_max: u64,
    /// Mean share of KV blocks in use.
    pub kv_usage_mean: f64,
    /// Maximum share of KV blocks in use.
    pub kv_usage_max: f64,
}

/// The intervals of samples that are `distance` apart, the first at 0.
pub(super) fn curve(samples: &[Sample], distance: f64) -> Vec<Bucket> {
    let width = samples.len().div_ceil(MAX_BUCKETS).max(1);
    samples
        .chunks(width)
        .enumerate()
        .map(|(index, samples)| bucket(samples, (index * width) as f64 * distance))
        .collect()
}

fn bucket(samples: &[Sample], from: f64) -> Bucket {
    let mean = |of: fn(&Sample) -> f64| rounded(samples.iter().map(of).sum::<f64>() / samples.len() as f64);
    Bucket {
        from: rounded(from),
        queued_mean: mean(|sample| sample.queued as f64),
        queued_max: samples.iter().map(|sample| sample.queued).max().unwrap_or(0),
        active_mean: mean(|sample| sample.active as f64),
        active_max: samples.iter().map(|sample| sample.active).max().unwrap_or(0),
        kv_usage_mean: mean(|sample| sample.kv_usage),
        kv_usage_max: rounded(samples.iter().map(|sample| sample.kv_usage).fold(0.0, f64::max)),
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
