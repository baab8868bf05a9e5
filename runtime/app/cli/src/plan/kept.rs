//! Objectives and observed values of a simulation.

use serde::{Deserialize, Serialize};
use vcr_report::headroom_text;

use crate::plan::objective::headroom;
use crate::plan::simulate::Simulated;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) objective: String,
    /// Observed value; times in milliseconds; absent without samples.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) observed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) observed_text: Option<String>,
    /// Fraction of the limit that is left; negative if the limit is exceeded.
    pub(crate) headroom: f64,
    pub(crate) passed: bool,
}

pub(crate) fn kept(one: &Simulated) -> Vec<Kept> {
    let of = |made: &vcr_scenario::AssertionResult| Kept {
        objective: format!("{}.{}", made.subject, made.condition.as_deref().unwrap_or_default()),
        observed: made.observed,
        observed_text: made.observed_text.clone(),
        headroom: headroom(made),
        passed: made.passed,
    };
    one.objectives.iter().map(of).collect()
}

pub(crate) fn broken_text(kept: &Kept) -> String {
    match &kept.observed_text {
        Some(observed) => format!("{} is {observed}, {}", kept.objective, headroom_text(kept.headroom)),
        None => format!("{} has no samples", kept.objective),
    }
}
