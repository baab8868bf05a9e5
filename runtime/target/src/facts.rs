//! What targets cannot know, with the reasons.

use std::collections::BTreeMap;

use vcr_cluster::TargetReport;
use vcr_cluster::metrics::{Counter, Gauge, Trend};

use crate::client::scraper::Scraped;

const OF_SERVER: &str = "only the server knows it, and does not tell";
const OF_STEPS: &str = "live engines tell the number of their steps, but nothing of single ones";
const VIRTUAL: &str = "it exists in virtual time only";
const OF_PROMPTS: &str = "engines tell nothing of a prompt before its first token";

/// Metrics of virtual time only.
fn virtual_only() -> Vec<&'static str> {
    [Counter::IgnoredFaults, Counter::StayedWithDecode, Counter::HostCachedTokens, Counter::DiskCachedTokens]
        .map(|counter| counter.info().name)
        .into_iter()
        .chain([Trend::KvLoad.info().name])
        .collect()
}

/// What is not known of engines in this process.
pub(crate) fn absent_live() -> BTreeMap<&'static str, String> {
    let steps = [Trend::StepTime.info().name, Trend::BatchSize.info().name, Counter::Stalls.info().name];
    let steps = steps.into_iter().map(|name| (name, OF_STEPS.to_owned()));
    let wasted = (Counter::WastedPromptTokens.info().name, OF_PROMPTS.to_owned());
    steps.chain(virtual_only().into_iter().map(|name| (name, VIRTUAL.to_owned()))).chain([wasted]).collect()
}

/// The same where a foreign server stands before them.
pub(crate) fn absent_behind_server(target: &mut TargetReport, knows_steps: bool) {
    let mut add = |name: &'static str, reason: &str| _ = target.absent.insert(name, reason.to_owned());
    for name in virtual_only() {
        add(name, OF_SERVER);
    }
    for name in [Trend::Queue, Trend::Prefill, Trend::Transfer, Trend::StepTime, Trend::BatchSize]
        .map(|trend| trend.info().name)
    {
        add(name, OF_SERVER);
    }
    for counter in [Counter::Stalls, Counter::Rejected, Counter::WastedPromptTokens] {
        add(counter.info().name, OF_SERVER);
    }
    if !knows_steps {
        add(Counter::Steps.info().name, OF_SERVER);
    }
}

/// What is not known of a server's metrics. `tells_cached`: whether its answers say how much
/// of their prompts was cached.
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
