//! Flaws of lines.

use super::error::CaptureProblem;

/// A field and what is wrong with it.
pub(super) struct LineProblem {
    pub(super) field: Option<String>,
    pub(super) problem: CaptureProblem,
}

impl LineProblem {
    pub(super) fn of(field: &str, problem: CaptureProblem) -> Self {
        LineProblem { field: Some(field.to_owned()), problem }
    }

    pub(super) fn of_line(problem: CaptureProblem) -> Self {
        LineProblem { field: None, problem }
    }
}
