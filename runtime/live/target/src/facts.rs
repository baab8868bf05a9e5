//! The metrics that a target does not report, with the reasons.

use std::collections::BTreeMap;

use vcr_cluster::TargetReport;
use vcr_cluster::metrics::{Counter, Gauge, Metric, Origin};

use crate::client::scraper::Scraped;

const OF_SERVER: &str = "known to the server only, which does not report it";
const OF_FILE: &str = "known to the server only, which does not report the steps of its engines";
const VIRTUAL: &str = "it exists in virtual time only";
const OF_PROMPTS: &str = "engines report nothing about a prompt before its first token";

/// The names of the metrics whose origin satisfies `is_wanted`.
fn names(is_wanted: fn(Origin) -> bool) -> impl Iterator<Item = (&'static str, Origin)> {
    let infos = Metric::all().map(Metric::info).filter(move |info| is_wanted(info.origin));
    infos.map(|info| (info.name, info.origin))
}

/// Metrics that engines in this process do not report.
pub(crate) fn absent_live() -> BTreeMap<&'static str, String> {
    let reason = |origin| if origin == Origin::PromptProgress { OF_PROMPTS } else { VIRTUAL };
    names(Origin::is_virtual).map(|(name, origin)| (name, reason(origin).to_owned())).collect()
}

/// Marks the metrics, and files, that an external server's engines do not report.
pub(crate) fn absent_behind_server(target: &mut TargetReport) {
    target.absent.extend(names(Origin::is_hidden_by_servers).map(|(name, _)| (name, OF_SERVER.to_owned())));
    target.absent_files.insert("steps.jsonl", OF_FILE.to_owned());
}

/// Marks the metrics that the server did not report. `tells_cached` says whether its answers report cached prompt
/// tokens.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_that_a_target_cannot_know_are_absent_and_not_zero() {
        let live = absent_live();
        let names = |wanted: &[&str]| wanted.iter().all(|name| live.contains_key(name));
        assert!(names(&["ignored_faults", "moved_sessions", "kv_load", "abandoned_prompts"]), "{live:?}");
        assert_eq!((live.len(), live["wasted_prompt_tokens"].as_str()), (17, OF_PROMPTS));
        let mut server = TargetReport::default();
        absent_behind_server(&mut server);
        let only: Vec<_> = server.absent.keys().filter(|name| !live.contains_key(*name)).copied().collect();
        assert_eq!(only, ["batch", "prefill", "queue", "rejected", "stalls", "step", "steps", "transfer"]);
    }
}
