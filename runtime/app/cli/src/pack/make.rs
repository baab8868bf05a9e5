//! Makes a pack from a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use vcr_base::output::OutputFile;
use vcr_cluster::Report;
use vcr_pack::{
    COMPAT, Content, EngineSteps, Expected, FORMAT, InputEntry, Manifest, PackFile, REPORT, RunSteps, SCENARIO, STEPS,
    Settings, VERSION,
};
use vcr_scenario::{COMPAT_TABLE, Outcome, SourceFile};

use crate::refusal::Refusal;

/// A run and the files that it has read.
pub(super) struct Packed<'a> {
    pub(super) script: &'a Path,
    /// The script, if it is not in a file.
    pub(super) text: Option<&'a str>,
    pub(super) settings: Settings,
    pub(super) is_redacted: bool,
    pub(super) sources: &'a [SourceFile],
}

impl Packed<'_> {
    /// Writes the pack. `outcome` is the run's result or error.
    pub(super) fn write(self, outcome: Result<&Outcome, String>, draft: OutputFile) -> Result<Manifest, Refusal> {
        let unreadable =
            |error: std::io::Error| Refusal::input(format!("cannot read `{}`: {error}", self.script.display()));
        let (script, content) = match self.text {
            Some(text) => {
                // Relative paths in the text start at the current folder.
                let folder = fs::canonicalize(".").map_err(unreadable)?;
                (folder.join(self.script), Content::Bytes(text.as_bytes().to_vec()))
            }
            None => {
                let script = fs::canonicalize(self.script).map_err(unreadable)?;
                (script.clone(), Content::File(script))
            }
        };
        let name_of = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let named: Vec<(String, String)> =
            self.sources.iter().map(|source| (source.name.clone(), name_of(&source.path))).collect();
        let (scenario, places) = vcr_pack::place_inputs(&script, &named);
        let scenario = format!("{SCENARIO}/{scenario}");
        let mut files = vec![PackFile { path: scenario.clone(), content }];
        let mut inputs = Vec::new();
        for (source, place) in self.sources.iter().zip(places) {
            let place = format!("{SCENARIO}/{place}");
            let found = source.files().map_err(|error| Refusal::input(error.to_string()))?;
            for (name, path) in found {
                files.push(PackFile { path: place_of(&place, source, &name), content: Content::File(path) });
            }
            inputs.push(InputEntry { name: source.name.clone(), kind: source.kind.to_owned(), path: place });
        }
        files.push(PackFile { path: COMPAT.to_owned(), content: Content::Bytes(COMPAT_TABLE.as_bytes().to_vec()) });
        let expected = match outcome {
            Ok(outcome) => {
                let mut report = serde_json::to_vec_pretty(outcome)
                    .map_err(|error| Refusal::input(format!("cannot write the report: {error}")))?;
                report.push(b'\n');
                files.push(PackFile { path: REPORT.to_owned(), content: Content::Bytes(report) });
                files.push(PackFile { path: STEPS.to_owned(), content: Content::Bytes(digests(&outcome.runs)) });
                Expected {
                    passed: outcome.passed,
                    fingerprint: Some(outcome.fingerprint.clone()),
                    error: None,
                    runs: runs_of(&outcome.runs),
                }
            }
            Err(error) => Expected { error: Some(without_path(&error, self.script)), ..Expected::default() },
        };
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            vcr_version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario,
            settings: self.settings,
            redacted: self.is_redacted,
            inputs,
            expected,
            files: Vec::new(),
        };
        let mut written = Ok(manifest.clone());
        draft.write_with(|out| {
            written = vcr_pack::write(out, manifest, files);
            match &written {
                Ok(_) => Ok(()),
                Err(error) => Err(std::io::Error::other(error.to_string())),
            }
        })?;
        Ok(written?)
    }
}

/// Path of an input's file in the pack. Files of one folder, and later parts of a capture, stay next to each other.
fn place_of(place: &str, source: &SourceFile, name: &str) -> String {
    if name == source.name {
        return place.to_owned();
    }
    if source.path.is_dir() {
        let rest = Path::new(name).strip_prefix(&source.name).unwrap_or(Path::new(name));
        return format!("{place}/{}", rest.display());
    }
    let file = Path::new(name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    match place.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{file}"),
        None => file,
    }
}

/// The runs with their engines and step counts.
pub(super) fn runs_of(runs: &[Arc<Report>]) -> Vec<RunSteps> {
    let engines = |run: &Report| {
        let digests = run.step_digests.iter().flatten();
        let named = run.engine_names.iter().zip(digests);
        named.map(|(name, digests)| EngineSteps { name: name.clone(), steps: digests.len() as u64 }).collect()
    };
    runs.iter().map(|run| RunSteps { name: run.name.clone(), engines: engines(run) }).collect()
}

fn digests(runs: &[Arc<Report>]) -> Vec<u8> {
    vcr_pack::to_bytes(runs.iter().filter_map(|run| run.step_digests.as_ref()))
}

/// Removes the script's folder from an error, because it differs on other machines.
pub(super) fn without_path(error: &str, script: &Path) -> String {
    let folder = script.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    if folder.is_empty() { error.to_owned() } else { error.replace(&format!("{folder}/"), "") }
}

/// The redacted copies of a scenario's traces and captures.
pub(super) struct Redacted {
    _folder: TempDir,
    files: BTreeMap<String, PathBuf>,
}

impl Redacted {
    pub(super) fn of(sources: &[SourceFile]) -> Result<Self, Refusal> {
        let failed = |error: std::io::Error| Refusal::input(format!("cannot write redacted copies: {error}"));
        let folder = TempDir::new().map_err(failed)?;
        let mut files = BTreeMap::new();
        let traffic = sources.iter().filter(|source| matches!(source.kind, "trace" | "capture"));
        for (index, source) in traffic.enumerate() {
            if files.contains_key(&source.name) {
                continue;
            }
            let own = folder.path().join(index.to_string());
            fs::create_dir(&own).map_err(failed)?;
            let copy = own.join(source.path.file_name().unwrap_or_default());
            vcr_pack::redact::redact(&source.name, &source.path, &copy)?;
            files.insert(source.name.clone(), copy);
        }
        Ok(Self { _folder: folder, files })
    }

    pub(super) fn files_by_name(&self) -> BTreeMap<String, PathBuf> {
        self.files.clone()
    }
}
