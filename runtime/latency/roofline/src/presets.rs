//! Models and GPUs by name.
//!
//! Model numbers come from the `config.json` published with each model, GPU numbers from the vendors'
//! datasheets: dense tensor throughput, peak memory bandwidth, and NVLink or PCIe bandwidth in one direction.
//! Only llama-3.1-8b is tested against published sizes; check a preset before relying on its absolute times.

use alloc::string::String;

use crate::{Arithmetic, GpuSpec, QuantisedPeaks, TransformerSpec};

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

/// TFLOP/s with numbers of 16 bits, and GB/s.
const fn gpu(peak_tflops: f64, memory_gb_per_s: f64, interconnect_gb_per_s: f64) -> GpuSpec {
    GpuSpec {
        peak_flops: peak_tflops * 1e12,
        quantised: QuantisedPeaks { fp8_flops: None, int8_flops: None, fp4_flops: None },
        memory_bytes_per_s: memory_gb_per_s * 1e9,
        interconnect_bytes_per_s: interconnect_gb_per_s * 1e9,
    }
}

/// TFLOP/s with quantised numbers; 0 for what the GPU cannot multiply.
const fn quantised([fp8, int8, fp4]: [f64; 3], gpu: GpuSpec) -> GpuSpec {
    GpuSpec {
        quantised: QuantisedPeaks { fp8_flops: flops(fp8), int8_flops: flops(int8), fp4_flops: flops(fp4) },
        ..gpu
    }
}

const fn flops(tflops: f64) -> Option<f64> {
    if tflops > 0.0 { Some(tflops * 1e12) } else { None }
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

/// Every GPU preset, by name. Quantised peaks are for fp8, int8 and fp4.
pub const GPUS: &[(&str, GpuSpec)] = &[
    // NVLink 3: 600 GB/s both ways.
    ("a100-40gb", quantised([0.0, 624.0, 0.0], gpu(312.0, 1_555.0, 300.0))),
    ("a100-80gb", quantised([0.0, 624.0, 0.0], gpu(312.0, 2_039.0, 300.0))),
    // NVLink 5: 1,800 GB/s both ways.
    ("b200", quantised([4_500.0, 4_500.0, 9_000.0], gpu(2_250.0, 8_000.0, 900.0))),
    ("b300", quantised([4_500.0, 150.0, 13_500.0], gpu(2_250.0, 8_000.0, 900.0))),
    // LPDDR5X, ConnectX-7 of 200 Gb/s; of its peaks only that of sparse fp4 is published.
    ("gb10", quantised([250.0, 250.0, 500.0], gpu(125.0, 273.0, 25.0))),
    ("gb200", quantised([5_000.0, 5_000.0, 10_000.0], gpu(2_500.0, 8_000.0, 900.0))),
    // NVLink 4: 900 GB/s both ways.
    ("h100-sxm", quantised([1_978.9, 1_978.9, 0.0], gpu(989.4, 3_350.0, 450.0))),
    ("h200-sxm", quantised([1_978.9, 1_978.9, 0.0], gpu(989.4, 4_800.0, 450.0))),
    // PCIe 4.0 x16: 64 GB/s both ways.
    ("l4", quantised([242.5, 242.5, 0.0], gpu(121.0, 300.0, 32.0))),
    ("l40s", quantised([733.0, 733.0, 0.0], gpu(362.05, 864.0, 32.0))),
    // Infinity Fabric: 896 GB/s both ways, over all links.
    ("mi300x", quantised([2_614.9, 2_614.9, 0.0], gpu(1_307.4, 5_300.0, 448.0))),
    // Floats are summed in 32 bits.
    ("rtx-4090", quantised([330.3, 660.6, 0.0], gpu(165.2, 1_008.0, 32.0))),
];

/// Every GPU that this program knows anything of, and its other names: whatever their case, with `-`, `_` or blanks,
/// with or without the vendor.
pub const GPU_NAMES: &[(&str, &[&str])] = &[
    ("a100-40gb", &["a100-sxm-40gb", "a100-sxm4-40gb", "a100-pcie-40gb"]),
    ("a100-80gb", &["a100", "a100-sxm", "a100-sxm-80gb", "a100-sxm4-80gb"]),
    ("b200", &["b200-sxm"]),
    ("b300", &["b300-sxm"]),
    ("gb10", &["dgx-spark"]),
    ("gb200", &[]),
    ("h100-sxm", &["h100", "h100-80gb", "h100-80gb-hbm3", "h100-sxm5"]),
    ("h200-sxm", &["h200", "h200-141gb"]),
    ("l4", &[]),
    ("l40s", &[]),
    ("mi300x", &["instinct-mi300x"]),
    ("rtx-4090", &["4090", "rtx4090", "geforce-rtx-4090"]),
];

/// The name of a GPU here, by any of its names.
#[must_use]
pub fn gpu_name(text: &str) -> Option<&'static str> {
    let text = text.trim().to_ascii_lowercase().replace(['_', ' '], "-");
    let text = ["nvidia-", "amd-"].iter().find_map(|vendor| text.strip_prefix(vendor)).unwrap_or(&text);
    GPU_NAMES.iter().find(|(name, others)| *name == text || others.contains(&text)).map(|(name, _)| *name)
}

/// GPUs of a node with one fast interconnect, by any name of the GPU.
#[must_use]
pub fn gpus_per_node(gpu: &str) -> Option<u32> {
    gpu_name(gpu).map(|name| match name {
        "gb10" => 1,
        // A rack is one NVLink domain.
        "gb200" => 72,
        _ => 8,
    })
}

/// The model preset with this name, its own or a published one such as `meta-llama/Llama-3.1-8B-Instruct`.
#[must_use]
pub fn model(name: &str) -> Option<TransformerSpec> {
    find(MODELS, name).or_else(|| {
        let published = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let plain = published.strip_prefix("meta-").unwrap_or(&published);
        let plain = plain.strip_suffix("-v0.3").unwrap_or(plain);
        find(MODELS, plain.strip_suffix("-instruct").unwrap_or(plain))
    })
}

/// The GPU preset of a name.
#[must_use]
pub fn gpu_named(name: &str) -> Option<GpuSpec> {
    find(GPUS, gpu_name(name)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_means_one_gpu() {
        for (name, others) in GPU_NAMES {
            for other in others.iter().chain([name]) {
                assert_eq!(gpu_name(other), Some(*name), "{other}");
            }
        }
        for text in ["H100", "h100_sxm", "H100-SXM", "NVIDIA H100 80GB HBM3", "nvidia_h100"] {
            assert_eq!(gpu_name(text), Some("h100-sxm"), "{text}");
        }
        assert_eq!((gpu_name("h900"), gpu_name("")), (None, None));
        assert_eq!(["h100", "gb10", "gb200", "h900"].map(gpus_per_node), [Some(8), Some(1), Some(72), None]);
        let names = |name: &&str| GPUS.iter().any(|(known, _)| known == name);
        assert!(GPU_NAMES.iter().all(|(name, _)| names(name)) && GPUS.len() == GPU_NAMES.len(), "all have presets");
    }

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
