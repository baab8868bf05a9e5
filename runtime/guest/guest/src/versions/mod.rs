//! One module for each version of `wit/` that this build serves, and the one
//! place where a version is chosen.
//!
//! A version converts the types of [`vcr_policy`] to those that `bindgen!` generates from its WIT
//! files, and converts answers back. No name of a binding generator appears outside its folder.

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
    /// It lacks required parts of the interface.
    Unfit(String),
    /// It failed when it was first instantiated.
    Fault(CallFault),
}

/// Prepares a compiled component as a guest of the world and version that it
/// declares, and instantiates it once to see that it fits.
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

/// A version's imports for guests of all worlds, for calls by hand.
pub(crate) fn linker(declared: ApiVersion, engine: &Engine, limits: &Limits) -> wasmtime::Result<Linker<HostState>> {
    let mut linker = Linker::new(engine);
    if (declared.major, declared.minor) == (0, 1) {
        v0_1::link(&mut linker)?;
    }
    wasi::link(&mut linker, limits.wasi)?;
    Ok(linker)
}
