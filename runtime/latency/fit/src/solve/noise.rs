//! The spread of measured steps around their prices.

use vcr_fitted::Noise;

use crate::measurements::data::Measurements;
use crate::measurements::recorded::quantiles;
use crate::simulate::Simulation;

/// Fewer steps than this say little of rare stalls.
const MIN_STEPS: usize = 2_000;

/// Compares the gaps between tokens with the simulated steps that they are the ends of,
/// where both are known: steps that only decode, as their neighbours do. None where too
/// few gaps are known.
pub(crate) fn measure<'a>(sides: impl Iterator<Item = (&'a Measurements, &'a Simulation)>) -> Option<Noise> {
    let mut ratios = Vec::new();
    for (measurements, simulation) in sides {
        for (measured, simulated) in measurements.requests().iter().zip(&simulation.requests) {
            let steps = simulation.steps.get(simulated.worker as usize);
            let (Some(steps), Some(ttft_ns)) = (steps, simulated.ttft_ns) else { continue };
            let first_ns = simulated.arrival_ns + ttft_ns;
            let first = steps.partition_point(|step| step.end_ns <= first_ns);
            let Some(steps) = steps.get(first..first + measured.gaps_ns.len()) else { continue };
            let decodes_only = |index: usize| {
                let near = index.saturating_sub(2)..(index + 3).min(steps.len());
                steps[near].iter().all(|step| step.work.prefill_requests == 0)
            };
            for (index, gap_ns) in measured.gaps_ns.iter().enumerate().filter(|(index, _)| decodes_only(*index)) {
                let step = &steps[index];
                if step.end_ns > step.start_ns && *gap_ns > 0 {
                    ratios.push(*gap_ns as f64 / (step.end_ns - step.start_ns) as f64);
                }
            }
        }
    }
    if ratios.len() < MIN_STEPS {
        return None;
    }
    let factors = quantiles(ratios)?;
    Some(Noise { decode: factors, prefill: factors })
}
