//! Scheduling policies from the outside: their purpose, their failures, and guests that decide like their native
//! twins.

use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Said, component, interface_of, releases, shipped_guest};

/// Scenario with one run of `workloads` on two engines under `policy`, which is in line 1.
fn under(policy: &str, workloads: &str) -> String {
    format!(
        r#"let policy = {policy};
let c = cluster(#{{ engines: pool(#{{
    engines: 2,
    engine: engine(#{{ policy: policy, num_gpu_blocks: 900, max_num_seqs: 24, max_num_batched_tokens: 1024 }}),
    latency: roofline(#{{ model: "llama-3.1-8b", gpu: "a100-80gb" }}),
}}) }});
run(#{{ name: "ranked", cluster: c, workloads: [ {workloads} ] }});
"#
    )
}

/// A few long prompts among many short ones, too many to run at once.
const MIXED: &str = r#"
    poisson(#{ name: "short", rate: "30/s", count: 400, prompt_tokens: uniform(20, 200), output_tokens: 30, tenant: 1 }),
    poisson(#{ name: "long", rate: "4/s", count: 50, prompt_tokens: uniform(3000, 6000), output_tokens: 30, tenant: 2 })"#;

/// One tenant sends everything at once, and one sends occasionally.
const FLOOD: &str = r#"
    burst(#{ name: "flood", count: 600, prompt_tokens: uniform(300, 600), output_tokens: uniform(20, 100), tenant: 1 }),
    constant(#{ name: "light", rate: "2/s", count: 20, prompt_tokens: 300, output_tokens: 40, tenant: 2 })"#;

#[track_caller]
fn report(policy: &str, workloads: &str) -> Value {
    Folder::with(&under(policy, workloads)).run(&["--json"]).ended(0).json()["runs"][0].clone()
}

/// Statistic of the time to the first token, in milliseconds.
fn ttft_ms(report: &Value, workload: Option<&str>, statistic: &str) -> f64 {
    let metrics = match workload {
        Some(name) => &report["workloads"][name],
        None => &report["metrics"],
    };
    let value = &metrics["trends"]["ttft_ms"][statistic];
    value.as_f64().unwrap_or_else(|| panic!("no {statistic} of {workload:?} in {metrics}"))
}

#[test]
fn the_shortest_prompt_first_lowers_the_mean_time_to_the_first_token() {
    let fcfs = report("\"fcfs\"", MIXED);
    let shortest = report("\"shortest-prompt-first\"", MIXED);
    let (before, after) = (ttft_ms(&fcfs, None, "mean"), ttft_ms(&shortest, None, "mean"));
    assert!(after < 0.7 * before, "fcfs {before} ms, shortest prompt first {after} ms");
    // The long requests wait longer, and ageing limits how much longer.
    let longest = |report: &Value| ttft_ms(report, Some("long"), "max");
    let aged = report("shortest_prompt_first(#{ aging_tokens_per_s: 400 })", MIXED);
    assert!(longest(&shortest) > longest(&fcfs));
    assert!(longest(&aged) < longest(&shortest), "aged {}, not {}", longest(&aged), longest(&shortest));
}

#[test]
fn a_fair_share_keeps_a_light_tenant_from_waiting_behind_a_flood() {
    let light = |policy: &str| ttft_ms(&report(policy, FLOOD), Some("light"), "p90");
    let (fcfs, fair) = (light("\"fcfs\""), light("\"fair-share\""));
    assert!(fair < 0.25 * fcfs, "fcfs {fcfs} ms, fair share {fair} ms");
}

#[test]
fn a_tenant_of_more_weight_is_served_sooner() {
    let two = r#"
        burst(#{ name: "a", count: 200, prompt_tokens: 400, output_tokens: 60, tenant: 1 }),
        burst(#{ name: "b", count: 200, prompt_tokens: 400, output_tokens: 60, tenant: 2 })"#;
    let median = |report: &Value, name| ttft_ms(report, Some(name), "p50");
    let even = report("fair_share(#{})", two);
    let (a, b) = (median(&even, "a"), median(&even, "b"));
    assert!((0.9..1.1).contains(&(a / b)), "{a} ms and {b} ms");
    let uneven = report(r#"fair_share(#{ weights: #{ "2": 4.0 } })"#, two);
    let (a, b) = (median(&uneven, "a"), median(&uneven, "b"));
    assert!(b < 0.7 * a, "{b} ms is not much sooner than {a} ms");
}

#[test]
fn a_guest_decides_as_its_native_twin() {
    let cases = [
        ("shortest-prompt-first", "shortest_prompt_first", "#{ aging_tokens_per_s: 100, max_chunk_tokens: 512 }"),
        ("fair-share", "fair_share", r#"#{ weights: #{ "2": 2.5 }, default_weight: 0.5 }"#),
    ];
    for (name, function, config) in cases {
        let Some(path) = shipped_guest(name) else { return };
        let native = report(&format!("{function}({config})"), MIXED);
        let guest = report(&format!("guest(#{{ path: \"{}\", config: {config} }})", path.display()), MIXED);
        assert_eq!(guest, native, "the whole report, with the fingerprint over every step: {name}");
        assert_ne!(native["fingerprint"], report("\"fcfs\"", MIXED)["fingerprint"], "{name} decides as fcfs");
    }
}

#[test]
fn an_engine_that_comes_back_has_a_policy_that_knows_nothing() {
    let scenario = under("\"fair-share\"", FLOOD).replace(
        "run(#{ name: \"ranked\",",
        "run(#{ name: \"ranked\", retries: 3, faults: [ crash(#{ at: \"2s\", engine: 0, restart_after: \"1s\" }) ],",
    );
    let folder = Folder::with(&scenario);
    let first = folder.run(&["--json"]).ended(0);
    let counters = &first.json()["runs"][0]["metrics"]["counters"];
    assert_eq!(counters["completed"], 620, "{counters}");
    assert_eq!(folder.run(&["--json"]).ended(0).stdout, first.stdout, "again the same bytes");
}

#[test]
fn steps_that_are_watched_are_those_that_are_skipped() {
    let folder = Folder::with(&under("\"fair-share\"", MIXED));
    let skipped = folder.run(&["--json"]).ended(0).json();
    let watched = folder.run(&["--json", "--out", "out"]).ended(0).json();
    assert_eq!(skipped["fingerprint"], watched["fingerprint"]);
}

#[test]
fn what_is_no_policy_is_refused_with_its_place() {
    let refused = |policy: &str, needles: &[&str]| {
        Folder::with(&under(policy, MIXED)).run(&["--json"]).failed(2, needles);
    };
    refused(
        "\"fair-shares\"",
        &["test.rhai:4:", "invalid `policy`: expected one of \"fcfs\", ", "did you mean `fair-share`"],
    );
    refused("7", &["test.rhai:4:", "got the number 7"]);
    refused("fixed(#{ step: \"1ms\" })", &["invalid `policy`: expected one of", "got a latency model"]);
    refused("fair_share(#{ weights: #{ \"a\": 1.0 } })", &["test.rhai:1:", "by tenant, a whole number, not `a`"]);
    refused("fair_share(#{ weights: #{ \"1\": 0.0 } })", &["test.rhai:1:", "invalid weight of tenant 1"]);
    refused("shortest_prompt_first(#{ aging_token_per_s: 3 })", &["test.rhai:1:", "did you mean `aging_tokens_per_s`"]);
    refused("shortest_prompt_first(#{ max_chunk_tokens: 0 })", &["test.rhai:1:", "expected at least 1, got 0"]);
    let Some(path) = shipped_guest("roofline") else { return };
    let config = r#"config: #{ model: "llama-3.1-8b", gpu: "h100-sxm" }"#;
    let latency = format!("guest(#{{ path: \"{}\", {config} }})", path.display());
    refused(
        &latency,
        &["invalid `policy`: expected a scheduler policy (world `scheduler-policy`), but the guest `roofline` is"],
    );
}

/// A policy whose answer has a slot without a rank.
fn ragged_policy() -> Vec<u8> {
    let text = r#"(module
      (memory (export "memory") 1)
      (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8192))
      (func (export "vcr:guest/scheduling@0.1.0#configure") (param i32 i32 i64) (result i32)
        (i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16))
      (func (export "vcr:guest/scheduling@0.1.0#decide")
        (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
        (i32.store8 (i32.const 32) (i32.const 0))
        (i32.store (i32.const 36) (i32.const 4096))
        (i32.store (i32.const 40) (i32.const 1))
        (i32.const 32)))"#;
    component(&interface_of("scheduler-policy"), text)
}

#[test]
fn a_policy_that_fails_fails_the_run_and_is_named() {
    let folder = Folder::with(&under("guest(#{ path: \"ragged.wasm\" })", MIXED));
    folder.write("ragged.wasm", ragged_policy());
    let expected = [
        "run `ranked`: scheduler policy `ragged` failed: in `decide`: it answered 1 entries of `slot` and 0 of `rank` in `admission`",
        "of pool `engines`, before step 0, at ",
    ];
    folder.run(&["--json"]).failed(3, &expected);
    // The verdict of an earlier run is removed when a later run fails.
    folder.write("fine.rhai", under("\"fcfs\"", MIXED));
    let _ = folder.vcr(&["run", "fine.rhai", "--out", "out"]).ended(0);
    let mut command = std::process::Command::new(vcr_tests::vcr());
    let _ = command.args(["run", "test.rhai", "--out", "out"]).current_dir(folder.path());
    let _ = Said::of(command.env("GITHUB_STEP_SUMMARY", folder.path().join("steps.md"))).ended(3);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("it was written");
    let junit = read("out/junit.xml");
    assert!(junit.contains("errors=\"1\"") && junit.contains(expected[0]), "{junit}");
    assert!(read("steps.md").starts_with("### ❌ test.rhai: failed with an error\n"), "{}", read("steps.md"));
    assert_eq!(read("steps.md").lines().next(), read("out/summary.md").lines().next());
    let report: serde_json::Value = serde_json::from_str(&read("out/report.json")).expect("JSON");
    assert_eq!((&report["passed"], &report["partial"]["stopped_by"]), (&false.into(), &"error".into()));
    assert!(!folder.path().join("out/requests.jsonl").exists(), "requests of the earlier run");
    // With several files, each has its own result.
    let said = folder.vcr(&["run", "fine.rhai", "test.rhai", "--json"]).ended(3).json();
    assert!(said[1]["error"].as_str().is_some_and(|error| error.contains(expected[0])), "{said:#}");
}

/// Behind real frontends: while one request has the only running slot, a long prompt arrives and then a short one,
/// which is answered first.
#[test]
fn a_guest_ranks_the_requests_of_a_real_frontend() {
    let Some(guest) = shipped_guest("shortest-prompt-first") else { return };
    let guest = guest.to_str().expect("a path in text");
    for version in releases() {
        eprintln!("vLLM {version}");
        let Some(mut frontend) = Frontend::start(version, &FrontendOptions::default()) else { return };
        let sizes = ["--max-model-len", "4096", "--max-num-seqs", "1", "--decode-step-time", "5ms"];
        let play = Play::start(&frontend.handshake_address(), &[&sizes[..], &["--scheduling-policy", guest]].concat());
        frontend.wait_until_it_serves();
        assert!(play.log().contains("guest shortest-prompt-first: a scheduler policy, sha256 "), "{}", play.log());

        let of_tokens = |prompt_tokens, max_tokens: u32| json!({ "prompt": vec![7; prompt_tokens], "max_tokens": max_tokens, "ignore_eos": true });
        let mut seated = frontend.stream("/v1/completions", &of_tokens(10, 4000));
        assert!(seated.next().is_some(), "it runs");
        let (answered, order) = mpsc::channel();
        thread::scope(|scope| {
            for (name, prompt_tokens, waiting) in [("long", 2000, 1.0), ("short", 5, 2.0)] {
                let (frontend, answered, body) = (&frontend, answered.clone(), of_tokens(prompt_tokens, 40));
                scope.spawn(move || {
                    let answer = frontend.post("/v1/completions", &body);
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    answered.send(name).expect("somebody waits for it");
                });
                frontend.wait_for_metric("vllm:num_requests_waiting", waiting);
            }
            // A disconnect frees the slot.
            drop(seated);
        });
        drop(answered);
        assert_eq!(order.iter().collect::<Vec<_>>(), ["short", "long"]);
    }
}
