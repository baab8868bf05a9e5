//! The readers of tables with a header: BurstGPT, Vidur and Splitwise, and the detection of all formats.
#![no_main]

#[path = "../../traces.rs"]
mod traces;

use libfuzzer_sys::fuzz_target;
use vcr_trace::Format;

fuzz_target!(|bytes: &[u8]| {
    let _ = Format::detect("file", bytes);
    for format in [Format::BurstGpt, Format::Vidur, Format::Splitwise] {
        traces::read(bytes, format);
    }
});
