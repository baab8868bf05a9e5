//! Answers from a capture, instead of random tokens and modelled times.

pub(crate) mod capture;
pub(crate) mod player;
