//! Time that requests spend outside of engine steps, and what the host's part of a step
//! costs.
//!
//! Owns the settings of both and the bookkeeping of launches and of the stages of a
//! pipeline. Engines know nothing of it:
//! drivers delay requests and outputs, and correct the durations of steps.

mod launch;
mod overheads;
mod pipeline;

pub use launch::Launches;
pub use overheads::{GRAPH_TOKENS_MAX, Overheads, PERMILLE};
pub use pipeline::Pipeline;
