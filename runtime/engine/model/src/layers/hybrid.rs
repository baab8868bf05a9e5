//! Models that combine layers that keep a state with attention layers.

use serde_json::Value;

use super::grouped::{attention, feed_forward, unknown_type};
use super::{Experts, FeedForward, Layer, Mixer, Reach, State};
use crate::error::ModelError;
use crate::fields::Fields;

/// Bytes per value of a state: from the file, or else `default`.
fn state_bytes(fields: Fields<'_>, default: u64) -> Result<u64, ModelError> {
    let names = ["mamba_ssm_cache_dtype", "mamba_ssm_dtype"];
    match fields.text(&names) {
        None => Ok(default),
        Some("float32") => Ok(4),
        Some("bfloat16" | "float16") => Ok(2),
        Some(other) => Err(fields.wrong(names[0], &other.into(), "float32, bfloat16 or float16")),
    }
}

/// In Qwen, most layers use the gated delta rule, and every fourth layer has full attention.
pub(super) fn read_qwen(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let count = fields.layer_count()?;
    let types = fields.by_layer("layer_types", count)?;
    let interval = fields.count(&["full_attention_interval"])?.unwrap_or(4);
    let state = Mixer::State(State::Delta {
        key_heads: fields.required(&["linear_num_key_heads"])?,
        value_heads: fields.required(&["linear_num_value_heads"])?,
        key_dim: fields.required(&["linear_key_head_dim"])?,
        value_dim: fields.required(&["linear_value_head_dim"])?,
        kernel: fields.required(&["linear_conv_kernel_dim"])?,
        state_bytes: state_bytes(fields, 2)?,
    });
    let full = Mixer::Attention(super::Attention { has_gate: true, ..attention(fields, Reach::Full)? });
    (0..count)
        .map(|index| {
            let mixer = match types.map(|types| &types[index as usize]) {
                Some(Value::String(kind)) if kind == "full_attention" => full,
                Some(Value::String(kind)) if kind == "linear_attention" => state,
                Some(other) => return Err(unknown_type(fields, other.as_str().unwrap_or_default())),
                None if (index + 1).is_multiple_of(interval) => full,
                None => state,
            };
            Ok(Layer { mixer, feed_forward: feed_forward(fields, index)? })
        })
        .collect()
}

/// In Nemotron, each layer has one part: Mamba 2, attention, a dense network or experts.
pub(super) fn read_nemotron(fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
    let state = State::Mamba {
        heads: fields.required(&["mamba_num_heads"])?,
        head_dim: fields.required(&["mamba_head_dim"])?,
        groups: fields.required(&["n_groups"])?,
        state: fields.required(&["ssm_state_size"])?,
        kernel: fields.required(&["conv_kernel"])?,
        state_bytes: state_bytes(fields, 4)?,
    };
    let full = attention(fields, Reach::Full)?;
    let layer = |kind: &str| -> Result<Layer, ModelError> {
        let (mixer, feed_forward) = match kind {
            "M" | "mamba" => (Mixer::State(state), FeedForward::None),
            "*" | "attention" => (Mixer::Attention(full), FeedForward::None),
            "-" | "mlp" => (Mixer::None, FeedForward::Dense(fields.required(&["intermediate_size"])?)),
            "E" | "moe" => (Mixer::None, FeedForward::Experts(experts(fields)?)),
            other => return Err(fields.wrong("hybrid_override_pattern", &other.into(), "M, *, - or E for each layer")),
        };
        Ok(Layer { mixer, feed_forward })
    };
    if let Some(pattern) = fields.text(&["hybrid_override_pattern"]) {
        return pattern.chars().map(|kind| layer(&kind.to_string())).collect();
    }
    let types = fields.map.get("layers_block_type").and_then(Value::as_array);
    let types = types.ok_or_else(|| fields.missing("hybrid_override_pattern"))?;
    types.iter().map(|kind| layer(kind.as_str().unwrap_or_default())).collect()
}

fn experts(fields: Fields<'_>) -> Result<Experts, ModelError> {
    Ok(Experts {
        count: fields.required(&["n_routed_experts"])?,
        per_token: fields.required(&["num_experts_per_tok"])?,
        intermediate_size: fields.required(&["moe_intermediate_size"])?,
        shared_intermediate_size: fields.count(&["moe_shared_expert_intermediate_size"])?.unwrap_or(0),
        latent_size: fields.count(&["moe_latent_size"])?,
        dense_intermediate_size: 0,
    })
}
