//! Peak compute of GPUs that latency models assume.

use serde::Serialize;

use crate::config::PoolConfig;

/// The data type of weights that are not quantised.
const UNQUANTISED: &str = "bfloat16";

/// The data types of a pool's matrix multiplications, and the peak speed of its GPU for them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComputePeak {
    /// Data type of the weights.
    pub weights: String,
    /// Data type in which weights are multiplied.
    pub computed_as: String,
    /// Peak of the GPU for that data type, in TFLOP/s.
    pub peak_tflops: f64,
    /// Name of the GPU, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Whether coefficients of the latency model were fitted to measurements.
    #[serde(rename = "fitted", skip_serializing_if = "std::ops::Not::not")]
    pub is_fitted: bool,
}

impl std::fmt::Display for ComputePeak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { weights, computed_as, peak_tflops, gpu, .. } = self;
        let of_gpu = gpu.as_ref().map(|gpu| format!(" of {gpu}")).unwrap_or_default();
        let is_converted = computed_as == UNQUANTISED && weights != UNQUANTISED;
        let converted = if is_converted { ", to which they are converted" } else { "" };
        write!(f, "{weights} weights, multiplied as {computed_as}{converted}, at {peak_tflops:.0} TFLOP/s{of_gpu}")
    }
}

/// The peak compute of a pool's GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolPeak {
    /// Name of the pool.
    pub pool: String,
    /// The peak of the pool's GPUs.
    #[serde(flatten)]
    pub peak: ComputePeak,
}

impl PoolPeak {
    /// The peaks of the pools whose latency models know one.
    pub(crate) fn of(pools: &[&PoolConfig]) -> Vec<Self> {
        let of_pool = |pool: &&PoolConfig| Some(Self { pool: pool.name.clone(), peak: pool.peak.clone()? });
        pools.iter().filter_map(of_pool).collect()
    }
}
