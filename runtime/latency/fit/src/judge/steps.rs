//! Compares recorded and simulated steps: their number, duration and content.

use serde::Serialize;
use vcr_compare::{Statistic, pearson};
use vcr_fitted::StepWork;

use crate::measurements::data::Measurements;
use crate::simulate::Simulation;

/// The steps of a load on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepComparison {
    /// The recorded steps.
    pub measured: StepSummary,
    /// The simulated steps.
    pub simulated: StepSummary,
    /// Correlation of both sides' batch sizes over time, in requests. None if the batch size of a side does not vary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_pearson: Option<f64>,
}

/// The steps of one side, over all engines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepSummary {
    /// Number of steps.
    pub steps: u64,
    /// Mean duration.
    pub mean_ms: f64,
    /// Median duration.
    pub p50_ms: f64,
    /// 99th percentile of the durations.
    pub p99_ms: f64,
    /// Mean number of decode tokens in a step.
    pub decode_tokens: f64,
    /// Mean number of prefill tokens in a step.
    pub prefill_tokens: f64,
    /// Fraction of the steps that have prefill tokens.
    pub prefill_share: f64,
}

/// Number of equal periods, from the first to the last step, by which batch sizes are compared.
const PARTS: usize = 100;

type Step = (u64, u64, StepWork);

/// Compares the recorded steps with the simulated ones. None if no steps were recorded.
pub(super) fn compare(measurements: &Measurements, simulation: &Simulation) -> Option<StepComparison> {
    let measured: Vec<Step> =
        measurements.steps().iter().flatten().map(|step| (step.start_ns, step.end_ns, step.work)).collect();
    let simulated: Vec<Step> =
        simulation.steps.iter().flatten().map(|step| (step.start_ns, step.end_ns, step.work)).collect();
    let (measured_span, simulated_span) = (span(&measured)?, span(&simulated)?);
    let lasts_ns = measured_span.1.max(simulated_span.1);
    let batches = |steps: &[Step], first_ns| batch_over_time(steps, first_ns, lasts_ns);
    let pairs: Vec<(f64, f64)> =
        batches(&measured, measured_span.0).into_iter().zip(batches(&simulated, simulated_span.0)).collect();
    Some(StepComparison {
        measured: summary(&measured),
        simulated: summary(&simulated),
        batch_pearson: pearson(&pairs),
    })
}

/// The start of the first step, and the time from it to the end of the last step.
fn span(steps: &[Step]) -> Option<(u64, u64)> {
    let first_ns = steps.iter().map(|(start_ns, ..)| *start_ns).min()?;
    let last_ns = steps.iter().map(|(_, end_ns, _)| *end_ns).max()?;
    Some((first_ns, last_ns - first_ns)).filter(|(_, lasts_ns)| *lasts_ns > 0)
}

fn summary(steps: &[Step]) -> StepSummary {
    let count = steps.len() as f64;
    let mean = |of: fn(&StepWork) -> u64| steps.iter().map(|(.., work)| of(work) as f64).sum::<f64>() / count;
    let duration = |statistic: Statistic| {
        statistic.of(steps.iter().map(|(start_ns, end_ns, _)| (end_ns - start_ns) as f64).collect()) / 1e6
    };
    StepSummary {
        steps: steps.len() as u64,
        mean_ms: duration(Statistic::Mean),
        p50_ms: duration(Statistic::P50),
        p99_ms: duration(Statistic::P99),
        decode_tokens: mean(|work| work.decode_tokens),
        prefill_tokens: mean(|work| work.prefill_tokens),
        prefill_share: mean(|work| u64::from(work.prefill_tokens > 0)),
    }
}

/// The mean number of requests per step, for equal periods. Idle time counts as 0.
fn batch_over_time(steps: &[Step], first_ns: u64, lasts_ns: u64) -> Vec<f64> {
    let part_ns = lasts_ns as f64 / PARTS as f64;
    let mut batches = vec![0.0; PARTS];
    for (start_ns, end_ns, work) in steps {
        let requests = (work.decode_tokens + work.prefill_requests) as f64;
        let (start, end) = ((start_ns - first_ns) as f64 / part_ns, (end_ns - first_ns) as f64 / part_ns);
        for (part, batch) in batches.iter_mut().enumerate().take(end.ceil() as usize).skip(start as usize) {
            *batch += requests * (end.min(part as f64 + 1.0) - start.max(part as f64)).max(0.0);
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_means_over_time() {
        let work = |decode_tokens| StepWork { decode_tokens, ..StepWork::default() };
        let batches = batch_over_time(&[(100, 150, work(4)), (175, 200, work(8))], 100, 200);
        assert_eq!(batches.iter().sum::<f64>(), 4.0 * 25.0 + 8.0 * 12.5);
        assert_eq!((batches[0], batches[24], batches[30], batches[37], batches[40]), (4.0, 4.0, 0.0, 4.0, 8.0));
        assert_eq!(batches[99], 0.0, "idle");
    }
}
