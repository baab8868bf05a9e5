//! Reads reports of any kind. The kind is recognised by the contents.

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::envelope::RunPressure;
use super::saturation::{Detection, RunEvents};
use super::{folder, replay, ticks};
use crate::folder::FolderError;

const MAX_FILE_BYTES: u64 = 1 << 30;

/// Reads the envelopes of a report's runs. `path` is a folder of `vcr run --out`, its `report.json`, or a report
/// file of `vcr replay`. The envelopes contain judgements of detectors if `detection` asks for them.
///
/// # Errors
/// See [`FolderError`].
pub fn read(path: &Path, detection: Option<&Detection>) -> Result<Vec<RunPressure>, FolderError> {
    if path.is_dir() {
        return folder::read(path, detection);
    }
    let text = vcr_base::input::read_text(path, MAX_FILE_BYTES)
        .map_err(|error| FolderError::Read { path: path.to_owned(), source: io::Error::other(error) })?;
    let invalid = |reason: String| FolderError::Invalid { path: path.to_owned(), reason };
    let report: Map<String, Value> = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    if report.get("kind").is_some_and(|kind| kind == "ticks") {
        let ticks: ticks::Report = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        // Detectors cannot judge ticks, because ticks have no duration.
        let detectors = detection.map(|detection| RunEvents::default().judge(detection)).unwrap_or_default();
        return Ok(vec![RunPressure { detectors, ..ticks.pressure(&path.display().to_string()) }]);
    }
    if report.contains_key("runs") && path.file_name().is_some_and(|name| name == "report.json") {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        return folder::read(parent.unwrap_or(Path::new(".")), detection);
    }
    if let Some(ours) = report.get("vcr") {
        return Ok(vec![replay::pressure(&path.display().to_string(), &report, ours, detection).map_err(invalid)?]);
    }
    Err(invalid("expected a report of vcr replay, or a folder of vcr run --out".to_owned()))
}
