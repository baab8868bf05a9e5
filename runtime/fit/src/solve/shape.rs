//! The shape of a model, as far as prices depend on it.

use std::path::Path;

use serde_json::Value;
use vcr_roofline::{TransformerSpec, presets};

use crate::error::FitError;

/// Bytes and operations of a transformer, over all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Bytes of all weights that a step with many tokens reads.
    pub weight_bytes: f64,
    /// Weights that one token is multiplied with.
    pub weights_per_token: f64,
    /// Bytes of KV cache of one token.
    pub kv_bytes_per_token: f64,
    /// Floating-point operations of one query-key pair.
    pub flops_per_pair: f64,
    /// Bytes of one weight.
    pub bytes_per_weight: f64,
}

impl Shape {
    /// A preset by name, or a `config.json` as models are published with.
    ///
    /// # Errors
    /// When there is neither, or the file lacks a size.
    pub fn read(text: &str) -> Result<Self, FitError> {
        if let Some(spec) = presets::model(text) {
            return Ok(Self::of_dense(&spec));
        }
        let path = Path::new(text);
        let invalid = |what: String| FitError::data(text, format!("invalid model shape: {what}"));
        if !path.exists() {
            let known: Vec<&str> = presets::MODELS.iter().map(|(name, _)| *name).collect();
            return Err(invalid(format!("expected the path of a config.json or one of {}", known.join(", "))));
        }
        let source = std::fs::read_to_string(path);
        let source = source.map_err(|source| FitError::Read { path: path.to_owned(), source })?;
        let config: Value = serde_json::from_str(&source).map_err(|error| invalid(error.to_string()))?;
        // Models with images keep their language part apart.
        let config = config.get("text_config").unwrap_or(&config);
        Self::of_config(config).map_err(invalid)
    }

    fn of_dense(spec: &TransformerSpec) -> Self {
        let layers = spec.layers as f64;
        let weights = layers * spec.layer_weights() + (spec.vocab_size * spec.hidden_size) as f64;
        Self {
            weight_bytes: weights * spec.weight_bytes,
            weights_per_token: weights,
            kv_bytes_per_token: spec.kv_bytes_per_token(),
            flops_per_pair: 4.0 * layers * (spec.attention_heads * spec.head_dim) as f64,
            bytes_per_weight: spec.weight_bytes,
        }
    }

    fn of_config(config: &Value) -> Result<Self, String> {
        let count = |names: &[&str]| names.iter().find_map(|name| config.get(*name)?.as_f64()).filter(|n| *n > 0.0);
        let needed = |names: &[&str]| count(names).ok_or_else(|| format!("expected a number `{}`", names[0]));
        let layers = needed(&["num_hidden_layers", "n_layer"])?;
        let hidden = needed(&["hidden_size", "n_embd"])?;
        let heads = needed(&["num_attention_heads", "n_head"])?;
        let vocabulary = needed(&["vocab_size"])?;
        let kv_heads = count(&["num_key_value_heads"]).unwrap_or(heads);
        let head_dim = count(&["head_dim"]).unwrap_or(hidden / heads);
        let experts = count(&["num_local_experts", "num_experts", "n_routed_experts"]).unwrap_or(0.0);
        let intermediate = count(&["intermediate_size"]).unwrap_or(4.0 * hidden);
        let bytes_per_weight = bytes_per_weight(config);
        let attention = hidden * head_dim * (2.0 * heads + 2.0 * kv_heads);
        let (mlp, mlp_per_token) = if experts > 0.0 {
            let of_expert = 3.0 * hidden * count(&["moe_intermediate_size"]).unwrap_or(intermediate);
            let chosen = count(&["num_experts_per_tok", "num_experts_per_token"]).unwrap_or(2.0);
            let shared = count(&["n_shared_experts", "num_shared_experts"]).unwrap_or(0.0);
            (of_expert * (experts + shared), of_expert * (chosen + shared))
        } else {
            (3.0 * hidden * intermediate, 3.0 * hidden * intermediate)
        };
        let head = vocabulary * hidden;
        let kv_values = match count(&["kv_lora_rank"]) {
            Some(rank) => rank + count(&["qk_rope_head_dim"]).unwrap_or(64.0),
            None => 2.0 * kv_heads * head_dim,
        };
        Ok(Self {
            weight_bytes: (layers * (attention + mlp) + head) * bytes_per_weight,
            weights_per_token: layers * (attention + mlp_per_token) + head,
            kv_bytes_per_token: 2.0 * layers * kv_values,
            flops_per_pair: 4.0 * layers * heads * head_dim,
            bytes_per_weight,
        })
    }
}

/// By the quantisation of a config; bf16 without one.
fn bytes_per_weight(config: &Value) -> f64 {
    let Some(quantization) = config.get("quantization_config") else { return 2.0 };
    let bits = quantization.get("bits").and_then(Value::as_f64);
    match (bits, quantization.get("quant_method").and_then(Value::as_str)) {
        (Some(bits), _) => bits / 8.0,
        (None, Some("mxfp4" | "nvfp4")) => 0.5,
        (None, Some(_)) => 1.0,
        (None, None) => 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn published_configs_give_the_sizes_of_their_models() {
        let preset = Shape::read("llama-3.1-8b").expect("a preset");
        let config = json!({"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256});
        assert_eq!(Shape::of_config(&config).expect("whole"), preset);
        assert_eq!(preset.kv_bytes_per_token, 131_072.0);
        let moe = json!({"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 128,
            "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 8, "vocab_size": 151936, "quantization_config": {"quant_method": "fp8"}});
        let moe = Shape::of_config(&moe).expect("whole");
        assert!((29e9..31e9).contains(&moe.weight_bytes), "{moe:?}");
        assert!((2.5e9..3.5e9).contains(&moe.weights_per_token), "{moe:?}");
        let error = Shape::of_config(&json!({})).expect_err("nothing is given");
        assert_eq!(error, "expected a number `num_hidden_layers`");
        assert!(Shape::read("llama-9").expect_err("unknown").to_string().contains("llama-3.1-8b"));
    }
}
