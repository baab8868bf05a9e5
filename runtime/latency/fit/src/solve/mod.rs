//! Coefficients: measured times as sums of them, least squares, refinements, and the uncertainty of the result.

pub(crate) mod base;
pub(crate) mod fit;
pub(crate) mod infer;
mod noise;
mod observations;
pub(crate) mod parallel;
pub(crate) mod parameters;
mod polish;
mod prior;
mod prompts;
mod regress;
pub(crate) mod shape;
pub(crate) mod suggest;
pub(crate) mod warm_up;
use std::collections::BTreeMap;

use nalgebra::DMatrix;
use vcr_compare::Comparison;
use vcr_fitted::{Quality, TERMS, Uncertainty};

use parameters::{PARAMETERS, Row};
use regress::Prior;

/// If the median error in sample is above this, the model does not explain the data.
const MAX_MEDIAN_ERROR: f64 = 0.3;
/// Relative standard deviation of an error that all prices of a fit share. The scatter of requests within a load does
/// not show this error. In the H100 recordings, other loads differ by 4 to 8 %, while the scatter alone
/// suggests 2 to 3 %.
const MODEL_ERROR: f64 = 0.05;
/// A parameter counts as not identified if its standard deviation is still at least this fraction of the prior's.
const NOT_IDENTIFIED: f64 = 0.7;

/// Checks a fit against its own data.
fn check(name: &str, comparisons: &[Comparison], warnings: &mut Vec<String>, failed: &mut Vec<String>) {
    let of = |name: &str| comparisons.iter().find(|each| each.name() == name);
    for metric in ["ttft p50", "itl p50", "e2e p50"] {
        let Some(comparison) = of(metric).filter(|each| each.error().abs() > MAX_MEDIAN_ERROR) else { continue };
        failed.push(format!("{name}: {metric} is {:+.0} % off in sample", comparison.error() * 100.0));
    }
    // If queues are far too long or too short, the capacity is wrong, not the prices.
    let is_right = |name, most: f64| of(name).is_some_and(|each| each.error().abs() < most);
    let medians_are_right = is_right("itl p50", 0.1) && is_right("ttft p50", MAX_MEDIAN_ERROR);
    if let Some(tail) = of("ttft p99").filter(|_| medians_are_right) {
        let ratio = tail.simulated_ms / tail.measured_ms.max(1e-6);
        if !(0.4..=2.5).contains(&ratio) {
            warnings.push(format!(
                "{name}: simulated ttft p99 is {:.0} ms, measured {:.0} ms, though the medians agree: the \
                 engine settings may be wrong; try `--infer num_gpu_blocks,max_num_seqs`",
                tail.simulated_ms, tail.measured_ms
            ));
        }
    }
}

/// Errors in sample and in cross-validation, by metric.
fn quality(in_sample: &[(String, Vec<Comparison>)], folds: &BTreeMap<String, f64>) -> Vec<Quality> {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for comparison in in_sample.iter().flat_map(|(_, comparisons)| comparisons) {
        errors.entry(comparison.name()).or_default().push(comparison.error().abs());
    }
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    let quality = errors.iter().map(|(name, errors)| Quality {
        metric: name.clone(),
        in_sample: mean(errors),
        cross_validated: folds.get(name).copied(),
    });
    quality.collect()
}

/// Covariance of the parameters, and the parameters that the data does not identify.
fn uncertainty(covariance: &DMatrix<f64>, values: &Row, prior: &Prior) -> Uncertainty {
    let names = TERMS.iter().map(|term| term.name.to_owned());
    let overheads = ["prefill_launch", "large_launch", "launch_per_request", "arrival", "arrival_per_prompt_token"]
        .map(|name| format!("overheads.{name}"));
    let parameters: Vec<String> = names.chain(overheads).collect();
    let common = |row: usize, column: usize| MODEL_ERROR * MODEL_ERROR * values[row] * values[column];
    let of_row = |row| (0..PARAMETERS).map(|column| covariance[(row, column)] + common(row, column)).collect();
    let rows = (0..PARAMETERS).map(of_row);
    let not_identified = (0..PARAMETERS)
        .filter(|index| covariance[(*index, *index)].sqrt() > NOT_IDENTIFIED * prior.spread[*index])
        .map(|index| parameters[index].clone())
        .collect();
    Uncertainty { covariance: rows.collect(), parameters, not_identified }
}
