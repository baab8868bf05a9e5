//! The engine state machine of vcr.

pub mod latency;
pub mod seed;
