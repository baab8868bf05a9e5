//! `per_request` in scenarios: the clients' view, and refusals.

use vcr_tests::Folder;

/// Two requests on one engine. The second one arrives while the first decodes.
fn two(latency: &str, engine: &str) -> String {
    format!(
        r#"let p = pool(#{{ engine: engine(#{{ {engine} }}), latency: {latency} }});
let load = constant(#{{ rate: "4/s", duration: "500ms", prompt_tokens: 5000, output_tokens: 41 }});
let r = run(#{{ name: "two", cluster: cluster(#{{ engines: p }}), workloads: [ load ] }});
"#
    )
}

const TIMES: &str = r#"#{ ttft: "200ms", itl: "10ms" }"#;

#[test]
fn each_request_has_its_own_times() {
    let script = two(&format!("per_request({TIMES})"), "")
        + r#"expect(r, "ttft", "min > 199.9ms"); expect(r, "ttft", "max < 200.1ms");
expect(r, "itl", "min > 9.9ms"); expect(r, "itl", "max < 10.1ms");
expect(r, "e2e", "max < 600.1ms");
"#;
    let folder = Folder::with(&script);
    let _ = folder.run(&["--out", "out"]).ended(0);
    // A step with another request's prompt would delay tokens by this much.
    let script = two(&format!("knobs({TIMES})"), "") + "expect(r, \"itl\", \"max > 100ms\");\n";
    let _ = Folder::with(&script).run(&[]).ended(0);
}

#[test]
fn spread_and_load_are_those_of_requests() {
    let latency = r#"per_request(#{ ttft: normal("200ms", "20ms"), itl: lognormal("10ms", "3ms"),
        prefill_per_token: "10us", full_load_factor: 2.0, max_num_seqs: 2 })"#;
    let script = two(latency, "")
        + r#"expect(r, "ttft", "min > 200ms"); expect(r, "itl", "avg > 10.5ms"); expect(r, "itl", "avg < 20ms");
expect(r, "itl", "max > 15ms");
"#;
    let folder = Folder::with(&script);
    let _ = folder.run(&["--out", "one"]).ended(0);
    let _ = folder.run(&["--out", "two"]).ended(0);
    let read = |out: &str| std::fs::read(folder.path().join(out).join("requests.jsonl")).expect("it was written");
    assert!(read("one") == read("two"), "equal seeds draw equal times");
}

#[test]
fn another_scheduler_and_wrong_options_are_refused() {
    for (latency, engine, said) in [
        ("per_request(#{ ttft: \"1s\", itl: \"1ms\" })", "engine_type: \"sglang\"", "only vLLM's scheduler"),
        ("per_request(#{ ttft: \"1s\" })", "", "itl"),
        (
            "per_request(#{ ttft: \"1s\", itl: \"1ms\", full_load_factor: 0.5 })",
            "",
            "invalid `full_load_factor`: expected at least 1",
        ),
    ] {
        let said_so = Folder::with(&two(latency, engine)).run(&[]);
        let stderr = said_so.stderr.clone();
        assert!(stderr.contains(said), "{latency}: {stderr}");
    }
}
