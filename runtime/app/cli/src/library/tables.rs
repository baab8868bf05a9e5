//! Reads captures and step logs into columns.

use std::path::{Path, PathBuf};

use vcr_steplog::{StepLog, Steps};
use vcr_trace::import::export::RequestColumns;
use vcr_trace::import::table::{Cells, Column, write};
use vcr_trace::import::{ImportOptions, import};

use super::Refusal;
use crate::sweep::out_format;

/// The requests of a file that converts to a capture, with the columns of `vcr inspect convert --to parquet`.
pub fn capture_columns(path: &Path) -> Result<Vec<Column>, Refusal> {
    let path = &local(path)?;
    let mut table = RequestColumns::default();
    let read = import(path, &ImportOptions::default(), &mut |line| {
        table.add(&line);
        Ok(())
    });
    read.map_err(|error| Refusal::input(error.to_string()))?;
    Ok(table.into_columns())
}

/// The steps of a log, a row for each: from `vcr run --out`, a recording, or a capture of live engines.
pub fn step_columns(path: &Path) -> Result<Vec<Column>, Refusal> {
    let path = &local(path)?;
    let log = StepLog::read(path).map_err(|error| Refusal::input(error.to_string()))?;
    let steps = Steps::of(&log);
    let texts = |name: &str, of: &dyn Fn(&vcr_steplog::Step<'_>) -> String| Column {
        name: name.to_owned(),
        cells: Cells::Texts(steps.steps.iter().map(of).collect()),
    };
    let numbers = |name: &str, of: &dyn Fn(&vcr_steplog::Step<'_>) -> Option<f64>| Column {
        name: name.to_owned(),
        cells: Cells::Numbers(steps.steps.iter().map(of).collect()),
    };
    let counts = |name: &str, of: &dyn Fn(&vcr_steplog::Step<'_>) -> u64| Column {
        name: name.to_owned(),
        cells: Cells::Counts(steps.steps.iter().map(of).collect()),
    };
    let emitted = |step: &vcr_steplog::Step<'_>| {
        let out = step.result.and_then(|line| line.out.as_ref());
        out.map(|out| out.iter().map(|(_, tokens)| f64::from(*tokens)).sum())
    };
    Ok(vec![
        texts("of", &|step| steps.engines[step.engine].of.clone().unwrap_or_default()),
        texts("pool", &|step| steps.engines[step.engine].pool.clone().unwrap_or_default()),
        numbers("engine", &|step| steps.engines[step.engine].engine.map(f64::from)),
        counts("epoch", &|step| u64::from(step.epoch)),
        counts("step", &|step| step.number),
        numbers("start_ms", &|step| step.start_ms()),
        numbers("duration_ms", &|step| step.duration_ms()),
        numbers("scheduled_requests", &|step| step.schedule.sched.as_ref().map(|rows| rows.len() as f64)),
        numbers("scheduled_tokens", &|step| step.schedule.tot.map(f64::from)),
        counts("running_requests", &|step| step.num_running),
        numbers("waiting_requests", &|step| step.schedule.wait.map(|count| count as f64)),
        numbers("free_blocks", &|step| step.schedule.free.map(f64::from)),
        counts("added_requests", &|step| step.add.len() as u64),
        counts("preempted_requests", &|step| step.schedule.pre.len() as u64),
        numbers("emitted_tokens", &emitted),
    ])
}

/// Writes a table to a file whose name ends in .csv, .json or .parquet.
///
/// # Errors
/// When the file has another extension, or cannot be written.
pub fn write_columns(path: &Path, columns: &[Column], force: bool) -> Result<(), Refusal> {
    super::reach_objects();
    let format = out_format("path", path)?;
    let file = vcr_base::output::Outputs::new(force).create(path)?;
    Ok(file.write_with(|out| write(out, columns, format))?)
}

/// The path of an input, or of the copy of a URL.
fn local(path: &Path) -> Result<PathBuf, Refusal> {
    super::reach_objects();
    crate::values::input(path).map_err(Refusal::input)
}
