//! No `config.json` may panic its reader. An accepted model has KV blocks and weights, or an error
//! with the reason why it cannot be served.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_model::{Model, Serving};

/// Models of every kind of layer; the text behind them may state any field again.
const HEADS: [&str; 6] = [
    r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 512"#,
    r#"{"architectures": ["GptOssForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "sliding_window": 128,
"layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
"max_position_embeddings": 512"#,
    r#"{"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
"num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 48,
"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "max_position_embeddings": 512"#,
    r#"{"architectures": ["Qwen3NextForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 100,
"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
"full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
"linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2,
"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "max_position_embeddings": 512"#,
    r#"{"architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 100,
"hybrid_override_pattern": "M-*M", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
"intermediate_size": 128, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
"conv_kernel": 4, "max_position_embeddings": 512"#,
    "",
];

fuzz_target!(|text: &str| {
    for head in HEADS {
        let Ok(model) = Model::parse("config.json", &format!("{head}{text}")) else { continue };
        for tensor_parallel in [1, 2, 65_536] {
            let serving = Serving { tensor_parallel, ..Serving::default() };
            if let Ok(plan) = model.kv_plan(&serving) {
                assert!(!format!("{plan:?}").is_empty());
            }
            if let Ok(bytes) = model.weight_bytes(&serving) {
                assert!(bytes >= 0.0);
                _ = model.memory_left(&serving, 80e9, 0.9, 0.0);
            }
        }
    }
});
