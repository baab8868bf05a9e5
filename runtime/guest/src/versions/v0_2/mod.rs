//! Guests made for `vcr:guest@0.2`: those of 0.1, schedulers, routers and autoscalers.

mod faults;
mod latency;
mod observe;
mod remarks;
mod routing;
mod scaling;
mod scheduling;
mod tokens;

use wasmtime::component::Component;

use crate::latest::OpenGuest;
use crate::limits::Limits;
use crate::versions::OpenError;
use crate::versions::instance::Module;
use crate::world::World;

pub(crate) fn open(world: World, component: &Component, limits: &Limits) -> Result<OpenGuest, OpenError> {
    Ok(match world {
        World::LatencyModel => {
            OpenGuest::Latency(Box::new(Module::<latency::Bindings>::new(component, limits, observe::link)?))
        }
        World::TokenSource => {
            OpenGuest::Tokens(Box::new(Module::<tokens::Bindings>::new(component, limits, remarks::link)?))
        }
        World::FailureInjector => {
            OpenGuest::Faults(Box::new(Module::<faults::Bindings>::new(component, limits, observe::link)?))
        }
        World::SchedulerPolicy => {
            OpenGuest::Policy(Box::new(Module::<scheduling::Bindings>::new(component, limits, observe::link)?))
        }
        World::Router => {
            OpenGuest::Router(Box::new(Module::<routing::Bindings>::new(component, limits, observe::link)?))
        }
        World::Autoscaler => {
            OpenGuest::Scaler(Box::new(Module::<scaling::Bindings>::new(component, limits, observe::link)?))
        }
    })
}
