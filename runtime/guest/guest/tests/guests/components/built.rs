//! Guests as `vcr guest build` makes them.

use std::path::PathBuf;

use vcr_guest::{GuestModule, Limits};

/// The built guest `name`, or none, with a message, if it was not built.
pub(crate) fn built(name: &str) -> Option<GuestModule> {
    let path = built_path(name)?;
    Some(GuestModule::load(&path, Limits::default()).expect("a built guest loads"))
}

/// Its file.
pub(crate) fn built_path(name: &str) -> Option<PathBuf> {
    let dist = std::env::var_os("VCR_GUESTS_DIST")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../guests/dist"), PathBuf::from);
    let path = dist.join(format!("{name}.wasm"));
    vcr_skips::existing(path, "run `vcr guest build` first")
}
