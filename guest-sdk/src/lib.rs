//! The SDK of vcr guests.
//!
//! A guest implements one world of `wit/`: it implements the world's trait for one of its types and passes that type
//! to the world's macro:
//!
//! | world | trait | macro |
//! |---|---|---|
//! | `latency-model` | [`LatencyGuest`] | [`export_latency_model!`] |
//! | `token-source` | [`TokenGuest`] | [`export_token_source!`] |
//! | `router` | [`RouterGuest`] | [`export_router!`] |
//! | `autoscaler` | [`ScalerGuest`] | [`export_autoscaler!`] |
//! | `failure-injector` | [`FaultGuest`] | [`export_failure_injector!`] |
//! | `scheduler-policy` | [`PolicyGuest`] | [`export_scheduler_policy!`] |
//!
//! The SDK parses the JSON config, converts the records of the interface into the simulator's own types
//! ([`vcr_policy`]), keeps state between calls where the interface needs it, and brings the allocator and panic
//! handler of a `no_std` component.
//!
//! ```
//! use vcr_guest_sdk::{LatencyGuest, StepShape, export_latency_model, serde};
//!
//! #[derive(serde::Deserialize)]
//! #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
//! struct Config {
//!     ns_per_token: f64,
//! }
//!
//! struct PerToken(f64);
//!
//! impl LatencyGuest for PerToken {
//!     type Config = Config;
//!
//!     fn configure(config: Config, _seed: u64) -> Result<Self, String> {
//!         Ok(Self(config.ns_per_token))
//!     }
//!
//!     fn price(&mut self, _start_ns: u64, step: &StepShape) -> f64 {
//!         self.0 * step.tokens() as f64
//!     }
//! }
//!
//! export_latency_model!(PerToken);
//! ```
//!
//! A guest crate is a `cdylib` and begins with
//! `#![cfg_attr(target_arch = "wasm32", no_std)]`; on any other target it is an
//! ordinary library whose tests run with `cargo test`.
//! Guests have no clock, no files and no randomness except the seed (see [`Rng`]). Telemetry goes through
//! [`observe`]. A panic fails the run; the error shows its message and location. For mistakes of the user return an
//! error from `configure`, `price_batch`, `next_token`, `decide`, `route` or `desired`. An error of a token source's
//! `start` refuses only that request.

#![warn(missing_docs)]
#![no_std]

#[doc(hidden)]
pub extern crate alloc;

pub use serde;

#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod bindings;
mod faults;
mod latency;
pub mod observe;
mod policy;
#[cfg(all(target_arch = "wasm32", not(feature = "runtime")))]
mod realloc;
mod rng;
mod router;
#[cfg(all(target_arch = "wasm32", feature = "runtime"))]
mod runtime;
mod scaler;
#[cfg(any(target_arch = "wasm32", test))]
#[doc(hidden)]
pub mod slot;
mod tokens;

pub use faults::FaultGuest;
#[cfg(any(target_arch = "wasm32", test))]
#[doc(hidden)]
pub use latency::pricing::Pricing;
pub use latency::{Batch, DURATION_NS_MAX, LatencyGuest, is_valid_duration, kv_group_shapes, parse_config};
#[cfg(any(target_arch = "wasm32", test))]
#[doc(hidden)]
pub use policy::Policy;
pub use policy::PolicyGuest;
pub use rng::Rng;
pub use router::{RouterGuest, WorkerColumns, WorkerLoads};
pub use scaler::ScalerGuest;
pub use tokens::TokenGuest;
#[cfg(any(target_arch = "wasm32", test))]
#[doc(hidden)]
pub use tokens::table::{Remarks, TokenTable};
pub use vcr_policy::faults::{FaultAction, FaultBatch, FaultEvent};
pub use vcr_policy::latency::{
    EncoderShape, EngineInfo, KvGroup, KvGroupKind, KvGroupShape, RecomputeShape, StepShape,
};
pub use vcr_policy::routing::{Choice, EndedRequest, RoutePhase, RouteRequest, WorkerLoad};
pub use vcr_policy::scaling::PoolView;
pub use vcr_policy::scheduling::{EngineView, PolicyEvent, Preference, Progress, Slo};
pub use vcr_policy::tokens::TokenRequest;

/// Exports a [`LatencyGuest`] as the component's latency model.
///
/// Write it once, in the root of the guest crate. On targets other than wasm32 it only checks the trait, so that the
/// crate builds and tests natively.
#[macro_export]
macro_rules! export_latency_model {
    ($guest:ty) => {
        $crate::__export!($guest, $crate::LatencyGuest, latency, $crate::Pricing<$guest>);
    };
}

/// Exports a [`TokenGuest`] as the component's token source; otherwise like
/// [`export_latency_model!`].
#[macro_export]
macro_rules! export_token_source {
    ($guest:ty) => {
        $crate::__export!($guest, $crate::TokenGuest, tokens, $crate::TokenTable<$guest>);
    };
}

/// Exports a [`FaultGuest`] as the component's failure injector; otherwise like
/// [`export_latency_model!`].
#[macro_export]
macro_rules! export_failure_injector {
    ($guest:ty) => {
        $crate::__export!($guest, $crate::FaultGuest, faults, $guest);
    };
}

/// Exports a [`PolicyGuest`] as the component's scheduler policy; otherwise like
/// [`export_latency_model!`].
#[macro_export]
macro_rules! export_scheduler_policy {
    ($guest:ty) => {
        $crate::__export!($guest, $crate::PolicyGuest, scheduling, $crate::Policy<$guest>);
    };
}

/// Exports a [`RouterGuest`] as the component's router; otherwise like
/// [`export_latency_model!`].
#[macro_export]
macro_rules! export_router {
    ($guest:ty) => {
        $crate::__export!($guest, $crate::RouterGuest, routing, $guest);
    };
}

/// Exports a [`ScalerGuest`] as the component's autoscaler; otherwise like
/// [`export_latency_model!`].
#[macro_export]
macro_rules! export_autoscaler {
    ($guest:ty) => {
        $crate::__export!($guest, $crate::ScalerGuest, scaling, $guest);
    };
}

/// Exports a guest that implements `$trait` through the bindings `$world`. An instance keeps a `$kept`.
#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    ($guest:ty, $trait:path, $world:ident, $kept:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            impl $crate::bindings::Exported for $guest {
                type Kept = $kept;

                fn slot() -> &'static $crate::slot::Slot<Self::Kept> {
                    static SLOT: $crate::slot::Slot<$kept> = $crate::slot::Slot::new();
                    &SLOT
                }
            }

            type Component = $crate::bindings::$world::Component<$guest>;
    $crate::bindings::$world::export!(Component with_types_in $crate::bindings::$world);
        };

        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            const fn is_a_guest<T: $trait>() {}
            is_a_guest::<$guest>();
        };
    };
}
