//! Routing by prefix affinity, with bounded loads and load shedding.
//!
//! Owns the formulas of one router, independent of its environment:
//!
//! * **Bounded load.** An engine takes a request only while its requests, including the new one, are
//!   at most `load_factor` times the mean (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing
//!   with bounded loads", 2016). So no prefix, however popular, makes an engine much busier than
//!   the others.
//! * **Affinity.** If some engine has cached the beginning of the prompt, the request goes to the
//!   cheapest engine within the bound. The cost is the number of prompt tokens that the engine must compute, including
//!   the new request's tokens but not the cached ones, plus a constant for each request. If no engine has cached any,
//!   the first blocks choose by rendezvous hashing (Thaler and Ravishankar, "Using name-based
//!   mappings to increase hit rates", 1998). Equal prefixes then go to the same engine, and when an engine
//!   comes or goes, only its own prefixes move.
//! * **Shedding.** If every engine has more waiting requests, or more prompt tokens to compute,
//!   than its limit, the request is refused. The limits shrink with the number of the priority,
//!   so the least urgent requests are refused first.
//!
//! The code needs no std and uses only integers, `+ - * /` and comparisons on `f64`, so a native build and a
//! WebAssembly build choose the same engine.

mod affinity;
mod config;

pub use affinity::PrefixAffinity;
pub use config::{AffinityConfig, AffinityError};
