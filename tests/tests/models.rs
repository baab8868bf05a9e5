//! Models by name and by file: in scenarios, on command lines of vLLM, and in tables. That groups, blocks
//! and weights are those of vLLM is tested beside the reader.

use serde_json::{Value, json};
use vcr_tests::Folder;

fn scenario(engine: &str) -> String {
    format!(
        r#"let e = {engine};
let c = cluster(#{{ engines: pool(#{{ engine: e, latency: fixed(#{{ step: "10ms" }}) }}) }});
let r = run(#{{ cluster: c, workloads: [ burst(#{{ count: 40, prompt_tokens: 300, output_tokens: 20 }}) ] }});
"#
    )
}

fn fingerprint(engine: &str) -> Value {
    let found = Folder::with(&scenario(engine)).run(&["--json"]).ended(0).json();
    assert!(found["runs"][0]["fingerprint"].is_string());
    found["runs"][0]["fingerprint"].clone()
}

/// By options, by a model, and by a command line that names it.
#[test]
fn a_model_gives_an_engine_its_groups_and_blocks() {
    let options = "max_num_seqs: 8, max_num_batched_tokens: 1_000, prefix_cache_retention_interval: 0";
    let stated = fingerprint(&format!(
        r#"engine(#{{ num_gpu_blocks: 2_543, block_size: 16, max_model_len: 4_000, {options},
            kv_cache_groups: ["sliding_window:128", "full"] }})"#
    ));
    let memory = r#"kv_cache_memory_bytes: "1GB""#;
    let made = format!(r#"model("gpt-oss-20b", #{{ max_model_len: 4_000, in_flight_tokens: 1_000, {memory} }})"#);
    assert_eq!(fingerprint(&format!("engine(#{{ model: {made}, {options} }})")), stated);
    let line = "vllm serve openai/gpt-oss-20b --max-num-seqs 8 --max-num-batched-tokens 1k --max-model-len 4k \
                --kv-cache-memory-bytes 1g --no-async-scheduling --prefix-cache-retention-interval 0";
    assert_eq!(fingerprint(&format!(r#"vllm_args("{line}")"#)), stated);
}

#[test]
fn a_script_reads_what_is_known_of_a_model() {
    let script = scenario("engine(#{ model: m })")
        + r#"
check("seen", true, `${m.architecture} ${m.layers} ${m.max_model_len} ${m.block_size} ${m.kv_bytes_per_token} ${m.kv_cache_groups}`);
check("blocks", m.num_gpu_blocks > 1_000_000, `${m.num_gpu_blocks}`);
"#;
    let script = format!("let m = model(\"m\", #{{ gpu: \"h100\", tensor_parallel: 2 }});\n{script}");
    let folder = Folder::with(&script);
    let config = json!({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "intermediate_size": 768,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
        "vocab_size": 1_000, "max_position_embeddings": 4_096});
    std::fs::create_dir(folder.path().join("m")).expect("it is writable");
    std::fs::write(folder.path().join("m/config.json"), config.to_string()).expect("it is writable");
    let found = folder.run(&["--json"]).ended(0).json();
    assert_eq!(found["assertions"][0]["observed_text"], "Qwen3ForCausalLM 4 4096 16 1024 []");
}

#[test]
fn mistakes_are_refused_with_the_numbers() {
    for (engine, words) in [
        (r#"engine(#{ model: model("Qwen3-9B") })"#, "did you mean `Qwen3-8B`?"),
        (r#"engine(#{ model: model("llama-3.1-70b", #{ gpu: "h100" }) })"#, "131.41 GiB of weights on each of 1 GPUs"),
        (r#"engine(#{ model: model("qwen3-8b", #{ gpu: "h10" }) })"#, "did you mean"),
        (r#"engine(#{ model: model("qwen3-8b", #{ tensor_parallel: 3 }) })"#, "(32) must be divisible by"),
        (r#"engine(#{ model: model("qwen3-8b", #{ gpuu: "h100" }) })"#, "did you mean `gpu`?"),
        (
            r#"engine(#{ model: model("qwen3-8b", #{ kv_cache_memory_bytes: "1GiB" }) })"#,
            "the estimated maximum model length is 7264",
        ),
        (r#"vllm_args("vllm serve meta-llama/Llama-3.1-70B")"#, "No available memory for the cache blocks"),
    ] {
        Folder::with(&scenario(engine)).run(&[]).failed(2, &[words]);
    }
}

#[test]
fn a_table_shows_groups_weights_and_blocks() {
    let folder = Folder::new();
    let table = folder.vcr(&["inspect", "model", "gpt-oss-20b", "--gpu", "h100"]).ended(0).stdout;
    for words in
        ["openai/gpt-oss-20b", "sliding_window", "mxfp4", "24: 24 with attention, 24 with experts", "KV blocks"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    let arguments = ["inspect", "model", "Qwen/Qwen3-8B", "--kv-cache-memory-bytes", "64424509440", "--json"];
    let found = folder.vcr(&arguments).ended(0).json();
    assert_eq!((&found["num_gpu_blocks"], &found["kv_cache_groups"]), (&json!(27_306), &json!([])));
    assert_eq!(found["groups"][0]["kind"], "full_attention");
    let state = folder.vcr(&["inspect", "model", "Qwen/Qwen3.5-27B", "--json"]).ended(0).json();
    assert_eq!(
        (&state["groups"][0]["kind"], &state["kv_cache_groups"]),
        (&json!("mamba"), &json!(["mamba", "mamba", "mamba", "full"]))
    );
    let names = folder.vcr(&["inspect", "model", "--list"]).ended(0).stdout;
    assert!(names.lines().count() >= 30 && names.contains("openai/gpt-oss-120b"), "{names}");
    folder.vcr(&["inspect", "model", "Qwen/Qwen3-8B", "--gpu", "h9"]).failed(2, &["unknown `h9`: expected one of"]);
    folder.vcr(&["inspect", "model"]).failed(2, &["MODEL"]);
}
