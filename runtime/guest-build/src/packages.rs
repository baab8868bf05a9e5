//! The packages of a directory, and the guests among them.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::command::{output, program, shown};
use crate::error::BuildError;

/// A package, as in the answer of `cargo metadata`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    #[serde(rename = "manifest_path")]
    pub(crate) manifest: PathBuf,
    targets: Vec<Target>,
}

#[derive(Clone, Debug, Deserialize)]
struct Target {
    crate_types: Vec<String>,
}

impl Package {
    /// Whether it has a library of the type that components are made of.
    pub(crate) fn is_guest(&self) -> bool {
        self.targets.iter().any(|target| target.crate_types.iter().any(|kind| kind == "cdylib"))
    }
}

/// A workspace and its packages, as in the answer of `cargo metadata`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    /// Cargo's folder for build outputs.
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// A message of `cargo build`, as far as artifacts have it.
#[derive(Deserialize)]
struct Artifact {
    reason: String,
    manifest_path: PathBuf,
    filenames: Vec<PathBuf>,
}

/// The workspace that `dir` is in, or is the root of.
pub(crate) fn workspace(dir: &Path) -> Result<Workspace, BuildError> {
    if !dir.join("Cargo.toml").exists() {
        return Err(BuildError::NotACrate { dir: dir.into() });
    }
    let mut command = program("cargo", dir);
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let answer = output(&mut command)?;
    serde_json::from_str(&answer)
        .map_err(|error| BuildError::BadAnswer { command: shown(&command), reason: error.to_string() })
}

/// The core module that each artifact message of `cargo build` names, as pairs
/// of manifest and file.
pub(crate) fn modules(messages: &str) -> Vec<(PathBuf, PathBuf)> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let of_compiler = artifacts.filter(|artifact| artifact.reason == "compiler-artifact");
    of_compiler
        .filter_map(|artifact| {
            let is_module = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "wasm");
            Some((artifact.manifest_path, artifact.filenames.into_iter().find(is_module)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_distinguished_from_libraries() {
        let metadata = r#"{"workspace_root": "/w", "target_directory": "/w/target", "packages": [
            {"name": "a", "manifest_path": "/w/a/Cargo.toml",
             "targets": [{"crate_types": ["cdylib"]}]},
            {"name": "b", "manifest_path": "/w/b/Cargo.toml",
             "targets": [{"crate_types": ["lib"]}]}]}"#;
        let workspace: Workspace = serde_json::from_str(metadata).expect("it is metadata");
        assert_eq!(workspace.root, Path::new("/w"));
        let guests: Vec<bool> = workspace.packages.iter().map(Package::is_guest).collect();
        assert_eq!(guests, [true, false]);
        let error = serde_json::from_str::<Workspace>("{}").expect_err("it has no field").to_string();
        assert!(error.contains("missing field `workspace_root`"), "{error}");
    }

    #[test]
    fn modules_are_found_among_the_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/dep/Cargo.toml","filenames":["/t/libdep.rlib"]}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","filenames":["/t/a.wasm"]}"#,
            "\nnot json\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(modules(messages), [("/w/a/Cargo.toml".into(), "/t/a.wasm".into())]);
    }
}
