//! Playing back a capture: which record answers which request.
//!
//! A [`CaptureIndex`] holds the records of a capture: their places in the file, and a
//! tree of their prompts. A [`Matcher`] gives them to requests, each once, by
//! the content of their prompts, so that it does not matter which names a
//! frontend makes up. A [`Playback`] is what several engines share of it, and
//! counts what did not match.
//!
//! This crate knows captures. It knows nothing of engines, sockets or time.

mod capture_index;
mod counts;
mod index;
mod matcher;
mod params;
mod session;

pub use capture_index::{CaptureIndex, CaptureIndexOptions, Expectation, PlaybackError};
pub use counts::{Counts, Divergence, Divergences};
pub use index::Row;
pub use matcher::{Lookup, Match, MatchBy, Matcher, Unmatched};
pub use session::{Answer, Playback, PlaybackReport};
