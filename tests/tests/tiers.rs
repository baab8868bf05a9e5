//! Host and disk tiers from the command line, in Dynamo's terms and in scenarios.

use vcr_tests::{Folder, Said};

/// A block has 16 MB. Moving it takes a millisecond to the host, and half a millisecond back.
const FLAT: &str = r#"{"num_gpu_blocks": 8, "num_g2_blocks": 20, "kv_bytes_per_token": 250000,
    "bandwidth_g1_to_g2_gbps": 16, "bandwidth_g2_to_g1_gbps": 32}"#;

const NESTED: &str = r#"{"engine": {"num_gpu_blocks": 8, "kv_cache_bytes_per_token": 250000,
    "native_host_offload": {"num_host_blocks": 20, "d2h_bandwidth_gbps": 16, "h2d_bandwidth_gbps": 32}}}"#;

const LATENCY: &str = r#"fixed(#{ prefill: "10ms", decode: "5ms" })"#;

/// Trace row with a prompt of `blocks` blocks of 64 tokens, which only equal `content` shares, and one output token.
fn row(at_ms: u32, content: u32, blocks: u32) -> String {
    let ids: Vec<String> = (0..blocks).map(|block| (content * 100 + block).to_string()).collect();
    let (tokens, ids) = (blocks * 64, ids.join(","));
    format!("{{\"timestamp\": {at_ms}, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": [{ids}]}}\n")
}

/// A folder whose trace has a prompt, a second prompt that evicts it from the device, and the first prompt again.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("trace.jsonl", row(0, 1, 6) + &row(100, 2, 8) + &row(200, 1, 6));
    folder
}

fn replay(folder: &Folder, args: &[&str]) -> Said {
    let common = ["replay", "trace.jsonl", "--trace-block-size", "64", "--latency", LATENCY, "--report-format", "1.4"];
    folder.vcr(&[&common, args].concat())
}

#[test]
fn a_prompt_comes_back_from_the_host_in_either_spelling() {
    let folder = folder();
    let report = |args| replay(&folder, &["--json", "--extra-engine-args", args]).ended(0).json();
    let flat = report(FLAT);
    // With the rules of Dynamo 1.6, the whole prompt is loaded, and its last block is recomputed.
    let nested = report(NESTED);
    assert_eq!((&nested["max_ttft_ms"], &nested["min_ttft_ms"]), (&13.0.into(), &10.0.into()));
    assert_eq!(nested["prefix_cache_reused_ratio"], 0.25);
    assert_eq!(nested["vcr"]["prefix_cache"]["loaded_from_host_tokens"], 320);
    // Five blocks take half a millisecond each, then the step follows: 10, 10 and 12.5 ms.
    assert_eq!((&flat["max_ttft_ms"], &flat["min_ttft_ms"]), (&12.5.into(), &10.0.into()));
    assert_eq!(flat["prefix_cache_reused_ratio"], 0.25);
    let ours = &flat["vcr"];
    assert_eq!(ours["where_time_went"]["load"]["max_ms"], 2.5);
    assert_eq!(ours["prefix_cache"]["loaded_from_host_tokens"], 320);
    assert_eq!(ours["prefix_cache"]["loaded_from_disk_tokens"], 0);
    let tiers = &ours["workers"][0]["kv_tiers"];
    assert_eq!((&tiers["loads"], &tiers["host_hit_tokens"]), (&1.into(), &320.into()));
    assert_eq!(tiers["device_to_host_bytes"], 14 * 16_000_000u64);
    assert_eq!(tiers["host_to_device_bytes"], 5 * 16_000_000u64);
    // Without a host tier, the prompt is recomputed, and the report does not mention tiers.
    let without = report(r#"{"num_gpu_blocks": 8}"#);
    assert_eq!(without["max_ttft_ms"], 10.0);
    assert!(!without["vcr"].to_string().contains("tiers") && !without["vcr"].to_string().contains("\"load\""));
}

#[test]
fn tiers_are_swept_and_the_router_weighs_them() {
    let folder = folder();
    let sweep = |threads| {
        let sweeps = ["--sweep", "num_g2_blocks=4,20", "--sweep", "host_cache_hit_weight=0,0.75", "--json"];
        let cluster = ["--num-workers", "2", "--router-mode", "kv_router", "--threads", threads];
        replay(&folder, &[&sweeps[..], &cluster, &["--extra-engine-args", FLAT]].concat()).ended(0).stdout
    };
    assert_eq!(sweep("1"), sweep("2"));
    // There are no warnings, because the weights have an effect.
    let weighed = ["--router-mode", "kv_router", "--router-config", r#"{"disk_cache_hit_weight": 0.1}"#, "--strict"];
    assert_eq!(replay(&folder, &weighed).ended(0).stderr, "");
    let rows = replay(&folder, &["--sweep", "num_host_blocks=4,20", "--json", "--extra-engine-args", NESTED]).ended(0);
    let reuse = [0, 1].map(|row| rows.json()[row]["prefix_cache_reused_ratio"].as_f64().expect("a share"));
    assert!(reuse[0] < reuse[1] && reuse[1] == 0.25, "{reuse:?}");
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let folder = folder();
    for (args, needle) in [
        (r#"{"num_g2_blocks": 20}"#, "`num_g2_blocks`: needs `kv_bytes_per_token`"),
        (r#"{"num_g3_blocks": 20}"#, "`num_g3_blocks`: needs `num_g2_blocks`"),
        (
            r#"{"num_g2_blocks": 20, "kv_bytes_per_token": 1, "enable_g4_storage": true}"#,
            "`enable_g4_storage`: is not simulated: there is a host and a disk, and no object store",
        ),
        (r#"{"g1_backend": "kvbm"}"#, "`g1_backend`: \"kvbm\" is not simulated"),
    ] {
        replay(&folder, &["--extra-engine-args", args]).failed(2, &[needle]);
    }
}

const SCENARIO: &str = r#"
    let tiers = kv_tiers(#{
        host_blocks: 20, kv_bytes_per_token: 250_000, device_to_host: "16GB/s", host_to_device: "32GB/s",
    });
    let engine = engine(#{ block_size: 64, num_gpu_blocks: 9, kv_tiers: tiers });
    let pool = pool(#{
        engine: engine, latency: fixed(#{ prefill: "10ms", decode: "5ms" }),
        router: kv_router(#{ host_cache_hit_weight: 0.5, disk_cache_hit_weight: 0.25 }),
    });
    let r = run(#{ cluster: cluster(#{ engines: pool }), workloads: [trace(#{ path: "trace.jsonl", block_size: 64 })] });
    expect(r, "kv_load", "max == 3ms");
    expect(r, "kv_load", "count == 1");
    expect(r, "host_cached_tokens", "count == 383");
    expect(r, "cached_tokens", "count == 383");
    expect(r, "disk_cached_tokens", "count == 0");
"#;

#[test]
fn a_scenario_loads_the_whole_prompt() {
    let folder = folder();
    folder.write("test.rhai", SCENARIO);
    let report = folder.run(&["--json"]).ended(0).json();
    let engine = &report["runs"][0]["engines"][0]["kv_tiers"];
    assert_eq!((&engine["loads"], &engine["host_to_device_bytes"]), (&1.into(), &96_000_000.into()));
    // When steps are recorded, each one runs individually.
    let written = folder.run(&["--json", "--out", "out"]).ended(0).json();
    assert_eq!(written["fingerprint"], report["fingerprint"]);
}

/// The copy of the first prompt takes 96 ms, and the second prompt needs its blocks.
#[test]
fn a_step_waits_for_copies_of_blocks_that_it_takes() {
    let trace = row(0, 1, 6) + &row(20, 2, 8) + &row(110, 1, 6);
    for (rules, ttft, host_cached) in
        [("vllm", "p50 == 96ms", "count == 383"), ("dynamo", "max < 20ms", "count == 320")]
    {
        let folder = Folder::with(&format!(
            r#"
            let tiers = kv_tiers(#{{
                host_blocks: 20, kv_bytes_per_token: 250_000, device_to_host: "1GB/s", rules: "{rules}",
            }});
            let engine = engine(#{{ block_size: 64, num_gpu_blocks: 9, kv_tiers: tiers }});
            let pool = pool(#{{ engine: engine, latency: {LATENCY} }});
            let workload = trace(#{{ path: "trace.jsonl", block_size: 64 }});
            let r = run(#{{ cluster: cluster(#{{ engines: pool }}), workloads: [workload] }});
            expect(r, "ttft", "{ttft}");
            expect(r, "host_cached_tokens", "{host_cached}");
        "#
        ));
        folder.write("trace.jsonl", trace.clone());
        let report = folder.run(&["--json"]).ended(0).json();
        let written = folder.run(&["--json", "--out", "out"]).ended(0).json();
        assert_eq!(written["fingerprint"], report["fingerprint"], "{rules}");
    }
}

/// With Dynamo's rules, the last block of the same prompt is recomputed.
#[test]
fn what_a_pool_shares_has_dynamos_rules() {
    for (scope, host_cached) in [("engine", "count == 383"), ("pool", "count == 320")] {
        let folder = Folder::with(&format!(
            r#"
            let tiers = kv_tiers(#{{ host_blocks: 20, kv_bytes_per_token: 250_000, host_scope: "{scope}" }});
            let engine = engine(#{{ block_size: 64, num_gpu_blocks: 9, kv_tiers: tiers }});
            let pool = pool(#{{ engine: engine, latency: {LATENCY} }});
            let workload = trace(#{{ path: "trace.jsonl", block_size: 64 }});
            let r = run(#{{ cluster: cluster(#{{ engines: pool }}), workloads: [workload] }});
            expect(r, "host_cached_tokens", "{host_cached}");
        "#
        ));
        folder.write("trace.jsonl", row(0, 1, 6) + &row(2000, 2, 8) + &row(4000, 1, 6));
        let report = folder.run(&["--json"]).ended(0).json();
        assert_eq!(report["runs"][0]["engines"][0]["kv_tiers"]["loads"], 1, "{scope}");
    }
}

#[test]
fn a_scenario_reports_what_tiers_need() {
    for (options, needles) in [
        ("kv_tiers: kv_tiers(#{ host_blocks: 1 })", ["`kv_tiers` needs the option `kv_bytes_per_token`", "1:"]),
        ("kv_tiers: 20", ["invalid `kv_tiers`: expected kv_tiers(#{ ... })", "20"]),
        (
            "enable_prefix_caching: false, kv_tiers: kv_tiers(#{ host_blocks: 1, kv_bytes_per_token: 1 })",
            ["`kv_tiers` needs `enable_prefix_caching`", "hashes"],
        ),
        (
            "kv_tiers: kv_tiers(#{ host_blocks: 0, kv_bytes_per_token: 1 })",
            ["invalid `host_blocks`: expected at least 1, got 0", "1:"],
        ),
        (
            "kv_tiers: kv_tiers(#{ host_blocks: 1, kv_bytes_per_token: 1, sync_load_budget_bytes: 5 })",
            ["`sync_load_budget_bytes` is not simulated", "1:"],
        ),
        (
            "vllm_minor: \"0.31\", kv_tiers: kv_tiers(#{ host_blocks: 1, kv_bytes_per_token: 1, rules: \"vllm\" })",
            ["`kv_tiers` cannot be combined with `rules`", "0.32 and 0.33"],
        ),
        (
            "kv_tiers: kv_tiers(#{ host_blocks: 1, kv_bytes_per_token: 1, rules: \"vllm\", host_scope: \"pool\" })",
            ["`rules` cannot be combined with `host_scope`", "belongs to one engine"],
        ),
        (
            "kv_tiers: kv_tiers(#{ host_blocks: 1, disk_blocks: 1, kv_bytes_per_token: 1, rules: \"vllm\", disk_scope: \"pool\" })",
            ["`rules` cannot be combined with `disk_scope`", "belongs to one engine"],
        ),
        (
            "engine_type: \"sglang\", kv_tiers: kv_tiers(#{ host_blocks: 1, kv_bytes_per_token: 1 })",
            ["`engine` has no option `kv_tiers`", "1:"],
        ),
    ] {
        let folder = Folder::with(&format!("let e = engine(#{{ {options} }});"));
        folder.run(&[]).failed(2, &needles);
    }
}
