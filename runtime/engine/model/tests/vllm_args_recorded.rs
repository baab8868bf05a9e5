//! Command lines read by vLLM 0.32, with the resulting settings. `tests/oracle/vllm_args.py` wrote
//! `recorded.jsonl`.

use serde_json::{Value, json};
use vcr_core::Policy;
use vcr_model::vllm_args::{Deployment, VllmArgs};

const RECORDED: &str = include_str!("vllm_args_recorded.jsonl");

/// The settings under vLLM's names, as in the recording.
fn settings(args: &VllmArgs, recorded: &Value) -> Value {
    let input = &args.input;
    let lora = recorded["enable_lora"] == true;
    json!({
        "max_num_seqs": input.max_num_seqs,
        "max_num_batched_tokens": input.max_num_batched_tokens,
        "max_model_len": input.max_model_len,
        "enable_prefix_caching": input.enable_prefix_caching,
        "enable_chunked_prefill": input.enable_chunked_prefill,
        "long_prefill_token_threshold": input.long_prefill_token_threshold,
        "long_prefill_token_threshold_adaptive": input.adaptive_long_prefill,
        "scheduler_reserve_full_isl": input.scheduler_reserve_full_isl,
        "watermark": input.watermark,
        "max_num_active_seqs": input.max_num_active_seqs,
        "scheduling_policy": if input.policy == Policy::Priority { "priority" } else { "fcfs" },
        "num_gpu_blocks_override": args.num_gpu_blocks,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "tensor_parallel_size": args.tensor_parallel_size,
        "data_parallel_size": args.data_parallel_size,
        "enable_expert_parallel": args.expert_parallel,
        "kv_cache_dtype": args.kv_cache_dtype,
        // If the block size is not stated, vLLM decides it once the attention backend is known.
        "block_size": if recorded["block_size"].is_null() { Value::Null } else { input.block_size.into() },
        // Without adapters, the number of their slots has no effect.
        "max_loras": if lora { json!(input.max_loras) } else { recorded["max_loras"].clone() },
        "enable_lora": if input.max_loras > 0 { json!(true) } else { recorded["enable_lora"].clone() },
        "kv_cache_memory_bytes": args.kv_cache_memory_bytes,
    })
}

#[test]
fn settings_are_those_of_vllm() {
    let (mut read, mut refused) = (0, 0);
    for line in RECORDED.lines() {
        let line: Value = serde_json::from_str(line).expect("a recorded line");
        let text = |key: &str| line[key].as_str().expect("a text");
        let command = text("command");
        let args =
            VllmArgs::read(command, Deployment { minor: text("minor"), gpu: text("gpu"), ..Deployment::default() });
        match (&line["settings"], args) {
            (Value::Null, args) => {
                assert!(args.is_err(), "vLLM refuses: {command}");
                refused += 1;
            }
            (recorded, Ok(args)) => {
                assert_eq!(settings(&args, recorded), *recorded, "{command}");
                read += 1;
            }
            (_, Err(errors)) => panic!("vLLM takes: {command}: {errors:?}"),
        }
    }
    assert!(read > 250 && refused > 10, "{read} {refused}");
}
