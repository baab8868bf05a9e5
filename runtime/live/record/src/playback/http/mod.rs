//! Answers from exchanges over HTTP.
//!
//! An [`HttpTape`] holds the exchanges of a capture by what was asked: method, path and the canonical form of the body
//! ([`Asked`]). A [`Miss`] says in what the nearest recording differs.

mod asked;
mod diff;
mod rules;
mod tape;

pub use asked::{Asked, AskedParts};
pub use diff::Difference;
pub use rules::{MatchRules, Order, TextPattern, UsualField};
pub use tape::{Found, HttpTape, HttpTapeReport, Miss, Nearest};
