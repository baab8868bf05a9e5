//! The file that a fit writes.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::error::InvalidModel;
use crate::price::StepPrice;

/// Format name in model files.
pub const MODEL_FORMAT: &str = "vcr.fitted/1";

/// A fitted model: the contents of `model.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// [`MODEL_FORMAT`].
    pub format: String,
    /// Prices of steps.
    pub step: StepPrice,
    /// Time outside the steps.
    #[serde(default)]
    pub overheads: Overheads,
    /// How well the data determines the coefficients.
    #[serde(default)]
    pub uncertainty: Uncertainty,
    /// The errors of the model on the data that it was fitted on, and in cross-validation.
    #[serde(default)]
    pub quality: Vec<Quality>,
    /// Inputs of the fit.
    #[serde(default)]
    pub provenance: Provenance,
    /// Checks that failed; only present if the fit was forced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_checks: Vec<String>,
}

impl ModelFile {
    /// # Errors
    /// If the file has another format, or its covariance has the wrong shape.
    pub fn check(&self) -> Result<(), InvalidModel> {
        if self.format != MODEL_FORMAT {
            let reason = alloc::format!("expected \"{MODEL_FORMAT}\", found \"{}\"", self.format);
            return Err(InvalidModel::new("format", reason));
        }
        let size = self.uncertainty.parameters.len();
        let rows = &self.uncertainty.covariance;
        if rows.len() != size || rows.iter().any(|row| row.len() != size) {
            let reason = alloc::format!("expected {size} rows of {size} numbers, one for each parameter");
            return Err(InvalidModel::new("uncertainty.covariance", reason));
        }
        Ok(())
    }
}

/// Time that a request spends outside of engine steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overheads {
    /// Time from the client to the engine's queue: network, API server, tokenizer.
    pub arrival_ns: u64,
    /// Additional time for each prompt token, in picoseconds.
    pub arrival_per_prompt_token_ps: u64,
    /// Additional time of the first output token.
    pub first_token_ns: u64,
    /// Time from the end of a step to the client: detokenizer, API server, network.
    pub output_ns: u64,
    /// Host time to launch a step with prefill chunks and at most 512 tokens.
    pub prefill_launch_ns: u64,
    /// Host time to launch a larger step.
    pub large_launch_ns: u64,
    /// Additional host time for each request in a step with a launch time.
    pub launch_per_request_ns: u64,
    /// Maximum deviation of a launch time from its mean, in thousandths of the mean.
    pub launch_spread_permille: u32,
}

/// How well the data determines the coefficients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Uncertainty {
    /// Names of terms, and names of overheads with the prefix `overheads.`.
    pub parameters: Vec<String>,
    /// Covariance of the parameters, in squared nanoseconds.
    pub covariance: Vec<Vec<f64>>,
    /// Parameters that the data does not identify: their values are assumptions.
    pub not_identified: Vec<String>,
}

/// Errors of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// The metric and its statistic, such as `ttft p50`.
    pub metric: String,
    /// Relative error on the data of the fit: 0.01 is one percent.
    pub in_sample: f64,
    /// The relative error in cross-validation, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_validated: Option<f64>,
}

/// Inputs of a fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Provenance {
    /// Version of vcr.
    pub vcr_version: String,
    /// Files that the fit read.
    pub inputs: Vec<ProvenanceInput>,
    /// The engine's settings, as stated by the user.
    pub engine: String,
    /// The model's shape, as stated by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// The latency model that this one corrects, as stated by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The GPU, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Version of vLLM, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vllm_version: Option<String>,
    /// Seed of all random draws.
    pub seed: u64,
    /// Number of observations by kind.
    pub observations: BTreeMap<String, u64>,
}

/// An input file of the fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenanceInput {
    /// Path of the file, as stated by the user.
    pub path: String,
    /// SHA-256 of the file, as hex.
    pub sha256: String,
    /// Number of requests read from the file.
    pub requests: u64,
    /// The fitted part of the requests in order of arrival, as start and end fractions. None means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<[f64; 2]>,
}

impl ProvenanceInput {
    /// Whether both inputs contain some of the same requests, because they are overlapping parts of one file.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let whole = [0.0, 1.0];
        let ([from, to], [other_from, other_to]) = (self.part.unwrap_or(whole), other.part.unwrap_or(whole));
        self.sha256 == other.sha256 && from < other_to && other_from < to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_file_do_not_overlap() {
        let input = |sha256: &str, part| ProvenanceInput { sha256: sha256.into(), part, ..ProvenanceInput::default() };
        let first = input("a", Some([0.0, 0.5]));
        assert!(!first.overlaps(&input("a", Some([0.5, 1.0]))));
        assert!(first.overlaps(&input("a", Some([0.4, 1.0]))) && first.overlaps(&input("a", None)));
        assert!(!first.overlaps(&input("b", None)), "another file");
    }
}
