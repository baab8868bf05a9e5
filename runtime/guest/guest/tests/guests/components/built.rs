//! Guests built with `vcr guest build`.

use std::path::PathBuf;

use vcr_guest::{GuestModule, Limits};

/// Loads the built guest `name`. If it was not built, prints a message and returns none.
pub(crate) fn built(name: &str) -> Option<GuestModule> {
    let path = built_path(name)?;
    Some(GuestModule::load(&path, Limits::default()).expect("a built guest loads"))
}

pub(crate) fn built_path(name: &str) -> Option<PathBuf> {
    let dist = std::env::var_os("VCR_GUESTS_DIST")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../guests/dist"), PathBuf::from);
    let path = dist.join(format!("{name}.wasm"));
    vcr_skips::existing(path, "run `vcr guest build` first")
}
