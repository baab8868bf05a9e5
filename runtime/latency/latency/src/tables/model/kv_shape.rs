//! Reads the KV size of a token from the model's `config.json`.

use std::path::Path;

use serde_json::Value;

use super::{Fields, object, object_if_any, quantisation};
use crate::tables::error::TablesError;

/// The properties of a model that determine the size of its KV blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: u32,
    /// Number of KV heads of each layer.
    pub heads: u32,
    /// Number of values in the K (or V) vector of one head for one token.
    pub head_size: u32,
    /// Whether each layer has one vector for K and V (MLA) instead of two.
    pub is_latent: bool,
    /// Whether the checkpoint requests FP8 for its KV.
    pub is_fp8: bool,
    /// Data type of the weights in the file, such as `bfloat16`.
    pub dtype: Option<String>,
}

impl KvShape {
    /// Reads a model's `config.json`, of any architecture, and the `hf_quant_config.json` beside it.
    ///
    /// # Errors
    /// If they cannot be read, or a field is missing or invalid. The error names it.
    pub fn read(path: &Path) -> Result<Self, TablesError> {
        let config = object(path)?;
        let quantised = object_if_any(&path.with_file_name("hf_quant_config.json"))?;
        // Models with images have a separate section for their language part.
        let text = config.get("text_config").and_then(Value::as_object).unwrap_or(&config);
        let fields = Fields { path, map: text };
        let layers = fields.required(&["num_hidden_layers", "n_layer"])?;
        let dtype = [text, &config].iter().find_map(|map| map.get("dtype").or(map.get("torch_dtype"))?.as_str());
        let (own, separate) = quantisation::sections(&config, text, quantised.as_ref());
        let (heads, head_size, is_latent) = match fields.count(&["kv_lora_rank"])? {
            Some(rank) => (1, rank.saturating_add(fields.required(&["qk_rope_head_dim"])?), true),
            None => {
                let heads = fields.required(&["num_attention_heads", "n_head"])?;
                (fields.kv_heads(heads)?, fields.head_dim(heads)?, false)
            }
        };
        Ok(Self {
            layers,
            heads,
            head_size,
            is_latent,
            is_fp8: quantisation::has_fp8_kv_cache(own, separate),
            dtype: dtype.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<KvShape, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).expect("it is writable");
        KvShape::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn heads_and_latent_vectors_are_those_of_published_files() {
        let llama = json!({"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "torch_dtype": "bfloat16"});
        let shape = KvShape {
            layers: 32,
            heads: 8,
            head_size: 128,
            is_latent: false,
            is_fp8: false,
            dtype: Some("bfloat16".to_owned()),
        };
        assert_eq!(read(&llama), Ok(shape.clone()));
        assert_eq!(
            read(&json!({"text_config": llama, "dtype": "float16"})),
            Ok(shape.clone()),
            "its own type is first"
        );
        let gpt2 = json!({"n_layer": 12, "n_head": 12, "n_embd": 768});
        let shape = KvShape { layers: 12, heads: 12, head_size: 64, dtype: None, ..shape };
        assert_eq!(read(&gpt2), Ok(shape.clone()));
        let falcon = json!({"n_layer": 12, "n_head": 12, "n_embd": 768, "multi_query": true});
        assert_eq!(read(&falcon), Ok(KvShape { heads: 1, ..shape }));
        let deepseek = json!({"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}}});
        let wanted = KvShape { layers: 61, heads: 1, head_size: 576, is_latent: true, is_fp8: true, dtype: None };
        assert_eq!(read(&deepseek), Ok(wanted));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (config, wanted) in [
            (json!({}), "expected a field `num_hidden_layers` above 0"),
            (json!({"num_hidden_layers": 2}), "expected a field `num_attention_heads` above 0"),
            (json!({"num_hidden_layers": 2, "num_attention_heads": 4}), "expected a field `hidden_size` above 0"),
            (json!({"num_hidden_layers": 2, "kv_lora_rank": 512}), "expected a field `qk_rope_head_dim` above 0"),
            (json!({"num_hidden_layers": -1}), "`num_hidden_layers` is -1: expected a whole number"),
            (json!([]), "invalid type"),
        ] {
            let error = read(&config).expect_err("it cannot be used");
            assert!(error.contains("config.json") && error.contains(wanted), "{error}");
        }
    }
}
