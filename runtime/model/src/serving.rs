//! How a model is served, as far as its memory depends on it.

use crate::error::{ModelError, nearest};
use crate::layers::{Layer, Mixer};

/// Properties of a model that its KV depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) name: &'a str,
    pub(crate) layers: &'a [Layer],
    pub(crate) max_model_len: u64,
    /// Bytes of a number that is not quantised.
    pub(crate) plain_bytes: u64,
    /// Whether the checkpoint wants its KV in eight-bit floats.
    pub(crate) has_fp8_kv_cache: bool,
}

/// Settings of an engine for which a model's memory is planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// GPUs that share each layer.
    pub tensor_parallel: u64,
    /// Ranks with attention of their own.
    pub data_parallel: u64,
    /// Whether experts are dealt out over the GPUs of all ranks.
    pub expert_parallel: bool,
    /// Data type of the KV cache; `auto` follows the checkpoint.
    pub kv_cache_dtype: String,
    /// Tokens of a block; none for what the attention backend prefers.
    pub block_size: Option<u64>,
    /// Longest sequence; none for the model's.
    pub max_model_len: Option<u64>,
    /// Most tokens in steps that have not ended.
    pub in_flight_tokens: u64,
    /// Method of a checkpoint, or by which it is quantised while it is loaded.
    pub quantization: Option<String>,
    /// Whether the KV of prompts is kept for later requests.
    pub enable_prefix_caching: bool,
    /// Drafts of a request's step.
    pub num_speculative_tokens: u64,
    /// Whether layers with windows keep KV as those of full attention do.
    pub disable_hybrid_kv_cache_manager: bool,
}

impl Default for Serving {
    /// As `vllm serve` starts it on one H100.
    fn default() -> Self {
        Self {
            tensor_parallel: 1,
            data_parallel: 1,
            expert_parallel: false,
            kv_cache_dtype: "auto".to_owned(),
            block_size: None,
            max_model_len: None,
            in_flight_tokens: 16_384,
            quantization: None,
            enable_prefix_caching: true,
            num_speculative_tokens: 0,
            disable_hybrid_kv_cache_manager: false,
        }
    }
}

/// Most drafts of an engine's step.
const MAX_DRAFTS: u64 = 1000;

/// Data types of KV caches that are known, with the bytes of a number.
const KV_CACHE_DTYPES: &[(&str, u64)] =
    &[("bfloat16", 2), ("float16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("fp8_inc", 1)];

/// Those of vLLM whose layout in blocks is not known here.
const OTHER_DTYPES: &[&str] = &["nvfp4", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"];

impl Serving {
    /// Checks it for a model.
    ///
    /// # Errors
    /// What does not divide, in vLLM's words, or is not known.
    pub(crate) fn check(&self, model: Shape<'_>) -> Result<(), ModelError> {
        let counts = [("tensor_parallel", self.tensor_parallel), ("data_parallel", self.data_parallel)];
        for (field, value) in counts {
            if !(1..=65_536).contains(&value) {
                return Err(serving(field, format!("{value}: expected a number from 1 to 65536")));
            }
        }
        if self.num_speculative_tokens > MAX_DRAFTS {
            let reason = format!("{}: expected at most {MAX_DRAFTS}", self.num_speculative_tokens);
            return Err(serving("num_speculative_tokens", reason));
        }
        let tensor = self.tensor_parallel;
        for layer in model.layers {
            let (heads, kv_heads) = match layer.mixer {
                Mixer::Attention(attention) => (attention.heads, attention.kv_heads),
                Mixer::Latent(latent) => (latent.heads, tensor),
                Mixer::State(_) | Mixer::None => continue,
            };
            if !heads.is_multiple_of(tensor) {
                let reason = format!(
                    "total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor})"
                );
                return Err(serving("tensor_parallel", reason));
            }
            if !kv_heads.is_multiple_of(tensor) && !tensor.is_multiple_of(kv_heads) {
                let reason = format!(
                    "total number of KV heads ({kv_heads}) must be divisible by tensor parallel size ({tensor}), or divide it"
                );
                return Err(serving("tensor_parallel", reason));
            }
        }
        let longest = model.max_model_len;
        match self.max_model_len {
            Some(0) => Err(serving("max_model_len", "0: expected at least 1".to_owned())),
            Some(length) if length > longest => {
                let reason = format!(
                    "{length} is greater than the derived max_model_len {longest} (max_position_embeddings of the model)"
                );
                Err(serving("max_model_len", reason))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a number of the KV cache.
    ///
    /// # Errors
    /// If the data type is not known.
    pub(crate) fn kv_bytes(&self, model: Shape<'_>) -> Result<u64, ModelError> {
        let name = self.kv_cache_dtype.as_str();
        if name == "auto" {
            return Ok(if model.has_fp8_kv_cache { 1 } else { model.plain_bytes });
        }
        if let Some((_, bytes)) = KV_CACHE_DTYPES.iter().find(|(known, _)| *known == name) {
            return Ok(*bytes);
        }
        if OTHER_DTYPES.contains(&name) {
            return Err(serving("kv_cache_dtype", format!("the layout of `{name}` is not followed: {}", expected())));
        }
        let near = nearest(name, KV_CACHE_DTYPES.iter().map(|(known, _)| *known));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        Err(serving("kv_cache_dtype", format!("unknown `{name}`: {}{hint}", expected())))
    }
}

fn expected() -> String {
    let names: Vec<&str> = KV_CACHE_DTYPES.iter().map(|(name, _)| *name).collect();
    format!("expected auto, {}", names.join(", "))
}

pub(crate) fn serving(field: &'static str, reason: String) -> ModelError {
    ModelError::Serving { field, reason }
}
