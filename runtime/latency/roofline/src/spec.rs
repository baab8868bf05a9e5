use crate::arithmetic::{Arithmetic, QuantisedPeaks};

const UNQUANTISED_BYTES: f64 = 2.0;

/// The numbers of a dense decoder-only transformer that determine its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerSpec {
    /// Number of decoder layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width of the gated MLP.
    pub intermediate_size: u64,
    /// Number of query heads.
    pub attention_heads: u64,
    /// Number of key and value heads. Fewer than `attention_heads` with grouped queries.
    pub kv_heads: u64,
    /// Number of channels of one head.
    pub head_dim: u64,
    /// Number of rows of the output head.
    pub vocab_size: u64,
    /// Bytes of one weight of a layer: 2 for bf16, 1 for fp8, 0.5 for int4.
    pub weight_bytes: f64,
    /// The arithmetic of the layers' weights on a GPU that supports it.
    pub arithmetic: Arithmetic,
    /// Bytes of one cached key or value element: 2 for bf16, 1 for fp8.
    pub kv_bytes: f64,
}

impl TransformerSpec {
    /// Number of weights in the matrices of one layer, without norms and biases.
    #[must_use]
    pub fn layer_weights(&self) -> f64 {
        let hidden = self.hidden_size as f64;
        let query_width = self.attention_heads as f64 * self.head_dim as f64;
        let kv_width = self.kv_heads as f64 * self.head_dim as f64;
        let attention = hidden * (query_width + 2.0 * kv_width) + query_width * hidden;
        let mlp = 3.0 * hidden * self.intermediate_size as f64;
        attention + mlp
    }

    /// Bytes of a weight of the embedding and the output head. Engines do not quantise these weights.
    #[must_use]
    pub fn head_weight_bytes(&self) -> f64 {
        if self.weight_bytes < UNQUANTISED_BYTES { UNQUANTISED_BYTES } else { self.weight_bytes }
    }

    /// KV cache bytes of one token over all layers and heads.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> f64 {
        2.0 * self.layers as f64 * self.kv_heads as f64 * self.head_dim as f64 * self.kv_bytes
    }
}

/// A GPU's numbers from its datasheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSpec {
    /// Dense peak of the tensor cores with 16-bit numbers, in FLOP/s.
    pub peak_flops: f64,
    /// Dense peaks with quantised numbers.
    pub quantised: QuantisedPeaks,
    /// Peak memory bandwidth in bytes/s.
    pub memory_bytes_per_s: f64,
    /// Bandwidth to the other GPUs in one direction, in bytes/s.
    pub interconnect_bytes_per_s: f64,
}

/// Numbers of a deployment that belong neither to the model nor to the GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// Number of GPUs that share every layer.
    pub tensor_parallel: u64,
    /// Fraction of `peak_flops` that kernels reach, in (0, 1].
    pub compute_efficiency: f64,
    /// Fraction of `memory_bytes_per_s` that kernels reach, in (0, 1].
    pub bandwidth_efficiency: f64,
    /// Constant time of a step: launches, sampling, scheduling.
    pub step_overhead_ns: f64,
    /// Constant time of one all-reduce of any size.
    pub all_reduce_latency_ns: f64,
}

impl Default for Deployment {
    /// One GPU with the efficiencies that are commonly reported for large GEMMs and long reads: a starting point for a
    /// fit, not a measurement.
    fn default() -> Self {
        Self {
            tensor_parallel: 1,
            compute_efficiency: 0.6,
            bandwidth_efficiency: 0.8,
            step_overhead_ns: 500_000.0,
            all_reduce_latency_ns: 10_000.0,
        }
    }
}
