//! Layers of attention with keys and values per head: full attention, windows or chunks.

use serde_json::Value;

use super::{Attention, Experts, FeedForward, Layer, Mixer, Reach};
use crate::error::ModelError;
use crate::fields::Fields;

pub(super) fn attention(fields: Fields<'_>, reach: Reach) -> Result<Attention, ModelError> {
    let heads = fields.required(&["num_attention_heads"])?;
    let head_dim = match fields.count(&["head_dim", "attention_head_dim"])? {
        Some(head_dim) => head_dim,
        None => divided(fields, "hidden_size", fields.required(&["hidden_size"])?, "num_attention_heads", heads)?,
    };
    let kv_heads = fields.count(&["num_key_value_heads"])?.unwrap_or(heads);
    divided(fields, "num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
    Ok(Attention {
        heads,
        kv_heads,
        head_dim,
        value_head_dim: head_dim,
        reach,
        has_gate: fields.flag("attn_output_gate"),
        values_are_keys: false,
    })
}

fn divided(fields: Fields<'_>, name: &str, value: u64, by_name: &str, by: u64) -> Result<u64, ModelError> {
    if value.is_multiple_of(by) {
        return Ok(value / by);
    }
    Err(fields.wrong(name, &value.into(), &format!("a multiple of `{by_name}` ({by})")))
}

pub(super) fn feed_forward(fields: Fields<'_>, index: u64) -> Result<FeedForward, ModelError> {
    let Some(count) = fields.count(&["num_local_experts", "num_experts", "n_routed_experts"])? else {
        return Ok(FeedForward::Dense(fields.required(&["intermediate_size"])?));
    };
    let by_list = |name: &'static str, is_dense: fn(&Value) -> bool| -> Result<bool, ModelError> {
        let list = fields.by_layer(name, fields.layer_count()?)?;
        Ok(list.and_then(|list| list.get(index as usize)).is_some_and(is_dense))
    };
    let step = fields.count(&["decoder_sparse_step"])?.unwrap_or(1);
    let listed = fields.map.get("mlp_only_layers").and_then(Value::as_array);
    let is_dense = index < fields.count(&["first_k_dense_replace"])?.unwrap_or(0)
        || !(index + 1).is_multiple_of(step)
        || listed.is_some_and(|layers| layers.contains(&index.into()))
        || fields.map.get("moe_layer_freq").is_some_and(Value::is_array)
            && by_list("moe_layer_freq", |item| item == &Value::from(0))?;
    if is_dense {
        return Ok(FeedForward::Dense(fields.required(&["intermediate_size"])?));
    }
    let intermediate_size = fields.required(&["moe_intermediate_size", "intermediate_size"])?;
    let shared = fields.count(&["n_shared_experts"])?.unwrap_or(0) * intermediate_size;
    Ok(FeedForward::Experts(Experts {
        count,
        per_token: fields.count(&["num_experts_per_tok", "top_k_experts"])?.unwrap_or(1),
        intermediate_size,
        shared_intermediate_size: fields.count(&["shared_expert_intermediate_size"])?.unwrap_or(shared),
        latent_size: None,
        dense_intermediate_size: 0,
    }))
}

/// In Gemma 3, every sixth layer has full attention, unless the file states another pattern.
pub(super) fn read_gemma3(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let mut layers = read(fields)?;
    if fields.by_layer("layer_types", fields.layer_count()?)?.is_none() {
        let pattern = fields.count(&["sliding_window_pattern"])?.unwrap_or(6) as usize;
        for layer in layers.iter_mut().skip(pattern - 1).step_by(pattern) {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                attention.reach = Reach::Full;
            }
        }
    }
    Ok(layers)
}

/// Layers whose attention has one shape, with the windows in `layer_types`.
pub(super) fn read(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let count = fields.layer_count()?;
    let types = fields.by_layer("layer_types", count)?;
    if types.is_none() && fields.flag("use_sliding_window") {
        let expected = "false, or with `layer_types`: windows in only some layers are not derived";
        return Err(fields.wrong("use_sliding_window", &true.into(), expected));
    }
    let is_off = fields.map.get("use_sliding_window").and_then(Value::as_bool) == Some(false);
    let window = fields.count(&["sliding_window"])?.filter(|_| !is_off);
    (0..count)
        .map(|index| {
            let reach = match (types.map(|types| &types[index as usize]), window) {
                (Some(Value::String(kind)), window) => match (kind.as_str(), window) {
                    ("full_attention", _) => Reach::Full,
                    ("sliding_attention", Some(window)) => Reach::Window(window),
                    ("sliding_attention", None) => return Err(fields.missing("sliding_window")),
                    _ => return Err(unknown_type(fields, kind)),
                },
                (Some(other), _) => return Err(unknown_type(fields, &other.to_string())),
                (None, Some(window)) => Reach::Window(window),
                (None, None) => Reach::Full,
            };
            let mixer = Mixer::Attention(attention(fields, reach)?);
            Ok(Layer { mixer, feed_forward: feed_forward(fields, index)? })
        })
        .collect()
}

pub(super) fn unknown_type(fields: Fields<'_>, kind: &str) -> ModelError {
    fields.wrong("layer_types", &kind.into(), "full_attention, sliding_attention or linear_attention")
}

/// In Gemma 4, layers of full attention have separate head counts, and a dense network may accompany experts.
pub(super) fn read_gemma4(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    if let Some(shared) = fields.count(&["num_kv_shared_layers"])? {
        return Err(fields.wrong("num_kv_shared_layers", &shared.into(), "0: layers that share KV are not followed"));
    }
    let mut layers = read(fields)?;
    let dense = fields.required(&["intermediate_size"])?;
    for layer in &mut layers {
        if let Mixer::Attention(attention) = &mut layer.mixer
            && attention.reach == Reach::Full
        {
            attention.head_dim = fields.count(&["global_head_dim"])?.unwrap_or(attention.head_dim);
            attention.value_head_dim = attention.head_dim;
            attention.values_are_keys = fields.flag("attention_k_eq_v");
            if attention.values_are_keys {
                attention.kv_heads = fields.count(&["num_global_key_value_heads"])?.unwrap_or(attention.kv_heads);
            }
        }
        if let FeedForward::Experts(experts) = &mut layer.feed_forward {
            experts.dense_intermediate_size = dense;
        }
    }
    Ok(layers)
}

/// In Llama 4, layers with positions attend to chunks. Every fourth layer has no positions and full attention.
pub(super) fn read_llama4(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let count = fields.layer_count()?;
    let chunk = fields.required(&["attention_chunk_size"])?;
    let step = fields.count(&["interleave_moe_layer_step"])?.unwrap_or(1);
    let dense = fields.required(&["intermediate_size_mlp"])?;
    let intermediate_size = fields.required(&["intermediate_size"])?;
    let experts = fields.required(&["num_local_experts"])?;
    let rope = fields.by_layer("no_rope_layers", count)?;
    (0..count)
        .map(|index| {
            let has_positions = match rope {
                Some(rope) => rope[index as usize].as_u64() != Some(0),
                None => !(index + 1).is_multiple_of(4),
            };
            let reach = if has_positions { Reach::Chunk(chunk) } else { Reach::Full };
            let feed_forward = if (index + 1).is_multiple_of(step) {
                FeedForward::Experts(Experts {
                    count: experts,
                    per_token: fields.count(&["num_experts_per_tok"])?.unwrap_or(1),
                    intermediate_size,
                    shared_intermediate_size: intermediate_size,
                    latent_size: None,
                    dense_intermediate_size: 0,
                })
            } else {
                FeedForward::Dense(dense)
            };
            Ok(Layer { mixer: Mixer::Attention(attention(fields, reach)?), feed_forward })
        })
        .collect()
}

/// In MiMo V2, windows have separate head counts, and values have another width than keys.
pub(super) fn read_mimo_v2(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let count = fields.layer_count()?;
    let window = fields.required(&["sliding_window"])?;
    let pattern = fields.by_layer("hybrid_layer_pattern", count)?;
    let pattern = pattern.ok_or_else(|| fields.missing("hybrid_layer_pattern"))?;
    let full = attention(fields, Reach::Full)?;
    let full = Attention { value_head_dim: fields.count(&["v_head_dim"])?.unwrap_or(full.head_dim), ..full };
    let sliding = Attention {
        heads: fields.count(&["swa_num_attention_heads"])?.unwrap_or(full.heads),
        kv_heads: fields.count(&["swa_num_key_value_heads"])?.unwrap_or(full.kv_heads),
        head_dim: fields.count(&["swa_head_dim"])?.unwrap_or(full.head_dim),
        value_head_dim: fields.count(&["swa_v_head_dim"])?.unwrap_or(full.value_head_dim),
        reach: Reach::Window(window),
        ..full
    };
    let layer = |(index, kind): (usize, &Value)| {
        let attention = if kind == &Value::from(1) { sliding } else { full };
        Ok(Layer { mixer: Mixer::Attention(attention), feed_forward: feed_forward(fields, index as u64)? })
    };
    pattern.iter().enumerate().map(layer).collect()
}
