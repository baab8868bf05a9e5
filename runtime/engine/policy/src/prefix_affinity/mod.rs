//! Routing by prefix affinity, with bounded loads and load shedding.
//!
//! Owns the formulas of one router, and nothing of what stands around it:
//!
//! * **Bounded load.** An engine takes a request only while its requests, that
//!   one included, are at most `load_factor` times the mean (Mirrokni, Thorup
//!   and Zadimoghaddam, "Consistent hashing with bounded loads", 2016). So no
//!   prefix, however popular, makes an engine much busier than the others.
//! * **Affinity.** Where some engine has cached the beginning of the prompt, the
//!   cheapest engine within the bound takes it: prompt tokens to be computed
//!   there, its own among them, less those cached, plus a constant for each
//!   request. Where none has, the first blocks choose by rendezvous hashing
//!   (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
//!   1998): equal prefixes go to the same engine, and an engine that comes or
//!   goes moves only those that were or will be its own.
//! * **Shedding.** Where every engine has more waiting requests, or more prompt
//!   tokens to compute, than its limit, the request is refused. The limits
//!   shrink with each number of priority, so that the least urgent go first.
//!
//! The crate has no dependencies, needs no std and uses only integers, `+ - * /`
//! and comparisons on `f64`, so a native build and a WebAssembly build choose
//! the same.

mod affinity;
mod config;

pub use affinity::PrefixAffinity;
pub use config::{AffinityConfig, AffinityError};
