//! Faults of live engines.

use vcr_tests::Folder;

use crate::Outputs;

/// Faults act in real time: a crash loses requests, which are retried.
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

/// Clients of a server meet its faults: they retry after some, and count the others.
#[test]
fn clients_of_a_server_meet_faults() {
    let scenario = |faults: &str, shed: u32, retries: u32| {
        format!(
            r#"
            let c = cluster(#{{ engines: pool(#{{
                engine: engine(#{{ num_gpu_blocks: 2_001 }}), latency: fixed(#{{ step: "2ms" }}),
            }}) }});
            let r = run(#{{
                cluster: c, retries: 5, target: serve(#{{ client_faults: [{faults}] }}),
                workloads: [ closed_loop(#{{ concurrency: 2, count: 12, prompt_tokens: 64, output_tokens: 8 }}) ],
            }});
            check("shed", value(r, "shed", "count") == {shed});
            check("retries", value(r, "retries", "count") == {retries});
            check("completed", value(r, "completed", "count") == 12 - {shed});
        "#
        )
    };
    for (faults, shed, retries) in [
        (r#""status:code=503,call=2..3", "error-event:after=3,call=5""#, 2, 1),
        (r#""status:code=503,call=100""#, 0, 0),
    ] {
        let _ = Folder::with(&scenario(faults, shed, retries)).run(&[]).ended(0);
    }
    Folder::with(&scenario("\"sulk\"", 0, 0)).run(&[]).failed(2, &["invalid client fault `sulk`"]);
}

/// A well-formed answer with fewer tokens than `ignore_eos` promises is a failure of the server.
#[test]
fn short_answers_fail() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "2ms" }),
        }) });
        let r = run(#{
            cluster: c, retries: 5,
            workloads: [ closed_loop(#{ concurrency: 1, count: 5, prompt_tokens: 64, output_tokens: 8 }) ],
        });
        check("failed", value(r, "failed", "count") == 2);
        check("completed", value(r, "completed", "count") == 3);
        check("not sent again", value(r, "retries", "count") == 0);
    "#,
    );
    let target = "serve(#{ client_faults: [\"short:after=3,call=2..3\"] })";
    let outputs = Outputs::of(&folder, target, &[]);
    let failed: Vec<_> = outputs.requests.iter().filter(|row| row["status"] == "failed").collect();
    assert_eq!(failed.len(), 2);
    assert_eq!(failed[0]["reason"], "the answer ended before its requested number of tokens", "{}", failed[0]);
}

/// A slowed engine takes longer, and recovers its speed afterwards.
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

/// Requests whose decode engine crashes start again with their prompts.
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
