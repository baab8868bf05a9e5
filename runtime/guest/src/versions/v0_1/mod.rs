//! Guests made for `vcr:guest@0.1`.

mod faults;
mod latency;
mod tokens;

use wasmtime::component::{Component, Linker};

use crate::latest::OpenGuest;
use crate::limits::Limits;
use crate::sandbox::HostState;
use crate::versions::OpenError;
use crate::versions::instance::Module;
use crate::world::World;

pub(crate) fn open(world: World, component: &Component, limits: &Limits) -> Result<OpenGuest, OpenError> {
    Ok(match world {
        World::LatencyModel => {
            OpenGuest::Latency(Box::new(Module::<latency::Bindings>::new(component, limits, offer_nothing)?))
        }
        World::TokenSource => {
            OpenGuest::Tokens(Box::new(Module::<tokens::Bindings>::new(component, limits, offer_nothing)?))
        }
        World::FailureInjector => {
            OpenGuest::Faults(Box::new(Module::<faults::Bindings>::new(component, limits, offer_nothing)?))
        }
        World::SchedulerPolicy | World::Router | World::Autoscaler => {
            return Err(OpenError::Unfit(format!("version 0.1 has no world `{}`", world.name())));
        }
    })
}

/// Guests of this version have nothing to import.
#[expect(clippy::unnecessary_wraps, reason = "later versions offer something, which can fail")]
fn offer_nothing(_linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    Ok(())
}
