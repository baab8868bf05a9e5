//! The order of waiting requests by the longest cached prefix.

use crate::request::RequestId;

/// A waiting request, with what its place in the order depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// Goes behind all others, because one that begins alike goes before.
    pub(super) is_deferred: bool,
    /// Cached pages.
    pub(super) longest_first: std::cmp::Reverse<u32>,
    /// Its place so far.
    pub(super) place: u32,
    pub(super) id: RequestId,
}
