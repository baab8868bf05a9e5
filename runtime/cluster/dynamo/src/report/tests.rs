//! Tests of reports of a small run with calculated results.

use proptest::prelude::*;
use serde_json::Value;
use vcr_cluster::metrics::Samples;

use super::*;

#[test]
fn percentiles_are_samples_of_rounded_rank() {
    let all = Distribution::of_ns((1..=100).map(|ms| ms * 1_000_000).collect());
    assert_eq!((all.median, all.p90, all.p99, all.min, all.max), (51.0, 90.0, 99.0, 1.0, 100.0));
    assert_eq!((all.count, all.mean), (100, 50.5));
    assert_eq!(Distribution::of_ns(Vec::new()), Distribution::default());
}

#[test]
fn rates_are_of_gaps_and_ascend() {
    let mut gaps = Samples::default();
    for (gap_ns, times) in [(2_000_000, 3), (0, 5), (1_000_000, 1)] {
        gaps.push(gap_ns, times);
    }
    let rates = Distribution::of_rates(&gaps.into());
    assert_eq!((rates.count, rates.min, rates.max, rates.median), (4, 500.0, 1000.0, 500.0));
    assert_eq!(rates.mean, 625.0);
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Statistics of each distribution in a report, which are prefixes of key names.
const STATISTICS: [&str; 9] = ["mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std"];

/// Keys of a report of `python -m dynamo.replay` 1.4.2, without statistics.
const KEYS_OF_1_4: [&str; 20] = [
    "completed_requests",
    "decode_gpus_per_worker",
    "decode_worker_seconds",
    "duration_ms",
    "first_admission_prefix_cache_reused_ratio",
    "gpu_hours",
    "input_throughput_tok_s",
    "num_requests",
    "output_throughput_tok_s",
    "prefill_gpus_per_worker",
    "prefill_worker_seconds",
    "prefix_cache_reused_ratio",
    "processed_output_tokens_per_s",
    "processed_tokens",
    "processed_tokens_per_s",
    "request_throughput_rps",
    "total_input_tokens",
    "total_output_tokens",
    "total_throughput_tok_s",
    "wall_time_ms",
];

/// Keys that 1.6 added.
const KEYS_SINCE_1_6: [&str; 7] = [
    "committed_prefill_tokens",
    "kv_eviction_policy",
    "num_e2e_latency_samples",
    "num_tpot_samples",
    "num_ttft_samples",
    "power_coverage",
    "power_w",
];

/// `keys` and the keys of all statistics, sorted.
fn with_statistics(keys: &[&[&str]]) -> Vec<String> {
    let distributions =
        ["ttft_ms", "ttst_ms", "tpot_ms", "itl_ms", "e2e_latency_ms", "output_token_throughput_per_user"];
    let statistics = distributions.iter().flat_map(|name| STATISTICS.map(|statistic| format!("{statistic}_{name}")));
    let mut keys: Vec<String> = statistics.chain(keys.concat().into_iter().map(str::to_owned)).collect();
    keys.sort();
    keys
}

#[test]
fn the_flat_report_has_the_keys_of_1_4() {
    let summary = Summary::of(&empty(), &ReportSettings::default());
    let flat = Value::Object(json::flat(&summary));
    assert_eq!(keys(&flat), with_statistics(&[&KEYS_OF_1_4]));
    assert_eq!(flat["wall_time_ms"], Value::Null);
}

#[test]
fn the_nested_report_has_the_keys_of_1_6() {
    let summary = Summary::of(&empty(), &ReportSettings::default());
    let facts = json::RunFacts { preset: "dynamo-1.6", warnings: &[], stopped_by: None, ..json::RunFacts::default() };
    let report = json::report(&empty(), &summary, facts, ReportFormat::Nested1_6);
    assert_eq!(keys(&report), ["coverage", "per_request", "planner", "summary", "vcr"]);
    assert_eq!(keys(&report["summary"]), with_statistics(&[&KEYS_OF_1_4, &KEYS_SINCE_1_6]));
    let flat = json::report(&empty(), &summary, facts, ReportFormat::Flat1_4);
    assert_eq!(keys(&flat), with_statistics(&[&KEYS_OF_1_4, &["vcr"]]));
    assert_eq!(flat["vcr"], report["vcr"]);
}

fn empty() -> vcr_cluster::Report {
    vcr_cluster::Report { schema_version: 1, ..vcr_cluster::Report::empty("replay", 1, std::iter::empty()) }
}

proptest! {
    /// The summary of rates equals the summary of individually computed rates.
    #[test]
    fn rates_are_those_of_single_gaps(gaps_ns in prop::collection::vec(0_u64..50, 1..60)) {
        let mut samples = Samples::default();
        gaps_ns.iter().for_each(|&gap_ns| samples.push(gap_ns, 1));
        let all = Distribution::of_rates(&samples.into());
        let single: Vec<f64> = gaps_ns.iter().filter(|&&ns| ns > 0).map(|&ns| 1e9 / ns as f64).collect();
        let single = Distribution::of_ms(single);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        prop_assert_eq!(
            (all.count, all.min, all.max, all.median, all.p75, all.p90, all.p95, all.p99),
            (single.count, single.min, single.max, single.median, single.p75, single.p90, single.p95, single.p99)
        );
        prop_assert!(close(all.mean, single.mean) && close(all.std, single.std), "{all:?} {single:?}");
        prop_assert!(all.min <= all.mean && all.mean <= all.max);
    }
}
