//! Engines of SGLang and TensorRT-LLM in scenarios: their selection, and refused settings.

use serde_json::Value;
use vcr_tests::{Folder, component, interface_of, shipped_guest};

/// Two engines of a kind, with more work than they can run at once.
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

/// Drafters follow the rules of each release. In 0.27, those with their own slots had a slot for every request that
/// may run.
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
        (r#"engine_type: "sglang", kv_eviction: "belady""#, "invalid `kv_eviction`: expected \"lru\", the only policy"),
        (r#"engine_type: "tgi""#, "tgi"),
    ] {
        Folder::with(&overload(engine)).run(&[]).failed(2, &[words]);
    }
}

/// A pool of one engine grows with a burst and shrinks after it, whether or not an observer sees its steps.
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
    let (short, full) = (folder.run(&[]).ended(0).stdout, folder.run(&["--full"]).ended(0).stdout);
    let first = format!("engines: 1 to {} engines at ", changes[0]["to"]);
    assert!(full.contains(&first) && !short.contains(&first), "{full}");
    assert!(short.contains("changes of the number of engines"), "{short}");
    let wrong = Folder::with(&script.replace("target: 4", "target: 0")).run(&[]).ended(2);
    assert!(wrong.stderr.contains("invalid `target`: expected a finite number above 0"), "{}", wrong.stderr);
}

/// HPA, KEDA and WVA react to a burst of waiting requests at different times. 40 requests arrive at once at one
/// engine that runs eight; each takes 100 steps of 10 ms.
#[test]
fn a_pool_follows_the_autoscalers_of_kubernetes() {
    let run = |autoscale: &str| {
        let script = format!(
            r#"let p = pool(#{{ engine: engine(#{{ max_num_seqs: 8 }}), latency: fixed(#{{ step: "10ms" }}),
    autoscale: autoscale(#{{ {autoscale}, max: 6 }}) }});
let peak = burst(#{{ name: "peak", count: 40, prompt_tokens: 10, output_tokens: 1000 }});
run(#{{ cluster: cluster(#{{ engines: p }}), workloads: [ peak ] }});
"#
        );
        Folder::with(&script)
    };
    let changes = |autoscale: &str| {
        let run = run(autoscale).run(&["--json"]).ended(0).json()["runs"][0].clone();
        let change = |change: &serde_json::Value| {
            let number = |key: &str| change[key].as_f64().unwrap_or_else(|| panic!("no {key} in {change}"));
            (number("at_ms"), number("from"), number("to"), number("signal"))
        };
        run["scaling"].as_array().map(|all| all.iter().map(change).collect::<Vec<_>>()).unwrap_or_default()
    };
    // 32 requests wait, and each engine runs 8, so 4 engines are needed. HPA may start up to four at first.
    let hpa = r#"policy: "hpa", metric: "vllm:num_requests_waiting", target: 8, interval: "2s", scrape: "1s""#;
    assert_eq!(changes(hpa)[0], (2000.0, 1.0, 4.0, 32.0));
    // Over a window of 2 s, the mean of two equal samples equals one sample. A tolerance of 400 % prevents any change.
    assert_eq!(changes(&format!(r#"{hpa}, window: "2s""#))[0], (2000.0, 1.0, 4.0, 32.0));
    assert!(changes(&format!("{hpa}, tolerance: 4")).is_empty());
    // Waiting and running requests are different metrics; 8 requests run.
    assert_eq!(changes(&hpa.replace("waiting", "running").replace("target: 8", "target: 2"))[0].2, 4.0);
    let keda = hpa.replace("hpa", "keda");
    assert_eq!(changes(&keda)[0], (2000.0, 1.0, 4.0, 32.0));
    // WVA starts one more engine.
    let wva = r#"policy: "wva", analysis: "1s", interval: "1s", scrape: "1s", window: "1s", startup: "2500ms""#;
    let found = changes(wva);
    assert_eq!(found[0], (1000.0, 1.0, 2.0, 2.0));
    assert_eq!(found.len(), 1, "none while one starts, and then that one has room: {found:?}");
    for (wrong, expected) in [
        (hpa.replace("requests_waiting", "requests_waitin"), "did you mean `vllm:num_requests_waiting`?"),
        (hpa.replace("target: 8", "target: 0"), "invalid `target`: expected a finite number of at least 0.001"),
        (
            hpa.replace(r#"scrape: "1s""#, r#"scrape: "0s""#),
            "invalid `scrape`: expected a whole number of milliseconds",
        ),
        (wva.replace("startup", "kv_spare_trigger: -1, startup"), "invalid `kv_spare_trigger`"),
        (hpa.replace("hpa", "hpaa"), "did you mean `hpa`?"),
        (format!("{hpa}, analysis: \"1m\""), "analysis"),
        (format!("{keda}, cooldown: \"1m\""), "`cooldown` has no effect: KEDA uses it only with `min: 0`"),
    ] {
        run(&wrong).run(&[]).failed(2, &[expected]);
    }
}

/// KEDA removes the last engine after the queue has been empty for long enough, and starts one for a request.
#[test]
fn a_pool_scales_to_no_engine_and_back() {
    let script = r#"let p = pool(#{ latency: fixed(#{ step: "10ms" }), autoscale: autoscale(#{ policy: "keda", min: 0, max: 2, target: 4,
    metric: "inference_extension_flow_control_queue_size", cooldown: "3s", polling: "1s", interval: "2s", scrape: "1s", startup: "3s" }) });
let at = |start| burst(#{ name: start, count: 3, at: start, prompt_tokens: 10, output_tokens: 10 });
let r = run(#{ cluster: cluster(#{ engines: p }), workloads: [ at.call("0s"), at.call("20500ms") ] });
expect(r, "completed", "count == 6");
expect(r, "ttft", "max > 3s");
"#;
    let run = Folder::with(script).run(&["--json"]).ended(0).json()["runs"][0].clone();
    let changes = run["scaling"].as_array().expect("a list").iter();
    let changes: Vec<_> =
        changes.map(|one| (one["at_ms"].as_f64(), one["to"].as_u64(), one["signal"].as_f64())).collect();
    assert_eq!(changes, [(Some(4000.0), Some(0), Some(0.0)), (Some(21_000.0), Some(1), Some(3.0))]);
    let blind = script.replace("inference_extension_flow_control_queue_size", "vllm:num_requests_waiting");
    Folder::with(&blind).run(&[]).failed(2, &["invalid `min`: expected at least 1, or `keda` with"]);
}

/// Two adapters share one slot: each change of adapters loads one from the host, and the first use of each loads it
/// from disk. Each request has one step for its prompt and one for a second token.
#[test]
fn adapters_cost_loads_copies_and_steps() {
    let script = |costs: &str| {
        format!(
            r#"let p = pool(#{{ engine: engine(#{{ max_loras: 1{costs} }}), latency: fixed(#{{ step: "10ms" }}) }});
let of = |adapter, start| burst(#{{ name: `${{adapter}} ${{start}}`, count: 1, at: start, prompt_tokens: 4, output_tokens: 2, adapter: adapter }});
let r = run(#{{ cluster: cluster(#{{ engines: p }}), workloads: [ of.call(1, "0s"), of.call(2, "1s"), of.call(1, "2s"), of.call(1, "3s") ] }});
expect(r, "completed", "count == 4");
"#
        )
    };
    let e2e = |costs: &str| {
        let folder = Folder::with(&script(costs));
        let json = folder.run(&["--json", "--out", "out"]).ended(0).json();
        let rows = std::fs::read_to_string(folder.path().join("out/requests.jsonl")).expect("it was written");
        let e2e = |row: &str| serde_json::from_str::<serde_json::Value>(row).expect("JSON")["e2e_ms"].as_f64();
        let times: Vec<f64> = rows.lines().filter_map(e2e).collect();
        (times, json["runs"][0]["metrics"]["counters"]["adapter_loads"].clone())
    };
    assert_eq!(e2e("").0, [20.0; 4]);
    // An adapter of 100 MB takes 55 ms from disk and 4 ms into the slot. A step with an adapter takes 2 ms more,
    // and each of the 5 tokens 1 ms more.
    let costs = r#", adapter_costs: adapter_costs(#{ size: "100MB", disk: "2GB/s", disk_latency: "5ms", host: "25GB/s",
        step: "2ms", token: "1ms", max_cpu_loras: 2 })"#;
    let (times, loads) = e2e(costs);
    assert_eq!((times, loads), (vec![88.0, 88.0, 33.0, 29.0], 2.into()));
    // By default, the host keeps as many adapters as the device has slots, so the third request loads again.
    assert_eq!(e2e(&costs.replace(", max_cpu_loras: 2", "")).0, [88.0, 88.0, 88.0, 29.0]);
    // An adapter of rank 16 has 84 MB for this model.
    let of_model = costs.replace(r#"size: "100MB""#, r#"model: "meta-llama/Llama-3.1-8B-Instruct", rank: 16"#);
    assert!((e2e(&of_model).0[0] - (88.0 - 16.1 / 2.0 - 0.64)).abs() < 0.1, "{:?}", e2e(&of_model));
    let refused = |costs: &str, expected: &str| Folder::with(&script(costs)).run(&[]).failed(2, &[expected]);
    refused(r#", adapter_costs: adapter_costs(#{ disk: "1GB/s" })"#, "expected either `size`, or `model`");
    refused(&costs.replace(r#"disk: "2GB/s", "#, ""), "`adapter_costs` needs the option `disk`");
    let script = script(costs).replace("max_loras: 1", "max_loras: 0");
    Folder::with(&script).run(&[]).failed(2, &["max_loras"]);
}

/// Sixteen adapters on four engines with four slots each. A router that knows the adapters loads each about once;
/// round robin loads them repeatedly.
#[test]
fn lora_affinity_saves_loads() {
    let loads = |router: &str| {
        let script = format!(
            r#"let p = pool(#{{ engines: 4, router: {router}, latency: fixed(#{{ step: "10ms" }}),
    engine: engine(#{{ max_loras: 4, adapter_costs: adapter_costs(#{{ size: "100MB", disk: "2GB/s" }}) }}) }});
let load = constant(#{{ rate: "20/s", count: 200, prompt_tokens: 20, output_tokens: 10, adapters: #{{ count: 16 }} }});
run(#{{ cluster: cluster(#{{ engines: p }}), workloads: [ load ] }});
"#
        );
        let run = Folder::with(&script).run(&["--json"]).ended(0).json()["runs"][0].clone();
        run["metrics"]["counters"]["adapter_loads"].as_u64().unwrap_or_else(|| panic!("no loads in {run:#}"))
    };
    let (blind, knowing) = (loads(r#""round-robin""#), loads(r#""lora-affinity""#));
    assert!(blind > 100 && knowing <= 32, "{blind} and {knowing} loads");
    assert_eq!(loads("lora_affinity(#{ weight: 2.0 })"), knowing);
}

/// Four ranks in two engines. A crash of one engine affects both of its ranks. If the ranks wait for each other,
/// all spend the same time in steps.
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

/// A token source in WebAssembly text. For each slot with wanted tokens, it accepts two drafts of that slot's
/// request, or of the request `further` slots later.
fn accepting_source(folder: &Folder, further: u32) -> String {
    let text = format!(
        r#"(module
  (import "vcr:guest/drafts@0.1.0" "accept" (func $accept (param i32 i32)))
  (memory (export "memory") 4)
  (global $free (mut i32) (i32.const 8192))
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
    (global.set $free (i32.add (local.get $at) (local.get 3)))
    (local.get $at))
  (func (export "vcr:guest/tokens@0.1.0#configure") (param i32 i32 i64) (result i32)
    (i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16))
  (func (export "vcr:guest/tokens@0.1.0#step")
    (param i32 i32 i32 i32) (param $slot i32) (param $left i32) (param i32 i32) (param $count i32) (param i32)
    (result i32)
    (local $tokens i32)
    (global.set $free (i32.const 8192))
    (block $all (loop $next
      (br_if $all (i32.eqz (local.get $left)))
      (call $accept (i32.add (i32.load (local.get $slot)) (i32.const {further})) (i32.const 2))
      (local.set $tokens (i32.add (local.get $tokens) (i32.load (local.get $count))))
      (local.set $slot (i32.add (local.get $slot) (i32.const 4)))
      (local.set $count (i32.add (local.get $count) (i32.const 4)))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br $next)))
    (i32.store8 (i32.const 16) (i32.const 0))
    (i32.store (i32.const 20) (i32.const 1024))
    (i32.store (i32.const 24) (local.get $tokens))
    (i32.const 16)))"#
    );
    folder.write("accepting.wasm", component(&interface_of("token-source"), &text));
    "tokens: guest(#{ path: \"accepting.wasm\" })".to_owned()
}

/// Consecutive requests on an engine with three draft tokens.
fn drafted(pool: &str) -> String {
    format!(
        r#"let e = engine(#{{ drafter: "eagle", num_speculative_tokens: 3, acceptance_rates: [1.0] }});
let p = pool(#{{ engines: 1, engine: e, latency: fixed(#{{ step: "10ms" }}), {pool} }});
let work = burst(#{{ name: "work", count: 4, over: "4s", prompt_tokens: 20, output_tokens: 10 }});
run(#{{ cluster: cluster(#{{ engines: p }}), workloads: [ work ] }});
"#
    )
}

#[test]
fn a_guest_decides_how_many_drafts_are_accepted() {
    let folder = Folder::new();
    let steps = |pool: &str| {
        folder.write("test.rhai", drafted(pool));
        let run = folder.run(&["--json"]).ended(0).json()["runs"][0].clone();
        assert_eq!(run["metrics"]["counters"]["output_tokens"], 40);
        run["metrics"]["counters"]["steps"].as_u64().expect("steps are counted")
    };
    assert_eq!(steps(""), 4 * 6, "a token of the prompt's step, and two of each other one");
    assert_eq!(steps(&accepting_source(&folder, 0)), 4 * 4, "three of each other one");
    let _ = folder.vcr(&["guest", "check", "accepting.wasm"]).ended(0);
    folder.write("test.rhai", drafted(&accepting_source(&folder, 1)));
    folder.run(&[]).failed(3, &["it accepted drafts of the request in slot 1, where none has started and not ended"]);
    let checked = folder.vcr(&["guest", "check", "accepting.wasm"]).ended(1);
    assert!(checked.stdout.contains("it accepted drafts of the request in slot"), "{}", checked.stdout);
}

#[test]
fn json_tokens_accepts_as_many_drafts_as_its_config_says() {
    let Some(path) = shipped_guest("json-tokens") else { return };
    let steps = |more: &str| {
        let config = format!("#{{ byte_tokens: bytes, words: [30, 30]{more} }}");
        let source = format!("tokens: guest(#{{ path: {path:?}, config: {config} }})");
        let script = format!("let bytes = [];\nfor byte in 0..256 {{ bytes.push(byte) }}\n{}", drafted(&source));
        let run = Folder::with(&script).run(&["--json"]).ended(0).json()["runs"][0].clone();
        run["metrics"]["counters"]["steps"].as_u64().expect("steps are counted")
    };
    assert_eq!((steps(""), steps(", accepted_drafts: 2")), (4 * 6, 4 * 4));
}
