//! No bytes may panic the reader of requests, and accepted ones must survive being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_wire::{EngineCoreRequest, Protocol, Request, VersionEvidence, VllmMinor};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, payload)) = bytes.split_first() else { return };
    _ = EngineCoreRequest::peek_id(payload);
    _ = VersionEvidence::from_add(payload);
    let Ok(request) = Request::decode(&[&[*kind][..], payload]) else { return };
    if let Ok(Request::Add(add)) = Request::decode(&[&[*kind][..], payload, payload]) {
        let runs = add.mm_features.iter().flatten().filter_map(|feature| feature.mm_position.embed_runs());
        assert!(runs.flatten().all(|run| run.start < run.end && run.end as usize <= payload.len()));
    }
    for version in VllmMinor::ALL {
        let written = encoded(&request, version);
        let again = Request::decode(&[&[request.kind()][..], &written]).expect("it was written by us");
        // As bytes: a float that is not a number equals nothing, not even itself.
        assert_eq!(encoded(&again, version), written);
    }
});

fn encoded(request: &Request, version: VllmMinor) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out, version.rules());
    out
}
