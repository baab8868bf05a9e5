//! Messages of peers in rooms and at bootstrap servers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_transfer::bootstrap::{ranks, wire, workers};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(description) = wire::decode_description(bytes) {
        assert_eq!(wire::decode_description(&wire::encode_description(&description)), Ok(description));
    }
    if let Some((envelope, body)) = bytes.split_first_chunk() {
        if wire::body_bytes(*envelope) == Ok(body.len()) {
            assert_eq!(wire::envelope(body), bytes);
        }
    }
    if let Some((length, name)) = bytes.split_first_chunk() {
        if wire::name_bytes(*length) == Ok(name.len()) {
            if let Ok(room) = wire::named_room(name.to_vec()) {
                assert_eq!(wire::encode_room(&room), bytes);
            }
        }
    }
    let _ = ranks::Registration::decode(bytes);
    let _ = ranks::WorkerInfo::decode(bytes);
    let _ = ranks::RankAddress::decode(bytes);
    let _ = workers::Registration::decode(bytes);
    let _ = workers::decode_engines(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = ranks::decode_query(text);
    }
});
