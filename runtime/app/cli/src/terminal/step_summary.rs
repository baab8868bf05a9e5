//! Adds the results of a scenario to the summary of a GitHub workflow run.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use vcr_report::{Document, Partial};
use vcr_scenario::{Outcome, ScenarioError};

use crate::exit::eprint_line;

/// Path of the file that GitHub shows as the job's summary.
const VARIABLE: &str = "GITHUB_STEP_SUMMARY";

/// Appends the results to the file of `GITHUB_STEP_SUMMARY`, if set.
pub(crate) fn append(outcome: &Outcome) {
    append_with(|out| {
        let report: Document = serde_json::from_value(serde_json::to_value(outcome)?)?;
        vcr_report::write_summary(out, &report)
    });
}

/// Appends the error of a scenario without results.
pub(crate) fn append_error(script: &Path, error: &ScenarioError) {
    let report = Document {
        vcr_version: env!("CARGO_PKG_VERSION").to_owned(),
        scenario: script.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        partial: Some(Partial { stopped_by: "error".to_owned(), error: Some(error.to_string()) }),
        ..Document::default()
    };
    append_with(|out| vcr_report::write_summary(out, &report));
}

/// Appends the summary that `write` produces.
pub(crate) fn append_with(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return };
    let path = Path::new(&path);
    if let Err(error) = append_to(path, write) {
        eprint_line(format_args!(
            "warning: cannot append the summary to `{}`, which {VARIABLE} names: {error}",
            path.display()
        ));
    }
}

fn append_to(path: &Path, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
    let mut summary = Vec::new();
    write(&mut summary)?;
    File::options().append(true).create(true).open(path)?.write_all(&summary)
}
