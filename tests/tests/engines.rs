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
fn an_engine_that_reserves_all_blocks_never_preempts_and_others_do() {
    assert!(preemptions(&counters(VLLM)) > 0);
    assert!(preemptions(&counters(SGLANG)) > 0);
    assert_eq!(preemptions(&counters(TRTLLM)), 0);
}

/// Drafters have the rules of each release: those with a slot of their own had it of all requests that may run.
#[test]
fn drafters_run_by_the_rules_of_every_release() {
    let small = "max_num_seqs: 64, max_num_batched_tokens: 512";
    let steps = |counters: &Value| counters["steps"].as_u64().expect("steps are counted");
    let undrafted = steps(&counters(&format!("{VLLM}, {small}")));
    for (drafter, differs) in [("eagle", false), ("draft_model", true)] {
        let of = |minor: &str| {
            counters(&format!(
                r#"{VLLM}, {small}, vllm_minor: "{minor}", drafter: "{drafter}", num_speculative_tokens: 3,
                acceptance_rates: [0.7, 0.4, 0.2]"#
            ))
        };
        let all = ["0.27", "0.28", "0.29", "0.30", "0.31"].map(of);
        for counters in &all {
            assert_eq!(counters["completed"], 200, "{drafter}: {counters}");
            assert!(steps(counters) < undrafted, "{drafter}: {counters}, {undrafted}");
        }
        assert_eq!(steps(&all[0]) != steps(&all[1]), differs, "{drafter}: {} {}", all[0], all[1]);
    }
}

#[test]
fn options_of_another_engine_are_refused_by_name() {
    for (engine, words) in [
        (r#"engine_type: "sglang", num_gpu_blocks: 100"#, "num_gpu_blocks"),
        (r#"engine_type: "trtllm", vllm_minor: "0.33""#, "vllm_minor"),
        (
            r#"engine_type: "sglang", page_size: 64, chunked_prefill_size: 100"#,
            "expected a multiple of `page_size` (64)",
        ),
        (r#"engine_type: "tgi""#, "tgi"),
    ] {
        Folder::with(&overload(engine)).run(&[]).failed(2, &[words]);
    }
}

/// A pool of one engine grows with a burst and shrinks after it, whether or not
/// its steps are watched.
#[test]
fn a_pool_follows_its_load() {
    let script = r#"let scaled = autoscale(#{ policy: "target_requests", target: 4, interval: "200ms", max: 5, startup: "100ms",
    scale_down_delay_ticks: 1 });
let p = pool(#{ latency: fixed(#{ step: "10ms" }), autoscale: scaled });
let peak = burst(#{ name: "peak", count: 60, over: "2s", prompt_tokens: 100, output_tokens: 100 });
let tail = burst(#{ name: "tail", count: 10, at: "3s", over: "5s", prompt_tokens: 100, output_tokens: 20 });
run(#{ name: "scaled", cluster: cluster(#{ engines: p }), workloads: [ peak, tail ] });
"#;
    let folder = Folder::with(script);
    let run = folder.run(&["--json"]).ended(0).json()["runs"][0].clone();
    let changes = run["scaling"].as_array().expect("a list");
    assert!(changes.iter().any(|change| change["to"] == 5), "{changes:?}");
    assert_eq!(changes.last().expect("there are changes")["to"], 1);
    assert_eq!(run["engines"].as_array().expect("a list").len(), 5);
    let (seconds, ms) = (&run["pools"][0]["worker_seconds"], &run["duration_ms"]);
    let (seconds, ms) = (seconds.as_f64().expect("a number"), ms.as_f64().expect("a number"));
    assert!(ms / 1000.0 < seconds && seconds < 5.0 * ms / 1000.0, "{seconds} s of {ms} ms");
    let watched = folder.run(&["--json", "--out", "out"]).ended(0).json()["runs"][0].clone();
    assert_eq!(watched["fingerprint"], run["fingerprint"]);
    let wrong = Folder::with(&script.replace("target: 4", "target: 0")).run(&[]).ended(2);
    assert!(wrong.stderr.contains("invalid `target`: expected a finite number above 0"), "{}", wrong.stderr);
}

/// Four ranks in two engines: one breaks with both of its ranks, and where they
/// wait for each other all are in steps for as long.
#[test]
fn engines_of_a_pool_may_have_ranks() {
    let script = |options: &str| {
        format!(
            r#"let p = pool(#{{ engines: 2, {options}, latency: fixed(#{{ step: "10ms" }}) }});
let peak = burst(#{{ count: 21, over: "1s", prompt_tokens: 100, output_tokens: 30 }});
run(#{{ cluster: cluster(#{{ engines: p }}), workloads: [ peak ], faults: [ crash(#{{ at: "500ms", engine: 1 }}) ] }});
"#
        )
    };
    let folder = Folder::with(&script("data_parallel_size: 2, data_parallel_barrier: true"));
    let run = folder.run(&["--json", "--out", "out"]).ended(0).json()["runs"][0].clone();
    let engines = run["engines"].as_array().expect("a list");
    let of = |key: &str| engines.iter().map(|engine| engine[key].as_u64().expect("a number")).collect::<Vec<_>>();
    assert_eq!((of("engine"), of("rank"), of("crashes")), (vec![0, 0, 1, 1], vec![0, 1, 0, 1], vec![0, 0, 1, 1]));
    let share = |engine: usize, key: &str| engines[engine][key].as_f64().expect("a share");
    let in_steps = |engine| share(engine, "utilisation") + share(engine, "waiting");
    assert!((in_steps(0) - in_steps(1)).abs() < 1e-9 && (in_steps(2) - in_steps(3)).abs() < 1e-9, "{engines:?}");
    let out = |name: &str| std::fs::read_to_string(folder.path().join("out").join(name)).expect("an output");
    assert!(out("requests.jsonl").contains(r#""engine":"engines 1.1""#));
    assert!(out("trace.json").contains("engines 0.1"));
    let unwatched = folder.run(&["--json"]).ended(0).json()["runs"][0].clone();
    assert_eq!(unwatched["fingerprint"], run["fingerprint"]);
    let free = Folder::with(&script("data_parallel_size: 2")).run(&["--json"]).ended(0).json()["runs"][0].clone();
    assert!(free["engines"][3].get("waiting").is_none() && free["engines"][3]["rank"] == 1);
    Folder::with(&script("data_parallel_size: 0"))
        .run(&[])
        .failed(2, &["invalid `data_parallel_size`: expected at least 1"]);
    Folder::with(&script("data_parallel_barrier: true")).run(&[]).failed(2, &["needs a `data_parallel_size` above 1"]);
}
