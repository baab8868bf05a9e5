//! The summary of a scenario on the page of a GitHub workflow run.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use vcr_report::Document;
use vcr_scenario::Outcome;

use crate::exit::tell;

/// The file that GitHub's runners show on the page of a workflow run.
const VARIABLE: &str = "GITHUB_STEP_SUMMARY";

/// Appends the results to the file that `GITHUB_STEP_SUMMARY` names, if it names one.
pub(crate) fn append(outcome: &Outcome) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return };
    let path = Path::new(&path);
    if let Err(error) = append_to(path, outcome) {
        tell(format_args!(
            "warning: cannot append the summary to `{}`, which {VARIABLE} names: {error}",
            path.display()
        ));
    }
}

fn append_to(path: &Path, outcome: &Outcome) -> io::Result<()> {
    let report: Document = serde_json::from_value(serde_json::to_value(outcome)?)?;
    let mut summary = Vec::new();
    vcr_report::write_summary(&mut summary, &report)?;
    File::options().append(true).create(true).open(path)?.write_all(&summary)
}
