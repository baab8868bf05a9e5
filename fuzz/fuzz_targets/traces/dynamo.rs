//! The reader of Dynamo's request traces.
#![no_main]

#[path = "../../traces.rs"]
mod traces;

use libfuzzer_sys::fuzz_target;
use vcr_trace::Format;

fuzz_target!(|bytes: &[u8]| {
    traces::read(bytes, Format::Dynamo);
});
