//! Contents of an output beside its tokens.

pub(crate) mod answer;
pub(crate) mod embedding;
pub(crate) mod logprobs;
