//! A roofline latency model of a decoder-only transformer on GPUs.
//!
//! A kernel takes as long as the slower of its arithmetic and its memory traffic (Williams, Waterman and Patterson,
//! "Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009). An engine step is
//! priced as three such kernels one after another (the weight GEMMs of all layers, attention, the output head), plus
//! the all-reduces of tensor parallelism and a constant overhead:
//!
//! * **Weight GEMMs.** Each weight takes two FLOPs per token (Kaplan et al., "Scaling laws for neural language models",
//!   2020, section 2.1) and is read once per step, whatever the batch. This is why bandwidth limits decodes and
//!   arithmetic limits prefills (Pope et al., "Efficiently scaling transformer inference", 2022, section 2). The
//!   weights of a layer follow the Llama family: query and output projections, grouped key and value projections
//!   (Ainslie et al., "GQA", 2023), and a gated MLP of three matrices (Shazeer, "GLU variants improve transformer",
//!   2020).
//! * **Attention.** Each query-key pair takes four FLOPs per query channel: two for the scores, two for the weighted
//!   values. Cached keys and values are read once and new ones written once, which FlashAttention approaches (Dao et
//!   al., 2022).
//! * **Output head.** One GEMM over the requests that sample, and over the drafts that the step verifies.
//! * **All-reduce.** Two per layer (Shoeybi et al., "Megatron-LM", 2019). Each is a ring that moves `2 (t - 1) / t` of
//!   the message per GPU (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).
//!
//! The GEMMs of layers run at the GPU's peak for the data type of weights and activations. A GPU without such a peak
//! converts the weights and multiplies 16-bit numbers. Attention and output head are computed with 16 bits.
//!
//! Not modelled: activation traffic, pipeline parallelism, tile quantisation, overlap of kernels. The two efficiencies
//! and the overhead stand for these and should be fitted. [`LayeredRoofline`] has the same formulas for models whose
//! layers differ: routed experts, latent attention, windows, states, and passes of a drafter. [`Physics`] has similar terms with fitted
//! coefficients.
//!
//! The crate needs no std and uses only `+ - * /` and comparisons on `f64`, so a native build and a WebAssembly build
//! give the same bits.

#![no_std]

extern crate alloc;

mod arithmetic;
mod check;
mod config;
mod cost;
mod error;
pub mod gpus;
mod layered;
mod memory;
mod physics;
pub mod presets;
mod spec;

pub use arithmetic::{Arithmetic, Peak, QuantisedPeaks, WEIGHT_DTYPES, WeightDtype};
pub use config::RooflineConfig;
pub use cost::{Roofline, StepCost};
pub use error::RooflineError;
pub use layered::{AttentionSpec, DraftingSpec, ExpertsSpec, LayeredRoofline, LayeredSpec};
pub use memory::MemoryNeed;
pub use physics::{Coefficients, Physics, PhysicsConfig};
pub use spec::{Deployment, GpuSpec, TransformerSpec};
