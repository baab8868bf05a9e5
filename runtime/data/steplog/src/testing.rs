//! Logs for unit tests.

use std::path::PathBuf;

use crate::read::{LogKind, StepLog};

pub(crate) fn log(lines: &[&str]) -> StepLog {
    let lines = lines.iter().map(|line| serde_json::from_str(line).expect("a line of the schema"));
    StepLog {
        path: PathBuf::from("steps.jsonl"),
        kind: LogKind::Scheduler,
        lines: lines.collect(),
        settings: serde_json::Map::new(),
    }
}

pub(crate) fn log_with(settings: serde_json::Value, lines: &[&str]) -> StepLog {
    let settings = settings.as_object().expect("settings are an object").clone();
    StepLog { settings, ..log(lines) }
}
