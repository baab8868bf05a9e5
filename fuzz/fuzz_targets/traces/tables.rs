//! The readers of tables with a header: BurstGPT, Vidur and Splitwise, and the detection of all formats.
#![no_main]

#[path = "../../traces.rs"]
mod traces;

use libfuzzer_sys::fuzz_target;
use vcr_trace::{Detected, TraceFormat};

fuzz_target!(|bytes: &[u8]| {
    let _ = Detected::of(bytes);
    for format in [TraceFormat::BurstGpt, TraceFormat::Vidur, TraceFormat::Splitwise] {
        traces::read(bytes, format);
    }
});
