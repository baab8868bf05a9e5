//! The properties of a deployment that determine a model's memory.

use std::ops::Range;

use vcr_base::suggestion::nearest;

use crate::drafter::DraftShape;
use crate::error::ModelError;
use crate::layers::{Attention, Layer, Mixer, Reach};

/// The properties of a model that its KV depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) name: &'a str,
    pub(crate) layers: &'a [Layer],
    pub(crate) draft: Option<DraftShape<'a>>,
    pub(crate) max_model_len: u64,
    /// Bytes per unquantised value.
    pub(crate) plain_bytes: u64,
    /// Whether the checkpoint asks for 8-bit KV.
    pub(crate) has_fp8_kv_cache: bool,
}

impl Shape<'_> {
    pub(crate) fn all_layers(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().chain(self.draft.into_iter().flat_map(|draft| draft.layers))
    }
}

/// Engine settings that determine a model's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Number of GPUs that share each layer.
    pub tensor_parallel: u64,
    /// Number of pipeline stages.
    pub pipeline_parallel: u64,
    /// Number of GPUs that share the KV of each sequence.
    pub decode_context_parallel: u64,
    /// Number of replicas of each layer that share the tokens of a prompt.
    pub prefill_context_parallel: u64,
    /// Number of data-parallel ranks.
    pub data_parallel: u64,
    /// Whether each GPU has whole experts instead of a part of every expert. The memory is equal.
    pub expert_parallel: bool,
    /// Data type of the KV cache. `auto` follows the checkpoint.
    pub kv_cache_dtype: String,
    /// Tokens per block. None means the attention backend's preferred size.
    pub block_size: Option<u64>,
    /// Longest sequence in tokens. None means the model's.
    pub max_model_len: Option<u64>,
    /// Maximum number of tokens in all steps in flight together.
    pub in_flight_tokens: u64,
    /// Quantisation method of the checkpoint, or of vLLM while it loads the checkpoint.
    pub quantization: Option<String>,
    /// Whether prefix caching is on.
    pub enable_prefix_caching: bool,
    /// Number of drafts per request and step.
    pub num_speculative_tokens: u64,
    /// Whether layers with windows keep all KV, like full attention.
    pub disable_hybrid_kv_cache_manager: bool,
    /// Number of adapter slots on each GPU.
    pub adapter_slots: u64,
    /// Adapter rank for which each slot has room.
    pub adapter_rank: u64,
}

impl Default for Serving {
    /// The defaults of `vllm serve` on one H100.
    fn default() -> Self {
        Self {
            tensor_parallel: 1,
            pipeline_parallel: 1,
            decode_context_parallel: 1,
            prefill_context_parallel: 1,
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
            adapter_slots: 0,
            adapter_rank: 16,
        }
    }
}

const MAX_DRAFTS: u64 = 1000;

/// Supported data types of KV caches, with bytes per value.
const KV_CACHE_DTYPES: &[(&str, u64)] =
    &[("bfloat16", 2), ("float16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("fp8_inc", 1)];

/// Data types of vLLM whose block layout is unknown here.
const OTHER_DTYPES: &[&str] = &["nvfp4", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"];

impl Serving {
    /// Checks the settings for a model.
    ///
    /// # Errors
    /// If a size is not divisible, with vLLM's text, or a value is unknown.
    pub(crate) fn check(&self, model: Shape<'_>) -> Result<(), ModelError> {
        let counts = [
            ("tensor_parallel", self.tensor_parallel),
            ("data_parallel", self.data_parallel),
            ("pipeline_parallel", self.pipeline_parallel),
            ("decode_context_parallel", self.decode_context_parallel),
            ("prefill_context_parallel", self.prefill_context_parallel),
        ];
        for (field, value) in counts {
            if !(1..=65_536).contains(&value) {
                return Err(serving(field, format!("{value}: expected a number from 1 to 65536")));
            }
        }
        if self.num_speculative_tokens > MAX_DRAFTS {
            let reason = format!("{}: expected at most {MAX_DRAFTS}", self.num_speculative_tokens);
            return Err(serving("num_speculative_tokens", reason));
        }
        if model.draft.is_some() && self.num_speculative_tokens == 0 {
            let reason = "0: expected the number of drafts of a step, as there is a drafter".to_owned();
            return Err(serving("num_speculative_tokens", reason));
        }
        let tensor = self.tensor_parallel;
        for layer in model.all_layers() {
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
        if self.pipeline_parallel > model.layers.len() as u64 {
            let reason = format!("{} stages are more than {} layers", self.pipeline_parallel, model.layers.len());
            return Err(serving("pipeline_parallel", reason));
        }
        self.check_context(model)?;
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

    /// Checks the number of GPUs that share the KV of a layer or of its replicas (`ParallelConfig`,
    /// `verify_with_parallel_config`).
    fn check_context(&self, model: Shape<'_>) -> Result<(), ModelError> {
        let Self { tensor_parallel: tensor, decode_context_parallel: ranks, prefill_context_parallel: copies, .. } =
            *self;
        let field = "decode_context_parallel";
        let all = tensor * copies;
        if copies == 1 && !tensor.is_multiple_of(ranks) {
            return Err(serving(field, format!("tp_size={tensor} must be divisible by dcp_size={ranks}")));
        }
        if copies > 1 && ![1, copies, all].contains(&ranks) {
            let reason = format!("{ranks}: with prefill_context_parallel expected 1, {copies} or {all}");
            return Err(serving(field, reason));
        }
        if ranks == 1 {
            return Ok(());
        }
        for layer in model.layers {
            match layer.mixer {
                Mixer::Attention(Attention { reach: Reach::Full, heads, kv_heads, .. }) => {
                    if tensor <= kv_heads || ranks > tensor / kv_heads {
                        let reason = format!(
                            "{ranks}: with tensor_parallel {tensor} each GPU has heads of its own of the {kv_heads} KV \
                             heads, or up to {} GPUs have the same",
                            (tensor / kv_heads).max(1)
                        );
                        return Err(serving(field, reason));
                    }
                    if !(heads / kv_heads).is_multiple_of(ranks) {
                        let reason = format!("{ranks} does not divide the {} heads for each KV head", heads / kv_heads);
                        return Err(serving(field, reason));
                    }
                }
                Mixer::Attention(_) => {
                    return Err(serving(field, "vLLM shares no KV of windows or chunks".to_owned()));
                }
                Mixer::State(_) => {
                    let reason = "of a model with states: prefix hits that end within blocks are not followed";
                    return Err(serving(field, reason.to_owned()));
                }
                Mixer::Latent(_) | Mixer::None => {}
            }
        }
        Ok(())
    }

    /// The layers of each stage (`get_pp_indices`). The stages before the last one get the remaining
    /// layers.
    pub(crate) fn stages(&self, layers: usize) -> Vec<Range<usize>> {
        let stages = usize::try_from(self.pipeline_parallel).unwrap_or(1).clamp(1, layers.max(1));
        let (each, rest) = (layers / stages, layers % stages);
        let mut start = 0;
        let sizes = (0..stages).map(|stage| each + usize::from(stage + 1 < stages && stage + 1 + rest >= stages));
        let range = |size: usize| {
            start += size;
            start - size..start
        };
        sizes.map(range).collect()
    }

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

#[cfg(test)]
mod tests {
    use super::Serving;

    #[test]
    fn layers_are_split_as_vllm_splits_them() {
        let sizes = |layers, pipeline_parallel| {
            let serving = Serving { pipeline_parallel, ..Serving::default() };
            let stages = serving.stages(layers);
            assert_eq!((stages[0].start, stages[stages.len() - 1].end), (0, layers));
            assert!(stages.windows(2).all(|pair| pair[0].end == pair[1].start));
            stages.into_iter().map(|stage| stage.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(32, 1), [32]);
        assert_eq!(sizes(32, 4), [8; 4]);
        assert_eq!(sizes(61, 2), [31, 30]);
        assert_eq!(sizes(61, 4), [15, 15, 16, 15]);
        assert_eq!(sizes(62, 4), [15, 16, 16, 15]);
        assert_eq!(sizes(63, 4), [16, 16, 16, 15]);
        assert_eq!(sizes(3, 3), [1; 3]);
    }
}
