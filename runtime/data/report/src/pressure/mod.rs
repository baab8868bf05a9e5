//! The capacity envelope of a report: queue, active requests and KV over time, and which
//! limits kept requests waiting for which share of the time.
//!
//! Reads folders of `vcr run --out` and reports of `vcr replay`. What a report does not say
//! is unknown, with the reason; nothing is guessed.

mod envelope;
mod folder;
mod read;
mod replay;
mod saturation;
mod ticks;

pub use envelope::Bucket;
pub use envelope::Share;
pub use envelope::{Bound, BoundShare};
pub use envelope::{PoolPressure, Pressure, RunPressure};
pub use read::read as read_pressure;
pub use saturation::{Detection, Judgement, RunEvents};
