//! Models by name. Their numbers come from the `config.json` published with each model. Only llama-3.1-8b is tested
//! against published sizes: check a preset before relying on its absolute times.

use alloc::string::String;

use crate::{Arithmetic, TransformerSpec};

/// A transformer with bf16 weights and a bf16 cache.
const fn transformer(
    layers: u64,
    hidden_size: u64,
    intermediate_size: u64,
    attention_heads: u64,
    kv_heads: u64,
    head_dim: u64,
    vocab_size: u64,
) -> TransformerSpec {
    TransformerSpec {
        layers,
        hidden_size,
        intermediate_size,
        attention_heads,
        kv_heads,
        head_dim,
        vocab_size,
        weight_bytes: 2.0,
        kv_bytes: 2.0,
        arithmetic: Arithmetic::Bfloat16,
    }
}

/// Every model preset, by name.
pub const MODELS: &[(&str, TransformerSpec)] = &[
    ("llama-3.1-8b", transformer(32, 4_096, 14_336, 32, 8, 128, 128_256)),
    ("llama-3.1-70b", transformer(80, 8_192, 28_672, 64, 8, 128, 128_256)),
    ("llama-3.2-1b", transformer(16, 2_048, 8_192, 32, 8, 64, 128_256)),
    ("llama-3.2-3b", transformer(28, 3_072, 8_192, 24, 8, 128, 128_256)),
    ("llama-3.3-70b", transformer(80, 8_192, 28_672, 64, 8, 128, 128_256)),
    ("mistral-7b", transformer(32, 4_096, 14_336, 32, 8, 128, 32_768)),
    ("qwen2.5-7b", transformer(28, 3_584, 18_944, 28, 4, 128, 152_064)),
    ("qwen3-0.6b", transformer(28, 1_024, 3_072, 16, 8, 128, 151_936)),
    ("qwen3-8b", transformer(36, 4_096, 12_288, 32, 8, 128, 151_936)),
    ("qwen3-32b", transformer(64, 5_120, 25_600, 64, 8, 128, 151_936)),
];

/// Finds a model preset by its name or by a published name such as `meta-llama/Llama-3.1-8B-Instruct`.
#[must_use]
pub fn model(name: &str) -> Option<TransformerSpec> {
    find(name).or_else(|| {
        let published = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let plain = published.strip_prefix("meta-").unwrap_or(&published);
        let plain = plain.strip_suffix("-v0.3").unwrap_or(plain);
        find(plain.strip_suffix("-instruct").unwrap_or(plain))
    })
}

fn find(name: &str) -> Option<TransformerSpec> {
    MODELS.iter().find(|(known, _)| *known == name).map(|(_, spec)| *spec)
}

pub(crate) fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut joined = String::new();
    for name in names {
        if !joined.is_empty() {
            joined.push_str(", ");
        }
        joined.push_str(name);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_names_of_their_publications() {
        let llama = model("llama-3.1-8b");
        for name in ["Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"] {
            assert_eq!(model(name), llama, "{name}");
        }
        assert_eq!(model("Qwen/Qwen3-32B"), model("qwen3-32b"));
        assert_eq!(model("Qwen/Qwen3-32B-FP8"), None, "another checkpoint");
    }
}
