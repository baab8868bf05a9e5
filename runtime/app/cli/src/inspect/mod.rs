//! `vcr inspect`: shows the contents of captures and step logs.

pub(crate) mod captures;
mod conform;
mod diff;
mod gpus;
#[cfg(feature = "live")]
pub(crate) mod kv_bench;
pub(crate) mod model;
pub(crate) mod pressure;
mod step;
mod steps;
mod text;
pub(crate) mod vllm_args;

use crate::args::StepsArgs;
use crate::exit::{Exit, print_error};

pub(crate) use conform::conform;

use vcr_steplog::{LogError, StepLog, Steps};

pub(crate) fn steps(args: &StepsArgs) -> Exit {
    if args.diff.is_some() {
        return diff::diff(args);
    }
    let log = match open(args) {
        Ok(log) => log,
        Err(error) => return refused(&error),
    };
    let steps = Steps::of(&log);
    match args.step {
        Some(number) => step::step(args, &steps, number),
        None => steps::table(args, &steps),
    }
}

/// Opens the selected part of the log.
fn open(args: &StepsArgs) -> Result<StepLog, LogError> {
    let mut log = StepLog::read(&args.log)?;
    let engine = args.engine.as_ref().map(|(pool, index)| (pool.as_str(), *index));
    log.keep(args.of.as_deref(), engine)?;
    Ok(log)
}

fn refused(error: &LogError) -> Exit {
    print_error(error, None);
    Exit::BadInput
}
