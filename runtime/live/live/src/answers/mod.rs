//! Contents of an output other than its tokens.

pub(crate) mod answer;
pub(crate) mod embedding;
pub(crate) mod logprobs;
