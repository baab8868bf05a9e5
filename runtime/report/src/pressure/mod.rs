//! The capacity envelope of a report: queue, active requests and KV over time, and which
//! limits kept requests waiting for which share of the time.
//!
//! Reads folders of `vcr run --out` and reports of `vcr replay`. What a report does not say
//! is unknown, with the reason; nothing is guessed.

mod bound;
mod curve;
mod envelope;
mod folder;
mod read;
mod replay;
mod share;
mod steps;
mod ticks;

pub use bound::{Bound, BoundShare};
pub use curve::Bucket;
pub use envelope::{PoolPressure, Pressure, RunPressure};
pub use read::read as read_pressure;
pub use share::Share;
