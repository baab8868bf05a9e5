//! No text may panic the reader of queue policies. Whether it accepts a file does not depend on the
//! model, and errors name the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_dynamo::parse_queue_policies;

/// A whole file, behind which text is more of it.
const HEAD: &str = "
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 1000, bucket: long}]
policy_classes:
  - {name: a, policy_family: chat, cache_bucket: short, quantum: 4, prefill_busy_threshold: 0}
  - {name: b, policy_family: chat, cache_bucket: long, queue_policy: wspt, quantum: 1}
  - {name: c, quantum: 8, prefill_busy_threshold_frac: 0.5, request_queue_limit_per_worker: 3}
";

fuzz_target!(|text: &str| {
    for head in ["", HEAD] {
        let text = format!("{head}{text}");
        let for_all = parse_queue_policies("fuzz", &text, None);
        let for_model = parse_queue_policies("fuzz", &text, Some("m"));
        assert_eq!(for_all.is_ok(), for_model.is_ok());
        if let Err(error) = for_all {
            assert!(error.to_string().starts_with("fuzz"), "{error}");
        }
    }
});
