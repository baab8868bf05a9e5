//! Contents of an output beside its tokens.

pub(crate) mod answer;
pub(crate) mod logprobs;
