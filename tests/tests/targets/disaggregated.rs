//! Prefill and decode pools in real time.

use vcr_tests::Folder;

use crate::Outputs;

/// Prompts are computed in one pool, and their KV moves to another.
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
        // The distribution over two prefill engines depends on single milliseconds, but with one engine it does not.
        let alone = Outputs::of(&folder, target, &["-e", "prefill_engines=1"]);
        assert_eq!(alone.counter("cached_tokens"), alone_simulated.counter("cached_tokens"), "{target}");
        let transfers = &measured.run()["metrics"]["trends"]["transfer_ms"];
        assert_eq!(transfers["count"], measured.counter("completed").clone(), "{target}");
        // The link's latency is 1 ms.
        assert!(transfers["min"].as_f64() >= Some(1.0), "{target}: {transfers}");
        assert_eq!(pools(&measured), pools(&simulated));
        // The decode engine computes only outputs.
        assert_eq!(engines(&measured)[2]["computed_tokens"], engines(&simulated)[2]["computed_tokens"]);
        assert!(measured.requests.iter().all(|row| row["decode_engine"] == "decode 0"));
        assert!(measured.requests.iter().any(|row| row["engine"] == "prefill 1"));
        assert!(measured.run()["target"]["notes"].is_null(), "{}", measured.run()["target"]);
    }
}

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
