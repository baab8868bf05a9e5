use std::path::{Path, PathBuf};

use cargo_metadata::{CrateType, Message, Metadata, MetadataCommand, Package};

use crate::build::command::{output, program, shown};
use crate::build::error::BuildError;

/// Whether `package` has a `cdylib`, the crate type of components.
pub(crate) fn is_guest(package: &Package) -> bool {
    package.targets.iter().any(|target| target.crate_types.contains(&CrateType::CDyLib))
}

pub(crate) fn workspace(dir: &Path) -> Result<Metadata, BuildError> {
    if !dir.join("Cargo.toml").exists() {
        return Err(BuildError::NotACrate { dir: dir.into() });
    }
    let mut command = program("cargo", dir);
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let answer = output(&mut command)?;
    MetadataCommand::parse(answer)
        .map_err(|error| BuildError::BadAnswer { command: shown(&command), reason: error.to_string() })
}

/// The core module of the package with this manifest, from the messages of `cargo build`.
pub(crate) fn module(messages: &str, manifest: &Path) -> Option<PathBuf> {
    let artifacts = Message::parse_stream(messages.as_bytes()).filter_map(|message| match message {
        Ok(Message::CompilerArtifact(artifact)) => Some(artifact),
        _ => None,
    });
    let files = artifacts.filter(|artifact| artifact.manifest_path == manifest).flat_map(|artifact| artifact.filenames);
    files.into_iter().find(|file| file.extension() == Some("wasm")).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(manifest: &str, file: &str) -> String {
        let target =
            r#"{"kind":["cdylib"],"crate_types":["cdylib"],"name":"a","src_path":"/w/lib.rs","edition":"2024"}"#;
        let profile = r#"{"opt_level":"3","debug_assertions":false,"overflow_checks":false,"test":false}"#;
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"a","manifest_path":"{manifest}","target":{target},"profile":{profile},"features":[],"filenames":["/t/a.d","{file}"],"executable":null,"fresh":false}}"#
        )
    }

    #[test]
    fn the_module_of_a_package_is_found_among_the_messages() {
        let messages = [
            artifact("/w/dep/Cargo.toml", "/t/libdep.rlib"),
            artifact("/w/a/Cargo.toml", "/t/a.wasm"),
            "not json".to_owned(),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let messages = messages.join("\n");
        assert_eq!(module(&messages, Path::new("/w/a/Cargo.toml")), Some("/t/a.wasm".into()));
        assert_eq!(module(&messages, Path::new("/w/dep/Cargo.toml")), None);
    }
}
