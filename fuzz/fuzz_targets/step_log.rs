//! No bytes may panic the reader of step logs, and accepted ones are written and read again without
//! a change.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use vcr_steplog::StepLog;

/// The first line of a live capture, behind which bytes are steps of one.
const LIVE_HEAD: &[u8] = br#"{"kind":"engine","num_gpu_blocks":70,"block_size":32,"max_num_seqs":32,"max_num_batched_tokens":2048,"max_model_len":2048,"policy":"fcfs","chunked_prefill":true,"long_prefill_token_threshold":0,"prefix_caching":true,"async_scheduling":false,"reserve_full_isl":true,"watermark":0.0,"num_spec_tokens":0}
"#;

fuzz_target!(|bytes: &[u8]| {
    for head in [&[], LIVE_HEAD] {
        let text = [head, bytes].concat();
        let Ok(log) = StepLog::parse(Path::new("fuzz"), &text[..]) else { continue };
        for line in &log.lines {
            let written = serde_json::to_string(line).expect("a line is JSON");
            let again = serde_json::from_str(&written).expect("what was written can be read");
            assert_eq!(*line, again, "{written}");
        }
    }
});
