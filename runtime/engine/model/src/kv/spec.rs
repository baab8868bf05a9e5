//! Contents of a layer's blocks (vLLM's `KVCacheSpec`).

use super::KvKind;
use crate::error::ModelError;
use crate::layers::{Attention, Latent, Layer, Mixer, Reach, State};
use crate::serving::{Serving, Shape, serving};

/// Tokens per block, unless an attention backend requires another number.
const BLOCK_SIZE: u64 = 16;

/// Tokens per block of latent attention (FlashMLA on Hopper).
const LATENT_BLOCK_SIZE: u64 = 64;

/// Bytes per token of sparse latent attention with 8-bit KV (`fp8_ds_mla`), including values, positions and
/// scales.
const SPARSE_FP8_BYTES: u64 = 656;

/// An indexer stores one byte per value, and for each 128 values a scale of four bytes.
const INDEX_SCALE: (u64, u64) = (128, 4);

/// One cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spec {
    pub(super) kind: KvKind,
    pub(super) block_size: u64,
    pub(super) page_bytes: u64,
    /// Number of heads, key width and value width. They distinguish caches of equal size.
    pub(super) shape: (u64, u64, u64),
}

/// Number of caches of a layer. A layer with an indexer has two.
pub(super) fn caches(layer: &Layer) -> usize {
    match layer.mixer {
        Mixer::Latent(latent) => 1 + usize::from(latent.indexer.is_some()),
        Mixer::Attention(_) | Mixer::State(_) => 1,
        Mixer::None => 0,
    }
}

/// The caches of all layers.
pub(super) fn of(model: Shape<'_>, served: &Serving) -> Result<Vec<Spec>, ModelError> {
    let bytes = served.kv_bytes(model)?;
    let tensor = served.tensor_parallel;
    let mut block_size = block_size(model, served)?;
    let states = model.layers.iter().filter_map(|layer| match layer.mixer {
        Mixer::State(state) => Some(state_bytes(state, served, model.plain_bytes)),
        _ => None,
    });
    let state_bytes = states.max();
    let mut state_page = 0;
    if let Some(state_bytes) = state_bytes {
        let token_bytes = model.layers.iter().find_map(|layer| match layer.mixer {
            Mixer::Attention(attention) => Some(token_bytes(attention, tensor, bytes)),
            _ => None,
        });
        // A page of attention must be large enough for a state, too (`_align_hybrid_block_size`).
        let token_bytes = token_bytes.unwrap_or(state_bytes);
        block_size = block_size.max(block_size * state_bytes.div_ceil(block_size * token_bytes));
        state_page = block_size * token_bytes;
    }
    let mut specs = Vec::new();
    for layer in model.all_layers() {
        match layer.mixer {
            Mixer::Attention(attention) => {
                let kind = match attention.reach {
                    Reach::Full => KvKind::Full,
                    Reach::Window(window) => KvKind::Window(window),
                    Reach::Chunk(chunk) => KvKind::Chunk(chunk),
                };
                let shape = (kv_heads(attention, tensor), attention.head_dim, attention.value_head_dim);
                specs.push(Spec {
                    kind,
                    block_size,
                    page_bytes: block_size * token_bytes(attention, tensor, bytes),
                    shape,
                });
            }
            Mixer::Latent(latent) => {
                if let Some((_, head_dim)) = latent.indexer {
                    let token_bytes = head_dim + head_dim / INDEX_SCALE.0 * INDEX_SCALE.1;
                    specs.push(latent_spec(block_size, token_bytes, head_dim));
                }
                let width = latent.kv_rank + latent.rope_head_dim;
                specs.push(latent_spec(block_size, latent_bytes(latent, width, bytes), width));
            }
            Mixer::State(state) => {
                let kind = state_kind(state, served);
                specs.push(Spec { kind, block_size, page_bytes: state_page, shape: (1, 0, 0) });
            }
            Mixer::None => {}
        }
    }
    Ok(specs)
}

fn latent_spec(block_size: u64, token_bytes: u64, width: u64) -> Spec {
    Spec { kind: KvKind::Latent, block_size, page_bytes: block_size * token_bytes, shape: (1, width, 0) }
}

pub(crate) fn latent_bytes(latent: Latent, width: u64, bytes: u64) -> u64 {
    if latent.is_sparse && bytes == 1 { SPARSE_FP8_BYTES } else { width * bytes }
}

/// Tokens per block, before layers with states raise this number.
fn block_size(model: Shape<'_>, served: &Serving) -> Result<u64, ModelError> {
    let is_latent = model.layers.iter().any(|layer| matches!(layer.mixer, Mixer::Latent(_)));
    let (preferred, backend) =
        if is_latent { (LATENT_BLOCK_SIZE, "latent attention") } else { (BLOCK_SIZE, "attention") };
    match served.block_size {
        None => Ok(preferred),
        Some(block_size) if block_size > 0 && block_size.is_multiple_of(preferred) && block_size <= 1 << 20 => {
            Ok(block_size)
        }
        Some(block_size) => Err(serving(
            "block_size",
            format!("{block_size}: expected a multiple of {preferred}, as {backend} takes it"),
        )),
    }
}

/// Number of key heads on each GPU, at least one.
pub(crate) fn kv_heads(attention: Attention, tensor: u64) -> u64 {
    (attention.kv_heads / tensor).max(1)
}

pub(crate) fn token_bytes(attention: Attention, tensor: u64, bytes: u64) -> u64 {
    kv_heads(attention, tensor) * (attention.head_dim + attention.value_head_dim) * bytes
}

/// The blocks that a request keeps in a layer with states.
fn state_kind(state: State, served: &Serving) -> KvKind {
    let drafts = served.num_speculative_tokens;
    // Mamba 2 can leave a state at any token.
    let checkpoint_tokens = matches!(state, State::Mamba { .. }).then_some(1);
    let blocks = if served.enable_prefix_caching { 2 + u64::from(checkpoint_tokens.is_some()) } else { 1 };
    KvKind::State { blocks: blocks + drafts, checkpoint_tokens }
}

/// Bytes of a state on each GPU: the convolution state plus the head states.
pub(crate) fn state_bytes(state: State, served: &Serving, plain_bytes: u64) -> u64 {
    let tensor = served.tensor_parallel;
    // The convolution of each draft needs the inputs before the draft.
    let drafts = served.num_speculative_tokens;
    match state {
        State::Mamba { heads, head_dim, groups, state, kernel, state_bytes } => {
            // Groups are replicated until each GPU has one.
            let groups = if groups.is_multiple_of(tensor) { groups } else { groups.max(tensor) };
            let outer = heads * head_dim + 2 * groups * state;
            (kernel - 1 + drafts) * (outer / tensor) * plain_bytes + heads / tensor * head_dim * state * state_bytes
        }
        State::Delta { key_heads, value_heads, key_dim, value_dim, kernel, state_bytes } => {
            let outer = 2 * key_heads * key_dim + value_heads * value_dim;
            (kernel - 1 + drafts) * (outer / tensor) * plain_bytes
                + value_heads / tensor * key_dim * value_dim * state_bytes
        }
    }
}
