//! Components that the tests load.

pub(super) mod built;
pub(super) mod wat;
