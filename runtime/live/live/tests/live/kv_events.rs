//! KV events that subscribers receive, compared with the engine's cache.

use std::collections::BTreeSet;

use vcr_base::block_hash::HashAlgorithm;

use super::*;

pub(super) fn with_events(change: impl FnOnce(&mut LiveConfig)) -> (Bench, KvEventSubscriber) {
    let mut config = config();
    let name = format!("vcr-live-test-{}-{:?}", std::process::id(), std::thread::current().id());
    let address = |kind: &str| format!("ipc://{}/{name}-{kind}", std::env::temp_dir().display());
    config.kv_events = Some(KvEventSettings {
        config: KvEventsConfig {
            endpoint: address("events"),
            replay_endpoint: Some(address("replay")),
            topic: "kv@test".to_owned(),
            ..KvEventsConfig::default()
        },
        algorithm: HashAlgorithm::Sha256,
        hash_seed: None,
        whole_digests: false,
    });
    change(&mut config);
    let bench = Bench::new(config);
    let published = bench.frontend.engines[0].kv_events_config.clone().expect("it says where");
    let replay = published.replay_endpoint.as_deref();
    let subscriber = KvEventSubscriber::connect(&Transport::new(), &published.endpoint, replay, "kv@");
    (bench, subscriber.expect("they are addresses"))
}

fn next(subscriber: &KvEventSubscriber) -> (u64, KvEventBatch) {
    let message = subscriber.receive(PATIENCE).expect("it works").expect("a batch comes");
    assert_eq!(message.topic, "kv@test");
    (message.sequence, message.batch)
}

pub(super) fn replayed(subscriber: &KvEventSubscriber, start: u64) -> Vec<(u64, KvEventBatch)> {
    let messages = subscriber.replay(start, PATIENCE).expect("an answer comes");
    messages.into_iter().map(|message| (message.sequence, message.batch)).collect()
}

fn stored(batch: &KvEventBatch) -> Vec<&BlockStored> {
    batch
        .events
        .iter()
        .filter_map(|event| match event {
            KvEvent::BlockStored(stored) => Some(&**stored),
            _ => None,
        })
        .collect()
}

/// Waits until the subscription works. Nothing reports that, and earlier batches are missed.
pub(super) fn subscribed(bench: &Bench, subscriber: &KvEventSubscriber) -> u64 {
    for index in 0..200u32 {
        bench.run(&format!("probe{index}"), &[5000 + index; 16], 2);
        if let Some(message) = subscriber.receive(Duration::from_millis(50)).expect("it works") {
            return message.sequence;
        }
    }
    panic!("the subscriber hears nothing");
}

/// The hashes equal vLLM's reference vectors.
#[test]
fn blocks_have_the_names_that_vllm_gives_them() {
    let (bench, subscriber) = with_events(|_| {});
    let start = subscribed(&bench, &subscriber) + 1;
    bench.run("a", &prompt(20), 1);
    let (sequence, batch) = next(&subscriber);
    assert_eq!((sequence, batch.data_parallel_rank), (start, Some(0)));
    let [block] = stored(&batch)[..] else { panic!("one block is full: {batch:?}") };
    // The last 8 bytes of the SHA-256 of vLLM's own seed and tokens 1 to 16.
    assert_eq!(block.block_hashes, [BlockHash::Int(0x137b_b037_547f_4caf)]);
    assert_eq!((block.parent_block_hash.as_ref(), block.token_ids.as_slice()), (None, &prompt(16)[..]));
    assert_eq!((block.block_size, block.medium.as_deref()), (16, Some("GPU")));
}

/// A copy of the cache that is built only from events equals the engine's cache.
#[test]
fn who_listens_knows_what_is_cached() {
    let (bench, subscriber) = with_events(|config| {
        config.engine = engine_config(EngineConfigInput {
            num_gpu_blocks: 12,
            max_model_len: Some(100),
            ..EngineConfigInput::default()
        });
    });
    let mut expected = subscribed(&bench, &subscriber) + 1;
    let mut known: BTreeSet<BlockHash> = BTreeSet::new();
    for (_, batch) in replayed(&subscriber, 0) {
        apply(&mut known, &batch);
    }
    for round in 0..20u32 {
        let start = round * 7 % 40;
        bench.run(&format!("r{round}"), &(start..start + 50).collect::<Vec<_>>(), 3);
    }
    assert_eq!(bench.call("reset_prefix_cache", vec![]), Ok(true.into()));
    bench.run("last", &prompt(20), 2);
    let mut evicted = 0;
    loop {
        let (sequence, batch) = next(&subscriber);
        assert_eq!(sequence, expected, "none is missing");
        expected += 1;
        evicted += batch.events.iter().filter(|event| matches!(event, KvEvent::BlockRemoved(_))).count();
        apply(&mut known, &batch);
        if stored(&batch).iter().any(|block| block.token_ids == prompt(16)) {
            break;
        }
    }
    assert!(evicted > 0, "the cache is too small for all");
    assert_eq!(known.len(), 1, "the reset was reported");
    // A replay sends the same batches again.
    let replayed = replayed(&subscriber, expected - 2);
    assert_eq!(replayed.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [expected - 2, expected - 1]);
}

fn apply(known: &mut BTreeSet<BlockHash>, batch: &KvEventBatch) {
    for event in &batch.events {
        match event {
            KvEvent::BlockStored(stored) => {
                if let Some(parent) = &stored.parent_block_hash {
                    assert!(known.contains(parent), "a block behind one that is not there");
                }
                known.extend(stored.block_hashes.iter().cloned());
            }
            KvEvent::BlockRemoved(removed) => {
                for block in &removed.block_hashes {
                    assert!(known.remove(block), "a block that was not there");
                }
            }
            KvEvent::AllBlocksCleared => known.clear(),
        }
    }
}

#[test]
fn lost_events_leave_a_gap_that_a_replay_fills() {
    let (bench, subscriber) = with_events(|_| {});
    let last = subscribed(&bench, &subscriber);
    bench.handle().command(None, &Command::AddFault("kv-event-loss:count=1".parse().expect("it is a fault")));
    bench.wait_for("it is in force", |snapshot| !snapshot.faults.is_empty());
    bench.run("lost", &prompt(20), 1);
    bench.run("heard", &prompt(40)[20..], 1);
    let (sequence, _) = next(&subscriber);
    assert_eq!(sequence, last + 2);
    let replayed = replayed(&subscriber, last + 1);
    assert_eq!(stored(&replayed[0].1)[0].token_ids, prompt(16));
}

/// Adapters, salts and sessions are part of the hashes, and are in separate fields.
#[test]
fn keys_go_with_the_blocks() {
    let (bench, subscriber) = with_events(|_| {});
    subscribed(&bench, &subscriber);
    let salted = EngineCoreRequest {
        cache_salt: Some("s1".to_owned()),
        session_id: Some("talk".to_owned()),
        ..request("a", &prompt(36), params(1))
    };
    bench.send(Request::Add(Box::new(salted)));
    bench.collect(&["a"]);
    let (_, batch) = next(&subscriber);
    let blocks = stored(&batch);
    let keys = blocks[0].extra_keys.clone().expect("they are there");
    assert_eq!(keys, [Some(vec!["s1".into()]), None], "a salt is in the first block alone");
    assert_eq!(blocks[0].session_id.as_deref(), Some("talk"));
    bench.run("b", &prompt(36), 1);
    let (_, batch) = next(&subscriber);
    let plain = stored(&batch);
    assert_eq!(blocks[0].block_hashes[0], BlockHash::Int(0x91d8_11f0_264d_fc11));
    assert_ne!(plain[0].block_hashes, blocks[0].block_hashes);
}

/// The extra key of a block with a part of an image has the image's name and its offset relative to the block.
/// Earlier blocks have no extra key.
#[test]
fn images_go_with_the_blocks_that_they_lie_in() {
    let (bench, subscriber) = with_events(|_| {});
    subscribed(&bench, &subscriber);
    let with_image = |id: &str, image: &str| {
        let feature = MmFeature {
            modality: "image".to_owned(),
            identifier: image.to_owned(),
            mm_position: PlaceholderRange { offset: 20, length: 20, ..PlaceholderRange::default() },
            ..MmFeature::default()
        };
        let request = EngineCoreRequest { mm_features: Some(vec![feature]), ..request(id, &prompt(70), params(1)) };
        bench.send(Request::Add(Box::new(request)));
        bench.collect(&[id]);
        stored(&next(&subscriber).1)[0].clone()
    };
    let cat = with_image("a", "cat");
    let key = |offset: i64| Some(vec![Value::Array(vec!["cat".into(), Value::Int(offset.into())])]);
    let keys = cat.extra_keys.clone().expect("they are there");
    assert_eq!(keys, [None, key(4), key(-12), None]);
    // The first block is cached already and becomes the parent of the others.
    let dog = with_image("b", "dog");
    assert_eq!((dog.block_hashes.len(), &dog.parent_block_hash), (3, &cat.block_hashes.first().cloned()));
    for (one, other) in dog.block_hashes.iter().zip(&cat.block_hashes[1..]) {
        assert_ne!(one, other);
    }
    assert_eq!(dog.token_ids, prompt(70)[16..64]);
}
