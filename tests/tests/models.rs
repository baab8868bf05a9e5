//! Models by name and by file: in scenarios, on vLLM command lines, and in tables. Unit tests of the model reader
//! compare groups, blocks and weights with vLLM's.

use serde_json::{Value, json};
use vcr_tests::{Folder, shipped_guest};

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

/// Options, a model, and a command line that names the model describe the same engine.
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
        (r#"engine(#{ model: model("Qwen3-9B") })"#, "did you mean `Qwen/Qwen3-8B`?"),
        (r#"engine(#{ model: model("llama-3.1-70b", #{ gpu: "h100" }) })"#, "131.41 GiB of weights on each of 1 GPUs"),
        (r#"engine(#{ model: model("qwen3-8b", #{ gpu: "h10" }) })"#, "did you mean"),
        (r#"engine(#{ model: model("qwen3-8b", #{ tensor_parallel: 3 }) })"#, "(32) must be divisible by"),
        (r#"engine(#{ model: model("qwen3-8b", #{ gpuu: "h100" }) })"#, "did you mean `gpu`?"),
        (
            r#"engine(#{ model: model("qwen3-8b", #{ kv_cache_memory_bytes: "1GiB" }) })"#,
            "the estimated maximum model length is 7264",
        ),
        (
            r#"engine(#{ kv_cache_memory_bytes: "4GiB" })"#,
            "`kv_cache_memory_bytes` has no effect without `num_gpu_blocks: \"auto\"`",
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
    let list = folder.vcr(&["inspect", "model", "--list", "--json"]).ended(0).json();
    assert_eq!(list, json!(names.lines().collect::<Vec<_>>()));
    folder
        .vcr(&["inspect", "model", "qwen/none"])
        .failed(2, &["unknown model `qwen/none`", "vcr inspect model --list"]);
    folder.vcr(&["inspect", "model", "Qwen/Qwen3-8B", "--gpu", "h9"]).failed(2, &["unknown `h9`: expected one of"]);
    folder.vcr(&["inspect", "model"]).failed(2, &["MODEL"]);
}

/// The median TTFT of a prompt of 8,000 tokens, the peaks in the report, and the summary.
fn priced(latency: &str) -> (f64, Value, String) {
    let script = format!(
        r#"let c = cluster(#{{ engines: pool(#{{ engine: engine(#{{ max_num_batched_tokens: 8_192 }}), latency: {latency} }}) }});
run(#{{ cluster: c, workloads: [ burst(#{{ count: 1, prompt_tokens: 8_000, output_tokens: 2 }}) ] }});
"#
    );
    let folder = Folder::with(&script);
    let report = folder.run(&["--json"]).ended(0).json()["runs"][0].clone();
    let ttft_ms = report["metrics"]["trends"]["ttft_ms"]["p50"].as_f64().expect("a time");
    (ttft_ms, report["peaks"].clone(), folder.run(&[]).ended(0).stdout)
}

#[test]
fn quantised_weights_are_priced_as_gpus_multiply_them() {
    let of = |name: &str, gpu: &str| {
        priced(&format!(r#"roofline(#{{ model: model("{name}", #{{ gpu: "{gpu}", tensor_parallel: 2 }}) }})"#))
    };
    let (plain_ms, plain, _) = of("Qwen/Qwen3-32B", "h100-sxm");
    let (fp8_ms, fp8, summary) = of("Qwen/Qwen3-32B-FP8", "h100-sxm");
    assert!((0.5..0.65).contains(&(fp8_ms / plain_ms)), "{plain_ms} ms, {fp8_ms} ms");
    let peak = |weights: &str, computed_as: &str, tflops: f64, gpu: &str| json!([{"pool": "engines", "weights": weights, "computed_as": computed_as, "peak_tflops": tflops, "gpu": gpu}]);
    assert_eq!(plain, peak("bfloat16", "bfloat16", 989.4, "h100-sxm"));
    assert_eq!(fp8, peak("fp8", "fp8", 1_978.9, "h100-sxm"));
    assert!(summary.contains("engines: fp8 weights, multiplied as fp8, at 1979 TFLOP/s of h100-sxm"), "{summary}");
    // An A100 cannot multiply fp8. Weights are converted, and a long prompt takes as long as without quantisation.
    let (plain_ms, ..) = of("Qwen/Qwen3-32B", "a100-80gb");
    let (fp8_ms, fp8, summary) = of("Qwen/Qwen3-32B-FP8", "a100-80gb");
    assert!((fp8_ms / plain_ms - 1.0).abs() < 0.02, "{plain_ms} ms, {fp8_ms} ms");
    assert_eq!(fp8, peak("fp8", "bfloat16", 312.0, "a100-80gb"));
    let converted = "engines: fp8 weights, multiplied as bfloat16, to which they are converted, at 312 TFLOP/s of";
    assert!(summary.contains(converted), "{summary}");
    let preset = r#"roofline(#{ model: "qwen3-32b", gpu: "h100-sxm", tensor_parallel: 2, weight_dtype: "nvfp4" })"#;
    assert_eq!(priced(preset).1, peak("nvfp4", "bfloat16", 989.4, "h100-sxm"));
    let coefficients = "#{ prefill_compute: 1.0, prefill_kv: 1.0, decode_compute: 1.0, decode_kv: 1.0, weights: 1.0, all_reduce: 1.0, layer_us: 1.0, request_us: 1.0, step_us: 1.0 }";
    let fitted =
        format!(r#"trained_physics(#{{ model: "llama-3.1-8b", gpu: "h100-sxm", coefficients: {coefficients} }})"#);
    let (_, fitted, summary) = priced(&fitted);
    assert_eq!(fitted[0]["fitted"], true, "{fitted}");
    assert!(summary.contains("times: roofline with fitted coefficients, as accurate as their fit"), "{summary}");
    let (_, unknown, _) = priced(r#"fixed(#{ step: "1ms" })"#);
    assert_eq!(unknown, Value::Null, "a model that knows no peak");
}

#[test]
fn engine_and_latency_model_agree_on_gpus() {
    let script = |engine: &str, latency: &str| {
        format!(
            r#"let c = cluster(#{{ engines: pool(#{{ engine: {engine}, latency: {latency} }}) }});
run(#{{ cluster: c, workloads: [ burst(#{{ count: 1, prompt_tokens: 100, output_tokens: 2 }}) ] }});
"#
        )
    };
    let roofline = |options: &str| format!(r#"roofline(#{{ model: "qwen3-8b", gpu: "h100-sxm"{options} }})"#);
    let made = |gpus: u32| format!(r#"model("Qwen/Qwen3-8B", #{{ gpu: "h100", tensor_parallel: {gpus} }})"#);
    let of_model = |gpus: u32| format!("roofline(#{{ model: {} }})", made(gpus));
    let two = r#"vllm_args("vllm serve Qwen/Qwen3-8B -tp 2")"#;
    let one = r#"vllm_args("vllm serve Qwen/Qwen3-8B")"#;
    let engine = format!("engine(#{{ model: {} }})", made(2));
    for (engine, latency, words) in [
        (
            two,
            roofline(""),
            &[
                "disagree in the number of GPUs that share each layer: 2 by `--tensor-parallel-size 2` of `vllm_args`",
                "but 1 by `roofline`, which has no `tensor_parallel`",
                "write `tensor_parallel: 2` in `roofline`",
            ][..],
        ),
        (
            one,
            roofline(", tensor_parallel: 4"),
            &[
                "1 by vLLM's default of `--tensor-parallel-size`",
                "but 4 by `tensor_parallel: 4`",
                "or `--tensor-parallel-size 4` in `vllm_args`",
            ],
        ),
        (two, of_model(1), &["but 1 by `tensor_parallel: 1` of `model(\"Qwen/Qwen3-8B\")` in `roofline`"]),
        (&engine, roofline(""), &["layer: 2 by `tensor_parallel: 2` of `model(\"Qwen/Qwen3-8B\")` in `engine`"]),
    ] {
        let folder = Folder::with(&script(engine, &latency));
        folder.run(&[]).failed(2, words);
        folder.vcr(&["check", "test.rhai"]).failed(2, words);
    }
    for (engine, latency) in [
        (two, roofline(", tensor_parallel: 2")),
        (two, of_model(2)),
        (one, roofline("")),
        (&engine, of_model(2)),
        (two, r#"fixed(#{ step: "1ms" })"#.to_owned()),
    ] {
        let _ = Folder::with(&script(engine, &latency)).run(&[]).ended(0);
    }
    if let Some(path) = shipped_guest("roofline") {
        let guest = |options: &str| {
            let config = format!(r#"#{{ model: "qwen3-8b", gpu: "h100-sxm"{options} }}"#);
            format!(r#"guest(#{{ path: "{}", config: {config} }})"#, path.display())
        };
        let words = ["layer: 2 by", "but 1 by `tensor_parallel: 1` of `guest`"];
        Folder::with(&script(two, &guest(", tensor_parallel: 1"))).run(&[]).failed(2, &words);
        let _ = Folder::with(&script(two, &guest(", tensor_parallel: 2"))).run(&[]).ended(0);
    }
    let serve = ["serve", "--vllm-args", "vllm serve Qwen/Qwen3-8B -tp 2", "--latency", &roofline("")];
    Folder::new().vcr(&serve).failed(2, &["layer: 2 by `--tensor-parallel-size 2` of `--vllm-args`"]);
}

#[test]
fn gpus_and_models_have_the_same_names_everywhere() {
    let roofline = |model: &str, gpu: &str| priced(&format!(r#"roofline(#{{ model: "{model}", gpu: "{gpu}" }})"#));
    let (ttft_ms, peaks, _) = roofline("qwen3-8b", "h100-sxm");
    for gpu in ["h100", "H100", "h100_sxm", "NVIDIA H100 80GB HBM3"] {
        let found = roofline("Qwen/Qwen3-8B", gpu);
        assert_eq!((found.0, &found.1), (ttft_ms, &peaks), "{gpu}");
        let made = priced(&format!(r#"roofline(#{{ model: model("qwen3-8b", #{{ gpu: "{gpu}" }}) }})"#));
        assert!((made.0 / ttft_ms - 1.0).abs() < 1e-3, "{gpu}: {} ms, {ttft_ms} ms", made.0);
        assert_eq!(made.1, peaks, "{gpu}");
        let line = format!(r#"vllm_args("vllm serve Qwen/Qwen3-8B", #{{ gpu: "{gpu}" }})"#);
        assert_eq!(
            fingerprint(&line),
            fingerprint(r#"vllm_args("vllm serve qwen3-8b", #{ gpu: "h100-sxm" })"#),
            "{gpu}"
        );
        let _ = Folder::new().vcr(&["inspect", "model", "Qwen/Qwen3-8B", "--gpu", gpu]).ended(0);
    }
    let listed = Folder::new().vcr(&["inspect", "model", "--list-gpus", "--json"]).ended(0);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let listed = listed.as_array().expect("rows");
    assert!(listed.len() > 30, "{}", listed.len());
    for gpu in listed {
        let name = gpu["name"].as_str().expect("a name");
        assert!(gpu["source"].as_str().is_some_and(|source| !source.is_empty()), "{name}");
        let _ = Folder::new().vcr(&["inspect", "model", "Qwen/Qwen3-0.6B", "--gpu", name]).ended(0);
    }
    let table = Folder::new().vcr(&["inspect", "model", "--list-gpus"]).ended(0).stdout;
    assert_eq!(
        table
            .lines()
            .filter(|line| line.contains("datasheet") || line.contains("brief") || line.contains("whitepaper"))
            .count(),
        listed.len()
    );
    // A name in the table of models means the model itself.
    let by_name = roofline("Qwen/Qwen3-30B-A3B-FP8", "h100");
    let made = priced(r#"roofline(#{ model: model("Qwen/Qwen3-30B-A3B-FP8"), gpu: "h100" })"#);
    assert_eq!((by_name.0, by_name.1), (made.0, made.1));
    let folder = Folder::with(
        &scenario("engine(#{})")
            .replace(r#"fixed(#{ step: "10ms" })"#, r#"roofline(#{ model: "Qwen/Qwen3-30B-A3B-FP9", gpu: "h100" })"#),
    );
    folder.run(&[]).failed(2, &["\"Qwen/Qwen3-30B-A3B-FP9\", which is not a preset"]);
}
