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

use std::io;
use std::path::Path;

use crate::args::StepsArgs;
use crate::exit::{Exit, print_error};

pub(crate) use conform::conform;

use vcr_steplog::{LogError, StepLog, Steps};
use vcr_trace::import::{Format, format_of};

pub(crate) fn steps(args: &StepsArgs) -> Exit {
    if args.diff.is_some() {
        return diff::diff(args);
    }
    let log = match open(args) {
        Ok(log) => log,
        Err(error) => {
            print_error(&error, hint(&error, &args.log).as_deref());
            return Exit::BadInput;
        }
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

/// The next step for a path that is not a log.
fn hint(error: &LogError, path: &Path) -> Option<String> {
    match error {
        LogError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound && path.is_dir() => {
            Some("a run writes it with `vcr run SCENARIO --out FOLDER --files report,steps`".to_owned())
        }
        LogError::Line { line: 1, .. } if matches!(format_of(path), Ok(Format::Capture)) => {
            Some(format!("this is a capture of requests, which `vcr inspect summarize {}` reads", path.display()))
        }
        _ => None,
    }
}

fn refused(error: &LogError) -> Exit {
    print_error(error, None);
    Exit::BadInput
}
