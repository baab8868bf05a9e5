//! Virtual time beside live engines and the server of `vcr serve`.

use serde_json::Value;
use vcr_tests::Folder;

use crate::{Outputs, SCENARIO};

/// What does not depend on times is the same everywhere.
#[test]
fn live_engines_and_the_server_get_the_requests_of_virtual_time() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    assert!(simulated.run()["target"].is_null(), "virtual time is the default and no target of its own");
    assert!(simulated.requests.len() > 25, "{}", simulated.requests.len());
    for target in ["live", "serve"] {
        let measured = Outputs::of(&folder, target, &[]);
        assert_eq!(measured.asked(), simulated.asked(), "{target}");
        for counter in ["requests", "completed", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"] {
            assert_eq!(measured.counter(counter), simulated.counter(counter), "{counter} on {target}");
        }
        let run = measured.run();
        assert_eq!(run["target"]["name"], target);
        assert!(run["metrics"]["trends"]["queue_ms"]["count"].as_u64() > Some(0), "engines tell of queues: {target}");
        // By the engine's own clock each step takes 5 ms, however late its thread is: one that is late
        // catches up, so that clients may see less in between.
        let number = |value: &Value| value.as_f64().expect("it is a number");
        let (steps, share) = (number(&run["engines"][0]["steps"]), number(&run["engines"][0]["utilisation"]));
        let busy_ms = share * number(&run["duration_ms"]);
        assert!((busy_ms - 5.0 * steps).abs() < 0.001, "{target}: {steps} steps in {busy_ms} ms");
        // Each step gives a request one token at most.
        let most = measured.requests.iter().map(|row| number(&row["output_tokens"])).fold(0.0, f64::max);
        assert!(steps > most && number(&run["duration_ms"]) >= busy_ms, "{target}: {run:#}");
        assert!(run["metrics"]["trends"]["step_ms"].is_null(), "single steps are not known");
        assert!(run["target"]["absent"]["step"].is_string(), "and the report says why");
        assert!(run["engines"][0]["steps"].as_u64() > Some(50), "{run:#}");
    }
}

/// The router of the cluster chooses among the live engines.
#[test]
fn pools_of_several_engines_share_the_requests() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &["-e", "engines=3"]);
    for target in ["live", "serve"] {
        let measured = Outputs::of(&folder, target, &["-e", "engines=3"]);
        assert_eq!(measured.asked(), simulated.asked(), "{target}");
        let engines = measured.run()["engines"].as_array().expect("it has engines");
        assert_eq!(engines.len(), 3);
        assert!(engines.iter().all(|engine| engine["steps"].as_u64() > Some(0)), "{target}: {engines:?}");
        // Each request says which engine the router has chosen.
        let with = |engine: &str| measured.requests.iter().filter(|row| row["engine"] == engine).count();
        let counts = ["engines 0", "engines 1", "engines 2"].map(with);
        assert_eq!(counts.iter().sum::<usize>(), measured.requests.len(), "{target}: {counts:?}");
        assert!(counts.iter().all(|count| *count > 0), "{target}: {counts:?}");
    }
}

/// Engines with few blocks preempt in real time as in virtual time.
#[test]
fn a_burst_on_few_blocks_is_preempted_everywhere() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 33, block_size: 16, max_num_seqs: 8 }), latency: fixed(#{ step: "2ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [ burst(#{ count: 6, prompt_tokens: 64, output_tokens: 60 }) ] });
        expect(r, "completed", "count == 6");
        expect(r, "preemptions", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let preempted: u64 = outputs.requests.iter().filter_map(|row| row["preemptions"].as_u64()).sum();
        assert!(preempted > 0, "{target}");
    }
}

/// Faults act in real time: a crash loses requests, which are tried again.
#[test]
fn crashed_engines_lose_requests_and_come_back() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engines: 2, engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "10ms" }),
            router: "least-loaded",
        }) });
        let r = run(#{
            cluster: c, retries: 5,
            workloads: [ constant(#{ rate: "20/s", duration: "1s", prompt_tokens: 64, output_tokens: 40 }) ],
            faults: [ crash(#{ at: "300ms", engine: 0, restart_after: "200ms" }) ],
        });
        expect(r, "completed_ratio", "value == 100%");
        expect(r, "retries", "count > 0");
        expect(r, "wasted_tokens", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let crashes: u64 = outputs.run()["engines"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|engine| engine["crashes"].as_u64())
            .sum();
        assert_eq!(crashes, 1, "{target}");
    }
}

/// A slowed engine takes longer, and is as fast as before afterwards.
#[test]
fn slowed_engines_take_longer() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "5ms" }) }) });
        let work = |name, start| burst(#{ name: name, count: 2, at: start, prompt_tokens: 32, output_tokens: 20 });
        let r = run(#{
            cluster: c, workloads: [ work.call("slow", "0s"), work.call("fast", "1s") ],
            faults: [ slow_down(#{ at: "0s", engine: 0, factor: 4.0, duration: "900ms" }) ],
        });
        expect(r, "tpot{workload:slow}", "p50 > 15ms");
        expect(r, "tpot{workload:fast}", "p50 > 4ms");
        check("the slow ones are slower", value(r, "tpot{workload:slow}", "p50") > 2.0 * value(r, "tpot{workload:fast}", "p50"));
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let _ = Outputs::of(&folder, target, &[]);
    }
}

/// Requests that can never run are rejected as in virtual time.
#[test]
fn requests_that_do_not_fit_are_rejected_before_they_are_sent() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 501, max_model_len: 1_000 }), latency: fixed(#{ step: "1ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [
            burst(#{ name: "long", count: 3, prompt_tokens: 2_000, output_tokens: 5 }),
            burst(#{ name: "short", count: 3, prompt_tokens: 20, output_tokens: 5 }),
        ] });
        expect(r, "rejected{workload:long}", "count == 3");
        expect(r, "completed{workload:short}", "count == 3");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let reasons = &outputs.run()["metrics"]["rejections"];
        assert_eq!(reasons.as_object().map(|reasons| reasons.len()), Some(1), "{target}: {reasons}");
    }
}

/// A run that is cut off keeps what was measured.
#[test]
fn a_limit_of_time_cuts_a_run_off() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "50ms" }) }) });
        let r = run(#{ cluster: c, max_time: "400ms", workloads: [ burst(#{ count: 2, prompt_tokens: 32, output_tokens: 100 }) ] });
        expect(r, "completed", "count == 0");
        expect(r, "generated_tokens", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        assert_eq!(outputs.run()["unfinished_requests"], 2, "{target}");
    }
}

/// Prompts are computed in one pool, and their KV goes to another.
#[test]
fn prefill_and_decode_pools_are_live() {
    let folder = Folder::with(
        r#"
        let p = |name, engines| pool(#{
            name: name, engines: engines, engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "5ms" }),
            router: "round-robin",
        });
        let c = cluster(#{
            prefill: p.call("prefill", param("prefill_engines", 2)), decode: p.call("decode", 1),
            link: link(#{ kv_bytes_per_token: "128KiB", bandwidth: "10GB/s", latency: "1ms", sharing: "none" }),
        });
        let r = run(#{ cluster: c, workloads: [
            constant(#{
                name: "chat", rate: "12/s", count: 12, prompt_tokens: uniform(40, 200), output_tokens: uniform(4, 20),
                shared_prefix_tokens: 160, prefix_groups: 2, turns: uniform(1, 3), think_time: "20ms",
            }),
            burst(#{ name: "documents", at: "300ms", count: 3, prompt_tokens: 3000, output_tokens: 10 }),
        ] });
        expect(r, "completed_ratio", "value == 100%");
        // 3,000 tokens take 39 ms on the link.
        expect(r, "ttft{workload:documents}", "min > 49ms");
    "#,
    );
    let simulated = Outputs::of(&folder, "virtual", &[]);
    let alone_simulated = Outputs::of(&folder, "virtual", &["-e", "prefill_engines=1"]);
    let engines = |outputs: &Outputs| outputs.run()["engines"].as_array().cloned().expect("it has engines");
    let pools = |outputs: &Outputs| engines(outputs).iter().map(|engine| engine["pool"].clone()).collect::<Vec<_>>();
    for target in ["live", "serve"] {
        let measured = Outputs::of(&folder, target, &[]);
        assert_eq!(measured.asked(), simulated.asked(), "{target}");
        for counter in ["completed", "prompt_tokens", "output_tokens", "preemptions"] {
            assert_eq!(measured.counter(counter), simulated.counter(counter), "{counter} on {target}");
        }
        // Which of two prefill engines has what depends on single milliseconds; of one it does not.
        let alone = Outputs::of(&folder, target, &["-e", "prefill_engines=1"]);
        assert_eq!(alone.counter("cached_tokens"), alone_simulated.counter("cached_tokens"), "{target}");
        let transfers = &measured.run()["metrics"]["trends"]["transfer_ms"];
        assert_eq!(transfers["count"], measured.counter("completed").clone(), "{target}");
        // The latency of the link is 1 ms.
        assert!(transfers["min"].as_f64() >= Some(1.0), "{target}: {transfers}");
        assert_eq!(pools(&measured), pools(&simulated));
        // The decode engine computes outputs only.
        assert_eq!(engines(&measured)[2]["computed_tokens"], engines(&simulated)[2]["computed_tokens"]);
        assert!(measured.requests.iter().all(|row| row["decode_engine"] == "decode 0"));
        assert!(measured.requests.iter().any(|row| row["engine"] == "prefill 1"));
        assert!(measured.run()["target"]["notes"].is_null(), "{}", measured.run()["target"]);
    }
}

/// Transfers that share a link slow each other down in real time, too.
#[test]
fn transfers_share_the_link_on_every_target() {
    let folder = Folder::with(
        r#"
        let p = |name| pool(#{ name: name, engine: engine(#{ num_gpu_blocks: 4_001 }), latency: fixed(#{ step: "2ms" }) });
        let c = cluster(#{
            prefill: p.call("prefill"), decode: p.call("decode"),
            link: link(#{ kv_bytes_per_token: "100KB", bandwidth: "1GB/s" }),
        });
        // 1,000 tokens take 100 ms alone, and four that start together four times as long.
        let r = run(#{ cluster: c, workloads: [ burst(#{ count: 4, prompt_tokens: 1_000, output_tokens: 3 }) ] });
        expect(r, "completed", "count == 4");
        expect(r, "ttft", "max > 390ms");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let _ = Outputs::of(&folder, target, &[]);
    }
}

/// Parts of clusters that engines of `vcr play` lack, with the name by which the report says so.
const CLUSTER_PARTS: &[(&str, &str, &str)] = &[
    (
        "autoscaling",
        "autoscaling (pool `engines`)",
        r#"cluster(#{ engines: pool(#{
            engines: 1, engine: engine(#{ num_gpu_blocks: 501, max_num_seqs: 2 }), latency: fixed(#{ step: "4ms" }),
            autoscale: autoscale(#{ policy: "target_requests", target: 2, interval: "50ms", max: 3 }),
        }) })"#,
    ),
    (
        "KV tiers",
        "KV tiers below the device (pool `engines`)",
        r#"cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 60, kv_tiers: kv_tiers(#{ host_blocks: 5_000, kv_bytes_per_token: "128KiB" }) }),
            latency: fixed(#{ step: "2ms" }),
        }) })"#,
    ),
    (
        "ranks",
        "engines with several data-parallel ranks (pool `engines`)",
        r#"cluster(#{ engines: pool(#{
            engines: 2, data_parallel_size: 2, data_parallel_barrier: true, engine: engine(#{ num_gpu_blocks: 501 }),
            latency: fixed(#{ step: "2ms" }),
        }) })"#,
    ),
    (
        "SGLang",
        "engines of SGLang (pool `engines`)",
        r#"cluster(#{ engines: pool(#{ engines: 2, engine: engine(#{ engine_type: "sglang", num_pages: 9_000 }), latency: fixed(#{ step: "2ms" }) }) })"#,
    ),
    (
        "ticks",
        "engines that schedule by ticks (pool `engines`)",
        r#"cluster(#{ engines: pool(#{ engine: engine(#{ engine_type: "ticks" }), latency: fixed(#{ step: "2ms" }) }) })"#,
    ),
    (
        "the KV router",
        "KV router, which keeps books of whole clusters (pool `engines`)",
        r#"cluster(#{ engines: pool(#{
            engines: 3, engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "2ms" }), router: kv_router(#{}),
        }) })"#,
    ),
    (
        "prompts that stay",
        "decode engines that compute prompts (`conditional`)",
        r#"cluster(#{
            prefill: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "2ms" }) }),
            decode: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "2ms" }) }),
            conditional: conditional(#{ eff_isl_threshold: 100 }),
        })"#,
    ),
    (
        "whole prompts",
        "transfers of whole prompts",
        r#"cluster(#{
            prefill: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "2ms" }) }),
            decode: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "2ms" }) }),
            link: link(#{ kv_bytes_per_token: "1KiB", bandwidth: "1GB/s", transfer: "full-prompt", sharing: "per-prefill-engine" }),
        })"#,
    ),
];

/// Whatever a cluster has, it has in real time: the same requests with the same outputs, and
/// all metrics of virtual time.
#[test]
fn every_cluster_is_live() {
    for (name, part, cluster) in CLUSTER_PARTS {
        let scenario = format!(
            r#"
            let c = {cluster};
            let r = run(#{{ cluster: c, retries: 2, workloads: [
                constant(#{{
                    name: "chat", rate: "20/s", count: 10, prompt_tokens: uniform(40, 120), output_tokens: uniform(4, 20),
                    shared_prefix_tokens: 64, prefix_groups: 2, turns: uniform(1, 3), think_time: "20ms",
                }}),
                burst(#{{ name: "burst", at: "200ms", count: 6, prompt_tokens: 150, output_tokens: 20 }}),
            ] }});
            expect(r, "completed_ratio", "value == 100%");
            if has(r, "step") {{ expect(r, "step", "min >= 2ms"); }}
            expect(r, "ttft", "min >= 2ms");
        "#
        );
        let folder = Folder::with(&scenario);
        let simulated = Outputs::of(&folder, "virtual", &[]);
        for target in ["live", "serve"] {
            let measured = Outputs::of(&folder, target, &[]);
            let name = format!("{name} on {target}");
            assert_eq!(measured.asked(), simulated.asked(), "{name}");
            let run = measured.run();
            // Engines of `vcr serve` have tiers of their own.
            if !(target == "serve" && part.contains("KV tiers")) {
                let parts = run["target"]["cluster_parts"].as_array().cloned().unwrap_or_default();
                assert!(parts.iter().any(|other| other == part), "{name}: {}", run["target"]);
                assert_eq!(run["target"]["absent"], serde_json::json!({}), "{name}");
                assert!(run["metrics"]["trends"]["step_ms"]["count"].as_u64() > Some(20), "{name}: steps are known");
            }
            assert!(run["target"]["send_delay_ms"]["count"].as_u64() >= Some(16), "{name}: {}", run["target"]);
            // Real time passes: the run takes no less than its last planned arrival.
            assert!(run["duration_ms"].as_f64() > Some(450.0), "{name}: {}", run["duration_ms"]);
            assert_eq!(run["target"]["notes"], serde_json::json!(null), "{name}");
            let count = |outputs: &Outputs| outputs.run()["engines"].as_array().map(Vec::len);
            if !name.starts_with("autoscaling") {
                assert_eq!(count(&measured), count(&simulated), "{name}");
            }
        }
    }
}

/// What is cached does not depend on the way to the engines: prompts, salts of adapters and
/// tenants, and answers that next turns repeat are the same to the token.
#[test]
fn clusters_behind_a_server_cache_what_they_cache_in_virtual_time() {
    let engines =
        [r#"engine(#{ engine_type: "sglang", num_pages: 9_000 })"#, "engine(#{ num_gpu_blocks: 2_001, max_loras: 4 })"];
    for engine in engines {
        let adapters = if engine.contains("max_loras") { "adapters: #{ count: 2 }," } else { "" };
        let folder = Folder::with(&format!(
            r#"
            let c = cluster(#{{ engines: pool(#{{
                engine: {engine}, latency: fixed(#{{ step: "2ms" }}), router: kv_router(#{{}}),
            }}) }});
            // A session of each tenant starts when those before it have ended.
            let work = |name, tenant, start| constant(#{{
                name: name, tenant: tenant, start: start, rate: "4/s", count: 4, prompt_tokens: uniform(40, 120),
                output_tokens: uniform(17, 40), shared_prefix_tokens: 160, prefix_groups: 1, turns: 2, think_time: "20ms",
                {adapters}
            }});
            let r = run(#{{ cluster: c, workloads: [ work.call("a", 1, "0s"), work.call("b", 2, "125ms") ] }});
            expect(r, "completed_ratio", "value == 100%");
            expect(r, "prefix_hit_ratio", "value > 30%");
        "#
        ));
        let simulated = Outputs::of(&folder, "virtual", &[]);
        for target in ["live", "serve"] {
            let measured = Outputs::of(&folder, target, &[]);
            assert_eq!(measured.asked(), simulated.asked(), "{engine} on {target}");
            let cached = |outputs: &Outputs| {
                let key =
                    |row: &Value| ["workload", "session", "turn", "cached_tokens"].map(|key| row[key].to_string());
                let mut rows: Vec<_> = outputs.requests.iter().map(key).collect();
                rows.sort();
                rows
            };
            assert_eq!(cached(&measured), cached(&simulated), "{engine} on {target}");
        }
    }
}

/// Faults act on clusters behind a server, and whoever they cut off asks again.
#[test]
fn clusters_behind_a_server_crash() {
    let folder = Folder::with(
        r#"
        let engines = |router| cluster(#{ engines: pool(#{
            engines: 2, engine: engine(#{ engine_type: "sglang", num_pages: 9_000 }), latency: fixed(#{ step: "10ms" }),
            router: router,
        }) });
        let work = constant(#{ rate: "20/s", duration: "1s", prompt_tokens: 64, output_tokens: 40 });
        let r = run(#{
            name: "crash", cluster: engines.call("least-loaded"), retries: 5, workloads: [ work ],
            faults: [ crash(#{ at: "300ms", engine: 0, restart_after: "200ms" }) ],
        });
        expect(r, "completed_ratio", "value == 100%");
        expect(r, "retries", "count > 0");
        expect(r, "wasted_tokens", "count > 0");
        let r = run(#{
            name: "no retries", cluster: engines.call("least-loaded"), workloads: [ work ],
            faults: [ crash(#{ at: "300ms", engine: 0 }), crash(#{ at: "600ms", engine: 1 }) ],
        });
        expect(r, "failed", "count > 5");
        expect(r, "completed", "count < 15");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let run = |index: usize| &outputs.report["runs"][index];
        assert_eq!(run(0)["engines"][0]["crashes"], 1, "{target}");
        let failures = run(1)["metrics"]["failures"].as_object().cloned().unwrap_or_default();
        let reasons: Vec<&str> = failures.keys().map(String::as_str).collect();
        assert_eq!(reasons, ["no engine of the pool is up or will be", "the engine crashed"], "{target}");
    }
}

/// Engines behind a server have tiers and ranks, too.
#[test]
fn servers_have_tiers_and_ranks() {
    let folder = Folder::with(
        r#"
        let tiers = kv_tiers(#{ host_blocks: 5_000, kv_bytes_per_token: "128KiB" });
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 60, kv_tiers: tiers }), latency: fixed(#{ step: "2ms" }),
        }) });
        // Each of these prompts drives the one before out of the device, and comes again.
        let work = |name, start| constant(#{
            name: name, start: start, rate: "10/s", count: 6, prompt_tokens: 16, output_tokens: 4,
            shared_prefix_tokens: 480, prefix_groups: 3,
        });
        let r = run(#{ name: "tiers", cluster: c, workloads: [ work.call("first", "0s") ] });
        expect(r, "prefix_hit_ratio", "value > 30%");
        let ranks = cluster(#{ engines: pool(#{
            engines: 2, data_parallel_size: 2, engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "5ms" }),
        }) });
        let r = run(#{
            name: "ranks", cluster: ranks, retries: 3,
            workloads: [ constant(#{ rate: "40/s", count: 24, prompt_tokens: 32, output_tokens: 40 }) ],
            faults: [ crash(#{ at: "250ms", engine: 1, restart_after: "100ms" }) ],
        });
        expect(r, "completed", "count == 24");
        expect(r, "retries", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let engines = outputs.report["runs"][1]["engines"].as_array().cloned().unwrap_or_default();
        let places: Vec<_> =
            engines.iter().map(|engine| (engine["engine"].as_u64(), engine["rank"].as_u64())).collect();
        let expected = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(engine, rank)| (Some(engine), Some(rank)));
        assert_eq!(places, expected, "{target}");
        let crashes: Vec<_> = engines.iter().map(|engine| engine["crashes"].as_u64()).collect();
        assert_eq!(crashes, [Some(0), Some(0), Some(1), Some(1)], "{target}");
    }
}

/// Engines are known over time wherever they are in this process.
#[test]
fn live_engines_are_series() {
    let scenario = r#"
        let c = cluster(#{ engines: pool(#{
            engines: 2, engine: engine(#{ num_gpu_blocks: 501, max_num_seqs: 2 }), latency: fixed(#{ step: "10ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [ burst(#{ count: 8, prompt_tokens: 64, output_tokens: 30 }) ] });
        let most = |name| series(r, name, #{ every: "100ms" }).reduce(|most, value| max(most, value), 0.0);
        check("two at a time on each engine", most.call("running") > 2.0 && most.call("running") <= 4.0);
        check("the others wait", most.call("waiting") > 1.0);
        check("blocks are in use", most.call("kv_usage") > 0.0 && most.call("kv_usage") < 1.0);
        check("tokens are decoded", most.call("decode_tokens_per_s") > 50.0);
        check("they arrive", most.call("arrived_per_s") > 0.0);
    "#;
    let folder = Folder::with(scenario);
    for target in ["virtual", "live", "serve"] {
        let _ = Outputs::of(&folder, target, &[]);
    }
}

/// An autoscaler sees the load of real engines, and starts and drains some.
#[test]
fn pools_scale_in_real_time() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engines: 1, engine: engine(#{ num_gpu_blocks: 501, max_num_seqs: 2 }), latency: fixed(#{ step: "5ms" }),
            autoscale: autoscale(#{ policy: "target_requests", target: 2, interval: "50ms", max: 3 }),
        }) });
        let r = run(#{ cluster: c, workloads: [
            burst(#{ name: "all at once", count: 12, prompt_tokens: 32, output_tokens: 40 }),
            constant(#{ name: "later", start: "900ms", rate: "5/s", count: 3, prompt_tokens: 32, output_tokens: 10 }),
        ] });
        expect(r, "completed", "count == 15");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let scaling = outputs.run()["scaling"].as_array().cloned().unwrap_or_default();
        let most = scaling.iter().filter_map(|event| event["to"].as_u64()).max();
        assert_eq!(most, Some(3), "{target}: {scaling:?}");
        assert_eq!(scaling.last().and_then(|event| event["to"].as_u64()), Some(1), "{target}: {scaling:?}");
    }
}

/// Requests whose decode engine crashes begin again, with their prompts.
#[test]
fn crashed_decode_engines_lose_requests_and_come_back() {
    let folder = Folder::with(
        r#"
        let p = |name, engines| pool(#{
            name: name, engines: engines, engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "10ms" }),
            router: "least-loaded",
        });
        let c = cluster(#{
            prefill: p.call("prefill", 1), decode: p.call("decode", 2), link: link(#{ kv_bytes_per_token: "1KiB" }),
        });
        let r = run(#{
            cluster: c, retries: 5,
            workloads: [ constant(#{ rate: "20/s", duration: "1s", prompt_tokens: 64, output_tokens: 40 }) ],
            faults: [ crash(#{ at: "300ms", pool: "decode", engine: 0, restart_after: "200ms" }) ],
        });
        expect(r, "completed_ratio", "value == 100%");
        expect(r, "retries", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let crashes = |engine: usize| outputs.run()["engines"][engine]["crashes"].as_u64();
        assert_eq!([crashes(0), crashes(1), crashes(2)], [Some(0), Some(1), Some(0)], "{target}");
    }
}
