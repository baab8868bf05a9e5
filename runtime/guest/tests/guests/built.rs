//! Guests as `vcr guest build` makes them.

use std::path::PathBuf;

use vcr_guest::{GuestModule, Limits};

/// The built guest `name`, or nothing - loudly - where it was not built.
pub(crate) fn built(name: &str) -> Option<GuestModule> {
    let dist = std::env::var_os("VCR_GUESTS_DIST")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../guests/dist"), PathBuf::from);
    let path = dist.join(format!("{name}.wasm"));
    if !path.exists() {
        let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!in_ci, "{} is missing: run `vcr guest build` first", path.display());
        eprintln!("SKIPPED: {} is missing: run `vcr guest build` first", path.display());
        return None;
    }
    Some(GuestModule::load(&path, Limits::default()).expect("a built guest loads"))
}
