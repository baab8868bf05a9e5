//! What a vcr guest is written with.
//!
//! A guest implements [`LatencyGuest`] for a type of its own and names it in
//! [`export_latency_model!`]. The SDK reads the JSON config, unpacks the flat
//! words of the interface into a [`Step`], walks a batch up to its horizon and
//! brings the allocator and panic handler that a `no_std` component needs.
//!
//! ```
//! use vcr_guest_sdk::{LatencyGuest, Step, export_latency_model, serde};
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
//!     fn price(&mut self, step: &Step) -> f64 {
//!         self.0 * (step.prefill_tokens + step.decode_tokens) as f64
//!     }
//! }
//!
//! export_latency_model!(PerToken);
//! ```
//!
//! A guest crate is a `cdylib` and begins with
//! `#![cfg_attr(target_arch = "wasm32", no_std)]`; on any other target it is an
//! ordinary library whose tests run with `cargo test`.
//!
//! Guests get no imports: no clock, no randomness but the seed (see [`Rng`]),
//! no files. A panic fails the run, and its message does not reach the user; to
//! say why, return an error from `configure` or `price_batch`.

#![no_std]

#[doc(hidden)]
pub extern crate alloc;

pub use serde;

#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod bindings;
mod latency;
mod rng;
#[cfg(all(target_arch = "wasm32", feature = "runtime"))]
mod runtime;
#[cfg(any(target_arch = "wasm32", test))]
#[doc(hidden)]
pub mod slot;
mod step;

pub use latency::{Batch, DURATION_NS_MAX, LatencyGuest, is_valid_duration, parse_config};
pub use rng::Rng;
pub use step::{Step, WORDS_PER_STEP};

/// Exports a [`LatencyGuest`] as the component's latency model.
///
/// Write it once, in the root of the guest crate. Off wasm32 it only checks the
/// trait, so that the crate builds and tests natively.
#[macro_export]
macro_rules! export_latency_model {
    ($guest:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            impl $crate::bindings::Exported for $guest {
                fn slot() -> &'static $crate::slot::ModelSlot<Self> {
                    static SLOT: $crate::slot::ModelSlot<$guest> = $crate::slot::ModelSlot::new();
                    &SLOT
                }
            }

            type Component = $crate::bindings::Component<$guest>;
    $crate::bindings::export!(Component with_types_in $crate::bindings);
        };

        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            const fn is_a_latency_guest<T: $crate::LatencyGuest>() {}
            is_a_latency_guest::<$guest>();
        };
    };
}
