//! Differences between the metrics of vLLM's frontends. The [table](super::table::TABLE) contains the Rust
//! frontend's metrics, then those that only the Python frontend has.

use super::sglang;
use super::table::{Metric, Name, Series};
use crate::server::frontend_kind::FrontendKind;

/// Metrics that only the Python frontend has.
const OF_PYTHON: &[Name] = &[
    Name::EngineSleepState,
    Name::MmCacheQueries,
    Name::MmCacheHits,
    Name::CacheConfigInfo,
    Name::HttpRequestSizeBytes,
    Name::HttpResponseSizeBytes,
    Name::AdmissionRejections,
    Name::ToolCallParserInvocations,
];

/// Metrics that only the Rust frontend has.
const OF_RUST: &[Name] = &[
    Name::RlWeightUpdateOperationDurationSeconds,
    Name::RlWeightUpdateOperationsInFlight,
    Name::SleepModeOperationDurationSeconds,
    Name::SleepModeOperationsInFlight,
];

/// Metrics with other help texts in the Python frontend.
const PYTHON_HELP: &[(Name, &str)] = &[
    (Name::NumPreemptions, "Cumulative number of preemption from the engine."),
    (Name::PromptTokensCached, "Number of cached prompt tokens (local + external)."),
    (Name::IterationTokensTotal, "Histogram of number of tokens per engine_step."),
    (
        Name::NixlNumFailedTransfers,
        "Number of failed NIXL KV Cache transfers, including handshake and notification failures. NOTE: KV expiry is \
         tracked separately in vllm:nixl_num_kv_expired_reqs.",
    ),
    (
        Name::NixlNumFailedNotifications,
        "Number of failed NIXL KV Cache notifications. Retained for compatibility; these failures are also included in \
         vllm:nixl_num_failed_transfers.",
    ),
];

/// Metrics that the Python frontend shows for each engine from the start.
const PYTHON_FROM_START: &[Name] = &[
    Name::PromptTokens,
    Name::PromptTokensCached,
    Name::RequestPromptTokens,
    Name::RequestGenerationTokens,
    Name::RequestMaxNumGenerationTokens,
    Name::RequestParamsMaxTokens,
    Name::RequestParamsN,
    Name::RequestNumPreemptions,
    Name::RequestPrefillKvComputedTokens,
    Name::TimeToFirstTokenSeconds,
    Name::InterTokenLatencySeconds,
    Name::E2eRequestLatencySeconds,
    Name::RequestQueueTimeSeconds,
    Name::RequestPrefillTimeSeconds,
    Name::RequestDecodeTimeSeconds,
    Name::RequestInferenceTimeSeconds,
    Name::RequestTimePerOutputTokenSeconds,
];

/// Summaries have only a sum and a count. They are stored as histograms without buckets.
pub(super) const SUMMARIES: &[Name] = &[Name::HttpRequestSizeBytes, Name::HttpResponseSizeBytes];

/// Whether a frontend has a metric.
pub(super) fn is_served(name: Name, frontend: FrontendKind) -> bool {
    if sglang::OWN.contains(&name) {
        return false;
    }
    match frontend {
        FrontendKind::Python => !OF_RUST.contains(&name),
        FrontendKind::Rust => !OF_PYTHON.contains(&name),
    }
}

/// A frontend's help text for a metric. The exposition always appends a full stop, even if the Rust frontend's text
/// already ends with one.
pub(super) fn help(name: Name, metric: &Metric, frontend: FrontendKind) -> &'static str {
    if frontend == FrontendKind::Rust {
        return metric.help;
    }
    let own = PYTHON_HELP.iter().find(|(of, _)| *of == name).map(|(_, help)| *help);
    own.unwrap_or(metric.help).trim_end_matches('.')
}

/// The series that a metric has from the start.
pub(super) fn series(name: Name, metric: &Metric, frontend: FrontendKind) -> Series {
    if frontend == FrontendKind::Rust {
        return metric.series;
    }
    match name {
        Name::RequestSuccess => Series::ByLabel("finished_reason", &["stop", "length", "abort", "error", "repetition"]),
        Name::PromptTokensBySource => {
            Series::ByLabel("source", &["local_compute", "local_cache_hit", "external_kv_transfer"])
        }
        name if PYTHON_FROM_START.contains(&name) => Series::One,
        _ => metric.series,
    }
}
