//! The first entry of a pack: its contents and the expected result.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::path::check_path;

/// Name of the format.
pub const FORMAT: &str = "vcr.pack";
/// The version that is written, and the newest that can be read.
pub const VERSION: u32 = 1;
/// Path of the manifest.
pub const MANIFEST: &str = "pack.json";

/// File name extension of packs.
pub const EXTENSION: &str = "vcr";
/// Path of the expected report.
pub const REPORT: &str = "expected/report.json";
/// Path of the step digests.
pub const STEPS: &str = "expected/steps.bin";

/// Path of the table of vLLM versions.
pub const COMPAT: &str = "compat.toml";
/// Folder of the scenario and its inputs.
pub const SCENARIO: &str = "scenario";

/// Largest number of files; scenarios read fewer.
const MAX_FILES: usize = 100_000;

/// The contents of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: String,
    pub version: u32,
    /// Version of vcr that made the pack.
    pub vcr_version: String,
    /// Path of the scenario in the pack.
    pub scenario: String,
    /// Options of the packed run.
    pub settings: Settings,
    /// Whether traces and captures were reduced to times, lengths and hashes.
    pub redacted: bool,
    /// The files that the scenario reads.
    pub inputs: Vec<InputEntry>,
    /// Results of the packed run.
    pub expected: Expected,
    /// All other entries, in order.
    pub files: Vec<FileEntry>,
}

/// The options of a run that affect its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Parameter values given by the user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Seed given by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Number of draws for each run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertainty: u16,
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

/// An input of the scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEntry {
    /// Path or reference in the script.
    pub name: String,
    /// Kind of the input in reports: `trace`, `guest` and so on.
    pub kind: String,
    /// Path of the file or folder in the pack.
    pub path: String,
}

/// The result of the packed run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Whether every assertion passed.
    pub passed: bool,
    /// Fingerprint of the result; none if the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The error, if the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The runs whose step digests are in [`STEPS`], in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunSteps>,
}

/// A run with step digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSteps {
    pub name: String,
    /// Engines of the run, in order.
    pub engines: Vec<EngineSteps>,
}

/// An engine with step digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSteps {
    pub name: String,
    pub steps: u64,
}

/// A file of the pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path in the pack.
    pub path: String,
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

impl Manifest {
    /// Parses a manifest and checks everything except the files.
    ///
    /// # Errors
    /// When the text is not a manifest, its version is unknown, or a path is unsafe.
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
