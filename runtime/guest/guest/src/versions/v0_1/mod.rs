//! Guests made for `vcr:guest@0.1`.

mod faults;
mod latency;
mod routing;
mod scaling;
mod scheduling;
mod shared;
mod tokens;

use wasmtime::component::Component;

use crate::error::CallFault;
use crate::latest::OpenGuest;
use crate::limits::Limits;
use crate::versions::OpenError;
use crate::versions::instance::Module;
use crate::world::World;

/// Generates the module `bindings` for a world. The extra arguments are its imports other than `observe`.
macro_rules! generated {
    ($world:literal $(, $import:literal: $module:ident)*) => {
        #[allow(
            missing_docs,
            unreachable_pub,
            unsafe_code,
            clippy::all,
            reason = "generated code follows the rules of its generator"
        )]
        mod bindings {
            wasmtime::component::bindgen!({
                path: "../../../wit",
                world: $world,
                ownership: Borrowing { duplicate_if_necessary: true },
                with: {
                    "vcr:guest/types@0.1.0": crate::versions::v0_1::shared::bindings::vcr::guest::types,
                    "vcr:guest/observe@0.1.0": crate::versions::v0_1::shared::bindings::vcr::guest::observe,
                    $($import: crate::versions::v0_1::shared::bindings::vcr::guest::$module,)*
                },
            });
        }
    };
}
use generated;

pub(crate) use shared::link_all as link;

pub(crate) fn open(world: World, component: &Component, limits: &Limits) -> Result<OpenGuest, OpenError> {
    Ok(match world {
        World::LatencyModel => {
            OpenGuest::Latency(Box::new(Module::<latency::Bindings>::new(component, limits, shared::link_latency)?))
        }
        World::TokenSource => {
            OpenGuest::Tokens(Box::new(Module::<tokens::Bindings>::new(component, limits, shared::link_source)?))
        }
        World::FailureInjector => {
            OpenGuest::Faults(Box::new(Module::<faults::Bindings>::new(component, limits, shared::link)?))
        }
        World::SchedulerPolicy => {
            OpenGuest::Policy(Box::new(Module::<scheduling::Bindings>::new(component, limits, shared::link)?))
        }
        World::Router => {
            OpenGuest::Router(Box::new(Module::<routing::Bindings>::new(component, limits, shared::link_router)?))
        }
        World::Autoscaler => {
            OpenGuest::Scaler(Box::new(Module::<scaling::Bindings>::new(component, limits, shared::link)?))
        }
    })
}

/// Pairs two columns of a guest's answer.
fn paired<'a, A: Copy, B: Copy>(
    record: &'static str,
    names: &'static [&'static str; 2],
    first: &'a [A],
    second: &'a [B],
) -> Result<impl Iterator<Item = (A, B)> + use<'a, A, B>, CallFault> {
    if first.len() != second.len() {
        return Err(CallFault::UnequalColumns { record, names, lengths: [first.len(), second.len()] });
    }
    Ok(first.iter().copied().zip(second.iter().copied()))
}
