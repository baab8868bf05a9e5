//! Answers requests from recorded HTTP exchanges.
//!
//! An [`HttpTape`] looks up exchanges by method, path and the canonical form of the body ([`Asked`]). A [`Miss`]
//! reports the differences from the nearest recording.

mod asked;
mod diff;
mod rules;
mod tape;

pub use asked::{Asked, AskedParts};
pub use diff::Difference;
pub use rules::{MatchRules, Order, TextPattern, UsualField};
pub use tape::{Found, HttpTape, HttpTapeReport, Miss, Nearest};
