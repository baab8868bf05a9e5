//! Numbers in reports: percentiles, goodput, cut-off runs, the origin of a report, and whether a
//! model fits on its GPUs.

use serde_json::Value;
use vcr_tests::Folder;

/// Ten consecutive requests on an engine that runs one at a time. Each takes three steps of 10 ms, so the last
/// answer begins after 280 ms.
const TEN: &str = r#"let e = engine(#{ max_num_seqs: 1, num_gpu_blocks: 64 });
let c = cluster(#{ engines: pool(#{ engine: e, latency: fixed(#{ step: "10ms" }) }) });
let w = [burst(#{ name: "a", count: 5, prompt_tokens: 16, output_tokens: 3 }),
         burst(#{ name: "b", count: 5, prompt_tokens: 16, output_tokens: 3, at: "1us" })];
let r = run(#{ cluster: c, workloads: w });
"#;

fn checks(script: &str) -> Vec<Value> {
    let outcome = Folder::with(&format!("{TEN}{script}")).run(&["--json"]).ended(0).json();
    outcome["assertions"].as_array().expect("checks").clone()
}

#[test]
fn any_percentile_is_exact() {
    // Answers begin after 10, 40, ..., 280 ms.
    let seen = checks(
        r#"expect(r, "ttft", "p0 == 10ms");
expect(r, "ttft", "p(10) == 40ms");
expect(r, "ttft", "p94.4 < 260ms");
expect(r, "ttft", "p94.5 > 270ms");
expect(r, "ttft", "p99.9 < 281ms");
expect(r, "ttft{workload:a}", "p100 == 130ms");
expect(r, "itl", "p33.3 == 10ms");
expect(r, "itl{workload:b}", "p99.99 == 10ms");
expect(r, "step", "p12.5 == 10ms");
check("a value", value(r, "ttft", "p10") == 40.0);"#,
    );
    assert_eq!(seen.len(), 10);
    assert!(seen.iter().all(|check| check["passed"] == true), "{seen:#?}");
}

#[test]
fn goodput_counts_requests_that_kept_every_limit() {
    let seen = checks(
        r#"expect(r, "goodput{ttft<100ms}", "count == 3");
expect(r, "goodput{ttft<=100ms}", "count == 4");
expect(r, "goodput{ttft<100ms}", "ratio == 30%");
expect(r, "goodput{ttft<=100ms}", "rate > 13.3");
expect(r, "goodput{ttft<=100ms,tpot<10ms}", "count == 0");
expect(r, "goodput{workload:a,e2e<=61ms,tpot<=10ms}", "ratio == 40%");
expect(r, "goodput{queue<1s}", "count == 10");
check("a value", value(r, "goodput{ttft<100ms}", "count") == 3.0);"#,
    );
    assert_eq!(seen.len(), 8);
    assert!(seen.iter().all(|check| check["passed"] == true), "{seen:#?}");
    assert_eq!(seen[2]["observed_text"], "30.00%");
}

#[test]
fn a_run_that_is_cut_off_tells_what_it_generated() {
    let script = r#"let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: "10ms" }) }) });
run(#{ cluster: c, max_time: "995ms", workloads: [burst(#{ count: 4, prompt_tokens: 16, output_tokens: 1_000 })] });"#;
    let folder = Folder::with(script);
    let run = folder.run(&["--json"]).ended(0).json()["runs"][0].clone();
    // 99 steps are complete, and half of the step in flight is within the run.
    assert_eq!(run["engines"][0]["utilisation"], 1.0);
    let (counters, rates) = (&run["metrics"]["counters"], &run["metrics"]["rates_per_s"]);
    assert_eq!((&counters["output_tokens"], &counters["generated_tokens"]), (&0.into(), &396.into()));
    assert_eq!(rates["generated_tokens"].as_f64().map(f64::round), Some(398.0));
    assert_eq!(run["workloads"]["burst"]["counters"]["generated_tokens"], 396);
    let summary = folder.run(&[]).ended(0).stdout;
    for part in ["throughput: 398.0 output tokens/s generated", "goodput: 0.00 requests/s, 0.0 output", " 100.0% "] {
        assert!(summary.contains(part), "`{part}` is not in:\n{summary}");
    }
}

#[test]
fn a_report_names_what_it_was_made_from() {
    let folder = Folder::with(
        r#"let e = engine(#{ vllm_minor: "0.30" });
let c = cluster(#{ engines: pool(#{ engine: e, latency: fixed(#{ step: "10ms" }) }) });
run(#{ cluster: c, workloads: [trace(#{ path: "t.jsonl" })] });"#,
    );
    folder.write("t.jsonl", "{\"timestamp\":0,\"input_length\":5,\"output_length\":2,\"hash_ids\":[1]}\n");
    let outcome = folder.run(&["--json"]).ended(0).json();
    assert_eq!(outcome["vcr_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(outcome["scenario_sha256"].as_str().map(str::len), Some(64));
    assert_eq!(outcome["vllm_rules"], serde_json::json!(["0.30"]));
    let inputs = outcome["inputs"].as_array().expect("inputs");
    assert_eq!(inputs.len(), 1, "{inputs:?}");
    assert_eq!((&inputs[0]["kind"], &inputs[0]["path"]), (&"trace".into(), &"t.jsonl".into()));
    // Another input has another digest, and the script's digest is unchanged.
    folder.write("t.jsonl", "{\"timestamp\":0,\"input_length\":6,\"output_length\":2,\"hash_ids\":[1]}\n");
    let other = folder.run(&["--json"]).ended(0).json();
    assert_ne!(other["inputs"][0]["sha256"], inputs[0]["sha256"]);
    assert_eq!(other["scenario_sha256"], outcome["scenario_sha256"]);
}

/// A run with `model` and these engine options.
fn on(model: &str, engine: &str) -> Folder {
    Folder::with(&format!(
        r#"let p = pool(#{{ engine: engine(#{{ {engine} }}), latency: roofline(#{{ {model} }}) }});
let w = [burst(#{{ count: 1, prompt_tokens: 16, output_tokens: 2 }})];
run(#{{ cluster: cluster(#{{ engines: p }}), workloads: w }});"#
    ))
}

#[test]
fn a_model_larger_than_its_gpus_is_refused_with_the_numbers() {
    let on_l4 = r#"model: "llama-3.1-70b", gpu: "l4""#;
    on(on_l4, "").run(&[]).failed(
        2,
        &["the weights of llama-3.1-70b take 131.4 GiB on each GPU, but `l4` has 22.0 GiB; raise `tensor_parallel`"],
    );
    let _ = on(&format!("{on_l4}, tensor_parallel: 8"), "").run(&[]).ended(0);
    let _ = on(&format!("{on_l4}, gpu_memory: \"200GiB\""), "").run(&[]).ended(0);
    // The model fits on the GPU, but not into the share that the engine may use.
    let tight = r#"model: "llama-3.1-8b", gpu: "l4""#;
    on(tight, "gpu_memory_utilization: 0.6").run(&[]).failed(
        2,
        &["the weights of llama-3.1-8b take 15.0 GiB", "22.0 GiB x 0.6 of `gpu_memory_utilization` = 13.2 GiB"],
    );
    on(tight, "gpu_memory_utilization: 1.5").run(&[]).failed(2, &["expected above 0 and at most 1, got 1.5"]);
}

#[test]
fn blocks_are_worked_out_from_the_memory() {
    let model = r#"model: "llama-3.1-8b", gpu: "h100-sxm", gpu_memory: "80GiB""#;
    let blocks = |engine: &str| {
        let folder = on(model, engine);
        let _ = folder.run(&["-q", "--out", "out"]).ended(0);
        let steps = std::fs::read_to_string(folder.path().join("out/steps.jsonl")).expect("a log");
        let first: Value = serde_json::from_str(steps.lines().next().expect("a line")).expect("JSON");
        let settings = first["settings"].clone();
        settings["num_blocks"].as_u64().or(settings["num_gpu_blocks"].as_u64()).unwrap_or_else(|| panic!("{settings}"))
    };
    // 40 GiB minus 8,029,995,008 weights of 2 bytes, in blocks of 2 MiB.
    let half = blocks(r#"num_gpu_blocks: "auto", gpu_memory_utilization: 0.5"#);
    assert_eq!(half, 12_822);
    let less = blocks(r#"num_gpu_blocks: "auto", gpu_memory_utilization: 0.5, activation_bytes: "2GiB""#);
    assert_eq!(less, half - 1_024);
    let usual = blocks(r#"num_gpu_blocks: "auto""#);
    assert!((30_000..30_100).contains(&usual), "{usual}");
    on(model, r#"num_gpu_blocks: "many""#).run(&[]).failed(2, &["invalid `num_gpu_blocks`: expected a whole number"]);
    let fixed = r#"let e = engine(#{ num_gpu_blocks: "auto" });
pool(#{ engine: e, latency: fixed(#{ step: "1ms" }) });"#;
    Folder::with(fixed).run(&[]).failed(2, &["needs a latency model with the model and the memory of the GPU"]);
}
