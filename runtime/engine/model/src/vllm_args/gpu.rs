//! GPUs by which vLLM chooses its defaults.

use vcr_roofline::presets;

/// A GPU with the memory that its driver reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Its name, in the notation of latency models.
    pub name: &'static str,
    /// Memory that the driver reports, in GiB; about, for the tiers of defaults.
    pub memory_gib: f64,
}

/// The GPUs that are known, by name.
pub const GPUS: &[Gpu] = &[
    Gpu { name: "a100-40gb", memory_gib: 39.5 },
    Gpu { name: "a100-80gb", memory_gib: 79.3 },
    Gpu { name: "b200", memory_gib: 178.4 },
    Gpu { name: "b300", memory_gib: 267.7 },
    Gpu { name: "gb10", memory_gib: 119.7 },
    Gpu { name: "gb200", memory_gib: 184.3 },
    Gpu { name: "h100-sxm", memory_gib: 79.2 },
    Gpu { name: "h200-sxm", memory_gib: 139.8 },
    Gpu { name: "l4", memory_gib: 22.0 },
    Gpu { name: "l40s", memory_gib: 44.4 },
    Gpu { name: "mi300x", memory_gib: 192.0 },
    Gpu { name: "rtx-4090", memory_gib: 23.5 },
];

/// Names of all GPUs, for messages.
pub(crate) fn names() -> String {
    GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ")
}

/// Defaults of `vllm serve` for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchDefaults {
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_num_seqs: u32,
}

impl Gpu {
    /// The GPU of a name, as [`presets::gpu_name`] knows them: `h100` is `h100-sxm`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = presets::gpu_name(name)?;
        GPUS.iter().find(|gpu| gpu.name == name).copied()
    }

    /// Memory that the driver reports, in bytes.
    #[must_use]
    pub fn memory_bytes(self) -> f64 {
        self.memory_gib * f64::from(1 << 30)
    }

    /// `EngineArgs.get_batch_defaults` for an API server: 0.27 has no tier above that of an H100, and
    /// from 0.33 on a GB10 is counted as a small GPU.
    pub(crate) fn batch_defaults(self, minor: u8) -> BatchDefaults {
        let is_small = self.name.starts_with("a100") || (self.name == "gb10" && minor >= 33);
        let (max_num_batched_tokens, max_num_seqs) = match self.memory_gib {
            gib if gib >= 160.0 && minor >= 28 => (16_384, 1_024),
            gib if gib >= 70.0 && !is_small => (8_192, 1_024),
            _ => (2_048, 256),
        };
        BatchDefaults { max_num_batched_tokens, max_num_seqs }
    }
}
