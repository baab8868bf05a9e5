//! One module for each supported version of `wit/`, and the choice of the version.
//!
//! A module converts between the types of [`vcr_policy`] and the types that `bindgen!` generates from its WIT files.
//! Generated types never leave its folder.

mod instance;
#[cfg(test)]
mod tests;
mod v0_1;

use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use crate::component::api_version::ApiVersion;
use crate::error::CallFault;
use crate::latest::OpenGuest;
use crate::limits::Limits;
use crate::sandbox::HostState;
use crate::wasi;
use crate::world::World;

/// The reason why a compiled component cannot be used.
pub(crate) enum OpenError {
    /// The component lacks required parts of the interface.
    Unfit(String),
    /// The component failed on its first instantiation.
    Fault(CallFault),
}

/// Prepares a compiled component as a guest of this world and version, and checks by an instantiation that it fits.
pub(crate) fn open(
    world: World,
    declared: ApiVersion,
    component: &Component,
    limits: &Limits,
) -> Result<OpenGuest, OpenError> {
    match (declared.major, declared.minor) {
        #[cfg(test)]
        (0, 0) => tests::open(world, component, limits),
        (0, 1) => v0_1::open(world, component, limits),
        _ => Err(OpenError::Unfit(format!("version {declared} has no adapter"))),
    }
}

/// All imports of an API version, for calls by hand.
pub(crate) fn linker(declared: ApiVersion, engine: &Engine, limits: &Limits) -> wasmtime::Result<Linker<HostState>> {
    let mut linker = Linker::new(engine);
    if (declared.major, declared.minor) == (0, 1) {
        v0_1::link(&mut linker)?;
    }
    wasi::link(&mut linker, limits.wasi)?;
    Ok(linker)
}
