//! Whether two answers are equal, exactly or within a tolerance.
//!
//! Exact material decides first: the source's fingerprints, token ids or texts, whichever both answers have first.
//! If it differs, the answers are still tolerated if their vectors are within the tolerance for the candidate's
//! model, backend and accelerator. If it is equal, the answers drift if their vectors are outside the tolerance.
//! Without exact material, only the vectors decide; without a tolerance they must be equal.

use crate::policy::{Policy, Tolerance};
use crate::side::{Label, Side};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// At least one of the requests failed, so there is nothing to compare.
    NotCompared,
    Equal,
    /// The answers differ, but their vectors are within the tolerance.
    Tolerated,
    /// The answers differ.
    Mismatch,
    /// The vectors are outside the tolerance.
    Drift,
    /// The answers have no output material in common.
    Incomparable,
}

pub(crate) fn compare(policy: &Policy, baseline: (&Side, usize), candidate: (&Side, usize)) -> Outcome {
    let ((b, b_index), (c, c_index)) = (baseline, candidate);
    if !b.is_ok(b_index) || !c.is_ok(c_index) {
        return Outcome::NotCompared;
    }
    let exact = b.has_same_exact(b_index, c, c_index);
    let vectors = b.vector(b_index).zip(c.vector(c_index));
    let label = |label| c.name(c.label(c_index, label));
    let tolerance =
        vectors.and_then(|_| policy.tolerance(label(Label::Model), label(Label::Backend), label(Label::Accelerator)));
    let is_within = |(b, c): (&[f64], &[f64]), tolerance: &Tolerance| {
        b.len() == c.len() && b.iter().zip(c).all(|(b, c)| tolerance.excess(*b, *c) <= 1.0)
    };
    match (exact, vectors, tolerance) {
        (Some(true), Some(vectors), Some(tolerance)) if !is_within(vectors, tolerance) => Outcome::Drift,
        (Some(true), ..) => Outcome::Equal,
        (Some(false), Some(vectors), Some(tolerance)) if is_within(vectors, tolerance) => Outcome::Tolerated,
        (Some(false), ..) => Outcome::Mismatch,
        (None, Some((b, c)), _) if b == c => Outcome::Equal,
        (None, Some(vectors), Some(tolerance)) if is_within(vectors, tolerance) => Outcome::Tolerated,
        (None, Some(_), _) => Outcome::Drift,
        (None, None, _) => Outcome::Incomparable,
    }
}
