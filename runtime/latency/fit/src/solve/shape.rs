//! The properties of a model that affect prices.

use vcr_model::{Model, Serving};
use vcr_roofline::{Arithmetic, AttentionSpec, LayeredSpec};

use crate::error::FitError;

/// Bytes and operations of a transformer, over all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Bytes of all weights that a step with many tokens reads.
    pub weight_bytes: f64,
    /// Number of weights that are multiplied for one token.
    pub weights_per_token: f64,
    /// KV cache bytes of one token.
    pub kv_bytes_per_token: f64,
    /// Floating-point operations of one query-key pair.
    pub flops_per_pair: f64,
    /// Bytes of one weight.
    pub bytes_per_weight: f64,
    /// Arithmetic of the weights on a GPU that supports it.
    pub arithmetic: Arithmetic,
}

impl Shape {
    /// Reads a model of the table by name, or the `config.json` of a published model.
    ///
    /// # Errors
    /// If there is no such model, or the file lacks a size.
    pub fn read(text: &str) -> Result<Self, FitError> {
        let invalid = |what: String| FitError::data(text, format!("invalid model shape: {what}"));
        let found = Model::find_any(text).map_err(|error| invalid(error.to_string()))?.ok_or_else(|| {
            let known: Vec<&str> = vcr_model::names().collect();
            invalid(format!("expected the path of a config.json or one of {}", known.join(", ")))
        })?;
        let work = found.work(&Serving::default()).map_err(|error| invalid(error.to_string()))?;
        Ok(Self::of(&work))
    }

    /// Layers with windows add nothing to the price of context, because their own context does not grow.
    fn of(work: &LayeredSpec) -> Self {
        let whole = work.attention.iter().filter(|part| part.window_tokens.is_none());
        let sum = |value: fn(&AttentionSpec) -> f64| whole.clone().map(value).sum();
        Self {
            weight_bytes: work.weight_bytes(),
            weights_per_token: work.weights_per_token() + work.head_weights,
            kv_bytes_per_token: sum(|part| part.kv_bytes_per_token),
            flops_per_pair: sum(|part| part.flops_per_pair),
            bytes_per_weight: work.weight_bytes() / work.weights(),
            arithmetic: work.arithmetic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_models_have_the_sizes_that_their_names_say() {
        let shape = |name: &str| Shape::read(name).expect("it is known");
        assert_eq!(shape("llama-3.1-8b").kv_bytes_per_token, 131_072.0);
        let moe = shape("Qwen/Qwen3-30B-A3B-FP8");
        assert!((29e9..32e9).contains(&moe.weight_bytes), "{moe:?}");
        assert!((2.5e9..3.5e9).contains(&moe.weights_per_token), "{moe:?}");
        let latent = shape("deepseek-ai/DeepSeek-V3");
        assert!((36e9..38e9).contains(&latent.weights_per_token), "{latent:?}");
        assert_eq!(latent.kv_bytes_per_token, 61.0 * 576.0 * 2.0);
        // Half of the layers have a window; their context does not grow.
        assert_eq!(shape("openai/gpt-oss-120b").kv_bytes_per_token, 18.0 * 2.0 * 8.0 * 64.0 * 2.0);
        assert_eq!(shape("mistral-7b").bytes_per_weight, 2.0);
    }

    #[test]
    fn quantised_checkpoints_have_the_bytes_of_their_weights() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("config.json");
        let shape = |quantisation: &str| {
            let text = format!(
                r#"{{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
                "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
                "max_position_embeddings": 131072, "torch_dtype": "bfloat16"{quantisation}}}"#
            );
            std::fs::write(&path, text).expect("it is writable");
            Shape::read(&path.display().to_string()).expect("it is read")
        };
        let plain = shape("");
        for method in ["awq", "gptq"] {
            let four_bits = shape(&format!(
                r#", "quantization_config": {{"quant_method": "{method}", "bits": 4, "group_size": 128}}"#
            ));
            assert!((0.27..0.36).contains(&(four_bits.weight_bytes / plain.weight_bytes)), "{four_bits:?}");
            assert_eq!(four_bits.weights_per_token, plain.weights_per_token);
            assert_eq!(four_bits.arithmetic, Arithmetic::Bfloat16, "weights are converted before they are multiplied");
        }
        let fp8 = shape(r#", "quantization_config": {"quant_method": "fp8"}"#);
        assert_eq!(fp8.arithmetic, Arithmetic::Fp8);
    }

    #[test]
    fn unknown_models_are_refused_with_the_known_names() {
        let error = Shape::read("llama-9").expect_err("unknown").to_string();
        assert!(error.contains("invalid model shape") && error.contains("Llama-3.1-8B"), "{error}");
    }
}
