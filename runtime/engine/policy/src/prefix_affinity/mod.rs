//! Routing by prefix affinity, with bounded loads and load shedding.
//!
//! Owns the formulas of one router, without its surroundings:
//!
//! * **Bounded load.** An engine takes a request only while its requests, including that one, are
//!   at most `load_factor` times the mean (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing
//!   with bounded loads", 2016). So no prefix, however popular, makes an engine much busier than
//!   the others.
//! * **Affinity.** If some engine has cached the beginning of the prompt, the request goes to the
//!   cheapest engine within the bound. The cost is the engine's prompt tokens to compute, including
//!   the new request's and excluding cached ones, plus a constant for each request. If none has,
//!   the first blocks choose by rendezvous hashing (Thaler and Ravishankar, "Using name-based
//!   mappings to increase hit rates", 1998): equal prefixes go to the same engine, and a change of
//!   engines moves only the prefixes of the engine that comes or goes.
//! * **Shedding.** If every engine has more waiting requests, or more prompt tokens to compute,
//!   than its limit, the request is refused. The limits shrink as the number of the priority grows,
//!   so the least urgent requests are refused first.
//!
//! The crate has no dependencies, needs no std and uses only integers, `+ - * /`
//! and comparisons on `f64`, so a native build and a WebAssembly build choose
//! the same.

mod affinity;
mod config;

pub use affinity::PrefixAffinity;
pub use config::{AffinityConfig, AffinityError};
