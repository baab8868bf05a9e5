//! Reading a log, in whichever schema.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::LogError;
use crate::line::StepLine;
use crate::live::LiveLog;

/// Which schema a log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// [`StepLine`] as it is: a recording of the scheduler, or a log of ours.
    Scheduler,
    /// The capture of a live engine.
    Live,
}

/// A step log in memory.
#[derive(Clone, Debug)]
pub struct StepLog {
    /// Where it was read from.
    pub path: PathBuf,
    /// Its schema.
    pub kind: LogKind,
    /// Its lines; those of a live capture in terms of [`StepLine`].
    pub lines: Vec<StepLine>,
    /// The settings of the engine, as far as the log or a `config.json` beside
    /// it says them, under the names of the recordings.
    pub settings: serde_json::Map<String, Value>,
}

impl StepLog {
    /// Reads a log file, or `steps.jsonl` of a folder.
    ///
    /// # Errors
    /// When it cannot be read, or a line is in neither schema.
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let path = if path.is_dir() { path.join("steps.jsonl") } else { path.to_owned() };
        let mut lines = json_lines(&path)?;
        let first = lines.next().transpose()?;
        let is_live = first.as_ref().is_some_and(|(_, value)| value.get("kind").is_some());
        if is_live {
            let log = LiveLog::read(&path)?;
            return Ok(Self { lines: log.lines(), settings: log.settings, kind: LogKind::Live, path });
        }
        let mut parsed = Vec::new();
        for line in first.into_iter().map(Ok).chain(lines) {
            let (number, value) = line?;
            parsed.push(step_line(&path, number, value)?);
        }
        let settings = settings_beside(&path)?;
        Ok(Self { path, kind: LogKind::Scheduler, lines: parsed, settings })
    }
}

/// The lines of a file as JSON, with their numbers from 1. Empty lines are passed over.
pub(crate) fn json_lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<(u64, Value), LogError>> + use<>, LogError> {
    let file = File::open(path).map_err(LogError::io(path))?;
    let path = path.to_owned();
    let lines = BufReader::new(file).lines().zip(1u64..);
    Ok(lines.filter_map(move |(line, number)| match line {
        Err(error) => Some(Err(LogError::Io { path: path.clone(), error })),
        Ok(text) if text.trim().is_empty() => None,
        Ok(text) => Some(
            serde_json::from_str(&text)
                .map(|value| (number, value))
                .map_err(|error| LogError::line(&path, number, format_args!("not JSON: {error}"))),
        ),
    }))
}

pub(crate) fn step_line(path: &Path, number: u64, value: Value) -> Result<StepLine, LogError> {
    if !value.is_object() {
        return Err(LogError::line(path, number, "a line of a step log is a JSON object"));
    }
    let line: StepLine = serde_json::from_value(value).map_err(|error| LogError::line(path, number, error))?;
    if line.s.is_none() && line.u.is_none() && line.add.is_empty() && line.abort.is_empty() {
        let problem = "neither a schedule (`s`), nor a result (`u`), nor an `add` or `abort`: is this a step log?";
        return Err(LogError::line(path, number, problem));
    }
    Ok(line)
}

fn settings_beside(log: &Path) -> Result<serde_json::Map<String, Value>, LogError> {
    let path = log.with_file_name("config.json");
    if !path.is_file() {
        return Ok(serde_json::Map::new());
    }
    let text = std::fs::read_to_string(&path).map_err(LogError::io(&path))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| LogError::file(&path, error))?;
    Ok(value.get("config").and_then(Value::as_object).cloned().unwrap_or_default())
}
