//! The differences from vLLM's frontend that are meant: all of them, and no other.

use super::answer::Mismatch;
use super::case::Case;

/// A difference that is meant.
pub(crate) struct Difference {
    /// What `docs/reference/serve.md` says of it, word for word.
    pub(crate) documented: &'static str,
    /// Whether a mismatch in the answers to a request is due to it.
    pub(crate) explains: fn(&Case, &Mismatch) -> bool,
}

/// All of them.
pub(crate) const DIFFERENCES: &[Difference] = &[];
