//! The first entry of a pack: its contents, and the expected result.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::path::check_path;

/// The name of the format.
pub const FORMAT: &str = "vcr.pack";
/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 1;
/// Path of the manifest.
pub const MANIFEST: &str = "pack.json";

/// Ending of the names of packs.
pub const EXTENSION: &str = "vcr";
/// Path of the report to expect.
pub const REPORT: &str = "expected/report.json";
/// Path of the digests of steps.
pub const STEPS: &str = "expected/steps.bin";

/// Path of the table of vLLM's versions.
pub const COMPAT: &str = "compat.toml";
/// Folder of the scenario and its inputs.
pub const SCENARIO: &str = "scenario";

/// More files than a scenario reads.
const MAX_FILES: usize = 100_000;

/// Contents of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: String,
    pub version: u32,
    /// The version of vcr that made it.
    pub vcr_version: String,
    /// Path of the scenario in the pack.
    pub scenario: String,
    /// How it was run.
    pub settings: Settings,
    /// Whether traces and captures have lengths and hashes only.
    pub redacted: bool,
    /// The files that the scenario reads, as it names them.
    pub inputs: Vec<InputEntry>,
    /// Results of the packed run.
    pub expected: Expected,
    /// Every entry behind this one, in order.
    pub files: Vec<FileEntry>,
}

/// The options of a run that decide its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Values of parameters that were given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// The seed that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Draws of each run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertainty: u16,
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

/// An input of the scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEntry {
    /// Its path or reference in the script.
    pub name: String,
    /// `trace`, `guest` and so on, as in reports.
    pub kind: String,
    /// Its file or folder in the pack.
    pub path: String,
}

/// Results of the scenario when it was packed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Whether every assertion passed.
    pub passed: bool,
    /// The fingerprint; none if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whose steps [`STEPS`] has, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunSteps>,
}

/// A run whose steps have digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSteps {
    pub name: String,
    /// Its engines, in order.
    pub engines: Vec<EngineSteps>,
}

/// An engine whose steps have digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSteps {
    pub name: String,
    pub steps: u64,
}

/// A file of the pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path in the pack.
    pub path: String,
    pub bytes: u64,
    /// Its SHA-256, as hex.
    pub sha256: String,
}

impl Manifest {
    /// Reads a manifest and checks everything that does not need the files.
    ///
    /// # Errors
    /// When it is none, newer, or its paths are not safe.
    pub fn parse(bytes: &[u8]) -> Result<Self, PackError> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let invalid = |error: serde_json::Error| PackError::Manifest(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(invalid)?;
        if head.format != FORMAT {
            return Err(PackError::NotAPack);
        }
        if head.version > VERSION {
            return Err(PackError::Newer { found: head.version, known: VERSION });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(invalid)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), PackError> {
        if self.files.len() > MAX_FILES {
            return Err(PackError::Manifest(format!("{} files: expected at most {MAX_FILES}", self.files.len())));
        }
        let mut known = BTreeSet::new();
        for file in &self.files {
            check_path(&file.path)?;
            if !known.insert(file.path.as_str()) || file.path == MANIFEST {
                return Err(PackError::Manifest(format!("`{}` is listed twice", file.path)));
            }
        }
        let is_below = |path: &str, folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        if let Some(file) = known.iter().find(|file| known.iter().any(|other| is_below(other, file))) {
            return Err(PackError::Manifest(format!("`{file}` is a file and a folder")));
        }
        if !known.contains(self.scenario.as_str()) {
            return Err(PackError::Manifest(format!("the scenario `{}` is not among the files", self.scenario)));
        }
        for input in &self.inputs {
            let is_there = known.contains(input.path.as_str()) || known.iter().any(|file| is_below(file, &input.path));
            if !is_there {
                return Err(PackError::Manifest(format!("the input `{}` is not among the files", input.path)));
            }
        }
        Ok(())
    }
}
