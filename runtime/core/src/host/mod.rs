//! Time that requests spend outside of engine steps, and what the host's part of a step
//! costs.
//!
//! Owns the settings of both and the bookkeeping of launches. Engines know nothing of it:
//! drivers delay requests and outputs, and correct the durations of steps.

mod launch;
mod overheads;

pub use launch::Launches;
pub use overheads::{GRAPH_TOKENS_MAX, Overheads, PERMILLE};
