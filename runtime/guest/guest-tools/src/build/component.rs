//! Makes component files from core modules.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use wit_component::ComponentEncoder;

use crate::build::error::BuildError;

/// Wraps a core module into a component. The SDK's macro has stored the world in a section of the module.
pub(crate) fn encode(package: &str, module: &[u8]) -> Result<Vec<u8>, BuildError> {
    ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| BuildError::Component { package: package.into(), reason: format!("{error:#}") })
}

/// Files about a guest's config, with their custom sections: an example config, and the JSON schema of the config.
const CONFIG_FILES: [(&str, &str); 2] =
    [("config.json", "vcr:example-config"), ("config.schema.json", "vcr:config-schema")];

/// Maximum size of such a file.
const CONFIG_FILE_BYTES_MAX: u64 = 256 << 10;

/// Adds the existing files of [`CONFIG_FILES`] in `dir` to a component as custom sections, which guests do not read.
pub(crate) fn add_config_files(component: &mut Vec<u8>, dir: &Path) -> Result<(), BuildError> {
    CONFIG_FILES.into_iter().try_for_each(|(file, section)| add_file(component, &dir.join(file), section))
}

fn add_file(component: &mut Vec<u8>, path: &Path, section: &str) -> Result<(), BuildError> {
    let text = match vcr_base::input::read_text(path, CONFIG_FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(BuildError::Io { action: "read", path: path.into(), source }),
    };
    let wrong = |reason: String| BuildError::BadExample { path: path.into(), reason };
    serde_json::from_str::<serde_json::Value>(&text).map_err(|error| wrong(error.to_string()))?;
    let mut content = Vec::new();
    put_number(&mut content, section.len());
    content.extend_from_slice(section.as_bytes());
    content.extend_from_slice(text.trim().as_bytes());
    component.push(CUSTOM_SECTION);
    put_number(component, content.len());
    component.extend_from_slice(&content);
    Ok(())
}

const CUSTOM_SECTION: u8 = 0;

/// Appends a number in unsigned LEB128.
fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

/// Fails if `path` is an existing file that is not WebAssembly.
pub(crate) fn check_place(path: &Path) -> Result<(), BuildError> {
    let mut start = [0; 4];
    let is_foreign = match fs::File::open(path) {
        Ok(mut file) => file.read_exact(&mut start).is_err() || &start != b"\0asm",
        Err(_) => false,
    };
    if is_foreign { Err(BuildError::Foreign { path: path.into() }) } else { Ok(()) }
}

/// Writes the file atomically, so that a simulator sees the old or the new file. Skips an unchanged file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let partial = path.with_extension(format!("wasm.{}.partial", std::process::id()));
    fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path)).map_err(|source| BuildError::Io {
        action: "write",
        path: path.into(),
        source,
    })
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_goes_into_a_custom_section() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut bytes = vec![1, 2];
        add_config_files(&mut bytes, folder.path()).expect("there is none to add");
        assert_eq!(bytes, [1, 2]);
        fs::write(folder.path().join("config.json"), "{\"a\": 1}\n").expect("it is writable");
        add_config_files(&mut bytes, folder.path()).expect("it is JSON");
        let mut expected = vec![1, 2, 0, 27, 18];
        expected.extend_from_slice(b"vcr:example-config{\"a\": 1}");
        assert_eq!(bytes, expected);
        fs::write(folder.path().join("config.json"), "{a: 1}").expect("it is writable");
        let error = add_config_files(&mut bytes, folder.path()).expect_err("it is not JSON").to_string();
        assert!(error.contains("config.json") && error.contains("line 1"), "{error}");
        let config = folder.path().join("config.json");
        fs::write(&config, " ".repeat(256 << 10) + "1").expect("it is writable");
        let error = add_config_files(&mut bytes, folder.path()).expect_err("it is too long").to_string();
        assert!(error.contains("config.json"), "{error}");
        fs::remove_file(&config).expect("it is there");
        std::os::unix::fs::symlink("/dev/zero", &config).expect("it is writable");
        add_config_files(&mut bytes, folder.path()).expect_err("it never ends");
    }

    #[test]
    fn numbers_have_seven_bits_a_byte() {
        for (number, expected) in [(0, &[0][..]), (127, &[127]), (128, &[0x80, 1]), (624_485, &[0xe5, 0x8e, 0x26])] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            assert_eq!(bytes, expected);
        }
    }
}
