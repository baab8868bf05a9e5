//! The proof of exactness: a recording of vLLM is replayed through the core.
//!
//! A recording contains the requests that were added and aborted before each step, and the answers of the model.
//! Everything else in it is a decision, which the core must make in the same way. There are two schemas: recordings
//! of the scheduler alone, and captures of a live engine. Files may be packed with gzip; their names then end in
//! `.gz`.
//!
//! A recording that needs a feature which the core lacks is refused, with the feature's name: comparing a similar
//! configuration would prove nothing.

mod answers;
mod block_names;
mod capture;
mod case;
mod live;
mod live_events;
mod report;
mod scheduler;
mod scope;

use std::path::{Path, PathBuf};

pub use report::{CaseReport, EventPlace, Mismatch};
pub use scheduler::{ReplayedLine, ReplayedLines};
use vcr_core::SchedulerRules;

use crate::error::LogError;
use crate::jsonl::is_there;

const DEEPEST: u32 = 4;

/// Lists the recordings at `path`: the folder itself, or its sub-folders with recordings, in order of their paths.
///
/// # Errors
/// If a folder cannot be read or contains no recording.
pub fn cases(path: &Path) -> Result<Vec<PathBuf>, LogError> {
    if !path.exists() {
        return Err(LogError::file(path, "no such file or folder"));
    }
    if is_case(path) {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    if path.is_dir() {
        collect(path, DEEPEST, &mut found)?;
    }
    if found.is_empty() {
        let problem = "no recording here: one is a folder with `requests.jsonl`, `steps.jsonl` (either may be \
                       packed: `.jsonl.gz`) and `config.json` (of the scheduler) or `engine.json` (of a live engine)";
        return Err(LogError::file(path, problem));
    }
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, deepest: u32, found: &mut Vec<PathBuf>) -> Result<(), LogError> {
    for entry in std::fs::read_dir(folder).map_err(LogError::io(folder))? {
        let inner = entry.map_err(LogError::io(folder))?.path();
        if is_case(&inner) {
            found.push(inner);
        } else if deepest > 1 && inner.is_dir() {
            collect(&inner, deepest - 1, found)?;
        }
    }
    Ok(())
}

fn is_case(folder: &Path) -> bool {
    let settings = ["config.json", "engine.json"];
    is_there(&folder.join("steps.jsonl")) && settings.iter().any(|name| folder.join(name).is_file())
}

/// Replays the recording in `folder`.
///
/// # Errors
/// If the recording cannot be read, or needs a feature that the core lacks. A different decision is not an error;
/// the report contains it.
pub fn replay(folder: &Path) -> Result<CaseReport, LogError> {
    if is_of_scheduler(folder) { scheduler::replay(ReplayedLines::new(folder)?, folder) } else { live::replay(folder) }
}

/// Replays the recording of a scheduler in `folder`. `change` maps the rules of the recorded release to the rules
/// for the replay.
///
/// # Errors
/// As [`replay_lines`]; also if settings that follow from the rules differ from the recorded settings.
pub fn replay_by(folder: &Path, change: impl FnOnce(SchedulerRules) -> SchedulerRules) -> Result<CaseReport, LogError> {
    scheduler::replay(ReplayedLines::by(folder, change)?, folder)
}

/// Replays a recording of the scheduler line by line: each recorded line with the core's line. The replay continues
/// after a difference, which may cause more differences in later lines.
///
/// # Errors
/// If the recording cannot be read, needs a feature that the core lacks, or is a live capture.
pub fn replay_lines(folder: &Path) -> Result<ReplayedLines, LogError> {
    if is_of_scheduler(folder) {
        return ReplayedLines::new(folder);
    }
    Err(LogError::file(folder, "only recordings of the scheduler (with a `config.json`) are replayed line by line"))
}

fn is_of_scheduler(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}
