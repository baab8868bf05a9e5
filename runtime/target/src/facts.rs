//! Metrics that targets lack, with the reasons.

use std::collections::BTreeMap;

use vcr_cluster::TargetReport;
use vcr_cluster::metrics::{Counter, Gauge, Trend};

use crate::client::scraper::Scraped;

const OF_SERVER: &str = "known to the server only, which does not report it";
const OF_FILE: &str = "known to the server only, which does not report the steps of its engines";
const VIRTUAL: &str = "it exists in virtual time only";
const OF_PROMPTS: &str = "engines report nothing about a prompt before its first token";

/// Metrics of virtual time only.
fn virtual_only() -> Vec<&'static str> {
    let counters = [
        Counter::IgnoredFaults,
        Counter::StayedWithDecode,
        Counter::HostCachedTokens,
        Counter::DiskCachedTokens,
        // Prompts are sent as tokens alone.
        Counter::EncoderQueries,
        Counter::EncoderHits,
        Counter::EncoderItems,
        Counter::EncoderTokens,
    ];
    counters.map(|counter| counter.info().name).into_iter().chain([Trend::KvLoad.info().name]).collect()
}

/// Metrics that engines in this process lack.
pub(crate) fn absent_live() -> BTreeMap<&'static str, String> {
    let wasted = (Counter::WastedPromptTokens.info().name, OF_PROMPTS.to_owned());
    virtual_only().into_iter().map(|name| (name, VIRTUAL.to_owned())).chain([wasted]).collect()
}

/// The same of engines behind an external server, and the files that lack them.
pub(crate) fn absent_behind_server(target: &mut TargetReport) {
    let trends = [Trend::Queue, Trend::Prefill, Trend::Transfer, Trend::StepTime, Trend::BatchSize];
    let counters = [Counter::Rejected, Counter::WastedPromptTokens, Counter::Steps, Counter::Stalls];
    let names = trends.map(|trend| trend.info().name).into_iter().chain(counters.map(|counter| counter.info().name));
    target.absent.extend(virtual_only().into_iter().chain(names).map(|name| (name, OF_SERVER.to_owned())));
    target.absent_files.insert("steps.jsonl", OF_FILE.to_owned());
}

/// Marks the metrics that a server lacks. `tells_cached`: whether its answers report the cached
/// tokens of their prompts.
pub(crate) fn absent_without_metrics(target: &mut TargetReport, scraped: &Scraped, tells_cached: bool) {
    let reason = "the server has no metric `vllm:";
    let mut add = |name: &'static str, metric: &str| _ = target.absent.insert(name, format!("{reason}{metric}`"));
    if scraped.preemptions.is_none() {
        add(Counter::Preemptions.info().name, "num_preemptions");
    }
    if scraped.kv_peak_usage.is_none() {
        add(Gauge::KvPeakUsage.info().name, "kv_cache_usage_perc");
    }
    if scraped.cached_tokens.is_none() && !tells_cached {
        add(Counter::CachedTokens.info().name, "prefix_cache_hits");
        add(Gauge::PrefixHitRatio.info().name, "prefix_cache_hits");
    }
}
