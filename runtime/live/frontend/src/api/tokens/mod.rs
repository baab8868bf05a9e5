//! Endpoints with tokens in the request or the response.

pub(super) mod features;
pub(super) mod generate;
pub(super) mod render;
pub(super) mod rendered;
pub(super) mod tokenize;
