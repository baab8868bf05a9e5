//! KV events with groups of layers and drafters, compared with vLLM's scheduler.
//!
//! `tests/oracle/events/event_hashes.py` has written `data/kv_events.jsonl` with vLLM 0.33.0.

use serde_json::{Value as Json, json};
use vcr_core::{Drafter, KvCacheGroup, KvCacheKind};

use super::kv_events::{replayed, subscribed, with_events};
use super::*;

fn number(value: &Json) -> u32 {
    value.as_u64().expect("a number") as u32
}

fn group(value: &Json) -> KvCacheGroup {
    let kind = match value["kind"].as_str().expect("a text") {
        "full" => KvCacheKind::FullAttention,
        "sliding_window" => KvCacheKind::SlidingWindow { window_tokens: number(&value["window"]) },
        "chunked_local" => KvCacheKind::ChunkedLocal { chunk_tokens: number(&value["window"]) },
        "mamba" => KvCacheKind::Mamba { checkpoint_tokens: value.get("checkpoint").map(number) },
        other => panic!("unknown kind {other}"),
    };
    KvCacheGroup { kind, block_size: Some(number(&value["block_size"])), has_drafter: value["drafter"] == true }
}

fn engine_of(case: &Json) -> EngineConfig {
    let config = &case["config"];
    let drafter = match config["drafter"].as_str() {
        None => Drafter::Ngram,
        Some("eagle") => Drafter::Eagle,
        Some("multi_module_mtp") => Drafter::MultiModuleMtp,
        Some(other) => panic!("unknown drafter {other}"),
    };
    engine_config(EngineConfigInput {
        block_size: number(&config["block_size"]),
        num_gpu_blocks: number(&config["num_blocks"]),
        max_num_seqs: number(&config["max_num_seqs"]),
        max_num_batched_tokens: number(&config["max_num_batched_tokens"]),
        max_model_len: Some(number(&config["max_model_len"])),
        scheduler_reserve_full_isl: false,
        num_speculative_tokens: number(&config["spec"]),
        drafter,
        async_scheduling: false,
        kv_cache_groups: config["groups"].as_array().into_iter().flatten().map(group).collect(),
        prefix_cache_retention_interval: config["retention"].as_u64().map(|tokens| tokens as u32),
        max_num_encoder_input_tokens: Some(number(&config["max_num_encoder_input_tokens"])),
        encoder_cache_size: Some(number(&config["encoder_cache_size"])),
        ..EngineConfigInput::default()
    })
}

fn request_of(id: &str, asked: &Json) -> EngineCoreRequest {
    let runs = asked["prompt"].as_array().expect("runs of tokens");
    let tokens: Vec<u32> = runs.iter().flat_map(|run| (number(&run[0])..).take(number(&run[1]) as usize)).collect();
    let feature = |image: &Json| MmFeature {
        modality: "image".to_owned(),
        identifier: image[0].as_str().expect("a name").to_owned(),
        mm_position: PlaceholderRange {
            offset: number(&image[1]).into(),
            length: number(&image[2]).into(),
            ..PlaceholderRange::default()
        },
        ..MmFeature::default()
    };
    let images: Vec<MmFeature> = asked["images"].as_array().expect("a list").iter().map(feature).collect();
    EngineCoreRequest {
        cache_salt: asked["salt"].as_str().map(str::to_owned),
        mm_features: (!images.is_empty()).then_some(images),
        ..request(id, &tokens, params(1))
    }
}

/// Tokens as runs of consecutive numbers: first number and length.
fn runs(tokens: &[u32]) -> Json {
    let mut out: Vec<[u32; 2]> = Vec::new();
    for &token in tokens {
        match out.last_mut() {
            Some([first, count]) if token == *first + *count => *count += 1,
            _ => out.push([token, 1]),
        }
    }
    json!(out)
}

fn short(hash: &BlockHash) -> Json {
    let BlockHash::Int(hash) = hash else { panic!("whole digests were not asked for") };
    json!(*hash as u32)
}

fn key(value: &Value) -> Json {
    match value {
        Value::Str(text) => json!(text),
        Value::Int(number) => json!(number.to_string().parse::<i64>().expect("a place")),
        Value::Array(values) => values.iter().map(key).collect(),
        other => panic!("a key is {other:?}"),
    }
}

/// An event in the form of the recording.
fn written(event: &KvEvent) -> Json {
    let mut line = match event {
        KvEvent::BlockRemoved(removed) => json!({
            "removed": removed.block_hashes.iter().map(short).collect::<Vec<_>>(),
            "group": removed.group_idx,
        }),
        KvEvent::BlockStored(stored) => json!({
            "stored": stored.block_hashes.iter().map(short).collect::<Vec<_>>(),
            "group": stored.group_idx,
            "parent": stored.parent_block_hash.as_ref().map(short),
            "tokens": runs(&stored.token_ids),
            "block_size": stored.block_size,
            "keys": stored.extra_keys.as_ref().map(|keys| {
                let of_block = |keys: &Option<Vec<Value>>| keys.as_ref().map(|keys| keys.iter().map(key).collect::<Vec<_>>());
                keys.iter().map(of_block).collect::<Vec<_>>()
            }),
            "kind": stored.kv_cache_spec_kind,
            "window": stored.kv_cache_spec_sliding_window,
            "ahead": stored.lookahead_token_ids,
        }),
        KvEvent::AllBlocksCleared => panic!("nothing clears the cache"),
    };
    line.as_object_mut().expect("it is one").retain(|_, value| !value.is_null());
    line
}

/// Events have vLLM's hashes, parents, tokens and keys, in vLLM's order, for all kinds of groups and drafters.
#[test]
fn events_are_those_of_vllm_with_groups_and_drafters() {
    let recording = include_str!("data/kv_events.jsonl");
    let mut events = 0;
    for case in recording.lines().map(|line| serde_json::from_str::<Json>(line).expect("it is JSON")) {
        let name = case["name"].as_str().expect("a name");
        let (bench, subscriber) = with_events(|config| {
            config.engine = engine_of(&case);
            config.identity.version = Some(VllmMinor::V0_33);
        });
        for (index, asked) in case["requests"].as_array().expect("a list").iter().enumerate() {
            let id = format!("r{index}");
            bench.send(Request::Add(Box::new(request_of(&id, asked))));
            bench.collect(&[&id]);
        }
        let expected: Vec<&Json> = case["events"]
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|of_request| of_request.as_array().unwrap())
            .collect();
        let published =
            |batches: &[(u64, KvEventBatch)]| batches.iter().map(|(_, batch)| batch.events.len()).sum::<usize>();
        let deadline = Instant::now() + PATIENCE;
        let mut batches = replayed(&subscriber, 0);
        while published(&batches) < expected.len() && Instant::now() < deadline {
            batches = replayed(&subscriber, 0);
        }
        let ours: Vec<Json> = batches.iter().flat_map(|(_, batch)| &batch.events).map(written).collect();
        for (index, (ours, theirs)) in ours.iter().zip(&expected).enumerate() {
            assert_eq!(&ours, theirs, "{name}, event {index}");
        }
        assert_eq!(ours.len(), expected.len(), "{name}");
        events += ours.len();
    }
    assert!(events > 1000, "the recording has only {events}");
}

/// Outputs complete blocks too. Only the sequence determines their hashes, even after an eviction.
#[test]
fn who_listens_knows_what_groups_have_cached() {
    let groups = ["full", "sliding_window:20"].map(|text| text.parse().expect("it is a group")).to_vec();
    let (bench, subscriber) = with_events(|config| {
        config.engine = engine_config(EngineConfigInput {
            num_gpu_blocks: 40,
            max_model_len: Some(200),
            kv_cache_groups: groups,
            drafter: Drafter::Eagle,
            num_speculative_tokens: 2,
            ..EngineConfigInput::default()
        });
        config.identity.version = Some(VllmMinor::V0_33);
    });
    subscribed(&bench, &subscriber);
    for round in 0..20u32 {
        let start = round * 7 % 40;
        bench.run(&format!("r{round}"), &(start..start + 50).collect::<Vec<_>>(), 60);
    }
    assert_eq!(bench.call("reset_prefix_cache", vec![]), Ok(true.into()));
    bench.run("last", &prompt(20), 1);
    let is_last = |event: &KvEvent| matches!(event, KvEvent::BlockStored(stored) if stored.token_ids == prompt(16));
    let deadline = Instant::now() + PATIENCE;
    let batches = loop {
        let batches = replayed(&subscriber, 0);
        if batches.iter().any(|(_, batch)| batch.events.iter().any(is_last)) {
            break batches;
        }
        assert!(Instant::now() < deadline, "the last event does not come");
    };
    let mut cached: Vec<(u64, BlockHash)> = Vec::new();
    let mut removed_count = 0;
    let mut behind = 0;
    for event in batches.iter().flat_map(|(_, batch)| &batch.events) {
        match event {
            KvEvent::BlockStored(stored) => {
                let group = stored.group_idx.expect("all are of a group");
                cached.extend(stored.block_hashes.iter().map(|hash| (group, hash.clone())));
                behind += stored.lookahead_token_ids.as_ref().map_or(0, Vec::len);
            }
            KvEvent::BlockRemoved(removed) => {
                let gone = (removed.group_idx.expect("it is of a group"), removed.block_hashes[0].clone());
                let place = cached.iter().position(|one| *one == gone).expect("it was there");
                cached.swap_remove(place);
                removed_count += 1;
            }
            KvEvent::AllBlocksCleared => cached.clear(),
        }
    }
    assert!(removed_count > 50 && behind > 100, "{removed_count} removed, {behind} with tokens behind them");
    assert_eq!(cached.len(), 2, "one block of each group is cached after the reset");
}
