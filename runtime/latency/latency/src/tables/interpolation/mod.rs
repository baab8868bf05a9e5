//! Computes times between measured points, and beyond them.

pub(crate) mod curve;
pub(crate) mod grid;
pub(crate) mod nested;
