//! Computes whether a model fits on its GPUs, and how many KV blocks fit in the remaining memory.

use vcr_roofline::MemoryNeed;

use crate::script::options::Options;

/// vLLM's default share of a GPU's memory that an engine may use.
pub(crate) const GPU_MEMORY_UTILIZATION: f64 = 0.92;

const GIB: f64 = 1_073_741_824.0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPlan {
    /// Share of a GPU's memory that the engine may use.
    pub(crate) utilization: f64,
    /// Memory of each GPU that is used neither for weights nor for the KV cache.
    pub(crate) activation_bytes: u64,
    /// Memory of each GPU for KV blocks. None uses the remaining memory.
    pub(crate) kv_cache_bytes: Option<u64>,
}

impl Default for MemoryPlan {
    fn default() -> Self {
        Self { utilization: GPU_MEMORY_UTILIZATION, activation_bytes: 0, kv_cache_bytes: None }
    }
}

impl MemoryPlan {
    /// Applies the options of an engine, whose number of KV blocks follows from the memory if `is_auto`.
    pub(crate) fn of_engine(self, options: &mut Options<'_>, is_auto: bool) -> Self {
        if !is_auto {
            let text = "`kv_cache_memory_bytes` has no effect without `num_gpu_blocks: \"auto\"`";
            options.refuse("kv_cache_memory_bytes", text);
        }
        self.with_options(options)
    }

    /// Applies the options `gpu_memory_utilization`, `activation_bytes` and `kv_cache_memory_bytes`.
    pub(crate) fn with_options(self, options: &mut Options<'_>) -> Self {
        let utilization = options.f64("gpu_memory_utilization").unwrap_or(self.utilization);
        if !(utilization > 0.0 && utilization <= 1.0) {
            let text = format!("invalid `gpu_memory_utilization`: expected above 0 and at most 1, got {utilization}");
            options.problem("gpu_memory_utilization", text);
        }
        let activation_bytes = options.bytes("activation_bytes").unwrap_or(self.activation_bytes);
        let kv_cache_bytes = options.bytes("kv_cache_memory_bytes").or(self.kv_cache_bytes);
        Self { utilization, activation_bytes, kv_cache_bytes }
    }
}

/// A model on GPUs with a known amount of memory.
#[derive(Clone, Debug)]
pub(crate) struct ModelMemory {
    model: String,
    gpu: String,
    weight_bytes: f64,
    kv_bytes_per_token: f64,
    gpu_memory_bytes: f64,
}

impl ModelMemory {
    /// The memory that a latency model's options describe. None if the GPU's memory is not known. Adds a problem if
    /// the model is larger than its GPUs.
    pub(crate) fn of(
        options: &mut Options<'_>,
        need: &MemoryNeed,
        [model, gpu]: [Option<&str>; 2],
        gpu_memory_bytes: Option<u64>,
    ) -> Option<Self> {
        let memory = Self {
            model: model.unwrap_or("the model").to_owned(),
            gpu: gpu.map_or_else(|| "the GPU".to_owned(), |gpu| format!("`{gpu}`")),
            weight_bytes: need.weight_bytes,
            kv_bytes_per_token: need.kv_bytes_per_token,
            gpu_memory_bytes: gpu_memory_bytes.map(|bytes| bytes as f64).or(need.gpu_memory_bytes)?,
        };
        if memory.weight_bytes > memory.gpu_memory_bytes {
            let text = memory.too_large(&format!("{} has {}", memory.gpu, gib(memory.gpu_memory_bytes)));
            options.problem("model", text);
            return None;
        }
        Some(memory)
    }

    fn too_large(&self, has: &str) -> String {
        format!(
            "the weights of {} take {} on each GPU, but {has}; raise `tensor_parallel`, or take a larger GPU or \
             a model with smaller weights",
            self.model,
            gib(self.weight_bytes)
        )
    }

    /// The engine's share of a GPU's memory, minus the weights and activations.
    pub(crate) fn available_bytes(&self, plan: &MemoryPlan) -> Result<f64, String> {
        let available = self.usable_bytes(plan) - self.weight_bytes - plan.activation_bytes as f64;
        if available > 0.0 { Ok(available) } else { Err(self.too_large(&self.has(plan))) }
    }

    /// Number of KV blocks of `block_size` tokens that fit. Follows vLLM's rule for models with full attention in
    /// all layers.
    pub(crate) fn num_gpu_blocks(&self, plan: &MemoryPlan, block_size: u32) -> Result<u32, String> {
        let available = match plan.kv_cache_bytes {
            Some(bytes) => bytes as f64,
            None => self.available_bytes(plan)?,
        };
        let block_bytes = self.kv_bytes_per_token * f64::from(block_size);
        let blocks = (available / block_bytes).floor();
        // vLLM never uses one of the blocks.
        if blocks < 2.0 {
            return Err(format!(
                "{} is left for KV blocks of {}: {}",
                gib(available),
                gib(block_bytes),
                self.has(plan)
            ));
        }
        // The conversion saturates.
        Ok(blocks as u32)
    }

    fn usable_bytes(&self, plan: &MemoryPlan) -> f64 {
        self.gpu_memory_bytes * plan.utilization
    }

    fn has(&self, plan: &MemoryPlan) -> String {
        let other = match plan.activation_bytes {
            0 => String::new(),
            bytes => format!(", less {} of `activation_bytes`", gib(bytes as f64)),
        };
        if let Some(bytes) = plan.kv_cache_bytes {
            return format!("`kv_cache_memory_bytes` is {}", gib(bytes as f64));
        }
        let (gpu, total, usable) = (&self.gpu, gib(self.gpu_memory_bytes), gib(self.usable_bytes(plan)));
        format!("{gpu} has {total} x {} of `gpu_memory_utilization` = {usable}{other}", plan.utilization)
    }
}

fn gib(bytes: f64) -> String {
    format!("{:.1} GiB", bytes / GIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama_on(gpu_gib: f64) -> ModelMemory {
        ModelMemory {
            model: "llama".to_owned(),
            gpu: "`x`".to_owned(),
            weight_bytes: 15.0 * GIB,
            kv_bytes_per_token: 131_072.0,
            gpu_memory_bytes: gpu_gib * GIB,
        }
    }

    #[test]
    fn blocks_fill_what_is_left() {
        let plan = MemoryPlan { utilization: 0.5, activation_bytes: 1 << 30, kv_cache_bytes: None };
        // 40 GiB minus 15 GiB and 1 GiB leaves 24 GiB for blocks of 2 MiB.
        assert_eq!(llama_on(80.0).num_gpu_blocks(&plan, 16), Ok(12_288));
        // The stated memory counts, whatever remains.
        let plan = MemoryPlan { kv_cache_bytes: Some(4 << 30), ..plan };
        assert_eq!(llama_on(80.0).num_gpu_blocks(&plan, 16), Ok(2_048));
        let plan = MemoryPlan { kv_cache_bytes: Some(3 << 20), ..plan };
        let error = llama_on(80.0).num_gpu_blocks(&plan, 16).unwrap_err();
        assert!(error.ends_with("`kv_cache_memory_bytes` is 0.0 GiB"), "{error}");
    }

    #[test]
    fn what_does_not_fit_is_reported_with_its_numbers() {
        let plan = MemoryPlan { utilization: 0.5, activation_bytes: 1 << 30, kv_cache_bytes: None };
        let error = llama_on(30.0).num_gpu_blocks(&plan, 16).unwrap_err();
        assert!(error.starts_with("the weights of llama take 15.0 GiB on each GPU, but `x` has 30.0 GiB"), "{error}");
        let has = "30.0 GiB x 0.5 of `gpu_memory_utilization` = 15.0 GiB, less 1.0 GiB of `activation_bytes`";
        assert!(error.contains(has), "{error}");
        let error = llama_on(32.001).num_gpu_blocks(&plan, 1 << 14).unwrap_err();
        assert!(error.starts_with("0.0 GiB is left for KV blocks of 2.0 GiB"), "{error}");
    }
}
