//! No bytes may panic the reader of KV events, and accepted ones must survive being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_wire::{KvEventBatch, KvEventMessage};

fuzz_target!(|bytes: &[u8]| {
    // The first bytes stand in for the other two frames.
    let (topic, rest) = bytes.split_at(bytes.len().min(2));
    let (sequence, payload) = rest.split_at(rest.len().min(8));
    _ = KvEventMessage::decode(&[topic, sequence, payload]);
    let Ok(batch) = KvEventBatch::decode(bytes) else { return };
    let written = encoded(&batch);
    let again = KvEventBatch::decode(&written).expect("it was written by us");
    // As bytes: a float that is not a number equals nothing, not even itself.
    assert_eq!(encoded(&again), written);
});

fn encoded(batch: &KvEventBatch) -> Vec<u8> {
    let mut out = Vec::new();
    batch.encode(&mut out);
    out
}
