//! Reads and writes traces of vllm-vcr.
//!
//! Their times are milliseconds, which are rounded to whole nanoseconds. The reader adds facts that a trace only
//! implies. A request in a trace has always ended, so the reader adds an end. The step context starts with the
//! second output, so the first output gets the nearest values: the requests in progress at the request's arrival,
//! and the prompt tokens that the request had to compute.

mod read;
mod write;

pub(super) use read::{absent_meta, decode};
pub use write::{VllmVcrDropped, VllmVcrWriter};
