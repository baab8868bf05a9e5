//! Routers, failure injectors and token sources in scenarios: their effects on a cluster, which loses no request.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use vcr_tests::{Folder, component, interface_of, shipped_guest};

/// Four engines with small caches, and requests of sixteen kinds. Requests of one kind share a prefix of a thousand
/// tokens.
fn shared_prefixes(router: &str) -> String {
    format!(
        r#"let small = engine(#{{ num_gpu_blocks: 700 }});
let p = pool(#{{ engines: 4, engine: small, latency: polynomial(#{{}}), router: {router} }});
let work = poisson(#{{ name: "chat", rate: "12/s", count: 300, shared_prefix_tokens: 1024, prefix_groups: 16,
    prompt_tokens: uniform(20, 200), output_tokens: uniform(5, 40) }});
run(#{{ name: "shared", seed: 3, cluster: cluster(#{{ engines: p }}), workloads: [ work ] }});
"#
    )
}

/// More requests than two small engines can serve, with two priorities. An engine crashes during the run.
fn overload(router: &str) -> String {
    format!(
        r#"let small = engine(#{{ num_gpu_blocks: 300, max_num_seqs: 4 }});
let p = pool(#{{ engines: 2, engine: small, latency: fixed(#{{ step: "20ms" }}), router: {router} }});
let work = |name, priority| burst(#{{ name: name, over: "2s", count: 60, priority: priority,
    shared_prefix_tokens: 64, prefix_groups: 4, prompt_tokens: 100, output_tokens: uniform(10, 40) }});
run(#{{ name: "overload", seed: 5, retries: 1, cluster: cluster(#{{ engines: p }}),
    workloads: [ work.call("urgent", 0), work.call("batch", 2) ],
    faults: [ crash(#{{ at: "500ms", engine: 1, restart_after: "200ms" }}) ] }});
"#
    )
}

const LIMITS: &str = "#{ max_waiting: 8, load_factor: 1.5 }";

fn first_run(script: &str) -> Value {
    Folder::with(script).run(&["--json"]).ended(0).json()["runs"][0].clone()
}

fn guest_at(path: &Path, config: &str) -> String {
    format!("guest(#{{ path: \"{}\", config: {config} }})", path.display())
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

/// Fails unless each request that arrived has ended in exactly one way.
#[track_caller]
fn assert_conserved(metrics: &Value) {
    let counters = &metrics["counters"];
    let of = |name: &str| counters.get(name).map_or(0, count);
    assert_eq!(of("completed") + of("rejected") + of("failed") + of("shed"), of("requests"), "{counters}");
}

#[test]
fn affinity_finds_more_prefixes_than_turns_do() {
    let hits = |router: &str| {
        let run = first_run(&shared_prefixes(router));
        assert_conserved(&run["metrics"]);
        assert_eq!(run["metrics"]["counters"]["completed"], 300);
        assert_eq!(run["metrics"]["counters"].get("shed"), None, "nobody is refused without a limit");
        run["metrics"]["gauges"]["prefix_hit_ratio"].as_f64().expect("a share")
    };
    let (in_turn, affine) = (hits("\"round-robin\""), hits("prefix_affinity(#{})"));
    assert!(affine > in_turn + 0.1, "{affine} against {in_turn}");
}

#[test]
fn overload_sheds_the_less_urgent_first_and_loses_nothing() {
    let run = first_run(&overload(&format!("prefix_affinity({LIMITS})")));
    assert_conserved(&run["metrics"]);
    let shed = |workload: &str| {
        let metrics = &run["workloads"][workload];
        assert_conserved(metrics);
        metrics["counters"].get("shed").map_or(0, count)
    };
    let (urgent, batch) = (shed("urgent"), shed("batch"));
    assert!(batch > urgent + 10, "{batch} of the batch, {urgent} of the urgent");
    assert_eq!(count(&run["metrics"]["counters"]["shed"]), urgent + batch);

    let text = Folder::with(&overload(&format!("prefix_affinity({LIMITS})"))).run(&[]).ended(0).stdout;
    assert!(text.contains(&format!(", {} shed", urgent + batch)), "{text}");
    let rows = Folder::with(&overload(&format!("prefix_affinity({LIMITS})")));
    let _ = rows.run(&["--quiet", "--out", "out"]).ended(0);
    let requests = std::fs::read_to_string(rows.path().join("out/requests.jsonl")).expect("it was written");
    assert_eq!(requests.matches(r#""status":"shed""#).count() as u64, urgent + batch);
}

#[test]
fn shed_requests_are_a_metric_for_assertions_even_where_there_are_none() {
    let assertions = |script: String, condition: &str| {
        let script =
            script.replace("run(#{ name", "let r = run(#{ name") + "expect(r, \"shed\", \"" + condition + "\");\n";
        Folder::with(&script).run(&["--quiet"]).code
    };
    assert_eq!(assertions(overload(&format!("prefix_affinity({LIMITS})")), "count > 0"), 0);
    assert_eq!(assertions(overload("\"least-loaded\""), "count == 0"), 0);
    assert_eq!(assertions(overload("\"least-loaded\""), "count > 0"), 1);
}

#[test]
fn the_guest_routes_as_its_native_twin_does() {
    let Some(path) = shipped_guest("prefix-affinity") else { return };
    for (scenario, config) in [
        (shared_prefixes as fn(&str) -> String, "#{}"),
        (overload, LIMITS),
        (overload, "#{ max_waiting: 3, priority_factor: 0.7, prefix_blocks: 1, request_tokens: 50.0 }"),
    ] {
        let native = first_run(&scenario(&format!("prefix_affinity({config})")));
        let guest = first_run(&scenario(&guest_at(&path, config)));
        assert_eq!(guest["metrics"], native["metrics"], "{config}");
        assert_eq!(guest, native, "the whole report, with the fingerprint over every step: {config}");
    }
}

/// A burst, then fewer requests, for a pool that `policy` scales.
fn scaled(policy: &str) -> String {
    format!(
        r#"let scaled = autoscale(#{{ policy: {policy}, interval: "200ms", max: 5, startup: "100ms" }});
let p = pool(#{{ latency: fixed(#{{ step: "10ms" }}), autoscale: scaled }});
let peak = burst(#{{ name: "peak", count: 60, over: "2s", prompt_tokens: 100, output_tokens: 100 }});
let tail = burst(#{{ name: "tail", count: 10, at: "3s", over: "5s", prompt_tokens: 100, output_tokens: 20 }});
run(#{{ name: "scaled", cluster: cluster(#{{ engines: p }}), workloads: [ peak, tail ] }});
"#
    )
}

#[test]
fn the_guest_scales_as_its_native_twin_does() {
    let Some(path) = shipped_guest("target-load") else { return };
    for (metric, target) in [("requests", "4"), ("prefill_tokens", "30.5")] {
        let native = format!("\"target_{metric}\", target: {target}, scale_down_delay_ticks: 2");
        let config = format!("#{{ metric: \"{metric}\", target: {target}, scale_down_delay_ticks: 2 }}");
        let native = first_run(&scaled(&native));
        assert!(native["scaling"].as_array().is_some_and(|changes| !changes.is_empty()), "{}", native["scaling"]);
        assert_eq!(first_run(&scaled(&guest_at(&path, &config))), native, "{metric}");
    }
}

#[test]
fn an_autoscaler_that_fails_ends_the_run_or_gives_way() {
    let wit = interface_of("autoscaler");
    let text = r#"(module (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "vcr:guest/scaling@0.1.0#configure") (param i32 i32 i64) (result i32)
            (i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16))
        (func (export "vcr:guest/scaling@0.1.0#decide") (param i32) (result i32)
            (i32.store8 (i32.const 32) (i32.const 0)) (i32.store (i32.const 36) (i32.const -1)) (i32.const 32)))"#;
    let run = |policy: &str| {
        let folder = Folder::with(&scaled(policy));
        folder.write("huge.wasm", component(&wit, text));
        folder.run(&["--json"])
    };
    run(r#"guest(#{ path: "huge.wasm" })"#).failed(
        3,
        &[
            "pool `engines`",
            "autoscaler `huge` failed: in `decide`: it asks for 4294967295 engines, but at most 1000000",
        ],
    );
    let fallback = run(r#"guest(#{ path: "huge.wasm", fallback: "target_requests" }), target: 4"#).ended(0).json();
    let native = first_run(&scaled("\"target_requests\", target: 4"));
    assert_eq!(fallback["runs"][0]["fingerprint"], native["fingerprint"]);
    assert_eq!(fallback["runs"][0]["scaling"], native["scaling"]);
    for (policy, expected) in [
        (r#"guest(#{ path: "huge.wasm", fallback: "target_requests" })"#, "`autoscale` needs the option `target`"),
        (r#"guest(#{ path: "huge.wasm" }), target: 4"#, "`target` is for a policy that is built in"),
        (r#""target_request", target: 4"#, "did you mean `target_requests`"),
        (r#"guest(#{ path: "huge.wasm", fallback: 3 })"#, "a guest whose `fallback` is \"target_requests\""),
    ] {
        run(policy).failed(2, &[expected]);
    }
}

#[test]
fn guests_in_a_split_cluster_do_not_depend_on_threads() {
    let (Some(affinity), Some(chaos)) = (shipped_guest("prefix-affinity"), shipped_guest("chaos")) else { return };
    let rules = r#"#{ rules: [
        #{ "match": #{ request_id: "chat" }, after_tokens: 3, probability: 0.1, action: "fail_request" },
        #{ "match": #{}, after_tokens: 5, every: 9, action: #{ stall: #{ ms: 30 } } },
        #{ at_ms: 900, action: #{ crash: #{ restart_after_ms: 100 } } } ] }"#;
    let (router, failures) = (guest_at(&affinity, "#{ prefix_blocks: 2 }"), guest_at(&chaos, rules));
    let script = format!(
        r#"let side = |n| pool(#{{ engines: n, engine: engine(#{{ num_gpu_blocks: 900 }}), latency: polynomial(#{{}}),
    router: {router}, failures: {failures} }});
let split = cluster(#{{ prefill: side.call(2), decode: side.call(3),
    link: link(#{{ bandwidth: "2GB/s", kv_bytes_per_token: "128KiB" }}) }});
let work = poisson(#{{ name: "chat", rate: "20/s", count: 60, turns: uniform(1, 3), shared_prefix_tokens: 128,
    prefix_groups: 3, prompt_tokens: uniform(20, 200), output_tokens: uniform(5, 40) }});
let runs = [];
for seed in 1..5 {{ runs.push(#{{ name: "split", seed: seed, retries: 2, cluster: split, workloads: [ work ] }}) }}
run_all(runs);
"#
    );
    let folder = Folder::with(&script);
    let said = |threads: &str| folder.run(&["--json", "--threads", threads]).ended(0);
    let one = said("1");
    assert_eq!(said("4").stdout, one.stdout);
    for run in one.json()["runs"].as_array().expect("it lists runs") {
        assert_conserved(&run["metrics"]);
        assert!(run["metrics"]["failures"]["a failure was injected"].as_u64() > Some(0), "{}", run["metrics"]);
        let crashes = run["engines"].as_array().expect("a list").iter().map(|engine| count(&engine["crashes"]));
        let crashes: Vec<u64> = crashes.collect();
        assert!(crashes.iter().all(|times| *times <= 1) && crashes.iter().sum::<u64>() > 1, "{crashes:?}");
    }
}

/// A scenario with one engine, ten requests, and a chaos guest with these rules.
fn chaos(path: &Path, rules: &str) -> String {
    let failures = guest_at(path, &format!("#{{ rules: [ {rules} ] }}"));
    format!(
        r#"let p = pool(#{{ latency: fixed(#{{ step: "10ms" }}), failures: {failures} }});
let work = burst(#{{ name: "work", count: 10, over: "100ms", prompt_tokens: 50, output_tokens: 20 }});
run(#{{ name: "chaos", cluster: cluster(#{{ engines: p }}), workloads: [ work ] }});
"#
    )
}

/// The first run of a chaos scenario.
fn with_chaos(path: &Path, rules: &str) -> Value {
    first_run(&chaos(path, rules))
}

#[test]
fn chaos_goes_wrong_as_scripted() {
    let Some(path) = shipped_guest("chaos") else { return };
    let plain = with_chaos(&path, "");
    let plain_ms = plain["duration_ms"].as_f64().expect("a time");
    assert_eq!(plain["metrics"]["counters"]["completed"], 10);

    let failed =
        with_chaos(&path, r#"#{ "match": #{ request_id: "work-3-" }, after_tokens: 4, action: "fail_request" }"#);
    assert_eq!(failed["metrics"]["failures"]["a failure was injected"], 1);
    assert_eq!(failed["metrics"]["counters"]["wasted_tokens"], 4);

    let burst = r#"#{ "match": #{}, at_ms: 45, until_ms: 75, action: "fail_request" }"#;
    let burst = with_chaos(&path, burst);
    let lost = count(&burst["metrics"]["failures"]["a failure was injected"]);
    assert!((5..=8).contains(&lost), "those that were there in the window, and none that came later: {lost}");
    assert_eq!(count(&burst["metrics"]["counters"]["completed"]), 10 - lost);

    let stall = with_chaos(
        &path,
        r#"#{ "match": #{ request_id: "work-0-" }, after_tokens: 5, action: #{ stall: #{ ms: 700 } } }"#,
    );
    assert_eq!(stall["metrics"]["counters"]["stalls"], 1);
    assert_eq!(stall["metrics"]["counters"]["completed"], 10);
    let longest_ms = stall["metrics"]["trends"]["itl_ms"]["max"].as_f64().expect("a time");
    assert!((710.0..720.0).contains(&longest_ms), "a step and the stall: {longest_ms}");
    assert!(stall["duration_ms"].as_f64() > Some(plain_ms + 600.0));

    let crash = with_chaos(&path, r#"#{ at_ms: 60, action: #{ crash: #{ restart_after_ms: 40 } } }"#);
    assert_eq!(crash["engines"][0]["crashes"], 1);
    assert!(crash["metrics"]["failures"]["the engine crashed"].as_u64() > Some(0));
    assert!(crash["metrics"]["counters"]["completed"].as_u64() > Some(0), "later ones find it up again");

    let dropped = with_chaos(&path, r#"#{ "match": #{}, action: "drop_message" }"#);
    assert_eq!(dropped["metrics"]["counters"]["ignored_faults"], 10, "there is no wire to lose anything on");
    let said = Folder::with(&chaos(&path, r#"#{ "match": #{}, action: "drop_message" }"#)).run(&[]).ended(0);
    assert!(said.stdout.contains("10 actions of failure injectors had no effect"), "{}", said.stdout);
    assert_eq!(dropped["metrics"]["trends"], plain["metrics"]["trends"]);
}

#[test]
fn a_token_source_ends_outputs_and_its_words_are_in_the_cache() {
    let Some(path) = shipped_guest("json-tokens") else { return };
    let script = |tokens: &str| {
        format!(
            r#"let bytes = [];
for byte in 0..256 {{ bytes.push(byte) }}
let p = pool(#{{ engines: 2, latency: fixed(#{{ step: "10ms" }}), {tokens} }});
let work = burst(#{{ name: "work", count: 20, turns: 2, prompt_tokens: uniform(40, 90), output_tokens: 2000 }});
run(#{{ name: "words", cluster: cluster(#{{ engines: p }}), workloads: [ work ] }});
"#
        )
    };
    let source = guest_at(&path, "#{ vocabulary: #{}, byte_tokens: bytes, words: [3, 8] }");
    let run = first_run(&script(&format!("tokens: {source}, eos_token: 999")));
    assert_conserved(&run["metrics"]);
    let counters = &run["metrics"]["counters"];
    assert_eq!(counters["completed"], 40);
    let mean = count(&counters["output_tokens"]) / 40;
    assert!((10..80).contains(&mean), "some words of some letters each, and not 2000: {mean}");
    assert!(count(&counters["cached_tokens"]) > 200, "second turns find the first, answers included: {counters}");
    assert_eq!(run, first_run(&script(&format!("tokens: {source}, eos_token: 999"))));
}

/// A router in WebAssembly text, whose `route` has this body.
fn router_of_text(folder: &Folder, route: &str) -> String {
    let text = format!(
        r#"(module
  (memory (export "memory") 4)
  (global $free (mut i32) (i32.const 8192))
  (data (i32.const 512) "out of ideas")
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
    (global.set $free (i32.add (local.get $at) (local.get 3)))
    (local.get $at))
  (func (export "vcr:guest/routing@0.1.0#configure") (param i32 i32 i64) (result i32)
    (i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16))
  (func (export "vcr:guest/routing@0.1.0#route") (param $call i32) (result i32)
    (global.set $free (i32.const 8192))
    {route}))"#
    );
    folder.write("router.wasm", component(&interface_of("router"), &text));
    "guest(#{ path: \"router.wasm\" })".to_owned()
}

/// Code that answers with the engine of this computed number.
fn answer(worker: &str) -> String {
    answer_case("(i32.const 0)", worker)
}

/// Code that answers with a case, 0 for an engine and 1 for a refusal, and an engine.
fn answer_case(case: &str, worker: &str) -> String {
    format!(
        "(i32.store8 (i32.const 32) (i32.const 0)) (i32.store8 (i32.const 36) {case})
        (i32.store (i32.const 40) {worker}) (i32.const 32)"
    )
}

#[test]
fn hostile_routers_fail_the_run_and_are_named_with_pool_and_time() {
    let number = "(i32.wrap_i64 (i64.load offset=16 (local.get $call)))";
    // After the crash, the router refuses every request, even those that it has routed before.
    let refuses_late = answer_case("(i64.ge_u (i64.load (local.get $call)) (i64.const 500000000))", "(i32.const 1)");
    for (body, expected) in [
        (answer("(i32.const 2)"), "it chose the engine 2 for request 0: expected one of 0, 1"),
        (answer("(i32.const 1)"), "it chose the engine 1 for request"),
        (refuses_late, ", which has been with an engine before"),
        ("(loop $again (br $again)) (unreachable)".to_owned(), "it looped forever or worked too long"),
        ("(unreachable)".to_owned(), "it panicked"),
        (
            "(i32.store8 (i32.const 32) (i32.const 1)) (i32.store (i32.const 36) (i32.const 0))
             (i32.store (i32.const 40) (i32.const 200000)) (i32.const 32)"
                .to_owned(),
            "its answer is larger than the 65536 bytes",
        ),
        (
            "(i32.store8 (i32.const 32) (i32.const 1)) (i32.store (i32.const 36) (i32.const 512))
             (i32.store (i32.const 40) (i32.const 12)) (i32.const 32)"
                .to_owned(),
            "in `route`: out of ideas",
        ),
        (answer(number), "it chose the engine 2 for request 2: expected one of 0, 1"),
    ] {
        let folder = Folder::new();
        let router = router_of_text(&folder, &body);
        folder.write("test.rhai", overload(&router));
        let place = "in front of pool `engines`, at ";
        folder.run(&[]).failed(3, &["run `overload`: router `router` failed: in `route`: ", expected, place]);
    }
}

#[test]
fn what_is_no_router_no_injector_and_no_source_is_refused_by_name() {
    let folder = Folder::new();
    let router = router_of_text(&folder, &answer("(i32.const 0)"));
    let refused = |options: &str, needles: &[&str]| {
        let mut script = String::new();
        let _ = writeln!(script, "pool(#{{ latency: fixed(#{{ step: \"1ms\" }}), {options} }});");
        folder.write("test.rhai", script);
        folder.run(&[]).failed(2, needles);
    };
    refused("router: 5", &["invalid `router`: expected \"round-robin\"", "sticky(#{ ... }) or a guest, got"]);
    refused("router: \"prefix-afinity\"", &["did you mean `prefix-affinity`"]);
    refused(&format!("latency_: {router}"), &["has no option `latency_`"]);
    refused(
        &format!("failures: {router}"),
        &[
            "invalid `failures`: expected a failure injector (world `failure-injector`), but the guest `router` is a router",
        ],
    );
    refused(
        "tokens: \"words\"",
        &["invalid `tokens`: expected a token source such as guest(#{ path: \"guest.wasm\" })"],
    );
    refused("eos_token: 3", &["`eos_token` needs `tokens`"]);
    refused("router: prefix_affinity(#{ load_factor: 0.5 })", &["invalid `load_factor`: expected 1 to 1e6, got 0.5"]);
    refused("router: prefix_affinity(#{ max_queue: \"1s\" })", &["needs `prefill_tokens_per_s`"]);
}

/// Conversations whose turns find their past only on the engine of the previous turn. An engine crashes if `faults`
/// says so.
fn conversations(router: &str, faults: &str) -> Value {
    first_run(&format!(
        r#"let p = pool(#{{ engines: 4, engine: engine(#{{ num_gpu_blocks: 4_000 }}), latency: fixed(#{{ step: "10ms" }}),
    router: {router} }});
let work = poisson(#{{ name: "chat", rate: "4/s", count: 60, turns: 5, think_time: "1s",
    prompt_tokens: 160, output_tokens: 16 }});
run(#{{ seed: 3, retries: 3, cluster: cluster(#{{ engines: p }}), workloads: [ work ], faults: [ {faults} ] }});
"#
    ))
}

fn gauge(run: &Value, name: &str) -> f64 {
    run["metrics"]["gauges"][name].as_f64().expect("a gauge")
}

fn moved(run: &Value) -> u64 {
    run["metrics"]["counters"].get("moved_sessions").map_or(0, count)
}

/// With every router, all turns but the first find their past. A crash moves only the sessions of its engine.
#[test]
fn sessions_stay_with_their_engine() {
    let in_turn = gauge(&conversations("\"round-robin\"", ""), "prefix_hit_ratio");
    let crash = r#"crash(#{ at: "8s", engine: 1, restart_after: "20s" })"#;
    for router in [
        "sticky(#{})",
        r#"sticky(#{ router: "round-robin", ttl: "1m" })"#,
        r#"sticky(#{ router: "kv-router" })"#,
        r#"sticky(#{ router: kv_router(#{ event_lag: "5ms", replicas: 2 }) })"#,
        "\"session-hash\"",
    ] {
        let run = conversations(router, "");
        assert_conserved(&run["metrics"]);
        assert_eq!(moved(&run), 0, "{router}");
        let hits = gauge(&run, "prefix_hit_ratio");
        assert!(hits > in_turn + 0.2, "{router}: {hits} against {in_turn}");
        let run = conversations(router, crash);
        assert_conserved(&run["metrics"]);
        // Each session on the engine when it crashes moves once, and moves back later if a hash decides its engine.
        assert!((1..40).contains(&moved(&run)), "{router}: {}", moved(&run));
        assert!(gauge(&run, "prefix_hit_ratio") < hits, "{router}");
    }
    // The router forgets sessions after half a second, but their users think for a second.
    let forgetful = conversations(r#"sticky(#{ router: "round-robin", ttl: "500ms" })"#, "");
    assert!(gauge(&forgetful, "prefix_hit_ratio") < in_turn + 0.1);
}

#[test]
fn sticky_routers_that_make_no_sense_are_refused() {
    for (router, wanted) in [
        (r#"sticky(#{ router: "session-hash" })"#, "it keeps sessions with their engines already"),
        ("sticky(#{ ttl: \"0s\" })", "invalid `ttl`: expected above 0"),
        ("session_hash(#{ load_factor: 0.5 })", "invalid `load_factor`: expected a finite number of at least 1"),
        ("sticky(#{ router: kv_router(#{ queue_threshold: 1.0 }) })", "would hold them back"),
        ("\"session-hsh\"", "did you mean `session-hash`"),
    ] {
        let script = shared_prefixes(router);
        Folder::with(&script).vcr(&["check", "test.rhai"]).failed(2, &[wanted]);
    }
}
