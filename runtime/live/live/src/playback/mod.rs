//! Answers from a capture, instead of drawn tokens and modelled times.

pub(crate) mod capture;
pub(crate) mod player;
