//! No bytes may panic the reader of utility calls or of their arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_wire::{LoraRequest, Raw, Request, Value};

fuzz_target!(|bytes: &[u8]| {
    let Ok(Request::Utility(call)) = Request::decode(&[&[3][..], bytes]) else { return };
    for arg in &call.args {
        _ = LoraRequest::from_value(arg);
        let written = Raw::of(arg);
        // Two levels less than a call has, so never too deep.
        let again: Value = written.value().expect("it was written by us");
        assert_eq!(Raw::of(&again), written);
    }
});
