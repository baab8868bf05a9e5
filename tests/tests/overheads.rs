//! Overheads outside of steps in scenarios: the option `overheads`, and its effect on files.

use vcr_tests::Folder;

/// One request with 100 prompt and 4 output tokens, in steps of 10 ms.
fn single(engine: &str) -> String {
    format!(
        r#"let p = pool(#{{ engine: engine(#{{ {engine} }}), latency: fixed(#{{ step: "10ms" }}) }});
let one = burst(#{{ count: 1, prompt_tokens: 100, output_tokens: 4 }});
let r = run(#{{ name: "one", cluster: cluster(#{{ engines: p }}), workloads: [ one ] }});
"#
    )
}

const OVERHEADS: &str =
    r#"overheads: #{ arrival: "8ms", per_prompt_token: "2.5us", first_token: "1ms", output: "0.5ms" }"#;

#[test]
fn clients_wait_for_what_is_no_step() {
    let script = single(OVERHEADS)
        + r#"expect(r, "queue", "max < 1ns");
expect(r, "prefill", "max < 10.001ms");
expect(r, "itl", "min > 8.999ms");
expect(r, "goodput{ttft<19.8ms}", "count == 1");
"#;
    let folder = Folder::with(&script);
    let _ = folder.run(&["--out", "out"]).ended(0);
    let text = std::fs::read_to_string(folder.path().join("out/requests.jsonl")).expect("it was written");
    let row: serde_json::Value = serde_json::from_str(text.trim()).expect("one line");
    let times = ["arrival_ms", "queued_ms", "scheduled_ms", "first_token_ms", "last_token_ms", "end_ms", "ttft_ms"];
    assert_eq!(
        times.map(|key| row[key].as_f64().unwrap_or(f64::NAN)),
        [0.0, 8.25, 8.25, 19.75, 48.75, 48.75, 19.75],
        "{row}"
    );
    let trace = std::fs::read_to_string(folder.path().join("out/trace.json")).expect("it was written");
    assert!(trace.contains("\"arrival\""), "{trace}");
}

/// All bytes are the same as without the option, including files.
#[test]
fn none_is_nothing() {
    let folder = Folder::with(&single("overheads: #{}"));
    folder.write("plain.rhai", single(""));
    let [zero, plain] = ["test.rhai", "plain.rhai"].map(|script| {
        let _ = folder.vcr(&["run", script, "--out", script.trim_end_matches(".rhai")]).ended(0);
        let read = |name| std::fs::read(folder.path().join(script.trim_end_matches(".rhai")).join(name));
        ["requests.jsonl", "steps.jsonl", "trace.json"].map(|name| read(name).expect("it was written"))
    });
    assert!(zero == plain);
}

#[test]
fn what_is_no_overhead_is_refused_with_its_place() {
    for (overheads, words) in [
        (
            "overheads: 5",
            "invalid `overheads`: expected a map such as #{ arrival: \"8ms\", output: \"1ms\" }, got the number 5",
        ),
        ("overheads: #{ arrival: 5 }", "test.rhai:1:49: invalid `arrival`: expected a duration such as \"250ms\""),
        ("overheads: #{ output: \"-1ms\" }", "`-1ms` is negative or too large"),
        ("overheads: #{ arival: \"5ms\" }", "`overheads` has no option `arival`"),
    ] {
        Folder::with(&single(overheads)).run(&[]).failed(2, &[words]);
    }
}
