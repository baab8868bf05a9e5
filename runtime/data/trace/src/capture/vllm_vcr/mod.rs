//! vllm-vcr's traces, read and written.
//!
//! Their times are milliseconds and become whole nanoseconds by rounding. What
//! a record of theirs implies is spelled out: a request there is always over, so
//! that it gets an end; and since their step context starts with the second
//! output, the first gets what is nearest: the requests under way when it
//! arrived, and the prompt tokens it had to compute itself.

mod read;
mod write;

pub(super) use read::{absent_meta, decode};
pub use write::{VllmVcrDropped, VllmVcrWriter};
