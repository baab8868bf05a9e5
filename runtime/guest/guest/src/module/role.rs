//! The traits that guests implement, each with the guest's world and the trait's error type. [`GuestModule::make`]
//! and [`GuestModule::plug_in`] are generic over them.

use vcr_core::fault::{FailureInjector, FaultError};
use vcr_core::latency::{LatencyError, LatencyModel};
use vcr_core::policy::{PolicyError, SchedulingPolicy};
use vcr_core::route::{RouteError, Router};
use vcr_core::scale::{Autoscaler, ScaleError};
use vcr_core::tokens::{BatchTokenSource, TokenError};

use crate::adapters::faults::GuestFaults;
use crate::adapters::latency::GuestLatency;
use crate::adapters::policy::GuestPolicy;
use crate::adapters::router::GuestRouter;
use crate::adapters::scaler::GuestScaler;
use crate::adapters::tokens::GuestTokens;
use crate::error::GuestError;
use crate::latest::OpenGuest;
use crate::module::GuestModule;
use crate::world::World;

/// A trait of the engine core that guests of one world implement.
pub trait GuestRole: sealed::Sealed {
    /// Error type of the trait.
    type Error: std::error::Error;

    /// World of the guests that implement it.
    const WORLD: World;
}

pub(crate) mod sealed {
    use super::{GuestError, GuestModule};

    pub trait Sealed {
        type CallError;

        fn make(module: &GuestModule, config_json: &str, seed: u64) -> Result<Box<Self>, GuestError>;

        /// Converts a guest's failure to the trait's error.
        fn error(guest: String, reason: String) -> Self::CallError;
    }
}

/// Implements a role. Arguments: the trait, its world, the variant of [`OpenGuest`], the adapter, the error, and the
/// error's field for the guest's name.
macro_rules! role {
    ($role:ty, $world:ident, $variant:ident, $adapter:ty, $error:ident, $name:ident) => {
        impl GuestRole for $role {
            type Error = $error;

            const WORLD: World = World::$world;
        }

        impl sealed::Sealed for $role {
            type CallError = $error;

            fn make(module: &GuestModule, config_json: &str, seed: u64) -> Result<Box<Self>, GuestError> {
                let OpenGuest::$variant(maker) = module.open_guest() else {
                    return Err(module.of_other_world(World::$world));
                };
                let instance = module.configure(maker.as_ref(), config_json, seed)?;
                Ok(Box::new(<$adapter>::new(module.name().to_owned(), *module.limits(), instance)))
            }

            fn error(guest: String, reason: String) -> $error {
                $error { $name: guest, reason }
            }
        }
    };
}

role!(dyn LatencyModel, LatencyModel, Latency, GuestLatency, LatencyError, model);
role!(dyn BatchTokenSource, TokenSource, Tokens, GuestTokens, TokenError, source);
role!(dyn FailureInjector, FailureInjector, Faults, GuestFaults, FaultError, injector);
role!(dyn SchedulingPolicy, SchedulerPolicy, Policy, GuestPolicy, PolicyError, policy);
role!(dyn Router, Router, Router, GuestRouter, RouteError, router);
role!(dyn Autoscaler, Autoscaler, Scaler, GuestScaler, ScaleError, autoscaler);
