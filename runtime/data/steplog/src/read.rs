use std::io::BufRead;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::LogError;
use crate::jsonl::{JsonLines, from_text, keys, read_whole};
use crate::line::StepLine;
use crate::live::LiveLog;

/// The schema of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// [`StepLine`]s: a recording of the scheduler, or one of vcr's own logs.
    Scheduler,
    /// The capture of a live engine.
    Live,
}

/// A step log in memory.
#[derive(Clone, Debug)]
pub struct StepLog {
    /// Path of the log.
    pub path: PathBuf,
    /// Schema of the log.
    pub kind: LogKind,
    /// The lines. Those of a live capture are converted to [`StepLine`]s.
    pub lines: Vec<StepLine>,
    /// The settings of the engine, from the log or from a `config.json` in the same folder, under the names that
    /// recordings use.
    pub settings: serde_json::Map<String, Value>,
}

impl StepLog {
    /// Reads a log file, or `steps.jsonl` of a folder. If the file does not exist, reads the file with `.gz` after
    /// its name.
    ///
    /// # Errors
    /// If the log cannot be read, or a line follows neither schema.
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let path = if path.is_dir() { path.join("steps.jsonl") } else { path.to_owned() };
        let mut log = Self::of_lines(JsonLines::open(&path)?)?;
        if log.kind == LogKind::Scheduler {
            log.settings = settings_beside(&path)?;
        }
        Ok(log)
    }

    /// Reads a log from any reader. Errors use `name` for the log. The settings are empty if the log has none.
    ///
    /// ```
    /// let line = br#"{"s":0,"sched":[[7,16,0,"n",[1]]],"tot":16,"run":[7],"wait":0,"free":8}"#;
    /// let log = vcr_steplog::StepLog::parse("example".as_ref(), &line[..]).unwrap();
    /// assert_eq!(log.lines[0].tot, Some(16));
    ///
    /// let error = vcr_steplog::StepLog::parse("example".as_ref(), &b"{\"tot\":-1}"[..]).unwrap_err();
    /// assert_eq!(error.to_string(), "example, line 1: `tot`: invalid value: integer `-1`, expected u32 at column 9");
    /// ```
    ///
    /// # Errors
    /// If the log cannot be read, or a line follows neither schema.
    pub fn parse(name: &Path, reader: impl BufRead) -> Result<Self, LogError> {
        Self::of_lines(JsonLines::of(name, reader))
    }

    fn of_lines(mut lines: JsonLines<'_>) -> Result<Self, LogError> {
        let path = lines.path().to_owned();
        let first = lines.next().transpose()?;
        if let Some(head) = first.as_ref().filter(|(_, text)| is_live(text)) {
            let log = LiveLog::of_lines(head, lines)?;
            return Ok(Self { lines: log.lines(), settings: log.settings, kind: LogKind::Live, path });
        }
        let mut parsed = Vec::new();
        for line in first.into_iter().map(Ok).chain(lines) {
            let (number, text) = line?;
            parsed.push(step_line(&text).map_err(|problem| LogError::line(&path, number, problem))?);
        }
        Ok(Self { path, kind: LogKind::Scheduler, lines: parsed, settings: serde_json::Map::new() })
    }
}

/// Whether this is the first line of a live capture.
fn is_live(text: &str) -> bool {
    keys(text).is_ok_and(|keys| keys.iter().any(|key| key == "kind"))
}

pub(crate) fn step_line(text: &str) -> Result<StepLine, String> {
    if !text.trim_start().starts_with('{') {
        // The parser reports text that is not JSON.
        let value: Value = from_text(text)?;
        let kind = if value.is_array() { "an array" } else { "a single value" };
        return Err(format!("a line of a step log is a JSON object, but this is {kind}"));
    }
    let line: StepLine = from_text(text)?;
    let changes_requests =
        !(line.add.is_empty() && line.more.is_empty() && line.abort.is_empty() && line.gram.is_empty());
    if line.s.is_none() && line.u.is_none() && line.pause.is_none() && !changes_requests {
        let problem = "neither a schedule (`s`), nor a result (`u`), nor an `add`, `more`, `abort`, `gram` or `pause`: \
                       is this a step log?";
        return Err(problem.to_owned());
    }
    Ok(line)
}

fn settings_beside(log: &Path) -> Result<serde_json::Map<String, Value>, LogError> {
    let path = log.with_file_name("config.json");
    if !path.is_file() {
        return Ok(serde_json::Map::new());
    }
    let value: Value = read_whole(&path)?;
    Ok(value.get("config").and_then(Value::as_object).cloned().unwrap_or_default())
}
