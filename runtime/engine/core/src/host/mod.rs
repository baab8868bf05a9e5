//! Request time outside of engine steps, and the host overhead of a step.
//!
//! Owns the settings for both, and the state of launches and pipeline stages. Engines do not use
//! them: drivers delay requests and outputs, and correct the durations of steps.

mod launch;
mod overheads;
mod pipeline;

pub use launch::Launches;
pub use overheads::{GRAPH_TOKENS_MAX, Overheads, PERMILLE};
pub use pipeline::Pipeline;
