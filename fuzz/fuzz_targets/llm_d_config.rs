//! No text may panic the reader of configurations of llm-d-inference-sim. The resulting options
//! each have two dashes before their names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_frontend::llm_d;

/// Settings behind which a text has more.
const HEAD: &str = "
port: 8001
model: a/b
latencies: {time-to-first-token: 1m30.5s, inter-token-latency: 3}
kvcache: {enable-kvcache: true, kv-cache-size: 64}
failure-injection-rate: 100
failure-types: [rate_limit, server_error]
";

fuzz_target!(|text: &str| {
    for head in ["", HEAD] {
        match llm_d::parse(&format!("{head}{text}")) {
            Err(reason) => assert!(!reason.is_empty()),
            Ok(translation) => {
                assert!(translation.options.iter().all(|(option, _)| option.starts_with("--")));
                assert!(translation.ignored.iter().chain(&translation.missing).all(|line| line.contains(": ")));
            }
        }
    }
});
