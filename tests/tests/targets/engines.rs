//! Virtual time beside live engines and the server of `vcr serve`.

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
        // Steps take 5 ms, and no answer can be faster than its steps.
        for row in &measured.requests {
            let tokens = row["output_tokens"].as_f64().expect("it has output");
            let least_ms = 5.0 * (tokens - 1.0);
            assert!(row["e2e_ms"].as_f64() > Some(least_ms), "{target}: {row}");
        }
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
            prefill: p.call("prefill", 2), decode: p.call("decode", 1),
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
    let measured = Outputs::of(&folder, "live", &[]);
    assert_eq!(measured.asked(), simulated.asked());
    for counter in ["completed", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"] {
        assert_eq!(measured.counter(counter), simulated.counter(counter), "{counter}");
    }
    let engines = |outputs: &Outputs| outputs.run()["engines"].as_array().cloned().expect("it has engines");
    let pools = |outputs: &Outputs| engines(outputs).iter().map(|engine| engine["pool"].clone()).collect::<Vec<_>>();
    assert_eq!(pools(&measured), pools(&simulated));
    // The decode engine computes outputs only.
    assert_eq!(engines(&measured)[2]["computed_tokens"], engines(&simulated)[2]["computed_tokens"]);
    assert!(measured.requests.iter().all(|row| row["decode_engine"] == "decode 0"));
    assert!(measured.run()["target"]["notes"].is_null(), "{}", measured.run()["target"]);
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
    for target in ["virtual", "live"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let crashes = |engine: usize| outputs.run()["engines"][engine]["crashes"].as_u64();
        assert_eq!([crashes(0), crashes(1), crashes(2)], [Some(0), Some(1), Some(0)], "{target}");
    }
}
