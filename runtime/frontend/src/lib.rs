//! The frontend of `vcr serve`: vLLM's OpenAI-compatible HTTP server, in the same
//! process as the live engines.

pub mod faults;
pub mod http;
pub mod metrics;
