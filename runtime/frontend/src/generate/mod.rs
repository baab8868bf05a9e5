//! Generation of text: what a request asks for, in the engine's terms, and its
//! answer as pieces of text.

mod ids;
mod logprobs;
mod params;
mod text;
mod value;

pub(crate) use logprobs::{Position, TokenLogprob};
pub(crate) use params::{Asked, Placement, Repetition, Sampling, StringOrArray};
pub(crate) use text::{Finish, Merged, Piece, StopCause, TextStream};
pub(crate) use value::json_of;
