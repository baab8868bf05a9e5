//! Latent attention, with or without an indexer.

use super::grouped::feed_forward;
use super::{Latent, Layer, Mixer};
use crate::error::ModelError;
use crate::fields::Fields;

pub(super) fn read(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let count = fields.layer_count()?;
    let indexer = match fields.count(&["index_head_dim"])? {
        Some(head_dim) => Some((fields.required(&["index_n_heads"])?, head_dim)),
        None => None,
    };
    let types = fields.by_layer("indexer_types", count)?;
    let latent = Latent {
        heads: fields.required(&["num_attention_heads"])?,
        query_rank: fields.count(&["q_lora_rank"])?,
        kv_rank: fields.required(&["kv_lora_rank"])?,
        rope_head_dim: fields.required(&["qk_rope_head_dim"])?,
        nope_head_dim: fields.required(&["qk_nope_head_dim"])?,
        value_head_dim: fields.required(&["v_head_dim"])?,
        indexer,
        is_sparse: indexer.is_some(),
    };
    (0..count)
        .map(|index| {
            // A layer may reuse the tokens that the indexer of an earlier layer has selected.
            let is_shared = types.is_some_and(|types| types[index as usize] == "shared");
            let indexer = latent.indexer.filter(|_| !is_shared);
            Ok(Layer { mixer: Mixer::Latent(Latent { indexer, ..latent }), feed_forward: feed_forward(fields, index)? })
        })
        .collect()
}
