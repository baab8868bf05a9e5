//! Release decisions: promote, hold or roll back.
//!
//! An [`Observation`] states the answer of a system and its times. [`mirror`] makes
//! observations from captures, runs and the files of other tools. A [`Policy`] limits how much
//! worse a candidate may be than its baseline. [`judge`] joins the observations of both sides
//! and decides, and [`Report`] shows the decision. Equal inputs give equal reports, on any
//! number of threads. This crate reads files and prints nothing.

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
    /// Key that joins the requests of both sides.
    pub join: JoinBy,
    /// Threads of the judgement; it is the same with any number.
    pub threads: NonZeroUsize,
}

/// Joins two sides and judges the second against the first.
///
/// # Errors
/// If requests cannot be joined by the chosen key.
pub fn judge(
    policy: &Policy,
    baseline: &Side,
    candidate: &Side,
    options: &GateOptions,
) -> Result<Judgement, GateError> {
    let joined = join::join(baseline, candidate, options.join)?;
    decide::judge(policy, baseline, candidate, &joined, options.threads)
}

/// Reads the inputs of one side, with a summary of each.
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

/// Next steps for the failed signals of a judgement. The outputs of the example requests are read from the
/// inputs again.
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
