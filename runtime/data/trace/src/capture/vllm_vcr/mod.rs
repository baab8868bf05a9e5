//! Reads and writes vllm-vcr's traces.
//!
//! Their times are milliseconds and are rounded to whole nanoseconds. The reader makes implicit facts
//! explicit. A request in a trace has always ended, so it gets an end. Step context starts with the second
//! output, so the first output gets the nearest values: the requests in progress at its arrival, and the
//! prompt tokens that it had to compute itself.

mod read;
mod write;

pub(super) use read::{absent_meta, decode};
pub use write::{VllmVcrDropped, VllmVcrWriter};
