//! Steps with recorded content and duration. These observations need no simulation.
//!
//! Usually, a step takes the sum of its terms. If the host's launch takes longer, the step takes the launch time
//! instead, counted from the step's own start. Under async scheduling, the launch counts from the start of the
//! previous step, during which it happens.

use vcr_base::percentile::at_share;
use vcr_cluster::GRAPH_TOKENS_MAX;
use vcr_fitted::{Noise, QUANTILES, StepWork, TERM_COUNT, amounts};

use crate::solve::parameters::{LARGE_LAUNCH, LAUNCH_REQUEST, Observation, PARAMETERS, PREFILL_LAUNCH, Row};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RecordedStep {
    /// Start of the step. If the step follows the previous one immediately, the end of that step.
    pub(crate) start_ns: u64,
    /// Time at which the result was available.
    pub(crate) end_ns: u64,
    pub(crate) work: StepWork,
    /// Whether the step followed the previous one immediately.
    pub(crate) follows: bool,
    /// Whether content and duration are known and are to be compared.
    pub(crate) is_compared: bool,
}

/// The steps of each engine, in order of time.
pub(crate) type RecordedSteps = Vec<Vec<RecordedStep>>;

/// A pause up to this fraction of the median step counts as part of the following step, since it is the host's work
/// between two steps.
const MAX_GAP: f64 = 0.25;
/// A step that exceeds its price by this factor may have waited for its launch.
const LAUNCHED_FROM: f64 = 1.05;
/// In steps with prefills, an error counts as an outlier only if it is this many times larger than in decode steps.
const PREFILL_DOUBT: f64 = 6.0;
/// Fewer steps contain too little information about rare stalls.
const MIN_STEPS: usize = 500;

/// Sorts steps by their ends and removes overlaps. The input is `(start, end, work)`.
pub(crate) fn in_order(mut steps: Vec<(u64, u64, StepWork)>) -> Vec<RecordedStep> {
    steps.sort_by_key(|(start_ns, end_ns, _)| (*end_ns, *start_ns));
    let mut durations: Vec<u64> = steps.iter().map(|(start_ns, end_ns, _)| end_ns.saturating_sub(*start_ns)).collect();
    durations.sort_unstable();
    let gap_ns = durations.get(durations.len() / 2).map_or(0.0, |ns| *ns as f64 * MAX_GAP) as u64;
    let mut last_end_ns: Option<u64> = None;
    let mut ordered = Vec::with_capacity(steps.len());
    for (start_ns, end_ns, work) in steps {
        let follows = last_end_ns.is_some_and(|last_ns| start_ns <= last_ns.saturating_add(gap_ns));
        let start_ns = last_end_ns.filter(|_| follows).unwrap_or(start_ns);
        last_end_ns = Some(end_ns);
        ordered.push(RecordedStep { start_ns, end_ns, work, follows, is_compared: end_ns > start_ns });
    }
    ordered
}

/// Index of the launch parameter that applies to a step, if launches take time.
fn launch(work: &StepWork) -> Option<usize> {
    if work.prefill_tokens.saturating_add(work.decode_tokens) > GRAPH_TOKENS_MAX {
        Some(LARGE_LAUNCH)
    } else {
        (work.prefill_requests > 0).then_some(PREFILL_LAUNCH)
    }
}

pub(crate) fn observe(engines: &RecordedSteps, values: &Row, is_async: bool) -> Vec<Observation> {
    let mut observations = Vec::new();
    for steps in engines {
        // The earliest time at which the next launch can begin.
        let mut launches_from_ns = 0;
        for step in steps {
            let mut row = [0.0; PARAMETERS];
            row[..TERM_COUNT].copy_from_slice(&amounts(&step.work));
            let price_ns: f64 = row.iter().zip(values).map(|(amount, value)| amount * value).sum();
            let from_ns = if is_async && step.follows { launches_from_ns } else { step.start_ns };
            let begun_ns = step.start_ns.saturating_sub(from_ns) as f64;
            let mut measured_ns = step.end_ns.saturating_sub(step.start_ns) as f64;
            let requests = (step.work.prefill_requests + step.work.decode_tokens) as f64;
            let bound = launch(&step.work).filter(|launch| {
                let launch_ns = values[*launch] + values[LAUNCH_REQUEST] * requests - begun_ns;
                // A step that took longer than its price counts as waiting for its launch if the launch time explains
                // the duration better.
                let is_closer = (measured_ns - launch_ns).abs() < (measured_ns - price_ns).abs();
                launch_ns > price_ns || (measured_ns > price_ns * LAUNCHED_FROM && is_closer)
            });
            if let Some(launch) = bound {
                row = [0.0; PARAMETERS];
                row[launch] = 1.0;
                row[LAUNCH_REQUEST] = requests;
                measured_ns += begun_ns;
            }
            launches_from_ns = if bound.is_some() { step.end_ns } else { step.start_ns };
            if step.is_compared && measured_ns > 0.0 {
                // Steps with prefills scatter more, and their mean determines the duration of a load.
                let doubt = if step.work.prefill_requests > 0 { PREFILL_DOUBT } else { 1.0 };
                let scale_ns = measured_ns * doubt;
                observations.push(Observation { row, measured_ns, scale_ns, weight: doubt * doubt });
            }
        }
    }
    observations
}

/// The spread of recorded steps around their prices, separately for steps with and without prefill. Steps
/// that wait for a launch are left out. None if there are too few steps.
pub(crate) fn noise<'s>(sources: impl Iterator<Item = (&'s RecordedSteps, bool)>, values: &Row) -> Option<Noise> {
    let mut ratios = [Vec::new(), Vec::new()];
    for (steps, is_async) in sources {
        for observation in observe(steps, values, is_async) {
            if observation.row[PREFILL_LAUNCH] + observation.row[LARGE_LAUNCH] > 0.0 {
                continue;
            }
            let price_ns: f64 = observation.row.iter().zip(values).map(|(amount, value)| amount * value).sum();
            // The second term counts steps with prefill.
            let has_prefill = observation.row[1] > 0.0;
            ratios[usize::from(has_prefill)].push(observation.measured_ns / price_ns.max(1.0));
        }
    }
    let [decode, prefill] = ratios;
    let decode = quantiles(decode)?;
    Some(Noise { decode, prefill: quantiles(prefill).unwrap_or(decode) })
}

/// Quantiles, scaled to a mean of 1. The first and the last are not the extremes, since an outlier would then become
/// a frequent case. They are chosen so that steps below the second and above the second to last quantile keep their
/// measured mean.
pub(crate) fn quantiles(mut ratios: Vec<f64>) -> Option<[f64; QUANTILES.len()]> {
    if ratios.len() < MIN_STEPS {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let mut factors = QUANTILES.map(|share| at_share(&ratios, share).expect("there are steps"));
    let last = factors.len() - 1;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let tail = |share: f64| ((ratios.len() as f64 * share) as usize).max(1);
    let (low, high) = (tail(QUANTILES[1]), ratios.len() - tail(1.0 - QUANTILES[last - 1]));
    factors[0] = (2.0 * mean(&ratios[..low]) - factors[1]).clamp(ratios[0], factors[1]);
    factors[last] = (2.0 * mean(&ratios[high..]) - factors[last - 1]).max(factors[last - 1]);
    // The mean of the piecewise linear distribution, from which factors are drawn, must be 1.
    let pieces = QUANTILES.windows(2).zip(factors.windows(2));
    let mean: f64 = pieces.map(|(share, factor)| (share[1] - share[0]) * (factor[0] + factor[1]) / 2.0).sum();
    for factor in &mut factors {
        *factor /= mean;
    }
    let is_valid = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
    is_valid.then_some(factors)
}

pub(crate) fn compared(engines: &RecordedSteps) -> impl Iterator<Item = &RecordedStep> {
    engines.iter().flatten().filter(|step| step.is_compared)
}

#[cfg(test)]
mod tests {
    use vcr_fitted::UNKNOWN_TOKENS;

    use super::*;

    const DECODE: StepWork = StepWork {
        prefill_requests: 0,
        prefill_tokens: 0,
        prefill_context_tokens: 0,
        prefill_attention_pairs: 0,
        decode_tokens: 4,
        decode_context_tokens: 400,
        kv_distinct_tokens: UNKNOWN_TOKENS,
        sampled_requests: 4,
    };
    const LARGE: StepWork = StepWork { prefill_requests: 1, prefill_tokens: 1000, ..DECODE };

    #[test]
    fn short_pauses_belong_to_the_step_and_long_ones_to_nobody() {
        let steps = in_order(vec![(110, 200, DECODE), (0, 100, DECODE), (150, 300, DECODE), (900, 1000, DECODE)]);
        let told: Vec<_> = steps.iter().map(|step| (step.start_ns, step.end_ns, step.follows)).collect();
        assert_eq!(told, [(0, 100, false), (100, 200, true), (200, 300, true), (900, 1000, false)]);
    }

    #[test]
    fn a_step_that_waits_for_its_launch_tells_of_the_launch() {
        let steps = vec![in_order(vec![(0, 8, DECODE), (8, 30, LARGE), (30, 38, DECODE)])];
        let mut values = [0.0; PARAMETERS];
        (values[0], values[LARGE_LAUNCH]) = (8.0, 28.0);
        let seen = observe(&steps, &values, true);
        assert_eq!((seen[1].row[LARGE_LAUNCH], seen[1].row[0], seen[1].measured_ns), (1.0, 0.0, 30.0));
        assert_eq!((seen[2].row[LARGE_LAUNCH], seen[2].row[0], seen[2].measured_ns), (0.0, 1.0, 8.0));
        let seen = observe(&steps, &values, false);
        assert_eq!((seen[1].row[LARGE_LAUNCH], seen[1].measured_ns), (1.0, 22.0), "it is launched when it begins");
        values[LARGE_LAUNCH] = 10.0;
        assert_eq!(observe(&steps, &values, true)[1].row[0], 1.0, "the launch is hidden");
    }

    /// One gap that includes another request's prefill must not shorten all other steps by a quarter.
    #[test]
    fn one_outlier_moves_no_other_step() {
        let mut ratios: Vec<f64> = (0..8_000).map(|index| 0.9 + 0.2 * f64::from(index) / 8e3).collect();
        let usual = quantiles(ratios.clone()).expect("there are enough");
        ratios.push(50.0);
        let with_outlier = quantiles(ratios).expect("there are enough");
        assert!((with_outlier[6] / usual[6] - 1.0).abs() < 0.01, "{with_outlier:?}");
        assert!(with_outlier[12] < 3.0, "{with_outlier:?}");
    }

    #[test]
    fn spread_is_told_apart_for_prefills() {
        let mut steps = Vec::new();
        for index in 0..2000_u64 {
            let start_ns = index * 10_000;
            let duration_ns = if index % 2 == 0 { 800 + index % 7 * 10 } else { 900 };
            steps.push((start_ns, start_ns + duration_ns, if index % 2 == 0 { DECODE } else { LARGE }));
        }
        let mut values = [0.0; PARAMETERS];
        values[0] = 850.0;
        let noise = noise([(&vec![in_order(steps)], false)].into_iter(), &values).expect("there are enough");
        assert!(noise.decode[0] < 0.99 && noise.decode[12] > 1.01, "{noise:?}");
        assert!((noise.prefill[0] - noise.prefill[12]).abs() < 1e-9, "{noise:?}");
        let few: RecordedSteps = vec![in_order(vec![(0, 8, DECODE)])];
        assert_eq!(super::noise([(&few, false)].into_iter(), &values), None);
    }
}
