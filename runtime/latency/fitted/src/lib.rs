//! The price of an engine step as a sum of fitted terms.
//!
//! A step's price is `sum(coefficient * amount)` over the [`TERMS`]: a constant, tokens, decodes, attention.
//! Coefficients are never negative and every amount grows with the step, so a larger step never costs less.
//! Decodes enter by `min(decodes, knot)`, which makes the price concave in the batch, and tokens by
//! `max(0, tokens - knot)`, which makes it convex in the length of prefills, as for memory-bound and
//! compute-bound kernels.
//!
//! The host's time to launch a step is not part of the price and may exceed the GPU's: see [`Overheads`].
//!
//! [`StepPrice`] also has the range of the steps that it was fitted on, and the spread of the measured steps around
//! their prices ([`Noise`]). `runtime/latency/fit` finds the coefficients. A native model and a WebAssembly guest
//! compute bit-identical prices, because the code uses only `+ - * /` and comparisons on `f64`.

#![no_std]

extern crate alloc;

mod error;
mod model;
mod noise;
mod price;
mod range;
mod terms;

pub use error::InvalidModel;
pub use model::{MODEL_FORMAT, ModelFile, Overheads, Provenance, ProvenanceInput, Quality, Uncertainty};
pub use noise::{Noise, NoiseStream, QUANTILES};
pub use price::StepPrice;
pub use range::FittedRange;
pub use terms::{
    Amounts, DECODE_KNOTS, StepWork, TERM_COUNT, TERMS, TOKEN_KNOTS, Term, UNKNOWN_TOKENS, amounts, distinct_tokens,
};
