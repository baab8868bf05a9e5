//! No bytes may panic the readers of the handshake, and accepted ones must survive being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_wire::{DecodeError, EngineHandshake, Init, NixlAgentMetadata, NixlHandshake, NixlQuery, ReadyResponse};

fuzz_target!(|bytes: &[u8]| {
    check(bytes, EngineHandshake::decode, EngineHandshake::encode);
    check(bytes, Init::decode, Init::encode);
    check(bytes, ReadyResponse::decode, ReadyResponse::encode);
    check(bytes, NixlHandshake::decode, NixlHandshake::encode);
    check(bytes, NixlAgentMetadata::decode, NixlAgentMetadata::encode);
    check(bytes, NixlQuery::decode, NixlQuery::encode);
});

fn check<T>(bytes: &[u8], decode: fn(&[u8]) -> Result<T, DecodeError>, encode: fn(&T, &mut Vec<u8>)) {
    let encoded = |value: &T| {
        let mut out = Vec::new();
        encode(value, &mut out);
        out
    };
    if let Ok(value) = decode(bytes) {
        let written = encoded(&value);
        let again = decode(&written).unwrap_or_else(|error| panic!("it was written by us: {error}"));
        // As bytes: a float that is not a number equals nothing, not even itself.
        assert_eq!(encoded(&again), written);
    }
}
