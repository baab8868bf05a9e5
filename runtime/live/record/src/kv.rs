//! Converts KV events to capture lines.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use vcr_wire::{AsJson, KvEventBatch, KvEventSubscriber, Transport, decode_sequence, monotonic_ns};

use crate::error::RecordError;
use crate::queue::Queue;

/// Interval at which a subscriber checks whether it should end.
const PAUSE: Duration = Duration::from_millis(100);

/// Event fields that contain tokens or tenants' secrets.
const TELLING: [&str; 3] = ["token_ids", "lookahead_token_ids", "extra_keys"];

/// Receives the KV events published at `endpoint` until `stop`. `rank` applies to batches that state no rank.
pub(crate) fn subscribe(
    transport: &Transport,
    endpoint: &str,
    rank: u32,
    queue: Arc<Queue>,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<()>, RecordError> {
    let subscriber = KvEventSubscriber::connect(transport, endpoint, None, "")?;
    let hear = move || {
        while !stop.load(Ordering::Relaxed) {
            match subscriber.receive_frames(PAUSE) {
                Ok(None) => {}
                Ok(Some(frames)) => {
                    // Whether this is a valid batch is checked when it is decoded.
                    let sequence = frames.get(1).and_then(|frame| decode_sequence(frame).ok()).unwrap_or(u64::MAX);
                    let payload = frames.get(2).map_or(&[][..], Vec::as_slice);
                    queue.push_kv(monotonic_ns(), rank, sequence, payload);
                }
                Err(error) => {
                    tracing::error!("KV events are not recorded any more: {error}");
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("kv-events".to_owned()).spawn(hear).map_err(RecordError::Thread)
}

/// Returns the rank and the events of a batch. Fields with tokens are included only if `with_tokens`.
pub(crate) fn kv_events(payload: &[u8], with_tokens: bool) -> Result<(Option<u32>, Value), Box<dyn Error>> {
    // Decoding as a batch checks the format; decoding as JSON keeps unknown keys.
    let rank = KvEventBatch::decode(payload)?.data_parallel_rank;
    let mut events = serde_json::to_value(AsJson::new(payload))?.get_mut(1).map_or(Value::Null, Value::take);
    if !with_tokens {
        for event in events.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            TELLING.iter().for_each(|key| _ = event.remove(*key));
        }
    }
    Ok((rank, events))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use vcr_wire::{BlockHash, BlockStored, KvEvent};

    #[test]
    fn events_tell_no_tokens_unless_they_may() {
        let stored = BlockStored {
            block_hashes: vec![BlockHash::Int(7)],
            token_ids: vec![1, 2],
            extra_keys: Some(vec![Some(vec!["salt".into()])]),
            block_size: 2,
            ..BlockStored::default()
        };
        let events = vec![KvEvent::BlockStored(Box::new(stored)), KvEvent::AllBlocksCleared];
        let mut payload = Vec::new();
        KvEventBatch { ts: 1.0, events, data_parallel_rank: Some(3) }.encode(&mut payload);
        let (rank, events) = kv_events(&payload, false).expect("a batch");
        assert_eq!(
            (rank, &events[0]["block_hashes"], &events[1]["type"]),
            (Some(3), &json!([7]), &json!("AllBlocksCleared"))
        );
        assert!(TELLING.iter().all(|key| events[0].get(key).is_none()), "{events}");
        let (_, events) = kv_events(&payload, true).expect("a batch");
        assert_eq!(events[0]["token_ids"], json!([1, 2]));
        assert!(kv_events(b"\x93", true).is_err());
    }

    #[test]
    fn events_of_groups_keep_their_group_and_its_layers() {
        let stored = |group: u64, kind: &str, window: Option<u64>| {
            KvEvent::BlockStored(Box::new(BlockStored {
                block_hashes: vec![BlockHash::Int(7)],
                token_ids: vec![1, 2],
                block_size: 2,
                group_idx: Some(group),
                kv_cache_spec_kind: Some(kind.to_owned()),
                kv_cache_spec_sliding_window: window,
                lookahead_token_ids: Some(vec![vec![3]]),
                ..BlockStored::default()
            }))
        };
        let events = vec![stored(0, "full_attention", None), stored(1, "sliding_window", Some(64))];
        let mut payload = Vec::new();
        KvEventBatch { ts: 1.0, events, data_parallel_rank: None }.encode(&mut payload);
        let (_, events) = kv_events(&payload, false).expect("a batch");
        let told = |event: &Value| {
            let keys = ["group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "lookahead_token_ids"];
            keys.map(|key| event.get(key).cloned().unwrap_or_default())
        };
        assert_eq!(told(&events[0]), [json!(0), json!("full_attention"), Value::Null, Value::Null]);
        assert_eq!(told(&events[1]), [json!(1), json!("sliding_window"), json!(64), Value::Null]);
    }
}
