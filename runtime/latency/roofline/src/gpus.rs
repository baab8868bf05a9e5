//! GPUs: names, arithmetic, memory, links and list prices, each declared once.
//!
//! Peaks, bandwidths and links are from the vendors' datasheets, which [`Gpu::source`] names: dense tensor throughput,
//! peak memory bandwidth, and the bandwidth of NVLink, Infinity Fabric or PCIe in one direction. Kernels reach less:
//! recorded servers were 7 to 33 % slower than formulas with these numbers and no fit.

use crate::{GpuSpec, QuantisedPeaks};

const GIB: f64 = 1_073_741_824.0;

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name of the GPU.
    pub name: &'static str,
    /// Other names, in any case, with `-`, `_` or blanks, with or without the vendor.
    pub other_names: &'static [&'static str],
    /// Peaks and bandwidths.
    pub spec: GpuSpec,
    /// Memory in GiB as PyTorch reports it, within a percent. The datasheet states a little more.
    pub memory_gib: f64,
    /// Number of GPUs in a node with one fast interconnect.
    pub gpus_per_node: u32,
    /// The datasheet with peaks and bandwidths.
    pub source: &'static str,
    /// Price of a GPU-hour. None if no list price is known.
    pub price: Option<ListPrice>,
}

/// The list price of a GPU-hour in a cloud: US dollars, on demand in the United States, without commitments, taxes,
/// storage or traffic. It is the node's price divided by the number of GPUs, so it includes processors and memory.
/// Clouds change their prices and grant discounts: state your own price if it matters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListPrice {
    /// US dollars.
    pub usd_per_hour: f64,
    /// The cloud.
    pub provider: &'static str,
    /// Month of the list, `YYYY-MM`.
    pub date: &'static str,
}

impl Gpu {
    /// Finds the GPU by its name or another name.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        let text = ["nvidia-", "amd-"].iter().find_map(|vendor| text.strip_prefix(vendor)).unwrap_or(&text);
        GPUS.iter().find(|gpu| gpu.name == text || gpu.other_names.contains(&text)).copied()
    }

    /// Memory as PyTorch reports it.
    #[must_use]
    pub fn memory_bytes(self) -> f64 {
        self.memory_gib * GIB
    }

    /// Sets the quantised peaks in TFLOP/s for fp8, int8 and fp4. 0 means that the GPU does not support the type.
    const fn quantised(mut self, [fp8, int8, fp4]: [f64; 3]) -> Self {
        self.spec.quantised = QuantisedPeaks { fp8_flops: flops(fp8), int8_flops: flops(int8), fp4_flops: flops(fp4) };
        self
    }

    const fn node_of(mut self, gpus: u32) -> Self {
        self.gpus_per_node = gpus;
        self
    }

    const fn priced(mut self, usd_per_hour: f64, gpus: f64, provider: &'static str, date: &'static str) -> Self {
        self.price = Some(ListPrice { usd_per_hour: usd_per_hour / gpus, provider, date });
        self
    }
}

const fn flops(tflops: f64) -> Option<f64> {
    if tflops > 0.0 { Some(tflops * 1e12) } else { None }
}

/// A GPU with its 16-bit TFLOP/s, memory bandwidth in GB/s, and link bandwidth in GB/s in one direction.
const fn gpu(
    name: &'static str,
    other_names: &'static [&'static str],
    [peak_tflops, memory_gb_per_s, interconnect_gb_per_s]: [f64; 3],
    memory_gib: f64,
    source: &'static str,
) -> Gpu {
    let spec = GpuSpec {
        peak_flops: peak_tflops * 1e12,
        quantised: QuantisedPeaks { fp8_flops: None, int8_flops: None, fp4_flops: None },
        memory_bytes_per_s: memory_gb_per_s * 1e9,
        interconnect_bytes_per_s: interconnect_gb_per_s * 1e9,
    };
    Gpu { name, other_names, spec, memory_gib, gpus_per_node: 8, source, price: None }
}

/// PCIe with 16 lanes, in GB/s in one direction.
const PCIE_3: f64 = 16.0;
const PCIE_4: f64 = 32.0;
const PCIE_5: f64 = 64.0;
/// NVLink of a GPU, in GB/s in one direction.
const NVLINK_3: f64 = 300.0;
const NVLINK_4: f64 = 450.0;
const NVLINK_5: f64 = 900.0;

/// Every GPU, by name.
pub const GPUS: &[Gpu] = &[
    gpu("a10", &["a10-24gb"], [125.0, 600.0, PCIE_4], 22.1, "NVIDIA A10 datasheet").quantised([0.0, 250.0, 0.0]),
    gpu(
        "a100-40gb",
        &["a100-sxm-40gb", "a100-sxm4-40gb", "a100-pcie-40gb"],
        [312.0, 1_555.0, NVLINK_3],
        39.5,
        "NVIDIA A100 datasheet",
    )
    .quantised([0.0, 624.0, 0.0])
    // a2-highgpu-1g in us-central1.
    .priced(3.67, 1.0, "Google Cloud", "2025-06"),
    gpu(
        "a100-80gb",
        &["a100", "a100-sxm", "a100-sxm-80gb", "a100-sxm4-80gb"],
        [312.0, 2_039.0, NVLINK_3],
        79.3,
        "NVIDIA A100 datasheet",
    )
    .quantised([0.0, 624.0, 0.0])
    .priced(21.60, 8.0, "CoreWeave", "2026-02"),
    gpu("a100-pcie-80gb", &["a100-pcie", "a100-80gb-pcie"], [312.0, 1_935.0, PCIE_4], 79.2, "NVIDIA A100 datasheet")
        .quantised([0.0, 624.0, 0.0]),
    gpu("a30", &["a30-24gb"], [165.0, 933.0, PCIE_4], 23.5, "NVIDIA A30 datasheet").quantised([0.0, 330.0, 0.0]),
    gpu("a40", &["a40-48gb"], [149.7, 696.0, PCIE_4], 44.4, "NVIDIA A40 datasheet").quantised([0.0, 299.3, 0.0]),
    gpu("b200", &["b200-sxm"], [2_250.0, 8_000.0, NVLINK_5], 178.4, "NVIDIA HGX B200 datasheet")
        .quantised([4_500.0, 4_500.0, 9_000.0])
        .priced(68.80, 8.0, "CoreWeave", "2026-02"),
    gpu("b300", &["b300-sxm"], [2_250.0, 8_000.0, NVLINK_5], 267.7, "NVIDIA HGX B300 datasheet")
        .quantised([4_500.0, 150.0, 13_500.0]),
    // LPDDR5X, ConnectX-7 of 200 Gb/s. Only the sparse fp4 peak is published.
    gpu("gb10", &["dgx-spark"], [125.0, 273.0, 25.0], 119.7, "NVIDIA DGX Spark datasheet")
        .quantised([250.0, 250.0, 500.0])
        .node_of(1),
    // A rack is one NVLink domain.
    gpu("gb200", &[], [2_500.0, 8_000.0, NVLINK_5], 184.3, "NVIDIA GB200 NVL72 datasheet")
        .quantised([5_000.0, 5_000.0, 10_000.0])
        .node_of(72)
        .priced(42.00, 4.0, "CoreWeave", "2026-02"),
    gpu("gb300", &[], [2_500.0, 8_000.0, NVLINK_5], 276.6, "NVIDIA GB300 NVL72 datasheet")
        .quantised([5_000.0, 165.0, 15_000.0])
        .node_of(72),
    gpu("gh200", &["gh200-96gb", "gh200-480gb"], [989.4, 4_000.0, NVLINK_4], 94.5, "NVIDIA GH200 datasheet")
        .quantised([1_978.9, 1_978.9, 0.0])
        .node_of(1),
    gpu("h100-nvl", &["h100-nvl-94gb"], [835.5, 3_900.0, NVLINK_3], 93.1, "NVIDIA H100 datasheet")
        .quantised([1_670.5, 1_670.5, 0.0])
        // A bridge connects two GPUs.
        .node_of(2),
    gpu(
        "h100-pcie",
        &["h100-pcie-80gb", "h100-80gb-pcie"],
        [756.0, 2_000.0, PCIE_5],
        79.2,
        "NVIDIA H100 PCIe product brief",
    )
    .quantised([1_513.0, 1_513.0, 0.0]),
    gpu(
        "h100-sxm",
        &["h100", "h100-80gb", "h100-80gb-hbm3", "h100-sxm5"],
        [989.4, 3_350.0, NVLINK_4],
        79.2,
        "NVIDIA H100 datasheet",
    )
    .quantised([1_978.9, 1_978.9, 0.0])
    .priced(49.24, 8.0, "CoreWeave", "2026-02"),
    gpu("h20", &["h20-sxm", "h20-96gb"], [148.0, 4_000.0, NVLINK_4], 95.0, "NVIDIA H20 datasheet")
        .quantised([296.0, 296.0, 0.0]),
    gpu("h200-nvl", &[], [835.5, 4_800.0, NVLINK_4], 139.8, "NVIDIA H200 datasheet")
        .quantised([1_670.5, 1_670.5, 0.0])
        // A bridge connects four GPUs.
        .node_of(4),
    gpu("h200-sxm", &["h200", "h200-141gb"], [989.4, 4_800.0, NVLINK_4], 139.8, "NVIDIA H200 datasheet")
        .quantised([1_978.9, 1_978.9, 0.0])
        .priced(50.44, 8.0, "CoreWeave", "2026-02"),
    gpu("l4", &[], [121.0, 300.0, PCIE_4], 22.0, "NVIDIA L4 datasheet")
        .quantised([242.5, 242.5, 0.0])
        // g2-standard-4 in us-central1.
        .priced(0.71, 1.0, "Google Cloud", "2025-06"),
    gpu("l40", &[], [181.0, 864.0, PCIE_4], 44.4, "NVIDIA L40 datasheet").quantised([362.0, 362.0, 0.0]),
    gpu("l40s", &[], [362.05, 864.0, PCIE_4], 44.4, "NVIDIA L40S datasheet").quantised([733.0, 733.0, 0.0]).priced(
        18.00,
        8.0,
        "CoreWeave",
        "2026-02",
    ),
    // Infinity Fabric over all links of a GPU.
    gpu("mi300x", &["instinct-mi300x"], [1_307.4, 5_300.0, 448.0], 192.0, "AMD Instinct MI300X datasheet")
        .quantised([2_614.9, 2_614.9, 0.0])
        .priced(48.00, 8.0, "Oracle Cloud", "2025-06"),
    gpu("mi325x", &["instinct-mi325x"], [1_307.4, 6_000.0, 448.0], 256.0, "AMD Instinct MI325X datasheet")
        .quantised([2_614.9, 2_614.9, 0.0]),
    gpu("mi350x", &["instinct-mi350x"], [2_306.9, 8_000.0, 537.6], 288.0, "AMD Instinct MI350X datasheet")
        .quantised([4_613.7, 4_613.7, 9_227.5]),
    gpu("mi355x", &["instinct-mi355x"], [2_516.6, 8_000.0, 537.6], 288.0, "AMD Instinct MI355X datasheet")
        .quantised([5_033.2, 5_033.2, 10_066.3]),
    // On GeForce, floats are accumulated in 32 bits.
    gpu(
        "rtx-3090",
        &["3090", "rtx3090", "geforce-rtx-3090"],
        [71.0, 936.0, PCIE_4],
        23.6,
        "NVIDIA Ampere GA102 whitepaper",
    )
    .quantised([0.0, 284.0, 0.0]),
    gpu(
        "rtx-4090",
        &["4090", "rtx4090", "geforce-rtx-4090"],
        [165.2, 1_008.0, PCIE_4],
        23.5,
        "NVIDIA Ada GPU whitepaper",
    )
    .quantised([330.3, 660.6, 0.0])
    // Secure cloud.
    .priced(0.69, 1.0, "RunPod", "2025-06"),
    gpu(
        "rtx-5090",
        &["5090", "rtx5090", "geforce-rtx-5090"],
        [209.5, 1_792.0, PCIE_5],
        31.4,
        "NVIDIA RTX Blackwell whitepaper",
    )
    .quantised([419.0, 838.0, 1_676.0]),
    gpu(
        "rtx-6000-ada",
        &["rtx-6000-ada-generation", "rtx6000-ada"],
        [364.2, 960.0, PCIE_4],
        47.4,
        "NVIDIA RTX 6000 Ada datasheet",
    )
    .quantised([728.5, 728.5, 0.0]),
    gpu("rtx-a6000", &["a6000"], [154.8, 768.0, PCIE_4], 47.4, "NVIDIA RTX A6000 datasheet")
        .quantised([0.0, 309.7, 0.0]),
    gpu(
        "rtx-pro-6000",
        &["rtx-pro-6000-blackwell", "rtx-pro-6000-blackwell-workstation-edition"],
        [503.8, 1_792.0, PCIE_5],
        95.0,
        "NVIDIA RTX Blackwell PRO whitepaper",
    )
    .quantised([1_007.6, 1_007.6, 2_015.2]),
    // The T4 multiplies half-precision numbers, but no bfloat16.
    gpu("t4", &["tesla-t4"], [65.0, 320.0, PCIE_3], 14.6, "NVIDIA T4 datasheet").quantised([0.0, 130.0, 0.0]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_means_one_gpu() {
        assert!(GPUS.is_sorted_by(|one, next| one.name < next.name), "by name");
        for gpu in GPUS {
            for name in gpu.other_names.iter().chain([&gpu.name]) {
                assert_eq!(Gpu::named(name).map(|found| found.name), Some(gpu.name), "{name}");
            }
        }
        let named = |text| Gpu::named(text).map(|gpu| gpu.name);
        for text in ["H100", "h100_sxm", "H100-SXM", "NVIDIA H100 80GB HBM3", "nvidia_h100"] {
            assert_eq!(named(text), Some("h100-sxm"), "{text}");
        }
        assert_eq!((named("NVIDIA A40"), named("h900"), named("")), (Some("a40"), None, None));
    }

    #[test]
    fn numbers_are_plausible() {
        for Gpu { name, spec, memory_gib, gpus_per_node, price, source, .. } in GPUS {
            // A wrong unit or a sparse peak would be outside this range.
            let bytes_of_a_flop = spec.memory_bytes_per_s / spec.peak_flops;
            assert!((1.5e-3..0.03).contains(&bytes_of_a_flop), "{name}: {bytes_of_a_flop}");
            for (faster, least, most) in [(spec.quantised.fp8_flops, 1.9, 2.1), (spec.quantised.fp4_flops, 3.9, 8.1)] {
                let factor = faster.map_or(least, |flops| flops / spec.peak_flops);
                assert!((least..most).contains(&factor), "{name}: {factor}");
            }
            assert!((14.0..300.0).contains(memory_gib) && *gpus_per_node > 0 && !source.is_empty(), "{name}");
            if let Some(ListPrice { usd_per_hour, date, .. }) = price {
                assert!((0.1..20.0).contains(usd_per_hour) && date.len() == 7 && date.starts_with("20"), "{name}");
            }
        }
        assert_eq!(Gpu::named("h100").and_then(|gpu| gpu.price).map(|price| price.usd_per_hour), Some(6.155));
    }
}
