//! Tests of engine arguments in both layouts.

use proptest::prelude::*;
use serde_json::{Value, json};
use vcr_latency::tables::TablesInput;

use super::names::{BESIDE, DYNAMO, ENGINE, FLAT_ONLY};
use super::*;

fn read(text: &str) -> Result<(EngineArgs, Vec<Remark>), DynamoError> {
    EngineArgs::read("--extra-engine-args", text, false)
}

fn args(value: Value) -> EngineArgs {
    read(&value.to_string()).expect("valid").0
}

#[track_caller]
fn refused(value: Value, needles: &[&str]) {
    let error = read(&value.to_string()).expect_err("it is wrong").to_string();
    for needle in needles {
        assert!(error.contains(needle), "`{needle}` is not in:\n{error}");
    }
}

#[test]
fn both_layouts_are_equal() {
    let flat = json!({
        "engine_type": "vllm", "num_gpu_blocks": 100, "block_size": 32, "max_num_seqs": null,
        "speedup_ratio": 2.0, "dp_size": 2, "aic_tp_size": 4, "startup_time": 1.5, "worker_type": "prefill",
        "aic_nextn": 3, "aic_nextn_accept_rates": "0.5, 0.25", "kv_bytes_per_token": 1000,
        "kv_transfer_bandwidth": 64, "kv_transfer_timing_mode": "destination_missing", "router_queue_policy": "lcfs",
        "planner_profile_data": "p.npz",
    });
    let nested = json!({
        "engine": {
            "backend": "vllm", "num_gpu_blocks": 100, "block_size": 32, "max_num_seqs": null,
            "speedup_ratio": 2.0, "worker_type": "prefill", "aic_nextn": 3, "aic_nextn_accept_rates": [0.5, 0.25],
            "kv_transfer_bytes_per_token": 1000, "kv_transfer_bandwidth": 64,
            "kv_transfer_timing_mode": "destination_missing",
            "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": "p.npz"}},
        },
        "dp_size": 2, "tensor_parallel_size": 4, "startup_time": 1.5, "dynamo": {"router_queue_policy": "lcfs"},
    });
    let read = args(flat);
    assert_eq!(read, args(nested));
    assert_eq!(read.mtp, Some(Mtp { extra_tokens: 3, acceptance_rates: vec![0.5, 0.25, 0.0] }));
    assert_eq!((read.max_num_seqs, read.startup_time_ns, read.gpus_per_worker()), (None, 1_500_000_000, 8));
}

#[test]
fn every_key_is_known_where_it_belongs() {
    for key in ENGINE {
        assert!(read(&json!({"engine": {*key: null}}).to_string()).is_ok(), "{key}");
    }
    for key in BESIDE.iter().filter(|key| **key != "engine" && **key != "dynamo") {
        assert!(read(&json!({"engine": {}, *key: null}).to_string()).is_ok(), "{key}");
    }
    for key in DYNAMO {
        assert!(read(&json!({"dynamo": {*key: null}}).to_string()).is_ok(), "{key}");
        assert!(read(&json!({*key: null}).to_string()).is_ok(), "{key}");
    }
    for key in FLAT_ONLY {
        assert!(read(&json!({*key: null}).to_string()).is_ok(), "{key}");
    }
}

#[test]
fn unknown_keys_are_refused_with_the_right_name() {
    refused(
        json!({"max_num_seq": 4}),
        &["--extra-engine-args, `max_num_seq`: is unknown; did you mean `max_num_seqs`?"],
    );
    refused(json!({"engine": {"engine_typ": 4}}), &["`engine.engine_typ`", "did you mean `engine_type`?"]);
    refused(json!({"engine": {}, "max_num_seqs": 4}), &["`max_num_seqs`", "it belongs into `engine`"]);
    refused(json!({"engine": {}, "aic_tp_size": 4}), &["in the nested one it is `tensor_parallel_size`"]);
    refused(json!({"engine": {"dp_size": 4}}), &["`engine.dp_size`", "it belongs at the top level"]);
    refused(json!({"dynamo": {"dp_size": 4}}), &["`dynamo.dp_size`", "it belongs at the top level"]);
    for key in ["prefill_schedule_interval", "timing_model", "kv_eviction_policy"] {
        refused(json!({"dp_size": 2, key: 3}), &[&format!("`{key}`: is unknown; "), "it belongs into `engine`"]);
    }
    refused(json!({"num_host_blocks": 4}), &["it belongs into `engine.native_host_offload`"]);
    refused(json!({"sglang": {"page": 4}}), &["`sglang.page`"]);
    refused(json!([]), &["expected a JSON object"]);
    assert!(read("{").expect_err("cut off").to_string().contains("invalid JSON"));
}

#[test]
fn arguments_must_fit_together() {
    refused(json!({"engine_type": "sglang", "block_size": 4, "sglang": {"page_size": 8}}), &["they must be equal"]);
    refused(json!({"engine_type": "sglang", "block_size": 48}), &["chunked_prefill_size", "expected a multiple"]);
    refused(json!({"engine_type": "trtllm", "max_model_len": 48}), &["`max_model_len`", "only"]);
    refused(json!({"num_g3_blocks": 48}), &["needs `num_g2_blocks`"]);
    refused(json!({"enable_g4_storage": true}), &["`enable_g4_storage`: is not simulated", "remove it"]);
    refused(json!({"num_g2_blocks": 9}), &["`num_g2_blocks`: needs `kv_bytes_per_token`"]);
    let with_host = |more: Value| {
        let mut object = json!({"num_g2_blocks": 9, "kv_bytes_per_token": 1000});
        object.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        object
    };
    refused(with_host(json!({"enable_g4_storage": true})), &["`enable_g4_storage`: is not simulated", "object store"]);
    refused(with_host(json!({"engine_type": "sglang"})), &["`num_g2_blocks`", "\"vllm\" only"]);
    refused(with_host(json!({"enable_prefix_caching": false})), &["needs `enable_prefix_caching`"]);
    refused(with_host(json!({"aic_nextn": 1})), &["together with `aic_nextn`"]);
    refused(with_host(json!({"bandwidth_g1_to_g2_gbps": -1})), &["at least 0, got -1"]);
    refused(json!({"engine": {"g3_offload": {}}}), &["`engine.g3_offload`: needs `native_host_offload`"]);
    refused(
        json!({"engine": {"native_host_offload": {}}}),
        &["`engine.native_host_offload.num_host_blocks`: is missing", "needs `kv_cache_bytes_per_token`"],
    );
    let disk = |disk: Value| json!({"engine": {"kv_cache_bytes_per_token": 1, "native_host_offload": {"num_host_blocks": 1}, "g3_offload": disk}});
    refused(disk(json!({"num_g3_blocks": 1})), &["`engine.g3_offload.scope`: is missing"]);
    let shared_host = json!({"engine": {"kv_cache_bytes_per_token": 1,
        "native_host_offload": {"num_host_blocks": 1, "scope": "cluster_shared"},
        "g3_offload": {"num_g3_blocks": 1, "scope": "worker_local"}}});
    refused(shared_host, &["`engine.g3_offload.scope`: expected \"cluster_shared\"", "belongs to no worker"]);
    refused(json!({"engine": {"num_g2_blocks": 1}}), &["`engine.native_host_offload.num_host_blocks`"]);
    refused(json!({"aic_nextn": 2, "decode_speedup_ratio": 2}), &["needs `decode_speedup_ratio` 1"]);
    refused(json!({"aic_nextn": 6}), &["expected 1 to 5, got 6"]);
    refused(json!({"aic_nextn_accept_rates": "1"}), &["needs `aic_nextn`"]);
    refused(json!({"aic_nextn": 1, "aic_nextn_accept_rates": "1.5"}), &["probabilities from 0 to 1"]);
    refused(json!({"speedup_ratio": -1}), &["at least 0, got -1"]);
    refused(json!({"aic_moe_tp_size": 4, "aic_tp_size": 2}), &["make 4 GPUs", "2; they must be equal"]);
    refused(json!({"is_prefill": true, "worker_type": "decode"}), &["contradicts"]);
    refused(json!({"num_gpu_blocks": 0}), &["1 to 4294967295, got 0"]);
    refused(json!({"block_size": -5}), &["`block_size`", "got -5"]);
    refused(json!({"engine": {"timing_model": {"type": "fixed"}}}), &["needs `prefill_ms` and `decode_ms`"]);
    refused(json!({"kv_bytes_per_token": 1, "kv_transfer_bytes_per_token": 2}), &["is given twice"]);
    assert_eq!(args(json!({"aic_attention_dp_size": 4})).dp_size, 4);
    assert_eq!(args(json!({"engine_type": "sglang", "sglang": {"page_size": 64}})).block_size, 64);
    assert_eq!(args(json!({"engine_type": "trtllm", "block_size": 0})).block_size, 32);
}

#[test]
fn what_does_not_do_what_it_says_is_reported_and_strictly_refused() {
    for text in [r#"{"speedup_ratio": 0}"#, r#"{"bootstrap_port": 7}"#, r#"{"gpu_memory_utilization": 0.9}"#] {
        let (args, remarks) = read(text).expect("valid");
        assert_eq!((args.speedup_ratio, remarks.len()), (1.0, 1), "{text}");
        assert!(EngineArgs::read("--extra-engine-args", text, true).is_err(), "{text}");
    }
}

#[test]
fn a_key_can_be_set_in_either_layout() {
    let set = |text, key, value| EngineArgs::with_key(text, key, value);
    assert_eq!(set(None, "max_num_seqs", json!(4)), r#"{"max_num_seqs":4}"#);
    assert_eq!(set(Some(r#"{"engine":{}}"#), "max_num_seqs", json!(4)), r#"{"engine":{"max_num_seqs":4}}"#);
    assert_eq!(set(Some(r#"{"engine":{}}"#), "dp_size", json!(4)), r#"{"dp_size":4,"engine":{}}"#);
    assert_eq!(set(None, "backend", json!("vllm")), r#"{"engine":{"backend":"vllm"}}"#);
    let ranks = r#"{"dp_size":4,"max_num_seqs":8}"#;
    let nested = r#"{"dp_size":4,"engine":{"max_num_seqs":8,"prefill_schedule_interval":2}}"#;
    assert_eq!(set(Some(ranks), "prefill_schedule_interval", json!(2)), nested);
    assert!(read(nested).is_ok());
    let flat = set(Some(r#"{"aic_tp_size":4}"#), "prefill_schedule_interval", json!(2));
    assert_eq!(flat, r#"{"aic_tp_size":4,"prefill_schedule_interval":2}"#, "the reader says where it belongs");
    assert!(known_engine_key("max_num_seqs") && known_engine_key("aic_tp_size") && !known_engine_key("engine"));
}

#[test]
fn a_number_beyond_all_bounds_is_refused_without_room_for_it() {
    let error = read(r#"{"aic_nextn": 18446744073709551615}"#).expect_err("it is too large").to_string();
    assert!(error.contains("`aic_nextn`: expected 1 to 5"), "{error}");
}

#[test]
fn tiers_are_those_of_either_line() {
    assert_eq!(args(json!({"num_g2_blocks": 0, "num_g3_blocks": null})).kv_tiers, None);
    let own = vcr_core::KvTiersConfig { host_blocks: 9, kv_bytes_per_token: 1000, ..Default::default() };
    assert_eq!(args(json!({"num_g2_blocks": 9, "kv_bytes_per_token": 1000})).kv_tiers, Some(own));
    let flat = json!({
        "num_g2_blocks": 9, "num_g3_blocks": 99, "kv_bytes_per_token": 1000, "offload_batch_size": 32,
        "bandwidth_g1_to_g2_gbps": 1.5, "bandwidth_g2_to_g1_gbps": 0, "bandwidth_g2_to_g3_gbps": 2,
        "bandwidth_g3_to_g2_gbps": 3,
    });
    let nested = json!({"engine": {
        "kv_cache_bytes_per_token": 1000,
        "native_host_offload": {"num_host_blocks": 9, "d2h_bandwidth_gbps": 1.5, "h2d_bandwidth_gbps": 0},
        "g3_offload": {
            "scope": "worker_local", "num_g3_blocks": 99, "latency_to_first_byte_ms": 0,
            "read_bandwidth_gbps": 3, "write_bandwidth_gbps": 2,
        },
    }});
    let tiers = args(flat).kv_tiers.expect("it has tiers");
    assert_eq!(args(nested).kv_tiers, Some(tiers));
    assert_eq!((tiers.device_to_host_bytes_per_s, tiers.host_to_device_bytes_per_s), (Some(1_500_000_000), None));
    // The values that are not given have 1.6's defaults.
    let short = json!({"engine": {
        "kv_cache_bytes_per_token": 1000, "native_host_offload": {"num_host_blocks": 9},
        "g3_offload": {"scope": "worker_local", "num_g3_blocks": 99},
    }});
    let tiers = args(short).kv_tiers.expect("it has tiers");
    assert_eq!(
        (tiers.host_to_device_bytes_per_s, tiers.disk_to_host_bytes_per_s),
        (Some(32_000_000_000), Some(10_000_000_000))
    );
    assert_eq!(tiers.disk_latency_ns, 100_000);
    let late = json!({"engine": {
        "kv_cache_bytes_per_token": 1000, "native_host_offload": {"num_host_blocks": 9, "latency_to_first_byte_ms": 0.5},
    }});
    assert_eq!(args(late).kv_tiers.expect("it has tiers").host_latency_ns, 500_000);
    let shared = args(json!({"engine": {
        "kv_cache_bytes_per_token": 1,
        "native_host_offload": {"num_host_blocks": 9, "scope": "cluster_shared", "shared_h2d_bandwidth_gbps": 0},
        "g3_offload": {"num_g3_blocks": 9, "scope": "cluster_shared", "shared_read_bandwidth_gbps": 1.5},
    }}));
    let shared = shared.kv_tiers.expect("it has tiers");
    let tier = |write, read| Some(vcr_core::SharedTier { write_bytes_per_s: write, read_bytes_per_s: read });
    assert_eq!(shared.shared_host, tier(Some(80_000_000_000), None));
    assert_eq!(shared.shared_disk, tier(Some(80_000_000_000), Some(1_500_000_000)));
    // A bandwidth of a tier that is not configured is reported.
    let warnings = read(r#"{"bandwidth_g1_to_g2_gbps": 1, "offload_batch_size": 8}"#).expect("valid").1;
    assert_eq!(warnings.len(), 2);
}

#[test]
fn a_state_takes_blocks_of_the_pool_in_groups_of_its_own() {
    let engine = |more: Value| {
        let mut engine =
            json!({"block_size": 16, "kv_cache_bytes_per_token": 1_000, "state_cache": {"bytes_per_request": 33_000}});
        engine.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"engine": engine})
    };
    let given = args(engine(json!({})));
    assert_eq!(given.state_blocks, 3);
    let groups: Vec<String> = state::groups(given.state_blocks).iter().map(ToString::to_string).collect();
    assert_eq!(groups, ["full", "mamba", "mamba", "mamba"]);
    assert_eq!((args(json!({})).state_blocks, state::groups(0)), (0, vec![]));
    refused(engine(json!({"state_cache": {}})), &["`engine.state_cache.bytes_per_request`: is missing"]);
    refused(
        engine(json!({"kv_cache_bytes_per_token": null})),
        &["`engine.state_cache`: needs `kv_cache_bytes_per_token`"],
    );
    refused(
        engine(json!({"state_cache": {"bytes_per_request": 9_999_000}})),
        &["takes 625 blocks; expected at most 63"],
    );
    refused(engine(json!({"worker_type": "prefill"})), &["aggregated workers only"]);
    refused(engine(json!({"backend": "sglang"})), &["\"vllm\" only"]);
    refused(engine(json!({"native_host_offload": {"num_host_blocks": 9}})), &["together with `native_host_offload`"]);
    refused(engine(json!({"prefix_match_unit": 8})), &["`engine.prefix_match_unit`: is not simulated"]);
    refused(json!({"engine": {"prefix_match_unit": 8}}), &["needs `state_cache`"]);
}

#[test]
fn capacities_of_tiers_can_be_swept_in_either_layout() {
    let set = |text, key| EngineArgs::with_key(text, key, json!(7));
    assert_eq!(set(None, "num_g2_blocks"), r#"{"num_g2_blocks":7}"#);
    let nested = r#"{"engine":{"native_host_offload":{"num_host_blocks":1}}}"#;
    assert_eq!(set(Some(nested), "num_host_blocks"), r#"{"engine":{"native_host_offload":{"num_host_blocks":7}}}"#);
    assert_eq!(set(Some(r#"{"engine":{}}"#), "num_g3_blocks"), r#"{"engine":{"g3_offload":{"num_g3_blocks":7}}}"#);
    assert_eq!(set(None, "num_g3_blocks"), r#"{"num_g3_blocks":7}"#);
    let shared = r#"{"engine":{"native_host_offload":{"shared_h2d_bandwidth_gbps":7}}}"#;
    assert_eq!(set(Some(r#"{"engine":{}}"#), "shared_h2d_bandwidth_gbps"), shared);
    assert!(known_engine_key("num_host_blocks") && known_engine_key("bandwidth_g3_to_g2_gbps"));
}

proptest! {
    /// Any input is read or refused, and accepted arguments make a pool or are refused.
    #[test]
    fn nothing_makes_it_panic(
        key in prop::sample::select([ENGINE, BESIDE, DYNAMO, FLAT_ONLY].concat()),
        value in prop::sample::select(vec![
            json!(0), json!(-1), json!(1e300), json!("x"), json!([]), json!({}), json!(true), json!(4294967295_u32),
        ]),
        is_nested: bool,
    ) {
        let object = if is_nested { json!({"engine": {key: value}}) } else { json!({key: value}) };
        if let Ok((args, _)) = read(&object.to_string()) {
            let options = PoolOptions {
                place: "--extra-engine-args",
                name: "engines",
                engines: 1,
                autoscale: None,
                preset: Preset::Dynamo1_4,
                role: PoolRole::Aggregated,
                computes_prompts: false,
                latency: None,
                router: vcr_cluster::RouterConfig::RoundRobin,
            };
            let _ = args.pool(options);
        }
    }
}

#[test]
fn operator_tables_are_named_by_their_own_keys() {
    let given = args(json!({
        "aic_backend": "vllm", "aic_system": "b200_sxm", "aic_backend_version": "0.24.0", "aic_model_path": "a/b",
        "aic_tp_size": 2, "aic_attention_dp_size": 4, "aic_moe_tp_size": 2, "aic_moe_ep_size": 4,
        "aic_gemm_dtype": "fp8", "aic_moe_dtype": "fp8", "aic_fmha_dtype": "bfloat16", "aic_kv_cache_dtype": "fp8",
        "aic_comm_dtype": "half",
    }));
    let text = |text: &str| Some(text.to_owned());
    let expected = TablesInput {
        version: text("0.24.0"),
        tensor_parallel: 2,
        expert_parallel: 4,
        attention_dp: 4,
        gemm_dtype: text("fp8"),
        moe_dtype: text("fp8"),
        kv_cache_dtype: text("fp8"),
        attention_dtype: text("bfloat16"),
        ..TablesInput::new("b200_sxm", "a/b")
    };
    assert_eq!(given.timing, Timing::Tables(Box::new(expected)));
    let least = args(json!({"aic_backend": "sglang", "aic_model_path": "a/b"}));
    let expected = TablesInput { backend: "sglang".to_owned(), ..TablesInput::new("h200_sxm", "a/b") };
    assert_eq!(least.timing, Timing::Tables(Box::new(expected)));
    refused(json!({"aic_backend": "vllm"}), &["`aic_model_path`: is missing"]);
    refused(json!({"aic_backend": "vllm", "aic_model_path": 7}), &["`aic_model_path`", "got 7"]);
    let comm = json!({"aic_backend": "vllm", "aic_model_path": "a/b", "aic_comm_dtype": "fp8"});
    refused(comm, &["`aic_comm_dtype`: is not simulated"]);
    let both = json!({"aic_backend": "vllm", "aic_model_path": "a/b", "planner_profile_data": "p.npz"});
    refused(both, &["`aic_backend`: contradicts `planner_profile_data`"]);
}
