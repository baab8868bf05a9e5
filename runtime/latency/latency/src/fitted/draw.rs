//! Draws coefficients according to the uncertainty of a fit.
//!
//! A draw is the result that the fit would have if chance had shifted its measurements according to the covariance: a
//! normal vector around the estimate, projected onto the non-negative coefficients in the metric of the precision.
//! Simply setting negative coefficients to 0 would make every step too long if several coefficients stand for the same
//! time.

use vcr_base::random::Stream;
use vcr_fitted::{ModelFile, TERMS};

/// Maximum rounds of coordinate descent. A few hundred suffice even for coefficients that the data hardly separates.
const MAX_SWEEPS: usize = 2_000;
/// The descent stops when changes are below this, in standard deviations.
const PRECISION: f64 = 1e-9;
/// Added to the diagonal if rounding has made a covariance indefinite.
const JITTER: f64 = 1e-9;

const OVERHEADS: &str = "overheads.";
const PS_PER_NS: f64 = 1e3;

/// Draws coefficients of a fitted model according to its covariance.
#[derive(Clone, Debug)]
pub struct FittedDraws {
    model: ModelFile,
    /// Parameters whose values vary between draws.
    parameters: Vec<Parameter>,
    /// The Cholesky factor of the correlations, and its inverse, by rows.
    factor: Vec<Vec<f64>>,
    precision: Vec<Vec<f64>>,
}

#[derive(Clone, Copy, Debug)]
struct Parameter {
    target: Target,
    mean: f64,
    deviation: f64,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Term(usize),
    Arrival,
    ArrivalPerPromptToken,
    FirstToken,
    Output,
    PrefillLaunch,
    LargeLaunch,
    LaunchPerRequest,
}

impl Target {
    fn named(name: &str) -> Option<Self> {
        match name.strip_prefix(OVERHEADS) {
            None => TERMS.iter().position(|term| term.name == name).map(Self::Term),
            Some("arrival") => Some(Self::Arrival),
            Some("arrival_per_prompt_token") => Some(Self::ArrivalPerPromptToken),
            Some("first_token") => Some(Self::FirstToken),
            Some("output") => Some(Self::Output),
            Some("prefill_launch") => Some(Self::PrefillLaunch),
            Some("large_launch") => Some(Self::LargeLaunch),
            Some("launch_per_request") => Some(Self::LaunchPerRequest),
            Some(_) => None,
        }
    }

    fn of(self, model: &ModelFile) -> f64 {
        match self {
            Self::Term(index) => model.step.coefficients()[index],
            Self::Arrival => model.overheads.arrival_ns as f64,
            Self::ArrivalPerPromptToken => model.overheads.arrival_per_prompt_token_ps as f64 / PS_PER_NS,
            Self::FirstToken => model.overheads.first_token_ns as f64,
            Self::Output => model.overheads.output_ns as f64,
            Self::PrefillLaunch => model.overheads.prefill_launch_ns as f64,
            Self::LargeLaunch => model.overheads.large_launch_ns as f64,
            Self::LaunchPerRequest => model.overheads.launch_per_request_ns as f64,
        }
    }
}

impl FittedDraws {
    /// Creates the draws. None for a model without a valid covariance.
    #[must_use]
    pub fn new(model: ModelFile) -> Option<Self> {
        let uncertainty = &model.uncertainty;
        let variance = |index: usize| uncertainty.covariance[index][index];
        let varying: Vec<(usize, Target)> = uncertainty
            .parameters
            .iter()
            .enumerate()
            .filter_map(|(index, name)| Some((index, Target::named(name)?)))
            .filter(|(index, _)| variance(*index).is_finite() && variance(*index) > 0.0)
            .collect();
        if varying.is_empty() {
            return None;
        }
        let parameter = |&(index, target): &(usize, Target)| Parameter {
            target,
            mean: target.of(&model),
            deviation: variance(index).sqrt(),
        };
        let parameters: Vec<Parameter> = varying.iter().map(parameter).collect();
        let correlation = |row: usize, column: usize| {
            let covariance = uncertainty.covariance[varying[row].0][varying[column].0];
            covariance / (parameters[row].deviation * parameters[column].deviation)
        };
        let size = parameters.len();
        let correlations: Vec<Vec<f64>> =
            (0..size).map(|row| (0..size).map(|column| correlation(row, column)).collect()).collect();
        let factor = cholesky(&correlations, 0.0).or_else(|| cholesky(&correlations, JITTER))?;
        let precision = inverse(&factor);
        Some(Self { model, parameters, factor, precision })
    }

    /// The model with the coefficients that `seed` draws.
    #[must_use]
    pub fn draw(&self, seed: u64) -> ModelFile {
        let mut stream = Stream::new(seed, "coefficients");
        let normal: Vec<f64> = self.parameters.iter().map(|_| stream.normal()).collect();
        let free: Vec<f64> = self.factor.iter().map(|row| dot(row, &normal)).collect();
        let drawn = self.project(&free);
        let mut model = self.model.clone();
        let mut coefficients = *model.step.coefficients();
        for (parameter, deviations) in self.parameters.iter().zip(drawn) {
            let value = (parameter.mean + parameter.deviation * deviations).max(0.0);
            match parameter.target {
                Target::Term(index) => coefficients[index] = value,
                Target::Arrival => model.overheads.arrival_ns = value.round() as u64,
                Target::ArrivalPerPromptToken => {
                    model.overheads.arrival_per_prompt_token_ps = (value * PS_PER_NS).round() as u64;
                }
                Target::FirstToken => model.overheads.first_token_ns = value.round() as u64,
                Target::Output => model.overheads.output_ns = value.round() as u64,
                Target::PrefillLaunch => model.overheads.prefill_launch_ns = value.round() as u64,
                Target::LargeLaunch => model.overheads.large_launch_ns = value.round() as u64,
                Target::LaunchPerRequest => model.overheads.launch_per_request_ns = value.round() as u64,
            }
        }
        // If a draw makes all coefficients 0, the estimate stays.
        model.step = model.step.with_coefficients(coefficients).unwrap_or(model.step);
        model
    }

    /// The non-negative point closest to `free` in the metric of the precision, in deviations from the mean.
    fn project(&self, free: &[f64]) -> Vec<f64> {
        let least: Vec<f64> = self.parameters.iter().map(|each| -each.mean / each.deviation).collect();
        let mut at: Vec<f64> = free.iter().zip(&least).map(|(free, least)| free.max(*least)).collect();
        let mut off: Vec<f64> = at.iter().zip(free).map(|(at, free)| at - free).collect();
        if off.iter().all(|off| *off == 0.0) {
            return at;
        }
        for _ in 0..MAX_SWEEPS {
            let mut change: f64 = 0.0;
            for index in 0..at.len() {
                let row = &self.precision[index];
                let next = (at[index] - dot(row, &off) / row[index]).max(least[index]);
                change = change.max((next - at[index]).abs());
                at[index] = next;
                off[index] = next - free[index];
            }
            if change < PRECISION {
                break;
            }
        }
        at
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// The lower triangle whose product with its transpose is `matrix`, with `jitter` on the diagonal. None if that sum is
/// not positive definite.
fn cholesky(matrix: &[Vec<f64>], jitter: f64) -> Option<Vec<Vec<f64>>> {
    let size = matrix.len();
    let mut factor = vec![vec![0.0; size]; size];
    for row in 0..size {
        for column in 0..=row {
            let rest = matrix[row][column] - dot(&factor[row][..column], &factor[column][..column]);
            if row == column {
                let pivot = rest + jitter;
                if !(pivot.is_finite() && pivot > 0.0) {
                    return None;
                }
                factor[row][row] = pivot.sqrt();
            } else {
                factor[row][column] = rest / factor[column][column];
            }
        }
    }
    Some(factor)
}

fn inverse(factor: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let size = factor.len();
    let mut rows = Vec::with_capacity(size);
    for unit in 0..size {
        let mut solved = vec![0.0; size];
        for row in 0..size {
            let right = if row == unit { 1.0 } else { 0.0 };
            solved[row] = (right - dot(&factor[row][..row], &solved[..row])) / factor[row][row];
        }
        for row in (0..size).rev() {
            let below: f64 = (row + 1..size).map(|other| factor[other][row] * solved[other]).sum();
            solved[row] = (solved[row] - below) / factor[row][row];
        }
        rows.push(solved);
    }
    rows
}

#[cfg(test)]
mod tests {
    use vcr_fitted::{FittedRange, MODEL_FORMAT, Overheads, StepPrice, TERM_COUNT, Uncertainty};

    use super::*;

    fn model(coefficients: &[(&str, f64)], parameters: &[&str], covariance: Vec<Vec<f64>>) -> ModelFile {
        let mut values = [0.0; TERM_COUNT];
        for (name, value) in coefficients {
            values[TERMS.iter().position(|term| term.name == *name).expect("a term")] = *value;
        }
        ModelFile {
            format: MODEL_FORMAT.to_owned(),
            step: StepPrice::new(values, FittedRange::default(), None).expect("valid"),
            overheads: Overheads { arrival_ns: 1_000, ..Overheads::default() },
            uncertainty: Uncertainty {
                parameters: parameters.iter().map(|name| (*name).to_owned()).collect(),
                covariance,
                not_identified: Vec::new(),
            },
            quality: Vec::new(),
            provenance: Default::default(),
            failed_checks: Vec::new(),
        }
    }

    fn coefficient(model: &ModelFile, name: &str) -> f64 {
        model.step.coefficients()[TERMS.iter().position(|term| term.name == name).expect("a term")]
    }

    /// Mean, standard deviation and minimum of `value` over 4,000 draws.
    fn moments(draws: &FittedDraws, value: impl Fn(&ModelFile) -> f64) -> [f64; 3] {
        let values: Vec<f64> = (0..4_000).map(|seed| value(&draws.draw(seed))).collect();
        let mean = values.iter().sum::<f64>() / 4e3;
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / 4e3;
        [mean, variance.sqrt(), values.into_iter().fold(f64::INFINITY, f64::min)]
    }

    #[test]
    fn draws_have_the_covariance_of_the_fit() {
        let names = ["step", "token", "overheads.arrival"];
        let covariance = vec![vec![100.0, -9.0, 0.0], vec![-9.0, 1.0, 0.0], vec![0.0, 0.0, 2500.0]];
        let draws = FittedDraws::new(model(&[("step", 1000.0), ("token", 50.0)], &names, covariance));
        let draws = draws.expect("it has a covariance");
        assert_eq!(draws.draw(7), draws.draw(7));
        assert_ne!(draws.draw(7), draws.draw(8));
        let close = |value: f64, wanted: f64, by: f64| assert!((value - wanted).abs() < by, "{value} is not {wanted}");
        let [mean, deviation, _] = moments(&draws, |drawn| coefficient(drawn, "step"));
        close(mean, 1000.0, 1.0);
        close(deviation, 10.0, 0.5);
        // Var(step + 9 token) = 100 - 162 + 81: both stand for the same time.
        let [mean, deviation, _] =
            moments(&draws, |drawn| coefficient(drawn, "step") + 9.0 * coefficient(drawn, "token"));
        close(mean, 1450.0, 0.5);
        close(deviation, 19.0_f64.sqrt(), 0.3);
        let [mean, deviation, _] = moments(&draws, |drawn| drawn.overheads.arrival_ns as f64);
        close(mean, 1000.0, 4.0);
        close(deviation, 50.0, 3.0);
    }

    /// Two terms stand for the same time, and one of them is 0: a decrease of one increases the other.
    #[test]
    fn coefficients_at_zero_do_not_make_steps_longer() {
        let covariance = vec![vec![100.0, -99.9], vec![-99.9, 100.0]];
        let draws = FittedDraws::new(model(&[("step", 50.0)], &["step", "prefill_step"], covariance));
        let draws = draws.expect("it has a covariance");
        let [_, _, least] = moments(&draws, |drawn| coefficient(drawn, "prefill_step"));
        assert_eq!(least, 0.0);
        let [mean, deviation, _] =
            moments(&draws, |drawn| coefficient(drawn, "step") + coefficient(drawn, "prefill_step"));
        assert!((mean - 50.0).abs() < 0.1 && deviation < 0.7, "{mean} {deviation}");
    }

    #[test]
    fn a_model_that_is_sure_or_says_nonsense_is_not_drawn() {
        assert!(FittedDraws::new(model(&[("step", 1.0)], &[], Vec::new())).is_none());
        assert!(FittedDraws::new(model(&[("step", 1.0)], &["step"], vec![vec![0.0]])).is_none());
        let indefinite = vec![vec![1.0, 2.0], vec![2.0, 1.0]];
        assert!(FittedDraws::new(model(&[("step", 1.0)], &["step", "token"], indefinite)).is_none());
    }
}
