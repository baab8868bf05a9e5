//! The metrics of SGLang's server that are simulated: vLLM's metrics under SGLang's names, and some that only
//! SGLang has.

use super::buckets::Buckets;
use super::table::{Metric, Name};

/// Metrics that vLLM's servers do not have.
pub(super) const OWN: [Name; 3] = [Name::NumUsedTokens, Name::MaxTotalNumTokens, Name::CacheHitRate];

/// vLLM's metrics by SGLang's names (without the suffix of counters) and help texts.
const SHOWN: &[(Name, &str, &str)] = &[
    (Name::NumRequestsRunning, "sglang:num_running_reqs", "The number of running requests."),
    (Name::NumRequestsWaiting, "sglang:num_queue_reqs", "The number of requests in the waiting queue."),
    (Name::KvCacheUsagePerc, "sglang:token_usage", "The token usage."),
    (Name::NumPreemptions, "sglang:num_retracted_requests", "Total number of retracted requests."),
    (Name::PromptTokens, "sglang:prompt_tokens", "Number of prefill tokens processed."),
    (Name::GenerationTokens, "sglang:generation_tokens", "Number of generation tokens processed."),
    (Name::PromptTokensCached, "sglang:cached_tokens", "Number of cached prompt tokens."),
    (Name::RequestSuccess, "sglang:num_requests", "Number of requests processed."),
    (Name::RequestPromptTokens, "sglang:prompt_tokens_histogram", "Histogram of prompt token length."),
    (
        Name::RequestPrefillKvComputedTokens,
        "sglang:uncached_prompt_tokens_histogram",
        "Histogram of uncached (compute) prompt token length.",
    ),
    (Name::RequestGenerationTokens, "sglang:generation_tokens_histogram", "Histogram of generation token length."),
    (
        Name::TimeToFirstTokenSeconds,
        "sglang:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
    ),
    (
        Name::InterTokenLatencySeconds,
        "sglang:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
    ),
    (
        Name::RequestTimePerOutputTokenSeconds,
        "sglang:request_time_per_output_token_seconds",
        "Histogram of the time per output token of requests in seconds.",
    ),
    (
        Name::E2eRequestLatencySeconds,
        "sglang:e2e_request_latency_seconds",
        "Histogram of End-to-end request latency in seconds",
    ),
    (Name::RequestQueueTimeSeconds, "sglang:queue_time_seconds", "Histogram of queueing time in seconds."),
];

/// SGLang's name and help of a metric. None if SGLang's server does not show it.
pub(super) fn shown(name: Name, metric: &Metric) -> Option<(&'static str, &'static str)> {
    if let Some((_, own, help)) = SHOWN.iter().find(|(of, ..)| *of == name) {
        return Some((own, help.trim_end_matches('.')));
    }
    let is_own = OWN.contains(&name);
    let is_of_process = metric.name.starts_with("vcr:") || metric.name.starts_with("process_");
    (is_own || is_of_process).then_some((metric.name, metric.help.trim_end_matches('.')))
}

const TENTHS: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 600.0, 1200.0,
    1800.0, 2400.0,
];
const QUEUED: &[f64] = &[
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
];
const BETWEEN: &[f64] = &[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
];
const TOKENS: &[f64] = &[
    100.0, 300.0, 500.0, 700.0, 1e3, 1.5e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3, 10e3, 12.5e3, 15e3, 17.5e3, 20e3,
    22.5e3, 25e3, 27.5e3, 30e3, 35e3, 40e3, 60e3, 80e3, 100e3, 200e3, 300e3, 400e3, 600e3, 800e3, 1e6, 1.1e6,
];

/// SGLang's bucket bounds of a metric, if they differ.
pub(super) fn bounds(name: Name, buckets: Buckets) -> Option<&'static [f64]> {
    Some(match (name, buckets) {
        (Name::RequestQueueTimeSeconds, _) => QUEUED,
        (_, Buckets::TimeToFirstToken) => &TENTHS[..18],
        (_, Buckets::RequestLatency) => TENTHS,
        (_, Buckets::InterTokenLatency) => BETWEEN,
        (_, Buckets::RequestTokens) => TOKENS,
        _ => return None,
    })
}
