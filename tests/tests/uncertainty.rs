//! `vcr run --uncertainty`: intervals and confidence of runs with a fitted model.

use vcr_tests::Folder;

/// A model file: 10 ms per step, 5 % uncertain, and a delay of 8 ms, 2 ms uncertain. It was fitted to batches of up
/// to four decodes, and to prompts of up to 200 tokens.
const MODEL: &str = r#"{
  "format": "vcr.fitted/1",
  "step": {
    "coefficients": { "step": 1e7 },
    "range": { "min_decode_tokens": 1, "max_decode_tokens": 4, "max_decode_context_tokens": 4000,
               "max_prefill_tokens": 200, "max_prefill_requests": 4, "max_prefill_context_tokens": 0 }
  },
  "overheads": { "arrival_ns": 8000000 },
  "uncertainty": { "parameters": ["step", "overheads.arrival"], "covariance": [[2.5e11, 0.0], [0.0, 4e12]] }
}"#;

fn folder(script: &str) -> Folder {
    let head = r#"let c = cluster(#{ engines: pool(#{ latency: fitted(#{ path: "model.json" }) }) });
let w = burst(#{ count: 4, over: "4s", prompt_tokens: param("prompt", 100), output_tokens: 10 });
let r = run(#{ cluster: c, workloads: [w] });
"#;
    let folder = Folder::with(&format!("{head}{script}"));
    folder.write("model.json", MODEL);
    folder
}

#[test]
fn intervals_are_printed_and_written() {
    let folder = folder("");
    let said = folder.run(&["--uncertainty", "200", "--out", "out", "--files", "report"]).ended(0);
    for words in ["90 % intervals of 200 draws of the latency model's coefficients:", "    ttft", "    throughput: "] {
        assert!(said.stdout.contains(words), "{words} is not in:\n{}", said.stdout);
    }
    let text = std::fs::read_to_string(folder.path().join("out/report.json")).expect("it was written");
    let report: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let uncertainty = &report["runs"][0]["uncertainty"];
    assert_eq!((&uncertainty["draws"], &uncertainty["confidence"]), (&200.into(), &0.9.into()));
    // 18 ms, plus or minus 1.64 times the root of 0.5^2 + 2^2.
    let ttft = |end: &str| uncertainty["metrics"]["ttft_ms"]["p50"][end].as_f64().expect("a number");
    assert!((13.9..15.3).contains(&ttft("low")) && (20.7..22.1).contains(&ttft("high")), "{uncertainty:#}");
}

#[test]
fn draws_change_neither_the_run_nor_with_the_threads() {
    let folder = folder("");
    let fingerprint = |args: &[&str]| folder.run(&[&["--json"], args].concat()).ended(0).json()["fingerprint"].clone();
    assert_eq!(fingerprint(&[]), fingerprint(&["--uncertainty", "5"]));
    let report = |threads| folder.run(&["--json", "--uncertainty", "40", "--threads", threads]).ended(0).stdout;
    assert_eq!(report("1"), report("3"));
}

#[test]
fn a_failed_assertion_says_its_share_and_how_to_repeat_it() {
    let folder =
        folder("expect(r, \"ttft\", \"p50 < 19ms\");\nexpect(r, \"ttft\", \"p50 < 19ms\", #{ confidence: 0.95 });\n");
    let said = folder.run(&["--uncertainty", "100"]).ended(1);
    assert!(said.stdout.contains("% of 100 draws"), "{}", said.stdout);
    assert!(said.stdout.contains("1 of 2 assertions failed"), "{}", said.stdout);
    assert!(said.stderr.contains("--uncertainty 100"), "{}", said.stderr);
    folder
        .run(&[])
        .failed(2, &["test.rhai:5:1", "`confidence` asks for the draws of the run `run`", "--uncertainty 200"]);
    folder.run(&["--uncertainty", "10001"]).failed(2, &["--uncertainty"]);
}

#[test]
fn steps_outside_of_the_fitted_range_are_warned_of() {
    let folder = folder("");
    let inside = folder.run(&[]).ended(0);
    let text = "of the simulated step time is outside the range that the latency model was fitted on";
    assert!(inside.stdout.contains(&format!("  0.0 % {text}")), "{}", inside.stdout);
    assert!(!inside.stderr.contains("warning"), "{}", inside.stderr);
    // The step of the prompt, one of ten, is outside the range.
    let outside = folder.run(&["-e", "prompt=300"]).ended(0);
    assert!(outside.stderr.contains(&format!("warning: run `run`: 10.0 % {text}")), "{}", outside.stderr);
    let share = folder.run(&["-e", "prompt=300", "--json"]).ended(0).json()["runs"][0]["outside_fitted_range"].clone();
    assert_eq!(share, 0.1);
}

#[test]
fn a_run_that_cannot_be_drawn_is_reported() {
    let folder = Folder::with(
        r#"let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
run(#{ cluster: c, workloads: [burst(#{ count: 1, prompt_tokens: 10, output_tokens: 1 })] });
"#,
    );
    let said = folder.run(&["--uncertainty", "3"]).ended(0);
    assert!(said.stderr.contains("no latency model of its pools has uncertain"), "{}", said.stderr);
    assert!(!said.stdout.contains("intervals"), "{}", said.stdout);
}
