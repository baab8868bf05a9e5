//! Runs packs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vcr_pack::{COMPAT, Manifest, STEPS, first_divergence};
use vcr_scenario::{AssertionResult, COMPAT_TABLE, Judge, Outcome, RunOptions, ScenarioError};

use super::make::{runs_of, without_path};
use crate::exit::eprint_line;
use crate::refusal::Refusal;

/// An unpacked and checked pack.
#[derive(Debug)]
pub(crate) struct OpenedPack {
    folder: TempDir,
    manifest: Manifest,
    /// Whether the user gave other parameters or another seed.
    is_changed: bool,
}

/// The comparison of a result with the packed one.
pub(crate) struct Verdict {
    pub(crate) is_different: bool,
    /// Lines to print.
    pub(crate) lines: Vec<String>,
}

/// Fails a run whose result differs from the packed one. If the results are equal, so are the reports.
impl Judge for OpenedPack {
    fn judge(&self, outcome: &Outcome) -> Vec<AssertionResult> {
        if self.is_changed {
            return Vec::new();
        }
        let Verdict { is_different, lines } = self.compare(outcome);
        if !is_different {
            return Vec::new();
        }
        let (subject, condition) = ("result".to_owned(), "same as the pack's".to_owned());
        vec![AssertionResult::beside_the_script(None, subject, condition, lines.join("; "), false)]
    }
}

impl Verdict {
    fn different(lines: Vec<String>) -> Self {
        Self { is_different: true, lines }
    }

    pub(crate) fn print(&self) {
        self.lines.iter().for_each(|line| eprint_line(format_args!("{line}")));
    }
}

impl OpenedPack {
    /// Opens a file as a pack; none if it is not a pack.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Refusal> {
        // A pipe can be read only once.
        if !path.is_file() || !vcr_pack::is_meant_as_pack(path) {
            return Ok(None);
        }
        let refused = |error: &dyn std::fmt::Display| Refusal::input(format!("{}: {error}", path.display()));
        let folder = TempDir::new().map_err(|error| refused(&error))?;
        let manifest = vcr_pack::unpack(path, folder.path()).map_err(|error| refused(&error))?;
        Ok(Some(Self { folder, manifest, is_changed: false }))
    }

    /// Path of the unpacked scenario.
    pub(crate) fn script(&self) -> PathBuf {
        self.folder.path().join(&self.manifest.scenario)
    }

    /// Fills in options from the packed settings.
    pub(crate) fn complete(&mut self, options: &mut RunOptions) {
        let settings = &self.manifest.settings;
        self.is_changed = options.seed.is_some_and(|seed| Some(seed) != settings.seed)
            || options.parameters.iter().any(|(key, value)| settings.parameters.get(key) != Some(value));
        options.seed = options.seed.or(settings.seed);
        for (key, value) in &settings.parameters {
            options.parameters.entry(key.clone()).or_insert_with(|| value.clone());
        }
        options.uncertainty = options.uncertainty.max(usize::from(settings.uncertainty));
        options.leaves_recordings_out = true;
        options.keeps_step_digests = true;
        let place = |path: &str| self.folder.path().join(path);
        let inputs = self.manifest.inputs.iter();
        options.files_by_name =
            inputs.map(|input| (input.name.clone(), place(&input.path))).collect::<BTreeMap<_, _>>();
    }

    /// Compares a result with the packed one.
    pub(crate) fn compare(&self, outcome: &Outcome) -> Verdict {
        if self.is_changed {
            let said = "the pack was made with other parameters or another seed: its result was not compared";
            return Verdict { is_different: false, lines: vec![said.to_owned()] };
        }
        let expected = &self.manifest.expected;
        if let Some(error) = &expected.error {
            return Verdict::different(vec![format!("different: the pack expects the error {error}")]);
        }
        if expected.fingerprint.as_deref() == Some(outcome.fingerprint.as_str()) {
            let said = "same: the fingerprint is the one of the pack";
            return Verdict { is_different: false, lines: vec![said.to_owned()] };
        }
        let fingerprint = expected.fingerprint.as_deref().unwrap_or("none");
        let mut lines = vec![format!("different: the pack expects the fingerprint {fingerprint}")];
        lines.push(self.divergence(outcome));
        let (packed, own) = (&self.manifest.vcr_version, env!("CARGO_PKG_VERSION"));
        if packed != own {
            lines.push(format!("it was made by vcr {packed}, and this is vcr {own}"));
        }
        if fs::read_to_string(self.folder.path().join(COMPAT)).is_ok_and(|table| table != COMPAT_TABLE) {
            lines.push(format!("its table of vLLM's versions is another: vcr unpack shows it as {COMPAT}"));
        }
        Verdict::different(lines)
    }

    fn divergence(&self, outcome: &Outcome) -> String {
        let expected_runs = &self.manifest.expected.runs;
        let digests = fs::read(self.folder.path().join(STEPS)).map_err(|error| error.to_string());
        let expected = match digests.and_then(|bytes| vcr_pack::from_bytes(&bytes, expected_runs)) {
            Ok(expected) => expected,
            Err(problem) => return format!("the digests of its steps cannot be read: {problem}"),
        };
        let found_runs = runs_of(&outcome.runs);
        let found: Vec<Vec<Vec<u32>>> = outcome.runs.iter().filter_map(|run| run.step_digests.clone()).collect();
        match first_divergence((expected_runs, &expected), (&found_runs, &found)) {
            Some(divergence) if divergence.engine.is_empty() => {
                format!("the run `{}` is missing, or has other engines", divergence.run)
            }
            Some(divergence) => {
                let (expected, found) = divergence.steps;
                format!(
                    "the first difference is in step {} of engine {} in the run `{}`: {expected} steps were expected, \
                     {found} were made",
                    divergence.step, divergence.engine, divergence.run
                )
            }
            None => "every step is the same: requests or totals differ".to_owned(),
        }
    }

    /// Compares an error with the packed one.
    pub(crate) fn compare_error(&self, error: &ScenarioError) -> Verdict {
        let found = without_path(&error.to_string(), &self.script());
        match &self.manifest.expected.error {
            Some(expected) if *expected == found => {
                Verdict { is_different: false, lines: vec!["same: the error is the one of the pack".to_owned()] }
            }
            Some(expected) => Verdict::different(vec![format!("different: the pack expects the error {expected}")]),
            None => Verdict::different(vec!["different: the pack expects a result".to_owned()]),
        }
    }
}
