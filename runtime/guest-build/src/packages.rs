//! Which packages of a directory are guests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::{output, program, shown};
use crate::error::BuildError;

/// A package of `cargo metadata`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest: PathBuf,
    pub(crate) is_guest: bool,
}

/// A workspace and its packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// The workspace that `dir` is in, or is the root of.
pub(crate) fn workspace(dir: &Path) -> Result<Workspace, BuildError> {
    if !dir.join("Cargo.toml").exists() {
        return Err(BuildError::NotACrate { dir: dir.into() });
    }
    let mut command = program("cargo", dir);
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let answer = output(&mut command)?;
    read(&answer).map_err(|reason| BuildError::BadAnswer { command: shown(&command), reason })
}

fn read(metadata: &str) -> Result<Workspace, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    let text = |value: &Value, key: &str| value[key].as_str().map(str::to_owned).ok_or_else(|| format!("no `{key}`"));
    let packages = metadata["packages"]
        .as_array()
        .ok_or("no `packages`")?
        .iter()
        .map(|package| {
            Ok(Package {
                name: text(package, "name")?,
                manifest: text(package, "manifest_path")?.into(),
                is_guest: package["targets"]
                    .as_array()
                    .is_some_and(|targets| targets.iter().any(|target| contains(&target["crate_types"], "cdylib"))),
            })
        })
        .collect::<Result<_, String>>()?;
    let (root, target) = (text(&metadata, "workspace_root")?, text(&metadata, "target_directory")?);
    Ok(Workspace { root: root.into(), target: target.into(), packages })
}

fn contains(list: &Value, word: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|item| item == word))
}

/// The core module that each artifact message of `cargo build` names, as pairs
/// of manifest and file.
pub(crate) fn modules(messages: &str) -> Vec<(PathBuf, PathBuf)> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter_map(|message| {
            let manifest = message["manifest_path"].as_str()?;
            let module = message["filenames"]
                .as_array()?
                .iter()
                .filter_map(Value::as_str)
                .find(|file| file.ends_with(".wasm"))?;
            Some((manifest.into(), module.into()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_told_from_libraries() {
        let metadata = r#"{"workspace_root": "/w", "target_directory": "/w/target", "packages": [
            {"name": "a", "manifest_path": "/w/a/Cargo.toml",
             "targets": [{"crate_types": ["cdylib"]}]},
            {"name": "b", "manifest_path": "/w/b/Cargo.toml",
             "targets": [{"crate_types": ["lib"]}]}]}"#;
        let workspace = read(metadata).expect("it is metadata");
        assert_eq!(workspace.root, Path::new("/w"));
        let guests: Vec<bool> = workspace.packages.iter().map(|p| p.is_guest).collect();
        assert_eq!(guests, [true, false]);
        assert_eq!(read("{}"), Err("no `packages`".into()));
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
