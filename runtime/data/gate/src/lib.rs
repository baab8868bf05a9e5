//! Release decisions: promote, hold or roll back.
//!
//! An [`Observation`] states the answer of a system and its times. [`mirror`] makes observations from captures,
//! runs and the files of other tools. A [`Policy`] limits how much worse a candidate may be than its baseline.
//! [`judge`] matches the observations of both sides and decides, and [`Report`] shows the decision. Equal inputs
//! give equal reports on any number of threads. This crate reads files and prints nothing.

mod decide;
mod error;
mod fingerprint;
mod join;
pub mod mirror;
mod observation;
mod outputs;
mod policy;
mod report;
mod side;
mod triage;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

pub use decide::{Decision, Judgement, SegmentJudgement, SignalJudgement, Totals, Verdict};
pub use error::{GateError, Place};
pub use fingerprint::{FINGERPRINT_VERSION, of_events, of_text, of_token_ids, of_vector};
pub use join::{JoinBy, JoinedBy};
pub use mirror::{Format, Input, MirrorOptions, Mirrored};
pub use observation::{OBSERVATION_VERSION, Observation, ObservationReader, Text};
pub use policy::{Limit, Policy, Response, SIGNALS, Signal, SignalInfo, Tolerance, Unit};
pub use report::{InputPart, Inputs, Report};
pub use side::Side;
pub use triage::{Difference, Example, ExampleSide, Source, Triage};

/// Options of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct GateOptions {
    /// The key that matches the requests of both sides.
    pub join: JoinBy,
    /// Number of threads; it does not change the judgement.
    pub threads: NonZeroUsize,
}

/// Matches the requests of two sides and judges the candidate against the baseline.
///
/// # Errors
/// If requests cannot be matched by the chosen key.
pub fn judge(
    policy: &Policy,
    baseline: &Side,
    candidate: &Side,
    options: &GateOptions,
) -> Result<Judgement, GateError> {
    let joined = join::join(baseline, candidate, options.join)?;
    decide::judge(policy, baseline, candidate, &joined, options.threads)
}

/// Reads the inputs of one side, and returns a summary of each.
///
/// # Errors
/// If an input cannot be used, or observations of one request contradict each other.
pub fn load(inputs: &[Input], options: &MirrorOptions) -> Result<(Side, Vec<Mirrored>), GateError> {
    let mut side = Side::new();
    let mut mirrored = Vec::new();
    for input in inputs {
        side.begin(&input.name());
        mirrored.push(mirror::read(input, options, &mut |observation, place| {
            side.add(observation, place).map(|()| ControlFlow::Continue(()))
        })?);
    }
    side.finish()?;
    Ok((side, mirrored))
}

/// Lists the next action for each failed signal of a judgement. The outputs of the example requests are read again
/// from the inputs.
///
/// # Errors
/// As [`mirror::read`].
pub fn triage(
    policy: &Policy,
    judgement: &Judgement,
    baseline: Source<'_>,
    candidate: Source<'_>,
) -> Result<Vec<Triage>, GateError> {
    triage::items(policy, judgement, baseline, candidate)
}
