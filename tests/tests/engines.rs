//! Engines of SGLang and TensorRT-LLM in scenarios: that scripts choose them, and
//! what a script may not say of them.

use serde_json::Value;
use vcr_tests::Folder;

/// Two engines of a kind, with more work than they can hold at once.
fn overload(engine: &str) -> String {
    format!(
        r#"let p = pool(#{{ engines: 2, engine: engine(#{{ {engine} }}), latency: polynomial(#{{}}) }});
let work = poisson(#{{ name: "chat", rate: "40/s", count: 200, shared_prefix_tokens: 256, prefix_groups: 4,
    prompt_tokens: uniform(20, 600), output_tokens: uniform(5, 200) }});
run(#{{ name: "overload", seed: 3, cluster: cluster(#{{ engines: p }}), workloads: [ work ] }});
"#
    )
}

const SGLANG: &str = r#"engine_type: "sglang", page_size: 16, num_pages: 512, schedule_policy: "lpm",
    schedule_conservativeness: 0.1"#;
const TRTLLM: &str = r#"engine_type: "trtllm", num_gpu_blocks: 257"#;
const VLLM: &str = r#"engine_type: "vllm", block_size: 32, num_gpu_blocks: 257"#;

fn counters(engine: &str) -> Value {
    Folder::with(&overload(engine)).run(&["--json"]).ended(0).json()["runs"][0]["metrics"]["counters"].clone()
}

fn preemptions(counters: &Value) -> u64 {
    counters.get("preemptions").and_then(Value::as_u64).unwrap_or(0)
}

#[test]
fn every_kind_of_engine_ends_what_it_was_given() {
    let mut steps = Vec::new();
    for engine in [VLLM, SGLANG, TRTLLM] {
        let counters = counters(engine);
        assert_eq!(counters["completed"], 200, "{engine}: {counters}");
        steps.push(counters["steps"].clone());
    }
    assert!(steps[0] != steps[1] && steps[1] != steps[2] && steps[0] != steps[2], "{steps:?}");
}

#[test]
fn who_promises_blocks_preempts_nobody_and_others_do() {
    assert!(preemptions(&counters(VLLM)) > 0);
    assert!(preemptions(&counters(SGLANG)) > 0);
    assert_eq!(preemptions(&counters(TRTLLM)), 0);
}

#[test]
fn options_of_another_engine_are_refused_by_name() {
    for (engine, words) in [
        (r#"engine_type: "sglang", num_gpu_blocks: 100"#, "num_gpu_blocks"),
        (r#"engine_type: "trtllm", vllm_line: "0.33""#, "vllm_line"),
        (
            r#"engine_type: "sglang", page_size: 64, chunked_prefill_size: 100"#,
            "must be a multiple of `page_size` (64)",
        ),
        (r#"engine_type: "tgi""#, "tgi"),
    ] {
        Folder::with(&overload(engine)).run(&[]).failed(2, &[words]);
    }
}
