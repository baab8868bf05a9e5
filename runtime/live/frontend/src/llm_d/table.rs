//! The settings of llm-d-inference-sim, and what they are here.

/// How a setting is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An option that takes the same value; a list gives the option several times.
    Same(&'static str),
    /// An option that takes a duration; a bare number is of milliseconds.
    Duration(&'static str),
    /// A share in percent that is a client fault's rate here.
    Percent(&'static str),
    /// An option that takes a probability, which is in percent there.
    Share(&'static str),
    /// A flag.
    Flag(&'static str),
    /// An option that takes JSON.
    Json(&'static str),
    /// An option that takes a size in megabytes.
    Megabytes(&'static str),
    /// Has its own translation.
    Special,
    /// Changes nothing here, and why.
    Ignored(&'static str),
}

/// All settings by name.
pub const SETTINGS: &[(&str, Rule)] = &[
    ("port", Rule::Same("--port")),
    ("max-request-body-size-mb", Rule::Megabytes("--max-request-body-size")),
    ("model", Rule::Special),
    ("served-model-name", Rule::Same("--served-model-name")),
    ("lora-modules", Rule::Same("--lora-modules")),
    ("max-loras", Rule::Same("--max-loras")),
    ("max-cpu-loras", Rule::Same("--max-cpu-loras")),
    ("max-model-len", Rule::Same("--max-model-len")),
    ("max-num-seqs", Rule::Same("--max-num-seqs")),
    ("max-waiting-queue-length", Rule::Same("--max-waiting-queue-length")),
    ("mode", Rule::Special),
    ("startup-duration", Rule::Duration("--startup-duration")),
    ("enable-sleep-mode", Rule::Ignored("sleep mode is always there")),
    ("no-enable-sleep-mode", Rule::Ignored("sleep mode is always there")),
    ("enable-request-id-headers", Rule::Flag("--enable-request-id-headers")),
    ("log-http", Rule::Ignored("RUST_LOG=access=debug logs requests, without bodies")),
    ("strict", Rule::Ignored("requests are always checked as vLLM checks them")),
    ("mm-encoder-only", Rule::Flag("--mm-encoder-only")),
    ("no-mm-encoder-only", Rule::Ignored("it is the default")),
    ("omni", Rule::Flag("--omni")),
    ("no-omni", Rule::Ignored("it is the default")),
    ("image-emission-rate", Rule::Share("--image-emission-rate")),
    ("latency-calculator", Rule::Special),
    ("time-to-first-token", Rule::Duration("--time-to-first-token")),
    ("time-to-first-token-std-dev", Rule::Duration("--time-to-first-token-std-dev")),
    ("inter-token-latency", Rule::Duration("--inter-token-latency")),
    ("inter-token-latency-std-dev", Rule::Duration("--inter-token-latency-std-dev")),
    ("kv-cache-transfer-latency", Rule::Duration("--kv-cache-transfer-latency")),
    ("kv-cache-transfer-latency-std-dev", Rule::Duration("--kv-cache-transfer-time-std-dev")),
    ("time-to-generate-image", Rule::Duration("--time-to-generate-image")),
    ("time-to-generate-image-std-dev", Rule::Duration("--time-to-generate-image-std-dev")),
    ("prefill-overhead", Rule::Duration("--prefill-overhead")),
    ("prefill-time-per-token", Rule::Duration("--prefill-time-per-token")),
    ("prefill-time-std-dev", Rule::Duration("--prefill-time-std-dev")),
    ("kv-cache-transfer-time-per-token", Rule::Duration("--kv-cache-transfer-time-per-token")),
    ("kv-cache-transfer-time-std-dev", Rule::Duration("--kv-cache-transfer-time-std-dev")),
    ("time-factor-under-load", Rule::Same("--time-factor-under-load")),
    ("seed", Rule::Same("--seed")),
    ("max-tool-call-integer-param", Rule::Same("--max-tool-call-integer-param")),
    ("min-tool-call-integer-param", Rule::Same("--min-tool-call-integer-param")),
    ("max-tool-call-number-param", Rule::Same("--max-tool-call-number-param")),
    ("min-tool-call-number-param", Rule::Same("--min-tool-call-number-param")),
    ("max-tool-call-array-param-length", Rule::Same("--max-tool-call-array-param-length")),
    ("min-tool-call-array-param-length", Rule::Same("--min-tool-call-array-param-length")),
    ("tool-call-not-required-param-probability", Rule::Share("--tool-call-not-required-param-probability")),
    (
        "object-tool-call-not-required-field-probability",
        Rule::Share("--object-tool-call-not-required-field-probability"),
    ),
    ("tool-call-extra-call-probability", Rule::Share("--tool-call-extra-call-probability")),
    ("skip-tool-validation", Rule::Ignored("schemas of tools are checked as vLLM checks them")),
    ("enable-kvcache", Rule::Special),
    ("kv-cache-size", Rule::Same("--num-gpu-blocks")),
    ("block-size", Rule::Same("--block-size")),
    ("hash-seed", Rule::Same("--kv-cache-hash-seed")),
    ("global-cache-hit-threshold", Rule::Same("--global-cache-hit-threshold")),
    ("tokenizers-cache-dir", Rule::Ignored("tokenizers come from the model's folder")),
    ("zmq-endpoint", Rule::Same("--kv-events-endpoint")),
    ("zmq-max-connect-attempts", Rule::Ignored("subscribers connect to the server")),
    ("event-batch-size", Rule::Ignored("events are sent once a step, as in vLLM")),
    ("use-vllm-map-event-format", Rule::Ignored("the format is that of the vLLM version")),
    ("kv-events-replay-endpoint", Rule::Same("--kv-events-replay-endpoint")),
    ("kv-events-replay-queue-size", Rule::Same("--kv-events-buffer-steps")),
    ("failure-injection-rate", Rule::Percent("--client-fault")),
    ("failure-types", Rule::Special),
    ("data-parallel-size", Rule::Special),
    ("data-parallel-rank", Rule::Same("--data-parallel-start-rank")),
    ("dataset-path", Rule::Special),
    ("dataset-url", Rule::Special),
    ("dataset-in-memory", Rule::Ignored("data sets are always in memory")),
    ("dataset-table-name", Rule::Ignored("data sets are exported from their database first")),
    ("default-embedding-dimensions", Rule::Same("--embedding-dimensions")),
    ("render-url", Rule::Ignored("prompts are rendered in the process")),
    ("render-timeout", Rule::Ignored("prompts are rendered in the process")),
    ("mm-render-timeout", Rule::Ignored("prompts are rendered in the process")),
    ("force-dummy-tokenizer", Rule::Ignored("the built-in tokenizer is the default")),
    ("ssl-certfile", Rule::Same("--ssl-certfile")),
    ("ssl-keyfile", Rule::Same("--ssl-keyfile")),
    ("self-signed-certs", Rule::Flag("--self-signed-certs")),
    ("fake-metrics", Rule::Json("--fake-metrics")),
    ("fake-metrics-refresh-interval", Rule::Ignored("made-up metrics are computed when they are scraped")),
    ("mm-processor-kwargs", Rule::Ignored("it has no effect there either")),
    ("ec-transfer-config", Rule::Ignored("it has no effect there either")),
    ("enforce-eager", Rule::Ignored("it has no effect there either")),
    ("no-enforce-eager", Rule::Ignored("it has no effect there either")),
    ("enable-prefix-caching", Rule::Ignored("it has no effect there either")),
    ("no-enable-prefix-caching", Rule::Ignored("it has no effect there either")),
    ("tensor-parallel-size", Rule::Ignored("it has no effect there either")),
];

/// Sections whose settings may also stand at the top.
pub const SECTIONS: &[&str] = &["latencies", "kvcache"];
