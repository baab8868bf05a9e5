//! Weighted least squares with non-negative coefficients and a Gaussian prior.
//!
//! Errors are relative: an error of 10 % counts the same for short and for long times, and large errors count
//! less (Huber, "Robust estimation of a location parameter", 1964). The times of requests that were served
//! together are not independent, so the data counts as at most [`MAX_EFFECTIVE_OBSERVATIONS`] observations
//! against the prior.

use nalgebra::{DMatrix, DVector};

use crate::solve::parameters::{Observation, PARAMETERS, Row};

/// Assumptions about the parameters before any data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prior {
    pub(crate) mean: Row,
    pub(crate) spread: Row,
}

const MAX_EFFECTIVE_OBSERVATIONS: f64 = 1000.0;
/// For the uncertainty of the parameters, a load counts as at most this many observations: effects that the model
/// leaves out cause the same error in all requests of a load. Estimated from loads left out of fits
/// (docs/appendix/fitted-models.md).
pub(crate) const MAX_KNOWN_OBSERVATIONS: f64 = 40.0;
/// Minimum relative error of a time, for the uncertainty of the parameters.
const KNOWN_ERROR: f64 = 0.05;
/// Errors beyond this many standard deviations count linearly.
const HUBER: f64 = 1.5;
/// Every measurement has at least this relative error.
const MIN_ERROR: f64 = 0.01;
const ROUNDS: usize = 12;

/// Finds the most likely parameters, starting from `values`.
pub(crate) fn solve(observations: &[Observation], prior: &Prior, values: &Row) -> Option<Row> {
    let mut values = *values;
    let mut error = spread(observations, &values).max(MIN_ERROR);
    let share = (MAX_EFFECTIVE_OBSERVATIONS / observations.len().max(1) as f64).min(1.0);
    for _ in 0..ROUNDS {
        let (hessian, gradient) = normal_equations(observations, prior, &values, error, share);
        let next = descend(&hessian, &gradient, prior, &values);
        let change = next.iter().zip(&values).zip(&prior.spread).map(|((a, b), s)| ((a - b) / s).abs());
        let change = change.fold(0.0, f64::max);
        values = next;
        error = spread(observations, &values).max(MIN_ERROR);
        if change < 1e-6 {
            break;
        }
    }
    values.iter().all(|value| value.is_finite()).then_some(values)
}

/// The information about the parameters near `values`, from the observations of several loads and the prior: the
/// inverse covariance, in units of the prior's spread. Each load counts as at most [`MAX_KNOWN_OBSERVATIONS`].
pub(crate) fn knowledge(loads: &[Vec<Observation>], prior: &Prior, values: &Row) -> DMatrix<f64> {
    let identity = DMatrix::<f64>::identity(PARAMETERS, PARAMETERS);
    let mut precision = identity.clone();
    for observations in loads {
        let weight: f64 = observations.iter().map(|each| each.weight).sum();
        let share = (MAX_KNOWN_OBSERVATIONS / weight.max(1.0)).min(1.0);
        let error = spread(observations, values).max(KNOWN_ERROR);
        precision += normal_equations(observations, prior, values, error, share).0 - &identity;
    }
    precision
}

pub(crate) fn covariance(knowledge: &DMatrix<f64>, prior: &Prior) -> Option<DMatrix<f64>> {
    let scale = DMatrix::from_diagonal(&DVector::from_row_slice(&prior.spread));
    Some(&scale * knowledge.clone().cholesky()?.inverse() * &scale)
}

fn residual(observation: &Observation, values: &Row) -> f64 {
    let predicted: f64 = observation.row.iter().zip(values).map(|(amount, value)| amount * value).sum();
    (observation.measured_ns - predicted) / observation.scale_ns
}

/// A robust standard deviation of the relative errors: their median absolute value, divided by that of a normal
/// distribution.
fn spread(observations: &[Observation], values: &Row) -> f64 {
    let mut sizes: Vec<f64> =
        observations.iter().map(|each| residual(each, values).abs() * each.weight.sqrt()).collect();
    if sizes.is_empty() {
        return MIN_ERROR;
    }
    let middle = sizes.len() / 2;
    *sizes.select_nth_unstable_by(middle, f64::total_cmp).1 / 0.6745
}

/// Hessian and gradient of the squared errors at 0, in units of the prior's spread.
fn normal_equations(
    observations: &[Observation],
    prior: &Prior,
    values: &Row,
    error: f64,
    share: f64,
) -> (DMatrix<f64>, DVector<f64>) {
    let mut hessian = DMatrix::identity(PARAMETERS, PARAMETERS);
    let mut gradient =
        DVector::from_iterator(PARAMETERS, prior.mean.iter().zip(&prior.spread).map(|(mean, spread)| mean / spread));
    let mut scaled = [0.0; PARAMETERS];
    for observation in observations {
        let size = residual(observation, values).abs() / error;
        let huber = if size > HUBER { HUBER / size } else { 1.0 };
        let weight = share * observation.weight * huber / (error * error);
        for ((scaled, amount), spread) in scaled.iter_mut().zip(&observation.row).zip(&prior.spread) {
            *scaled = amount * spread / observation.scale_ns;
        }
        for left in 0..PARAMETERS {
            if scaled[left] == 0.0 {
                continue;
            }
            gradient[left] += weight * scaled[left] * observation.measured_ns / observation.scale_ns;
            for right in 0..=left {
                hessian[(left, right)] += weight * scaled[left] * scaled[right];
            }
        }
    }
    for left in 0..PARAMETERS {
        for right in 0..left {
            hessian[(right, left)] = hessian[(left, right)];
        }
    }
    (hessian, gradient)
}

/// Cyclic coordinate descent, bounded at 0, in units of the prior's spread.
fn descend(hessian: &DMatrix<f64>, gradient: &DVector<f64>, prior: &Prior, start: &Row) -> Row {
    let mut at: Vec<f64> = start.iter().zip(&prior.spread).map(|(value, spread)| value / spread).collect();
    for _ in 0..20_000 {
        let mut largest = 0.0_f64;
        for index in 0..PARAMETERS {
            let others: f64 =
                (0..PARAMETERS).filter(|other| *other != index).map(|other| hessian[(index, other)] * at[other]).sum();
            let next = ((gradient[index] - others) / hessian[(index, index)]).max(0.0);
            largest = largest.max((next - at[index]).abs());
            at[index] = next;
        }
        if largest < 1e-9 {
            break;
        }
    }
    let mut values = [0.0; PARAMETERS];
    for index in 0..PARAMETERS {
        values[index] = at[index] * prior.spread[index];
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prior(mean: f64, spread: f64) -> Prior {
        Prior { mean: [mean; PARAMETERS], spread: [spread; PARAMETERS] }
    }

    fn observation(amounts: &[(usize, f64)], measured_ns: f64) -> Observation {
        let mut row = [0.0; PARAMETERS];
        for &(index, amount) in amounts {
            row[index] = amount;
        }
        Observation { row, measured_ns, scale_ns: measured_ns, weight: 1.0 }
    }

    #[test]
    fn data_decides_where_there_is_any_and_the_prior_elsewhere() {
        let of = |batch: f64| observation(&[(0, 1.0), (6, batch)], 100.0 + 3.0 * batch);
        let observations: Vec<_> = (1..100).map(|batch| of(f64::from(batch))).collect();
        let found = solve(&observations, &prior(20.0, 50.0), &[1.0; PARAMETERS]).expect("it has a solution");
        assert!((found[0] - 100.0).abs() < 2.0, "{:?}", found);
        assert!((found[6] - 3.0).abs() < 0.1, "{:?}", found);
        assert!((found[1] - 20.0).abs() < 1e-6, "nothing was seen of it: {:?}", found);
        let known = knowledge(&[observations], &prior(20.0, 50.0), &found);
        let covariance = covariance(&known, &prior(20.0, 50.0)).expect("it is one");
        assert!(covariance[(1, 1)].sqrt() > 49.0 && covariance[(6, 6)].sqrt() < 2.0, "{covariance}");
    }

    #[test]
    fn outliers_and_negative_slopes_do_not_win() {
        let of = |batch: f64| observation(&[(0, 1.0), (6, batch)], 100.0 - 0.1 * batch);
        let mut observations: Vec<_> = (1..100).map(|batch| of(f64::from(batch))).collect();
        observations.extend((0..5).map(|_| observation(&[(0, 1.0)], 10_000.0)));
        let found = solve(&observations, &prior(0.0, 50.0), &[1.0; PARAMETERS]).expect("it has a solution");
        assert!((found[0] - 95.0).abs() < 3.0, "{:?}", found);
        assert!(found.iter().all(|value| *value >= 0.0));
    }
}
