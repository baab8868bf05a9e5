//! Reads folders that `vcr run --out` wrote.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use vcr_base::input::Lines;
use vcr_trace::RequestRow;

use crate::MAX_DRAWN_RUNS;
use crate::charts::{Charts, RunCharts};
use crate::document::Document;
use crate::request_charts::RequestCharts;

const MAX_FILE_BYTES: u64 = 1 << 30;

/// A report with its charts.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Name of the folder in a comparison.
    pub label: String,
    /// Contents of `report.json`.
    pub report: Document,
    /// Contents of `charts.json`.
    pub charts: Charts,
    /// Names of files in the folder to which `report.html` links.
    pub files: Vec<String>,
}

/// The reason why a folder cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder has no report.
    #[error("`{}` is not the folder of a run: it has no report.json", .0.display())]
    NoReport(PathBuf),
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content of a file is invalid.
    #[error("invalid `{}`: expected a file that vcr run --out has written: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

impl Folder {
    /// Reads a folder's report and charts. Without `charts.json`, the charts are computed from `requests.jsonl` as
    /// far as possible. Without both files, there are no charts.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let report: Document =
            read_json(&path.join("report.json"))?.ok_or_else(|| FolderError::NoReport(path.to_owned()))?;
        let charts = match read_charts(path)? {
            Some(charts) => charts,
            None => charts_of_requests(path, &report)?,
        };
        let known = ["report.json", "requests.jsonl", "steps.jsonl", "trace.json", "guests.jsonl", "charts.json"];
        let files = known.into_iter().filter(|name| path.join(name).is_file()).map(str::to_owned).collect();
        let label = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        Ok(Self { label, report, charts, files })
    }
}

/// Reads the charts of a folder; None if the folder has no `charts.json`.
///
/// # Errors
/// See [`FolderError`].
pub fn read_charts(folder: &Path) -> Result<Option<Charts>, FolderError> {
    read_json(&folder.join("charts.json"))
}

/// Calls `give` for each request of a folder in the order of the file. Returns false if the folder has no requests.
///
/// # Errors
/// See [`FolderError`].
pub fn for_each_request(folder: &Path, mut give: impl FnMut(&RequestRow<'_>)) -> Result<bool, FolderError> {
    let path = folder.join("requests.jsonl");
    let Some(file) = open(&path)? else { return Ok(false) };
    let mut lines = Lines::new(BufReader::with_capacity(1 << 18, file));
    loop {
        let line = lines.next_row();
        let line = line
            .map_err(|error| FolderError::Read { path: path.clone(), source: io::Error::other(error.to_string()) })?;
        let Some((number, line)) = line else { return Ok(true) };
        let row: RequestRow<'_> = serde_json::from_slice(line)
            .map_err(|error| FolderError::Invalid { path: path.clone(), reason: format!("line {number}: {error}") })?;
        give(&row);
    }
}

fn charts_of_requests(path: &Path, report: &Document) -> Result<Charts, FolderError> {
    let drawn = report.runs.iter().take(MAX_DRAWN_RUNS);
    let mut runs: Vec<(&str, RequestCharts)> =
        drawn.map(|run| (run.name.as_str(), RequestCharts::new(run.duration_ms).with_distributions())).collect();
    // The requests of one run follow each other.
    let mut latest = 0;
    for_each_request(path, |row| {
        if runs.get(latest).is_none_or(|(name, _)| *name != row.run()) {
            let Some(found) = runs.iter().position(|(name, _)| *name == row.run()) else { return };
            latest = found;
        }
        runs[latest].1.add(row);
    })?;
    let charts = runs.into_iter().map(|(name, requests)| {
        let mut charts = RunCharts { name: name.to_owned(), ..RunCharts::default() };
        requests.finish(&mut charts);
        charts
    });
    Ok(Charts::new(None, charts.collect()))
}

pub(crate) fn open(path: &Path) -> Result<Option<std::fs::File>, FolderError> {
    match std::fs::File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => Ok(None),
        Err(source) => Err(FolderError::Read { path: path.to_owned(), source }),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    if open(path)?.is_none() {
        return Ok(None);
    }
    let text = vcr_base::input::read_text(path, MAX_FILE_BYTES)
        .map_err(|error| FolderError::Read { path: path.to_owned(), source: io::Error::other(error) })?;
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| FolderError::Invalid { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const REPORT: &str = r#"{"vcr_version":"1","scenario":"s.rhai","passed":true,
        "runs":[{"name":"a","duration_ms":10},{"name":"b","duration_ms":10}]}"#;
    const REQUESTS: &str = r#"{"of":"a","id":0,"workload":"w","status":"completed","arrival_ms":0,"end_ms":4,"ttft_ms":1,"e2e_ms":4}
{"of":"b","id":0,"workload":"w","status":"failed","arrival_ms":2,"end_ms":9}
"#;

    #[test]
    fn charts_are_made_of_requests_where_there_are_no_others() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it is writable");
        assert!(matches!(Folder::open(folder.path()), Err(FolderError::NoReport(_))));
        write("report.json", REPORT);
        let empty = Folder::open(folder.path()).expect("a report is enough");
        assert!(empty.charts.runs.iter().all(|run| run.load.is_none() && run.distributions.is_empty()));
        write("requests.jsonl", REQUESTS);
        let read = Folder::open(folder.path()).expect("there are requests, too");
        let totals: Vec<_> =
            read.charts.runs.iter().map(|run| (run.slowest[0].total_ms, run.distributions.len())).collect();
        assert_eq!(totals, [(4.0, 2), (7.0, 0)]);
        assert_eq!(read.files, ["report.json", "requests.jsonl"]);
        let charts = serde_json::to_string(&Charts::new(None, Vec::new())).expect("JSON");
        write("charts.json", &charts);
        assert!(Folder::open(folder.path()).expect("all is there").charts.runs.is_empty());
    }

    #[test]
    fn files_of_others_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it is writable");
        let refused = || Folder::open(folder.path()).expect_err("it is refused").to_string();
        write("report.json", r#"{"mine":1}"#);
        assert!(refused().contains("report.json`: expected a file that vcr run --out has written: missing field"));
        write("report.json", REPORT);
        write("requests.jsonl", "{\"of\":\"a\"}\n");
        assert!(refused().contains("requests.jsonl`: expected a file that vcr run --out has written: line 1: missing"));
        write("charts.json", "[]");
        assert!(refused().contains("charts.json`"));
    }
}
