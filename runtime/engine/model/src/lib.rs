//! Properties of a model that its engine depends on: its layers, the KV-cache groups that vLLM
//! makes of them, bytes of a token and of a block, KV blocks in a given memory, and bytes of the
//! weights.
//!
//! Owns `models.toml`, the shapes of published models, and the reader of `config.json`, which reads both. The
//! rules are from vLLM 0.32 on GPUs: `vllm/v1/core/kv_cache_utils.py`, `vllm/v1/kv_cache_interface.py` and
//! `vllm/platforms/interface.py`. Attention in 0.32 chooses its block sizes by backend; the block sizes of a
//! Hopper GPU are used here.
//!
//! Not counted: weights of image and sound encoders, and padding by a backend.

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
