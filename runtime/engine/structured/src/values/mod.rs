//! Random values: words, numbers, dates, texts that match a pattern.

pub(crate) mod draw;
pub(crate) mod notation;
pub(crate) mod numbers;
pub(crate) mod pattern;
pub(crate) mod words;
