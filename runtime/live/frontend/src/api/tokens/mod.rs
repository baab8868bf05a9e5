//! Endpoints whose requests or answers are tokens.

pub(super) mod features;
pub(super) mod generate;
pub(super) mod render;
pub(super) mod rendered;
pub(super) mod tokenize;
