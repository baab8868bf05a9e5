//! Converts requests for engines, and their outputs to text or vectors.

mod ids;
mod logprobs;
mod params;
mod pool;
mod text;
mod usage;
mod value;

pub(crate) use ids::wide;
pub(crate) use logprobs::{Position, TokenLogprob};
pub(crate) use params::{EngineSubmission, OptionalStructure, Placement, Repetition, Sampling, StringOrArray};
pub(crate) use pool::{Pooling, pooled};
pub(crate) use text::{Finish, Merged, Piece, Span, StopCause, TextStream};
pub(crate) use usage::Usage;
pub(crate) use value::{json_of, wire_of, wire_of_text};
