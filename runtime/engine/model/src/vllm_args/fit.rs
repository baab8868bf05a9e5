//! Whether a deployment fits into the memory of its GPUs, and how much KV it holds. Nothing is run.

use crate::error::ModelError;
use crate::kv::KvPlan;
use crate::table;
use crate::vllm_args::VllmArgs;

/// Memory of an engine on each of its GPUs. Numbers of blocks and tokens are per data-parallel rank.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryFit {
    /// Number of GPUs of the engine, over all ranks and stages.
    pub gpus: u32,
    /// Memory of one GPU, as its driver reports it.
    pub gpu_memory_bytes: f64,
    /// Bytes of weights on each GPU of the largest stage.
    pub weight_bytes: f64,
    /// Number of KV blocks, including the null block.
    pub num_gpu_blocks: u32,
    /// Tokens of the smallest block.
    pub block_size_tokens: u32,
    /// Number of tokens in the blocks if every group keeps every token: blocks / groups * block size.
    pub kv_tokens: u64,
    /// KV bytes per token of a short sequence, summed over the stages.
    pub kv_bytes_per_token: f64,
    /// Longest sequence in tokens.
    pub max_model_len: u64,
    kv: KvPlan,
}

impl MemoryFit {
    /// Number of sequences of `tokens` tokens that fit into the KV blocks at the same time.
    #[must_use]
    pub fn sequences_of(&self, tokens: u64) -> u64 {
        let usable = u64::from(self.num_gpu_blocks.saturating_sub(1));
        usable / self.kv.blocks_of_sequence(tokens.max(1)).max(1)
    }
}

impl VllmArgs {
    /// Number of GPUs of one engine: the product of tensor, pipeline, prefill-context and data parallelism.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        [
            self.tensor_parallel_size,
            self.input.pipeline_parallel_size,
            self.prefill_context_parallel_size,
            self.data_parallel_size,
        ]
        .into_iter()
        .fold(1, u32::saturating_mul)
    }

    /// Memory of the engine, given the model, GPU and settings of its command line.
    ///
    /// # Errors
    /// If the model is neither a folder with a `config.json` nor in the table of models. If the weights or the KV of
    /// one sequence do not fit; the text has the numbers.
    pub fn fit(&self) -> Result<MemoryFit, ModelError> {
        let Some(served) = &self.served else {
            let name = self.model.clone().unwrap_or_default();
            let hints = table::nearest_names(&name);
            return Err(ModelError::Unknown { name, hints });
        };
        let gpu_memory_bytes = served.gpu.memory_bytes();
        // The weights must fit even if the command line states the blocks or the KV memory.
        served.model.memory_left(&served.serving, gpu_memory_bytes, self.gpu_memory_utilization, 0.0)?;
        let num_gpu_blocks = match self.known_blocks()? {
            Some(blocks) => blocks,
            None => served.num_gpu_blocks(self.gpu_memory_utilization, 0, None)?,
        };
        let kv = served.kv.clone();
        let groups = kv.groups.len().max(1) as u64;
        Ok(MemoryFit {
            gpus: self.gpus(),
            gpu_memory_bytes,
            weight_bytes: served.model.weight_bytes(&served.serving)?,
            num_gpu_blocks,
            block_size_tokens: u32::try_from(kv.block_size).unwrap_or(u32::MAX),
            kv_tokens: u64::from(num_gpu_blocks) / groups * kv.block_size * kv.context_ranks,
            kv_bytes_per_token: kv.bytes_per_token(),
            max_model_len: kv.max_model_len,
            kv,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::vllm_args::Deployment;

    fn fit(command: &str, gpu: &str) -> Result<MemoryFit, ModelError> {
        let deployment = Deployment { minor: "0.33", gpu, folder: Path::new("") };
        VllmArgs::read(command, deployment).expect("the command line is valid").fit()
    }

    #[test]
    fn a_deployment_that_fits_has_its_numbers() {
        let one = fit("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192", "h100-sxm").expect("it fits");
        assert_eq!((one.gpus, one.block_size_tokens, one.max_model_len), (1, 16, 8_192));
        assert_eq!(one.kv_bytes_per_token, 131_072.0);
        // 8.03 billion weights of two bytes. The KV gets the rest of 92 % of 79.2 GiB.
        assert!((one.weight_bytes / 16.06e9 - 1.0).abs() < 0.01, "{one:?}");
        let left = 79.2 * f64::from(1 << 30) * 0.92 - one.weight_bytes;
        assert_eq!(u64::from(one.num_gpu_blocks), (left / 131_072.0 / 16.0) as u64);
        assert_eq!(one.kv_tokens, u64::from(one.num_gpu_blocks) * 16);
        assert_eq!(one.sequences_of(8_192), u64::from(one.num_gpu_blocks - 1) / 512);
        let line = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 -pp 2 -dp 3 --num-gpu-blocks-override 1000 \
                    --max-model-len 8192";
        let many = fit(line, "h100").expect("it fits");
        assert_eq!((many.gpus, many.num_gpu_blocks, many.kv_tokens), (12, 1_000, 16_000));
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let weights = fit("vllm serve meta-llama/Llama-3.1-70B-Instruct", "h100-sxm").expect_err("131 GiB in 79");
        assert!(weights.to_string().contains("GiB"), "{weights}");
        let sequence = fit("vllm serve meta-llama/Llama-3.1-8B-Instruct", "l4").expect_err("131,072 tokens in 22 GiB");
        assert!(sequence.to_string().contains("estimated maximum model length"), "{sequence}");
        let stated = fit("vllm serve meta-llama/Llama-3.1-70B-Instruct --num-gpu-blocks-override 100", "h100-sxm");
        assert!(stated.is_err(), "the weights do not fit, whatever the number of blocks: {stated:?}");
        let unknown = fit("vllm serve meta-llama/Llama-3.1-8B-Instrukt", "h100-sxm").expect_err("a typo");
        assert!(unknown.to_string().contains("did you mean `meta-llama/Llama-3.1-8B-Instruct`?"), "{unknown}");
    }
}
