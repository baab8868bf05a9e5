//! GPU memory of a model and its KV cache.

use crate::tables::Dtype;
use crate::tables::model::{Attention, Experts, LatentSizes, Model};
use crate::tables::plan::Parallel;

/// Memory of each GPU of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryNeed {
    /// Bytes of the weights: all layers, the embedding and the output head, without norms and biases.
    pub weight_bytes: f64,
    /// Bytes of one cached token, over all layers.
    pub kv_bytes_per_token: f64,
    /// Memory of a GPU, if the file of the system states it.
    pub gpu_memory_bytes: Option<f64>,
}

impl MemoryNeed {
    /// Computes the memory need. None if some layer does not cache every token, or if the file lacks the sizes of the
    /// latent attention.
    pub(crate) fn of(model: &Model, parallel: Parallel, gpu_memory_bytes: Option<f64>) -> Option<Self> {
        let layers = f64::from(model.layers);
        let tensor = f64::from(parallel.tensor);
        let kv_cache_bytes = model.dtypes.kv_cache.bytes;
        let (attention_bytes, cached_values) = match model.attention {
            Attention::Grouped { windowed: Some(_), .. } => return None,
            Attention::Grouped { windowed: None, .. } => grouped(model, tensor),
            Attention::Latent => latent(model, model.latent_sizes?, tensor),
        };
        let embeddings = if model.is_tied { 1.0 } else { 2.0 };
        let embedding_bytes =
            embeddings * product(model.vocab_size, model.hidden_size) * Dtype::BFLOAT16.bytes / tensor;
        let feed_forward_bytes = match model.experts {
            None => layers * dense(model, tensor),
            Some(experts) => {
                let dense_layers = f64::from(model.dense_layers.min(model.layers));
                dense_layers * dense(model, tensor) + (layers - dense_layers) * routed(model, experts, parallel)
            }
        };
        Some(Self {
            weight_bytes: layers * attention_bytes + feed_forward_bytes + embedding_bytes,
            kv_bytes_per_token: layers * cached_values * kv_cache_bytes,
            gpu_memory_bytes,
        })
    }
}

fn product(left: u32, right: u32) -> f64 {
    f64::from(left) * f64::from(right)
}

/// Bytes of a layer's projections on each GPU, and number of values that one cached token has in a layer. With more
/// GPUs than key-value heads, each GPU keeps one whole head.
fn grouped(model: &Model, tensor: f64) -> (f64, f64) {
    let hidden = f64::from(model.hidden_size);
    let kv_values = (f64::from(model.kv_heads) / tensor).max(1.0) * f64::from(model.head_dim);
    let projected = product(model.heads, model.head_dim) / tensor;
    (2.0 * hidden * (projected + kv_values) * model.dtypes.gemm.bytes, 2.0 * kv_values)
}

/// Like `grouped`, for latent attention: the projections of heads are split, but every GPU has the projections to and
/// from the latent vectors and caches the whole latent vector.
fn latent(model: &Model, sizes: LatentSizes, tensor: f64) -> (f64, f64) {
    let hidden = f64::from(model.hidden_size);
    let heads = f64::from(model.heads) / tensor;
    let query = heads * f64::from(sizes.nope_head_dim + sizes.rope_head_dim);
    let queries = match sizes.query_rank {
        Some(rank) => f64::from(rank) * (hidden + query),
        None => hidden * query,
    };
    let (latent, rope) = (f64::from(sizes.kv_rank), f64::from(sizes.rope_head_dim));
    let value = heads * f64::from(sizes.value_head_dim);
    let expanded = latent * (heads * f64::from(sizes.nope_head_dim) + value);
    let values = queries + hidden * (latent + rope) + expanded + value * hidden;
    (values * model.dtypes.latent.bytes, latent + rope)
}

/// Bytes of a dense layer's feed-forward part on each GPU.
fn dense(model: &Model, tensor: f64) -> f64 {
    3.0 * product(model.hidden_size, model.intermediate_size) / tensor * model.dtypes.gemm.bytes
}

/// Bytes of a layer's experts and router on each GPU.
fn routed(model: &Model, experts: Experts, parallel: Parallel) -> f64 {
    let expert = 3.0 * product(model.hidden_size, experts.intermediate_size);
    let routed = f64::from(experts.count) * expert / f64::from(parallel.gpus()) * model.dtypes.moe.bytes;
    let shared = f64::from(model.shared_experts) * expert / f64::from(parallel.tensor) * model.dtypes.shared.bytes;
    routed + shared + product(model.hidden_size, experts.count) * Dtype::BFLOAT16.bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::model::Dtypes;

    const BFLOAT16: Dtypes = Dtypes {
        gemm: Dtype::BFLOAT16,
        moe: Dtype::BFLOAT16,
        kv_cache: Dtype::BFLOAT16,
        attention: Dtype::BFLOAT16,
        latent: Dtype::BFLOAT16,
        shared: Dtype::BFLOAT16,
    };

    fn llama_8b() -> Model {
        Model {
            name: "llama".to_owned(),
            layers: 32,
            hidden_size: 4096,
            intermediate_size: 14_336,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocab_size: 128_256,
            is_tied: false,
            experts: None,
            shared_experts: 0,
            dense_layers: 0,
            attention: Attention::Grouped { windowed: None, normalised: None },
            latent_sizes: None,
            dtypes: BFLOAT16,
        }
    }

    fn deepseek_v3() -> Model {
        Model {
            name: "deepseek".to_owned(),
            layers: 61,
            hidden_size: 7168,
            intermediate_size: 18_432,
            heads: 128,
            kv_heads: 128,
            head_dim: 56,
            vocab_size: 129_280,
            experts: Some(Experts { count: 256, per_token: 8, intermediate_size: 2048 }),
            shared_experts: 1,
            dense_layers: 3,
            attention: Attention::Latent,
            latent_sizes: Some(LatentSizes {
                query_rank: Some(1536),
                kv_rank: 512,
                rope_head_dim: 64,
                nope_head_dim: 128,
                value_head_dim: 128,
            }),
            ..llama_8b()
        }
    }

    fn on(model: &Model, tensor: u32, attention_ranks: u32) -> MemoryNeed {
        let parallel = Parallel { tensor, expert: 1, attention_ranks };
        MemoryNeed::of(model, parallel, None).expect("all of it is known")
    }

    #[test]
    fn weights_are_those_of_the_checkpoints() {
        for (model, billions) in [(llama_8b(), 8.03), (deepseek_v3(), 671.0)] {
            let found = on(&model, 1, 1).weight_bytes / 2.0 / 1e9;
            assert!((found / billions - 1.0).abs() < 0.002, "{}: {found} billion weights, not {billions}", model.name);
        }
    }

    #[test]
    fn a_cached_token_is_split_by_heads_but_not_as_a_latent_vector() {
        let of = |model: &Model, tensor| on(model, tensor, 1).kv_bytes_per_token;
        assert_eq!([1, 8, 16].map(|tensor| of(&llama_8b(), tensor)), [131_072.0, 16_384.0, 16_384.0]);
        assert_eq!([1, 8].map(|tensor| of(&deepseek_v3(), tensor)), [70_272.0; 2]);
    }

    #[test]
    fn ranks_with_attention_of_their_own_share_experts_only() {
        let (one, eight) = (on(&deepseek_v3(), 1, 1).weight_bytes, on(&deepseek_v3(), 1, 8).weight_bytes);
        let experts = 58.0 * 256.0 * 3.0 * 7168.0 * 2048.0 * 2.0;
        assert!((one - eight - experts * 7.0 / 8.0).abs() < 1.0, "{one} and {eight}");
    }

    #[test]
    fn windows_have_a_rule_of_their_own() {
        let attention = Attention::Grouped { windowed: Some((16, 128)), normalised: None };
        let model = Model { attention, ..llama_8b() };
        assert_eq!(MemoryNeed::of(&model, Parallel { tensor: 1, expert: 1, attention_ranks: 1 }, None), None);
    }
}
