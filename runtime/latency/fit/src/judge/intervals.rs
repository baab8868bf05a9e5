//! The uncertainty of a prediction. Measurements are simulated several times, with prices drawn from the
//! covariance of the fit.

use std::num::NonZeroUsize;

use serde::Serialize;
use vcr_cluster::Interval;
use vcr_compare::{Comparison, Metric, NEAR_ZERO_MS, Statistic};
use vcr_core::seed;
use vcr_fitted::ModelFile;
use vcr_latency::FittedDraws;
use vcr_scenario::fitted;

use crate::error::FitError;
use crate::judge::metrics::comparisons;
use crate::simulate::{Candidate, run, run_at_once};
use crate::solve::parallel;
use crate::source::Source;

/// The number of repetitions of simulations, and the number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Again {
    /// Number of draws; 0 for no intervals.
    pub draws: usize,
    /// Number of threads. None means all cores. It does not affect the results.
    pub threads: Option<NonZeroUsize>,
}

/// A load with fewer requests than this many full batches does not fill the engine for long enough.
const FULL_BATCHES: usize = 4;

/// A statistic, and an interval that contains nine of ten draws.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// The metric.
    pub metric: Metric,
    /// The statistic.
    pub statistic: Statistic,
    /// The 5th percentile of the draws.
    pub low_ms: f64,
    /// The 95th percentile.
    pub high_ms: f64,
    /// Whether the measured value is in the interval, which is wider by [`NEAR_ZERO_MS`] for values near zero.
    pub is_inside: bool,
}

/// The rate of a load and the capacity of the engine, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// Rate of arrivals.
    pub load_per_s: f64,
    /// Lowest capacity among the draws.
    pub low_per_s: f64,
    /// Highest capacity among the draws.
    pub high_per_s: f64,
}

impl Capacity {
    /// Whether the load exceeds the capacity in some draws but not in all. The queue then grows in some draws only.
    #[must_use]
    pub fn is_crossed(&self) -> bool {
        (self.low_per_s..=self.high_per_s).contains(&self.load_per_s)
    }
}

/// Intervals of all `compared` statistics, and the capacity if the load is long enough to determine it. Both are empty
/// for a model without a covariance.
pub(crate) fn of(
    model: &ModelFile,
    source: &Source,
    compared: &[Comparison],
    seed: u64,
    again: Again,
) -> Result<(Vec<Bounds>, Option<Capacity>), FitError> {
    let Some(draws) = FittedDraws::new(model.clone()).filter(|_| again.draws > 0) else {
        return Ok((Vec::new(), None));
    };
    let threads = again.threads.unwrap_or_else(parallel::available);
    let numbers: Vec<u64> = (0..again.draws as u64).collect();
    let simulate = |number: &u64| {
        let drawn = draws.draw(seed::derive(seed, "uncertainty", *number));
        let candidate = Candidate { step: drawn.step, overheads: fitted::overheads(&drawn) };
        let simulation = run(&source.measurements, &source.pool, &candidate, seed, true)?;
        let values: Vec<f64> =
            comparisons(&source.measurements, &simulation).iter().map(|each| each.simulated_ms).collect();
        Ok::<_, FitError>((candidate, values))
    };
    let drawn = parallel::map(threads, &numbers, simulate).into_iter().collect::<Result<Vec<_>, _>>()?;
    let bounds = compared.iter().enumerate().filter_map(|(index, each)| {
        let Interval { low, high } = Interval::of(drawn.iter().map(|(_, values)| values[index]).collect())?;
        // If both sides are near zero, the difference is not an error, however narrow the interval is.
        let margin_ms = if each.is_near_zero() { NEAR_ZERO_MS } else { 0.0 };
        let is_inside = (low - margin_ms..=high + margin_ms).contains(&each.measured_ms);
        Some(Bounds { metric: each.metric, statistic: each.statistic, low_ms: low, high_ms: high, is_inside })
    });
    let bounds = bounds.collect();
    // The draw with the shortest answers has the highest capacity, and the draw with the longest has the lowest.
    let slowness = compared.iter().position(|each| each.metric == Metric::E2e && each.statistic == Statistic::Mean);
    let Some((slowness, load_per_s)) = slowness.zip(load_per_s(source)) else { return Ok((bounds, None)) };
    let mut by_speed: Vec<&(Candidate, Vec<f64>)> = drawn.iter().collect();
    by_speed.sort_by(|a, b| a.1[slowness].total_cmp(&b.1[slowness]));
    let tail = (drawn.len() - 1) / 20;
    let ends = [by_speed[drawn.len() - 1 - tail].0, by_speed[tail].0];
    let ends = parallel::map(threads, &ends, |candidate| capacity_per_s(source, candidate, seed));
    let [low_per_s, high_per_s] = ends[..] else { return Ok((bounds, None)) };
    let capacity = low_per_s.zip(high_per_s).map(|(low, high)| Capacity {
        load_per_s,
        low_per_s: low.min(high),
        high_per_s: high.max(low),
    });
    Ok((bounds, capacity))
}

/// Arrivals per second. None if unknown, or if there are too few requests to fill the engine.
fn load_per_s(source: &Source) -> Option<f64> {
    let requests = source.measurements.requests();
    let seqs = source.pool.engine.as_vllm()?.max_num_seqs() as usize * source.pool.engines as usize;
    let span_ns = requests.last()?.arrival_ns.checked_sub(requests.first()?.arrival_ns).filter(|ns| *ns > 0)?;
    let is_open = source.measurements.most_at_once().is_none() && requests.len() >= FULL_BATCHES * seqs;
    is_open.then(|| (requests.len() - 1) as f64 / (span_ns as f64 / 1e9))
}

/// Requests that a full engine completes per second. All requests arrive at once. The first and the last
/// tenth are ignored, because the engine is not full during them.
fn capacity_per_s(source: &Source, candidate: &Candidate, seed: u64) -> Option<f64> {
    let simulation = run_at_once(&source.measurements, &source.pool, candidate, seed).ok()?;
    let mut ends_ns: Vec<u64> =
        simulation.requests.iter().filter_map(|each| Some(each.arrival_ns + each.e2e_ns?)).collect();
    ends_ns.sort_unstable();
    let (from, to) = (ends_ns.len() / 10, ends_ns.len() * 9 / 10);
    let span_ns = ends_ns.get(to)?.checked_sub(*ends_ns.get(from)?).filter(|ns| *ns > 0)?;
    Some((to - from) as f64 / (span_ns as f64 / 1e9))
}
