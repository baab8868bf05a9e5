//! The capacity envelope of a report: queue, running requests and KV usage over time, and the share of time in
//! which each limit kept requests waiting.
//!
//! The input is a folder of `vcr run --out` or a report of `vcr replay`. Values that a report lacks are unknown,
//! with the reason; nothing is guessed.

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
