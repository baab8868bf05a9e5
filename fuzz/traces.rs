//! Shared by the targets of the trace readers.

use vcr_trace::{Format, SharedPrefix, Strictness, Trace, TraceOptions, write_mooncake};

/// Reads bytes as a trace in every way: none may panic, and an accepted trace must be complete.
pub fn read(bytes: &[u8], format: Format) {
    for strictness in [Strictness::Lenient, Strictness::Standard, Strictness::Strict] {
        let options = TraceOptions {
            strictness,
            first_timestamp_required: strictness == Strictness::Standard && !format.needs_closed_loop(),
            shared_prefix: SharedPrefix { ratio: 0.5, groups: 2, seed: 1 },
            ..TraceOptions::default()
        };
        let Ok(trace) = Trace::read(bytes, "fuzz", format, &options) else {
            continue;
        };
        assert!(!trace.requests.is_empty());
        assert!(strictness != Strictness::Strict || trace.warnings.is_empty());
        for request in &trace.requests {
            for dependency in trace.dependencies(request) {
                assert!((dependency.request as usize) < trace.requests.len());
            }
            let mut end = 0;
            for item in trace.items(request) {
                assert!(u64::from(item.offset) >= end && item.end() > end);
                end = item.end();
            }
            assert!(end <= u64::from(request.input_tokens));
            assert!(trace.hash_ids(request).iter().all(|id| id < trace.distinct_hash_ids));
        }
        // Writing visits every range of every request.
        let written = write_mooncake(&trace, &mut std::io::sink());
        assert_eq!(written.is_ok(), !trace.has_free_turns);
    }
}
