//! No bytes may panic the Mooncake reader, and what it accepts must be whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_trace::{Trace, TraceFormat, TraceOptions, write_mooncake};

fuzz_target!(|bytes: &[u8]| {
    for lenient in [false, true] {
        let options = TraceOptions {
            lenient,
            first_timestamp_required: !lenient,
            ..TraceOptions::default()
        };
        if let Ok(trace) = Trace::read(bytes, "fuzz", TraceFormat::Mooncake, &options) {
            assert!(!trace.requests.is_empty());
            // Writing visits every range of every request.
            write_mooncake(&trace, &mut std::io::sink()).expect("a sink takes all");
        }
    }
});
