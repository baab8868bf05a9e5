//! Models and GPUs by name.
//!
//! Model numbers are meant to be those of the `config.json` published with each
//! model, GPU numbers those of NVIDIA's datasheets: dense bf16 tensor throughput,
//! peak memory bandwidth, and NVLink or PCIe bandwidth in one direction. Only
//! llama-3.1-8b is tested against published sizes; check a preset before relying
//! on its absolute times.

use alloc::string::String;

use crate::{GpuSpec, TransformerSpec};

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
    }
}

const fn gpu(peak_tflops: f64, memory_gb_per_s: f64, interconnect_gb_per_s: f64) -> GpuSpec {
    GpuSpec {
        peak_flops: peak_tflops * 1e12,
        memory_bytes_per_s: memory_gb_per_s * 1e9,
        interconnect_bytes_per_s: interconnect_gb_per_s * 1e9,
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

/// Every GPU preset, by name.
pub const GPUS: &[(&str, GpuSpec)] = &[
    // NVLink 3: 600 GB/s both ways.
    ("a100-80gb", gpu(312.0, 2_039.0, 300.0)),
    // NVLink 5: 1,800 GB/s both ways.
    ("b200", gpu(2_250.0, 8_000.0, 900.0)),
    // NVLink 4: 900 GB/s both ways.
    ("h100-sxm", gpu(989.4, 3_350.0, 450.0)),
    ("h200-sxm", gpu(989.4, 4_800.0, 450.0)),
    // PCIe 4.0 x16: 64 GB/s both ways.
    ("l4", gpu(121.0, 300.0, 32.0)),
    ("l40s", gpu(362.05, 864.0, 32.0)),
];

/// The model preset called `name`.
#[must_use]
pub fn model(name: &str) -> Option<TransformerSpec> {
    find(MODELS, name)
}

/// The GPU preset called `name`.
#[must_use]
pub fn gpu_named(name: &str) -> Option<GpuSpec> {
    find(GPUS, name)
}

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, spec)| *spec)
}

/// The names of a table, separated by commas.
pub(crate) fn names<T>(table: &[(&str, T)]) -> String {
    let mut joined = String::new();
    for (name, _) in table {
        if !joined.is_empty() {
            joined.push_str(", ");
        }
        joined.push_str(name);
    }
    joined
}
