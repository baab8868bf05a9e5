//! SGLang's own serving benchmark.

use serde_json::Value;
use vcr_tests::{client, ended, root};

use crate::serve;

#[test]
fn the_request_functions_of_bench_serving_measure_the_server() {
    let Some(client) = client("sglang") else { return };
    let serve = serve(6000, &["--latency", r#"fixed(#{ prefill: "30ms", decode: "4ms" })"#]);
    let program = root().join("tests/frontends/clients/sglang_bench.py");
    let url = format!("http://{}", serve.address());
    let said = ended(client.python(&[program.to_str().expect("a path is a text"), &url]));
    let measured: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = measured.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["generate", "generate_ids", "completions", "chat"]);
    for one in &measured {
        assert_eq!((&one["success"], &one["output_len"]), (&true.into(), &12.into()), "{one}");
        assert!(one["ttft"].as_f64().is_some_and(|ttft| ttft >= 0.03), "{one}");
        assert!(one["gaps"].as_u64().is_some_and(|gaps| gaps >= 5), "{one}");
    }
    assert_eq!(measured[1]["prompt_len"], 40);
}
