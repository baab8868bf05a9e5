//! The spread of measured steps around their prices.

use vcr_fitted::{Noise, QUANTILES};

use crate::measurements::data::Measurements;
use crate::measurements::measured::Measured;
use crate::measurements::recorded::quantiles;
use crate::simulate::Simulation;

/// Fewer steps contain too little information about rare stalls.
const MIN_STEPS: usize = 2_000;

/// Compares the measured gaps between tokens with the simulated steps that end them. Uses only gaps of decodes: neither
/// the step nor its neighbour has prefill, and no other request got its first token. None if there are too few gaps.
pub(crate) fn measure<'a>(sides: impl Iterator<Item = (&'a Measurements, &'a Simulation)>) -> Option<Noise> {
    let mut ratios = Vec::new();
    for (measurements, simulation) in sides {
        let first_tokens = FirstTokens::of(measurements);
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
            let is_beside_prefill = first_tokens.beside_gaps(measured);
            for (index, gap_ns) in measured.gaps_ns.iter().enumerate().filter(|(index, _)| decodes_only(*index)) {
                if is_beside_prefill.get(index).is_none_or(|is_beside| *is_beside) {
                    continue;
                }
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
    // The host's jitter in a decode is unrelated to that in a prefill, which takes many times as long.
    Some(Noise { decode: quantiles(ratios)?, prefill: [1.0; QUANTILES.len()] })
}

/// Times of the requests' first tokens, ascending. A prompt was computed just before each.
struct FirstTokens(Vec<u64>);

impl FirstTokens {
    fn of(measurements: &Measurements) -> Self {
        let requests = measurements.requests().iter();
        let mut at_ns: Vec<u64> =
            requests.filter_map(|request| Some(request.arrival_ns.saturating_add(request.ttft_ns?))).collect();
        at_ns.sort_unstable();
        Self(at_ns)
    }

    /// For each gap of a request: whether another request got its first token in this gap or in a neighbouring one.
    fn beside_gaps(&self, request: &Measured) -> Vec<bool> {
        let Some(ttft_ns) = request.ttft_ns else { return Vec::new() };
        let own_ns = request.arrival_ns.saturating_add(ttft_ns);
        let mut tokens_ns = vec![own_ns];
        for gap_ns in &request.gaps_ns {
            tokens_ns.push(tokens_ns.last().map_or(0, |last_ns| last_ns.saturating_add(*gap_ns)));
        }
        let last = tokens_ns.len() - 1;
        let is_beside = |index: usize| {
            let (from_ns, to_ns) = (tokens_ns[index.saturating_sub(1)], tokens_ns[(index + 2).min(last)]);
            let count = |at_ns| self.0.partition_point(|first_ns| *first_ns < at_ns);
            let within = count(to_ns.saturating_add(1)) - count(from_ns);
            within > usize::from(own_ns >= from_ns)
        };
        (0..request.gaps_ns.len()).map(is_beside).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_beside_prefills_of_others_are_found() {
        let first_tokens = FirstTokens(vec![100, 141]);
        let of = |arrival_ns, gaps_ns: &[u64]| {
            let request = Measured { arrival_ns, ttft_ns: Some(50), gaps_ns: gaps_ns.into(), ..Measured::default() };
            first_tokens.beside_gaps(&request)
        };
        // The first token comes where the fourth gap ends and the fifth starts. Three gaps contain it or are next to
        // it. The sixth gap is next to its start.
        assert_eq!(of(50, &[10, 10, 10, 11, 10, 10, 10]), [false, false, true, true, true, true, false]);
        assert_eq!(of(91, &[10, 10]), [false, false], "its own prefill was before");
        assert_eq!(FirstTokens(vec![100]).beside_gaps(&Measured::default()), Vec::<bool>::new());
    }
}
