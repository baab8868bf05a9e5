//! Properties of a model that its engine depends on: its layers, vLLM's KV-cache groups for them, bytes per token and
//! block, KV blocks in a given memory, and bytes of weights.
//!
//! Owns `models.toml`, the shapes of published models, and the reader of `config.json`, which also reads that table.
//! The rules are those of vLLM 0.32 on GPUs: `vllm/v1/core/kv_cache_utils.py`, `vllm/v1/kv_cache_interface.py` and
//! `vllm/platforms/interface.py`. In 0.32, block sizes depend on the attention backend; this crate uses the block sizes
//! of a Hopper GPU.
//!
//! Weights of image and sound encoders, and padding by a backend, are not counted.

mod draft;
mod drafter;
mod error;
mod fields;
mod kv;
mod layers;
mod model;
mod quantisation;
mod serving;
mod table;
pub mod vllm_args;
mod weights;
mod with_drafter;
mod work;

pub use drafter::DraftMethod;
pub use error::ModelError;
pub use kv::{KvGroup, KvKind, KvPlan};
pub use layers::{Attention, Experts, FeedForward, Layer, Mixer, Reach};
pub use model::Model;
pub use quantisation::WeightFormat;
pub use serving::Serving;
pub use table::{names, names_of};
