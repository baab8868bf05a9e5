//! The last refinement of a fit: scales groups of coefficients until the simulated percentiles agree best.
//!
//! Least squares over single requests favour frequent cases, but users look at percentiles, also of queues. Four
//! scales are too few to improve percentiles by wrong physics.

use std::cell::RefCell;

use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::neldermead::NelderMead;
use vcr_compare::{Metric, Statistic};
use vcr_fitted::TERMS;

use crate::error::FitError;
use crate::judge::metrics::comparisons;
use crate::measurements::data::Measurements;
use crate::simulate::Simulation;
use crate::solve::parameters::{ARRIVAL, PARAMETERS, Row};

/// Logarithms of the groups' scales. The constant overhead may be 0, so its entry is an offset in units of
/// [`ARRIVAL_UNIT_NS`].
pub(crate) type Scales = [f64; 4];

/// Iterations of the search, with one or two simulations each.
const MAX_ITERATIONS: u64 = 40;
/// Size of the first simplex along each scale.
const FIRST_STEPS: Scales = [0.04, 0.15, 0.1, 0.15];
/// Weight of the squared logarithm of a scale, relative to a mean error.
const STIFFNESS: f64 = 0.3;
/// A change of the constant overhead by this much costs as much as scaling a group by 2.7.
const ARRIVAL_UNIT_NS: f64 = 20e6;

fn group(index: usize) -> usize {
    if index == ARRIVAL {
        return 3;
    }
    let Some(term) = TERMS.get(index) else { return 2 };
    match term.name {
        "decode_context_token" | "decode_distinct_token" => 1,
        name if name.starts_with("prefill") || name.starts_with("token") || name == "attention_pair" => 2,
        "mixed_decode" => 2,
        _ => 0,
    }
}

pub(crate) fn scaled(values: &Row, scales: &Scales) -> Row {
    let mut scaled = [0.0; PARAMETERS];
    for (index, value) in values.iter().enumerate() {
        scaled[index] = match index {
            ARRIVAL => (value + scales[group(index)] * ARRIVAL_UNIT_NS).max(0.0),
            _ => value * scales[group(index)].exp(),
        };
    }
    scaled
}

/// The error of the percentiles: the mean absolute logarithm of simulated over measured percentiles.
pub(crate) fn loss(measurements: &Measurements, simulation: &Simulation) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for comparison in comparisons(measurements, simulation).iter().filter(|each| each.metric != Metric::Queue) {
        let weight = match comparison.statistic {
            Statistic::Mean | Statistic::P50 => 1.0,
            Statistic::P90 => 0.7,
            // A few odd requests determine this percentile. They would move the prices of all others.
            _ => 0.1,
        };
        let ratio = (comparison.simulated_ms.max(1e-6) / comparison.measured_ms.max(1e-6)).ln().abs();
        sum += weight * ratio.min(3.0);
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { f64::MAX }
}

struct Problem<'f, F> {
    loss: RefCell<F>,
    /// The first error of the loss function. The solver accepts no error in its first simplex.
    failure: &'f RefCell<Option<FitError>>,
}

impl<F: FnMut(&Scales) -> Result<f64, FitError>> CostFunction for Problem<'_, F> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, at: &Vec<f64>) -> Result<f64, Error> {
        if self.failure.borrow().is_some() {
            return Ok(f64::MAX);
        }
        let mut scales = [0.0; 4];
        scales.copy_from_slice(at);
        let stiffness: f64 = scales.iter().map(|scale| scale * scale).sum::<f64>() * STIFFNESS;
        match (self.loss.borrow_mut())(&scales) {
            Ok(loss) => Ok(loss + stiffness),
            Err(error) => {
                *self.failure.borrow_mut() = Some(error);
                Ok(f64::MAX)
            }
        }
    }
}

/// Finds the scales with the least `loss` by the method of Nelder and Mead ("A simplex method for function
/// minimization", 1965).
///
/// # Errors
/// The first error of `loss`.
pub(crate) fn search(loss: impl FnMut(&Scales) -> Result<f64, FitError>) -> Result<Scales, FitError> {
    let mut simplex = vec![vec![0.0; 4]];
    for (index, size) in FIRST_STEPS.into_iter().enumerate() {
        let mut corner = vec![0.0; 4];
        corner[index] = size;
        simplex.push(corner);
    }
    let failure = RefCell::new(None);
    let problem = Problem { loss: RefCell::new(loss), failure: &failure };
    let executor = Executor::new(problem, NelderMead::new(simplex));
    let solved = executor.configure(|state| state.max_iters(MAX_ITERATIONS)).run();
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let mut solved = solved.map_err(|error| FitError::NoFit(error.to_string()))?;
    let mut scales = [0.0; 4];
    if let Some(best) = solved.state.take_best_param() {
        scales.copy_from_slice(&best);
    }
    Ok(scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_loss_is_found_but_for_its_stiffness() {
        let mut evaluations = 0;
        let scales = search(|scales| {
            evaluations += 1;
            Ok((scales[0] - 0.05).abs() + (scales[3] + 0.2).abs() + scales[1].abs())
        });
        let scales = scales.expect("it has a minimum");
        assert!((scales[0] - 0.05).abs() < 0.02 && (scales[3] + 0.2).abs() < 0.05, "{scales:?}");
        assert!(evaluations < 200, "{evaluations} evaluations");
        let failed = search(|_| Err(FitError::NoFit("on purpose".to_owned())));
        assert_eq!(failed.expect_err("it fails").to_string(), "the fit failed: on purpose");
    }

    #[test]
    fn every_parameter_is_in_a_group() {
        let scaled = scaled(&[1.0; PARAMETERS], &[0.0, 0.0, 1.0_f64.ln(), 2.0_f64.ln()]);
        assert_eq!((scaled[0], scaled[ARRIVAL].round()), (1.0, 13_862_945.0));
    }
}
