//! Command lines of `vllm serve` as engines of scenarios, and in tables. The parser's own tests compare settings
//! with vLLM, using command lines that vLLM has parsed.

use serde_json::{Value, json};
use vcr_tests::Folder;

fn scenario(engine: &str, latency: &str) -> String {
    format!(
        r#"let e = {engine};
let c = cluster(#{{ engines: pool(#{{ engine: e, latency: {latency} }}) }});
let r = run(#{{ cluster: c, workloads: [ burst(#{{ count: 40, prompt_tokens: 300, output_tokens: 20 }}) ] }});
check("seen", true, `${{e.model}} ${{e.tensor_parallel_size}} ${{e.data_parallel_size}} ${{e.expert_parallel}}`);
"#
    )
}

const FIXED: &str = r#"fixed(#{ step: "10ms" })"#;

fn run(engine: &str, latency: &str) -> Value {
    Folder::with(&scenario(engine, latency)).run(&["--json"]).ended(0).json()
}

/// A command line describes the same engine as the options.
#[test]
fn a_command_line_is_an_engine() {
    let by_line = run(
        r#"vllm_args("VLLM_X=1 vllm serve org/model -tp 2 --max-num-seqs 4 --max-num-batched-tokens 1k --no-async-scheduling \
            --num-gpu-blocks-override 200 --block-size 32 --max-model-len 4096 --watermark 0.05 --port 1")"#,
        FIXED,
    );
    let by_options = run(
        "engine(#{ max_num_seqs: 4, max_num_batched_tokens: 1_000, num_gpu_blocks: 200, block_size: 32, max_model_len: 4_096,
            watermark: 0.05 })",
        FIXED,
    );
    assert_eq!(by_line["runs"][0]["fingerprint"], by_options["runs"][0]["fingerprint"]);
    assert!(by_line["runs"][0]["fingerprint"].is_string());
    assert_eq!(by_line["assertions"][0]["observed_text"], "org/model 2 1 false");
    // Options override arguments. The pool has the command line's ranks.
    let ranks = run(
        r#"vllm_args("vllm serve m --max-num-seqs 1 -dp 2 -ep --no-async-scheduling", #{ max_num_seqs: 4, num_gpu_blocks: 2_000 })"#,
        FIXED,
    );
    let engines = ranks["runs"][0]["engines"].as_array().expect("a list of engines");
    assert_eq!(engines.len(), 2, "{engines:?}");
    assert_eq!(ranks["assertions"][0]["observed_text"], "m 1 2 true");
}

/// Blocks fill the remaining memory, or the memory that the command line states.
#[test]
fn blocks_follow_from_the_memory() {
    let latency = r#"roofline(#{ model: "llama-3.1-8b", gpu: "h100-sxm", gpu_memory: "80GiB" })"#;
    for arguments in ["--gpu-memory-utilization 0.5", "--kv-cache-memory-bytes 4g"] {
        let by_line = run(&format!(r#"vllm_args("m --no-async-scheduling {arguments}")"#), latency);
        let option = arguments
            .trim_start_matches("--")
            .replace('-', "_")
            .replace(" 4g", " 4_000_000_000")
            .replacen(' ', ": ", 1);
        let by_options =
            run(&format!(r#"engine(#{{ num_gpu_blocks: "auto", max_num_seqs: 1_024, {option} }})"#), latency);
        assert_eq!(by_line["runs"][0]["fingerprint"], by_options["runs"][0]["fingerprint"], "{arguments}");
    }
    let without = scenario(r#"vllm_args("m")"#, FIXED);
    Folder::with(&without).run(&[]).failed(2, &["needs a latency model with the model", "else state the number"]);
}

#[test]
fn mistakes_have_their_place_and_the_nearest_name() {
    for (engine, words) in [
        (
            r#"vllm_args("m --max-num-sequences 3")"#,
            "1:9: unknown argument `--max-num-sequences`: did you mean `--max-num-seqs`?",
        ),
        (r#"vllm_args("m --scheduler-cls a.B")"#, "`--scheduler-cls a.B` is not simulated"),
        (r#"vllm_args("m", #{ gpu: "h900" })"#, "invalid GPU `h900`: expected one of"),
        (r#"vllm_args("m", #{ gpuu: "b200" })"#, "did you mean `gpu`?"),
        (
            r#"vllm_args("m --max-num-active-seqs 3", #{ vllm_minor: "0.30" })"#,
            "vLLM 0.30 has no `--max-num-active-seqs`",
        ),
        (r#"vllm_args("m --max-model-len 1M --num-gpu-blocks-override 10")"#, "needs 65536 KV blocks"),
    ] {
        Folder::with(&scenario(engine, FIXED)).run(&[]).failed(2, &[words]);
    }
}

#[test]
fn a_table_says_what_each_argument_becomes() {
    let folder = Folder::new();
    let line = "vllm serve m --max-num-seqs 5 --enforce-eager --port 80";
    let table = folder.vcr(&["inspect", "vllm-args", line]).ended(0).stdout;
    for row in [
        "max_num_seqs: 5",
        "times of steps come from the latency model",
        "no effect",
        "`vllm serve` on h100-sxm in 0.33",
    ] {
        assert!(table.contains(row), "{row}: {table}");
    }
    // The separate words of a shell make the same command line.
    let words = [
        "inspect",
        "vllm-args",
        "--json",
        "--",
        "vllm",
        "serve",
        "m",
        "--max-num-seqs",
        "5",
        "--enforce-eager",
        "--port",
        "80",
    ];
    let found = folder.vcr(&words).ended(0).json();
    assert_eq!(found, folder.vcr(&["inspect", "vllm-args", "--json", line]).ended(0).json());
    assert_eq!(found["engine"]["max_num_seqs"], 5);
    assert_eq!(found["engine"].get("num_blocks"), None, "it is not known");
    let effects: Vec<&Value> =
        found["arguments"].as_array().expect("rows").iter().map(|row| &row["effect"]).take(4).collect();
    assert_eq!(json!(effects), json!(["setting", "setting", "latency model", "no effect"]));
    folder.vcr(&["inspect", "vllm-args", "m --seeed 3"]).failed(2, &["did you mean `--seed`?"]);
}

/// `vcr serve` accepts command lines, too. The options' own tests check that the settings reach a live engine.
#[test]
fn servers_take_it_too() {
    let folder = Folder::new();
    folder.vcr(&["serve", "--vllm-args", "m --scheduler-cls a.B"]).failed(2, &["--vllm-args", "is not simulated"]);
    folder.vcr(&["serve", "--vllm-args-gpu", "b200"]).failed(2, &["--vllm-args"]);
    folder.vcr(&["play", "--vllm-args", "m", "--vllm-args-gpu", "x"]).failed(2, &["invalid GPU `x`"]);
}
