//! GPU memory of a model and its KV cache.

use crate::gpus::Gpu;
use crate::{PhysicsConfig, RooflineConfig, RooflineError, TransformerSpec, presets};

/// Models of [`presets::MODELS`] whose output head and embedding share weights.
const TIED_EMBEDDINGS: [&str; 3] = ["llama-3.2-1b", "llama-3.2-3b", "qwen3-0.6b"];

/// Memory of each of a model's GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryNeed {
    /// Bytes of the weights on each GPU: all layers, the embedding and the output head (if the vocabulary is known),
    /// without norms and biases.
    pub weight_bytes: f64,
    /// Bytes of one cached token on each GPU, over all layers.
    pub kv_bytes_per_token: f64,
    /// Memory of each GPU, if the GPU is a preset.
    pub gpu_memory_bytes: Option<f64>,
}

impl MemoryNeed {
    /// `weights` is the number of weights in all layers.
    fn new(model: &TransformerSpec, weights: f64, model_name: Option<&str>, gpu: Option<&str>, gpus: u64) -> Self {
        let is_tied = model_name.is_some_and(|name| {
            let spec = presets::model(name);
            spec.is_some() && TIED_EMBEDDINGS.iter().any(|tied| presets::model(tied) == spec)
        });
        let embeddings = if is_tied { 1.0 } else { 2.0 } * model.hidden_size as f64 * model.vocab_size as f64;
        // Building the model checks that this is not 0.
        let gpus = gpus.max(1) as f64;
        // With more GPUs than key-value heads, each GPU keeps one whole head.
        let kv_heads = (model.kv_heads as f64 / gpus).max(1.0);
        Self {
            weight_bytes: (weights * model.weight_bytes + embeddings * model.head_weight_bytes()) / gpus,
            kv_bytes_per_token: 2.0 * model.layers as f64 * kv_heads * model.head_dim as f64 * model.kv_bytes,
            gpu_memory_bytes: gpu.and_then(Gpu::named).map(Gpu::memory_bytes),
        }
    }
}

impl RooflineConfig {
    /// Memory of each of the model's GPUs.
    ///
    /// # Errors
    /// If a preset does not exist or a quantity is missing.
    pub fn memory(&self) -> Result<MemoryNeed, RooflineError> {
        let model = self.transformer()?;
        let weights = model.layers as f64 * model.layer_weights();
        let gpus = self.deployment().tensor_parallel;
        Ok(MemoryNeed::new(&model, weights, self.model.as_deref(), self.gpu.as_deref(), gpus))
    }
}

impl PhysicsConfig {
    /// Memory of each of the model's GPUs. Counts the embedding and the output head only if the model is a preset.
    ///
    /// # Errors
    /// If a preset does not exist or a quantity is missing.
    pub fn memory(&self) -> Result<MemoryNeed, RooflineError> {
        let mut model = self.roofline().transformer()?;
        model.vocab_size = self.model.as_deref().and_then(presets::model).map_or(0, |preset| preset.vocab_size);
        let hidden = model.hidden_size as f64;
        let number = |value: Option<u64>| value.unwrap_or(0) as f64;
        let moe_layers = number(self.moe_layers);
        let experts = 3.0 * hidden * number(self.expert_intermediate_size) * number(self.experts);
        let attention = model.layer_weights() - 3.0 * hidden * model.intermediate_size as f64;
        let dense_layers = model.layers as f64 - moe_layers;
        let weights = dense_layers * model.layer_weights() + moe_layers * (attention + experts);
        let gpus = self.tensor_parallel.unwrap_or(1);
        Ok(MemoryNeed::new(&model, weights, self.model.as_deref(), self.gpu.as_deref(), gpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(model: &str, gpus: u64) -> MemoryNeed {
        let config = RooflineConfig { tensor_parallel: Some(gpus), ..RooflineConfig::of_presets(model, "h100-sxm") };
        config.memory().expect("presets exist")
    }

    #[test]
    fn weights_are_those_of_the_published_models() {
        // Parameters of the published checkpoints, in billions.
        for (model, billions) in [
            ("llama-3.1-8b", 8.03),
            ("llama-3.1-70b", 70.55),
            ("llama-3.2-1b", 1.236),
            ("llama-3.2-3b", 3.213),
            ("mistral-7b", 7.248),
            ("qwen2.5-7b", 7.616),
            ("qwen3-0.6b", 0.596),
            ("qwen3-8b", 8.191),
            ("qwen3-32b", 32.762),
        ] {
            let found = need(model, 1).weight_bytes / 2.0 / 1e9;
            assert!((found / billions - 1.0).abs() < 0.002, "{model}: {found} billion weights, not {billions}");
        }
    }

    #[test]
    fn gpus_share_weights_and_heads() {
        let (one, sixteen) = (need("llama-3.1-8b", 1), need("llama-3.1-8b", 16));
        assert_eq!(one.weight_bytes, 16.0 * sixteen.weight_bytes);
        assert_eq!(one.kv_bytes_per_token, 131_072.0);
        // Eight heads on sixteen GPUs: each GPU keeps one head.
        assert_eq!(sixteen.kv_bytes_per_token, 131_072.0 / 8.0);
    }
}
