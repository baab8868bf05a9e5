//! Generation of text: what a request asks for, in the engine's terms, and its
//! answer as pieces of text.

mod logprobs;
mod params;
mod text;
mod value;

pub(crate) use logprobs::{Position, TokenLogprob};
pub(crate) use params::{Asked, Chance, Placement, Repetition, Sampling, StringOrArray};
pub(crate) use text::{Finish, Merged, Piece, Span, StopCause, TextStream};
pub(crate) use value::{json_of, wire_of_text};
