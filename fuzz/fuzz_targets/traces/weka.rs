//! The reader of Weka and AgentX corpora.
#![no_main]

#[path = "../../traces.rs"]
mod traces;

use libfuzzer_sys::fuzz_target;
use vcr_trace::Format;

fuzz_target!(|bytes: &[u8]| {
    traces::read(bytes, Format::Weka);
});
