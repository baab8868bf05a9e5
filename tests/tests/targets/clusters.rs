//! Clusters in real time, with parts that engines of `vcr play` do not have.

use serde_json::Value;
use vcr_tests::Folder;

use crate::Outputs;

/// Parts of clusters that engines of `vcr play` do not have, with their names in the report.
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

/// Every part of a cluster works in real time: the same requests with the same outputs, and all metrics of virtual
/// time.
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
            // Engines of `vcr serve` have their own tiers.
            if !(target == "serve" && part.contains("KV tiers")) {
                let parts = run["target"]["cluster_parts"].as_array().cloned().unwrap_or_default();
                assert!(parts.iter().any(|other| other == part), "{name}: {}", run["target"]);
                assert_eq!(run["target"]["absent"], serde_json::json!({}), "{name}");
                assert!(run["metrics"]["trends"]["step_ms"]["count"].as_u64() > Some(20), "{name}: steps are known");
            }
            assert!(run["target"]["send_delay_ms"]["count"].as_u64() >= Some(16), "{name}: {}", run["target"]);
            // Real time passes: the run takes at least until its last planned arrival.
            assert!(run["duration_ms"].as_f64() > Some(450.0), "{name}: {}", run["duration_ms"]);
            assert_eq!(run["target"]["notes"], serde_json::json!(null), "{name}");
            let count = |outputs: &Outputs| outputs.run()["engines"].as_array().map(Vec::len);
            if !name.starts_with("autoscaling") {
                assert_eq!(count(&measured), count(&simulated), "{name}");
            }
        }
    }
}

/// Cached tokens do not depend on the transport: prompts, salts of adapters and tenants, and answers that the next
/// turns repeat are equal to the token.
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
            // A session of each tenant starts when the previous ones have ended.
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

/// Faults affect clusters behind a server, and clients retry requests that were cut off.
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

#[test]
fn servers_have_tiers_and_ranks() {
    let folder = Folder::with(
        r#"
        let tiers = kv_tiers(#{ host_blocks: 5_000, kv_bytes_per_token: "128KiB" });
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 60, kv_tiers: tiers }), latency: fixed(#{ step: "2ms" }),
        }) });
        // Each of these prompts evicts the previous one from the device, and is sent again later.
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

/// An autoscaler sees the load of real engines, and starts and drains engines.
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

/// HPA sees the metrics of real engines as in virtual time: of twelve requests, two run and the others wait.
#[test]
fn hpa_sees_the_metrics_of_servers() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engines: 1, engine: engine(#{ num_gpu_blocks: 501, max_num_seqs: 2 }), latency: fixed(#{ step: "20ms" }),
            autoscale: autoscale(#{ policy: "hpa", metric: "vllm:num_requests_waiting", target: 2, max: 3,
                interval: "400ms", scrape: "200ms", scale_down_window: "400ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [
            burst(#{ count: 12, prompt_tokens: 32, output_tokens: 40 }),
        ] });
        expect(r, "completed", "count == 12");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let first = outputs.run()["scaling"][0].clone();
        assert_eq!((&first["to"], &first["signal"]), (&3.into(), &10.0.into()), "{target}: {first}");
    }
}
