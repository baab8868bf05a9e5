//! One module for each version of `wit/` that this build serves, and the one
//! place where a version is chosen.

mod instance;
mod v0_1;
mod v0_2;
mod worlds;

use wasmtime::component::Component;

use crate::component::api_version::ApiVersion;
use crate::error::CallFault;
use crate::latest::OpenGuest;
use crate::limits::Limits;
use crate::world::World;

/// The reason why a compiled component cannot be used.
pub(crate) enum OpenError {
    /// It does not have what the interface asks for.
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
        (0, 1) => v0_1::open(world, component, limits),
        (0, 2) => v0_2::open(world, component, limits),
        _ => Err(OpenError::Unfit(format!("version {declared} has no adapter"))),
    }
}
