//! Step logs: the decisions of an engine, step by step, in the schema of the recordings of the real vLLM scheduler.
//!
//! This crate defines that schema ([`StepLine`]). It has the writer that turns an engine's steps into lines
//! ([`EngineLog`]), the reader, the comparison of two logs ([`diff`]), the explanation of steps ([`explain`]), and
//! the proof of exactness ([`conform`]): a recording is replayed through the core, and every field of every line
//! must be equal.

pub mod conform;
pub mod diff;
mod engine_log;
mod error;
pub mod explain;
mod jsonl;
mod line;
mod live;
mod read;
mod settings;
mod steps;
#[cfg(test)]
mod testing;

pub use diff::{FirstEntry, first_entry};
pub use engine_log::{EngineLog, stop_word};
pub use error::LogError;
pub use line::{Blocks, Id, Scheduled, StepEvent, StepLine, WindowFreed};
pub use read::{LogKind, StepLog};
pub use settings::settings_of;
pub use steps::{EngineName, Step, Steps};
