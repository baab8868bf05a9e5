//! Architectures: which fields describe their layers.

use vcr_base::suggestion::nearest;

use super::{Layer, grouped, hybrid, latent};
use crate::error::ModelError;
use crate::fields::Fields;

/// Number of matrices in a feed-forward network with a gate, and without one.
pub(crate) const GATED: u64 = 3;
pub(crate) const PLAIN: u64 = 2;

pub(crate) struct Architecture {
    name: &'static str,
    read: fn(Fields<'_>) -> Result<Vec<Layer>, ModelError>,
    pub(crate) matrices: u64,
    /// Whether the output head uses the embedding's weights by default.
    pub(crate) is_tied: bool,
}

type Reader = fn(Fields<'_>) -> Result<Vec<Layer>, ModelError>;

const fn of(name: &'static str, read: Reader) -> Architecture {
    Architecture { name, read, matrices: GATED, is_tied: false }
}

const KNOWN: &[Architecture] = &[
    of("DeepSeekForCausalLM", latent::read),
    of("DeepseekV2ForCausalLM", latent::read),
    of("DeepseekV3ForCausalLM", latent::read),
    of("DeepseekV32ForCausalLM", latent::read),
    Architecture { is_tied: true, ..of("Gemma3ForCausalLM", grouped::read_gemma3) },
    Architecture { is_tied: true, ..of("Gemma3ForConditionalGeneration", grouped::read_gemma3) },
    Architecture { is_tied: true, ..of("Gemma4ForCausalLM", grouped::read_gemma4) },
    Architecture { is_tied: true, ..of("Gemma4ForConditionalGeneration", grouped::read_gemma4) },
    of("GlmMoeDsaForCausalLM", latent::read),
    of("GptOssForCausalLM", grouped::read),
    of("KimiK25ForConditionalGeneration", latent::read),
    of("Llama4ForCausalLM", grouped::read_llama4),
    of("Llama4ForConditionalGeneration", grouped::read_llama4),
    of("LlamaForCausalLM", grouped::read),
    of("MiMoForCausalLM", grouped::read),
    of("MiMoV2FlashForCausalLM", grouped::read_mimo_v2),
    of("MiniMaxM2ForCausalLM", grouped::read),
    of("MistralForCausalLM", grouped::read),
    of("MixtralForCausalLM", grouped::read),
    Architecture { matrices: PLAIN, ..of("NemotronHForCausalLM", hybrid::read_nemotron) },
    of("Qwen2ForCausalLM", grouped::read),
    of("Qwen2MoeForCausalLM", grouped::read),
    of("Qwen3ForCausalLM", grouped::read),
    of("Qwen3MoeForCausalLM", grouped::read),
    of("Qwen3NextForCausalLM", hybrid::read_qwen),
    of("Qwen3VLForConditionalGeneration", grouped::read),
    of("Qwen3VLMoeForConditionalGeneration", grouped::read),
    of("Qwen3_5ForCausalLM", hybrid::read_qwen),
    of("Qwen3_5ForConditionalGeneration", hybrid::read_qwen),
    of("Qwen3_5MoeForCausalLM", hybrid::read_qwen),
    of("Qwen3_5MoeForConditionalGeneration", hybrid::read_qwen),
];

const HEADS: &[Architecture] = &[
    of("EagleLlamaForCausalLM", grouped::read),
    of("LlamaForCausalLMEagle", grouped::read),
    of("LlamaForCausalLMEagle3", grouped::read),
    of("Eagle3LlamaForCausalLM", grouped::read),
];

/// Architectures that vLLM supports and this crate refuses, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("DeciLMForCausalLM", "is not read: its layers have shapes of their own in `block_configs`"),
    ("DeepseekV4ForCausalLM", "is not followed: it compresses KV by several ratios, in blocks of several sizes"),
    ("KimiK3ForConditionalGeneration", "is not supported: it combines latent attention with Kimi's delta attention"),
    ("MiniMaxM3SparseForCausalLM", "is not followed: its sparse attention has an index cache of its own"),
    ("MiniMaxM3SparseForConditionalGeneration", "is not followed: its sparse attention has an index cache of its own"),
    ("WhisperForConditionalGeneration", "is not followed: it has cross attention"),
];

impl Architecture {
    pub(crate) fn named(place: &str, name: &str) -> Result<&'static Self, ModelError> {
        if let Some(known) = KNOWN.iter().chain(HEADS).find(|known| known.name == name) {
            return Ok(known);
        }
        let reason = match REFUSED.iter().find(|(refused, _)| *refused == name) {
            Some((_, reason)) => (*reason).to_owned(),
            None => match nearest(name, KNOWN.iter().map(|known| known.name)) {
                Some(near) => format!("is not known: did you mean `{near}`?"),
                None => {
                    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
                    format!("is not known: expected one of {}", names.join(", "))
                }
            },
        };
        Err(ModelError::Architecture { place: place.to_owned(), found: name.to_owned(), reason })
    }

    pub(crate) fn layers(&self, fields: Fields<'_>) -> Result<Vec<Layer>, ModelError> {
        let layers = (self.read)(fields)?;
        if layers.is_empty() { Err(fields.missing("num_hidden_layers")) } else { Ok(layers) }
    }
}
