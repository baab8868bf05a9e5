//! Loads WebAssembly guests, meters them and adapts them to the traits of the engine core. This is the only crate
//! that uses wasmtime.
//!
//! A guest is a component of a world in `wit/`. It gets information only through its calls. It may import write-only
//! interfaces ([`NoteSink`]) and the WASI interfaces that a user grants; these behave identically in every run
//! ([`WasiGrants`]). Limits of fuel and memory apply to every guest, and a time limit to guests of live engines. Any
//! misbehaviour (loop, trap, exhausted limit, invalid answer) becomes an error that names the guest and the call. The
//! instance is then dropped, so a guest breaks only its own run.
//!
//! ```no_run
//! use vcr_guest::{GuestModule, Limits};
//!
//! let module = GuestModule::load("guests/dist/roofline.wasm", Limits::default())?;
//! let config = r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#;
//! let model = module.latency_model(config, 42)?;
//! # Ok::<(), vcr_guest::GuestError>(())
//! ```
//!
//! A guest loaded from a file is compiled once: the machine code is cached in the user's cache folder, or in a
//! subfolder of `VCR_GUEST_CACHE`. An empty `VCR_GUEST_CACHE` disables the cache.
//!
//! The same component, config, seed and calls give the same answers on every machine: NaNs are canonical, threads are
//! off, relaxed SIMD is deterministic, and the limits of runs in virtual time count instructions and bytes.

mod adapters;
mod address_space;
mod by_hand;
mod check;
mod component;
mod error;
mod latest;
mod limits;
mod module;
mod observe;
mod remarks;
mod sandbox;
mod versions;
mod wasi;
mod watchdog;
mod world;

pub use adapters::fallback::{FailureSink, NoFaults, SeededTokens, WithFallback};
pub use adapters::latency::DURATION_NS_MAX;
pub use adapters::policy_fallback::{PolicyWithFallback, RanksOfEngine};
pub use by_hand::{HandCallError, HandInstance};
pub use check::{BenchReport, CallCost, Check, CheckReport, FailedCall, NativeTwin, Outcome, Used, bench, check};
pub use component::api_version::{ApiVersion, SUPPORTED_VERSIONS};
pub use component::describe::{DeclaredMemory, Description, FileKind};
pub use error::{ActionProblem, CallFault, GuestError, LoadProblem};
pub use limits::Limits;
pub use module::{GuestModule, GuestRole};
pub use observe::{GaugeSummary, GuestStats, Note, NoteSink};
pub use wasi::WasiGrants;
pub use world::World;
