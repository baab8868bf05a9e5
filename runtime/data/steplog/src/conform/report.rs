//! The report of a replay.

use serde::Serialize;
use serde_json::Value;

/// The first difference between the recording and the core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// Line of `steps.jsonl`, from 1.
    pub line: u64,
    /// The event in `kv_events.jsonl` that differs, if the difference is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<EventPlace>,
    /// Number of the schedule, or of the schedule whose result was applied.
    pub step: Option<u64>,
    /// The first field that differs.
    pub field: &'static str,
    /// The core's decision.
    pub ours: Value,
    /// The recorded decision.
    pub theirs: Value,
    /// The reason why the core admitted no more requests in this step, if requests waited.
    pub why: Option<String>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, event, step, field, ours, theirs, why } = self;
        write!(f, "line {line}")?;
        if let Some(step) = step {
            write!(f, " (step {step})")?;
        }
        if let Some(EventPlace { line, event }) = event {
            write!(f, ", line {line} of kv_events.jsonl, event {event}")?;
        }
        write!(f, ", `{field}`:\n  ours     {ours}\n  recorded {theirs}")?;
        match why {
            Some(why) => write!(f, "\n  ours admitted no more because of: {why}"),
            None => Ok(()),
        }
    }
}

/// The position of a KV event in a live capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EventPlace {
    /// Line of `kv_events.jsonl`, from 1.
    pub line: u64,
    /// Index of the event in the line, from 0.
    pub event: usize,
}

/// The result of replaying one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseReport {
    /// Name of the recording's folder.
    pub case: String,
    /// Number of schedules that were compared.
    pub steps: u64,
    /// Number of compared field values that are equal.
    pub fields: u64,
    /// Number of KV events that were compared.
    pub events: u64,
    /// Number of block hashes that equal vLLM's hashes bit for bit. Only captures of a live engine contain hashes.
    pub hashes: u64,
    /// Descriptions of data that could not be compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The first difference; None if every field of every line is equal.
    pub mismatch: Option<Mismatch>,
}

impl CaseReport {
    pub(crate) fn new(folder: &std::path::Path) -> Self {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        Self {
            case: name.to_string_lossy().into_owned(),
            steps: 0,
            fields: 0,
            events: 0,
            hashes: 0,
            notes: Vec::new(),
            mismatch: None,
        }
    }

    pub(crate) fn compare<T: PartialEq + Serialize>(
        &mut self,
        field: &'static str,
        ours: &T,
        theirs: &T,
    ) -> Result<(), Difference> {
        if ours == theirs {
            self.fields += 1;
            return Ok(());
        }
        let value = |side: &T| serde_json::to_value(side).unwrap_or(Value::Null);
        Err(Difference { field, ours: value(ours), theirs: value(theirs), event: None })
    }
}

#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) field: &'static str,
    pub(crate) ours: Value,
    pub(crate) theirs: Value,
    pub(crate) event: Option<EventPlace>,
}

impl Difference {
    pub(crate) fn at(self, line: u64, step: Option<u64>, why: Option<String>) -> Mismatch {
        let Self { field, ours, theirs, event } = self;
        Mismatch { line, event, step, field, ours, theirs, why }
    }
}
