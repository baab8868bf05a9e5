//! One module for each version of `wit/` that this build serves, and the one
//! place where a version is chosen.

mod v0_1;

use wasmtime::component::Component;

use crate::inspect::ApiVersion;
use crate::latest::LatencyModule;

/// The versions of the guest API that this build serves, as (major, minor).
pub const SUPPORTED_VERSIONS: &[(u64, u64)] = &[(0, 1)];

pub(crate) fn is_supported(version: ApiVersion) -> bool {
    SUPPORTED_VERSIONS.contains(&(version.major, version.minor))
}

/// The supported versions in words.
pub(crate) fn supported_list() -> String {
    let names: Vec<String> =
        SUPPORTED_VERSIONS.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    names.join(", ")
}

/// Prepares a compiled component as a latency model of its declared version,
/// or says why it does not fit.
pub(crate) fn open_latency(
    declared: ApiVersion,
    component: &Component,
) -> Result<Box<dyn LatencyModule>, String> {
    match (declared.major, declared.minor) {
        (0, 1) => Ok(Box::new(v0_1::Module::new(component)?)),
        _ => Err(format!("version {declared} has no adapter")),
    }
}
