//! From core module to component file.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use wit_component::ComponentEncoder;

use crate::error::BuildError;

/// Wraps a core module into a component. The world comes from the section that
/// the SDK's macro left in the module.
pub(crate) fn encode(package: &str, module: &[u8]) -> Result<Vec<u8>, BuildError> {
    ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| BuildError::Component { package: package.into(), reason: format!("{error:#}") })
}

/// Writes the file in one step, so that a simulator that loads it meanwhile
/// sees the old one or the new one, and leaves it alone when nothing changed.
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

/// SHA-256 in lower-case hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
