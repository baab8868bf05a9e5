//! Messages and notices of a peer of the TCP plane.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_transfer::Notice;
use vcr_transfer::tcp::frame::{decode_all, preface};

fuzz_target!(|bytes: &[u8]| {
    let _ = decode_all(bytes);
    if let Ok(messages) = decode_all(&[&preface(), bytes].concat()) {
        let again: Vec<u8> = messages.iter().flat_map(|message| message.encode()).collect();
        assert_eq!(decode_all(&[&preface()[..], &again].concat()).as_ref(), Ok(&messages));
    }
    let _ = Notice::parse(bytes);
});
