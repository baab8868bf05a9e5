//! Used by all crates: units, random streams, inputs, outputs, and small types.

#![warn(missing_docs)]

pub mod block_hash;
pub mod finish_reason;
pub mod input;
pub mod output;
pub mod percentile;
pub mod random;
pub mod suggestion;
pub mod units;
