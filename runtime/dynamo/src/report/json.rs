//! The report as JSON: Dynamo's keys, and ours in one object.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use vcr_cluster::Report;
use vcr_cluster::record::{Outcome, RequestRecord};

use super::ReportFormat;
use super::distribution::Distribution;
use super::summary::Summary;
use super::time::TimeSpent;

/// What is told besides the run itself.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Name of the preset.
    pub preset: &'a str,
    /// What was accepted and does not do what it says.
    pub warnings: &'a [String],
}

/// The report of a run.
#[must_use]
pub fn report(run: &Report, summary: &Summary, told: Told<'_>, format: ReportFormat) -> Value {
    let mut flat = flat(summary);
    let ours = ours(run, told);
    match format {
        ReportFormat::Flat1_4 => {
            flat.insert("vcr".to_owned(), ours);
            Value::Object(flat)
        }
        ReportFormat::Nested1_6 => {
            flat.extend(added_by_1_6(summary));
            json!({
                "coverage": {
                    "capture_per_request": false,
                    "capture_planner_details": false,
                    "per_request_records": 0,
                },
                "per_request": null,
                "planner": null,
                "summary": flat,
                "vcr": ours,
            })
        }
    }
}

/// The keys of 1.4.
#[must_use]
pub fn flat(summary: &Summary) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    let tokens = summary.total_input_tokens + summary.total_output_tokens;
    let per_host_second = |tokens: u64| match summary.wall_time_ms {
        Some(ms) if ms > 0.0 => json!(tokens as f64 / ms * 1000.0),
        Some(_) => json!(0.0),
        None => Value::Null,
    };
    put("num_requests", json!(summary.num_requests));
    put("completed_requests", json!(summary.completed_requests));
    put("total_input_tokens", json!(summary.total_input_tokens));
    put("total_output_tokens", json!(summary.total_output_tokens));
    put("duration_ms", json!(summary.duration_ms));
    put("wall_time_ms", json!(summary.wall_time_ms));
    put("processed_tokens", json!(tokens));
    put("processed_tokens_per_s", per_host_second(tokens));
    put("processed_output_tokens_per_s", per_host_second(summary.total_output_tokens));
    put("request_throughput_rps", json!(summary.request_throughput_rps));
    put("input_throughput_tok_s", json!(summary.input_throughput_tok_s));
    put("output_throughput_tok_s", json!(summary.output_throughput_tok_s));
    put("total_throughput_tok_s", json!(summary.total_throughput_tok_s));
    put("prefill_worker_seconds", json!(summary.prefill_worker_seconds));
    put("decode_worker_seconds", json!(summary.decode_worker_seconds));
    put("prefill_gpus_per_worker", json!(summary.prefill_gpus_per_worker));
    put("decode_gpus_per_worker", json!(summary.decode_gpus_per_worker));
    put("gpu_hours", json!(summary.gpu_hours));
    put("prefix_cache_reused_ratio", json!(summary.prefix_cache_reused_ratio));
    put("first_admission_prefix_cache_reused_ratio", json!(summary.first_admission_prefix_cache_reused_ratio));
    if let Some(goodput) = &summary.goodput {
        put("goodput_completed_requests", json!(goodput.completed_requests));
        put("goodput_request_throughput_rps", json!(goodput.request_throughput_rps));
        put("goodput_output_throughput_tok_s", json!(goodput.output_throughput_tok_s));
    }
    for (name, distribution) in summary.latencies() {
        for (statistic, value) in distribution.statistics() {
            put(&format!("{statistic}_{name}_ms"), json!(value));
        }
    }
    for (statistic, value) in summary.output_token_throughput_per_user.statistics() {
        put(&format!("{statistic}_output_token_throughput_per_user"), json!(value));
    }
    map
}

/// The keys that came with 1.6.
fn added_by_1_6(summary: &Summary) -> Map<String, Value> {
    let keys = json!({
        "committed_prefill_tokens": summary.committed_prefill_tokens,
        "kv_eviction_policy": "lru",
        "num_ttft_samples": summary.ttft.count,
        "num_tpot_samples": summary.tpot.count,
        "num_e2e_latency_samples": summary.e2e_latency.count,
        "power_w": null,
        "power_coverage": null,
    });
    let Value::Object(map) = keys else { unreachable!("an object was written") };
    map
}

/// What Dynamo does not tell.
fn ours(run: &Report, told: Told<'_>) -> Value {
    let completed = || run.requests.iter().filter(|record| record.outcome == Outcome::Completed);
    let total = |count: fn(&RequestRecord) -> u32| completed().map(|record| u64::from(count(record))).sum::<u64>();
    let time: Map<String, Value> = TimeSpent::of(run)
        .into_iter()
        .map(|spent| {
            let mut of_phase = statistics(&spent.distribution);
            of_phase.insert("share".to_owned(), json!(spent.share));
            (spent.phase.name().to_owned(), Value::Object(of_phase))
        })
        .collect();
    let of_worker = workers(run);
    let mut ours = json!({
        "schema_version": 1,
        "preset": told.preset,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "warnings": told.warnings,
        "unfinished_requests": run.unfinished_requests,
        "rejections": run.metrics.rejections,
        "failures": run.metrics.failures,
        "shed_requests": run.metrics.counters.get("shed").copied().unwrap_or(0),
        "preemptions": run.metrics.counters.get("preemptions").copied().unwrap_or(0),
        "where_time_went": time,
        "prefix_cache": {
            "prompt_tokens": total(|record| record.prompt_tokens),
            "cached_at_first_admission_tokens": total(|record| record.cached_tokens),
            "cached_at_any_admission_tokens": total(|record| record.detail.most_cached_tokens),
            "cached_at_decode_tokens": total(|record| record.detail.decode_cached_tokens.unwrap_or(0)),
            "requests_with_a_hit": completed().filter(|record| record.cached_tokens > 0).count(),
            "requests_without": completed().filter(|record| record.cached_tokens == 0).count(),
        },
        "workers": of_worker,
        "links": run.links,
        "scaling": run.scaling,
    });
    if run.engines.iter().any(|engine| engine.kv_tiers.is_some()) {
        // Of what was cached at first admissions.
        ours["prefix_cache"]["loaded_from_host_tokens"] = json!(total(|record| record.detail.host_cached_tokens));
        ours["prefix_cache"]["loaded_from_disk_tokens"] = json!(total(|record| record.detail.disk_cached_tokens));
    }
    ours
}

fn statistics(distribution: &Distribution) -> Map<String, Value> {
    distribution.statistics().into_iter().map(|(name, value)| (format!("{name}_ms"), json!(value))).collect()
}

/// What each worker did, and for how many requests.
fn workers(run: &Report) -> Vec<Value> {
    let mut requests: BTreeMap<u32, u64> = BTreeMap::new();
    for record in &run.requests {
        for worker in [record.prefill_worker, record.decode_worker].into_iter().flatten() {
            *requests.entry(worker).or_insert(0) += 1;
        }
    }
    let workers = run.engines.iter().map(|engine| {
        let mut row = json!({
            "pool": engine.pool,
            "worker": engine.engine,
            "requests": requests.get(&engine.worker).copied().unwrap_or(0),
            "utilisation": engine.utilisation,
            "steps": engine.steps,
            "computed_tokens": engine.computed_tokens,
            "prefill_tokens": engine.prefill_tokens,
            "preemptions": engine.preemptions,
            "kv_peak_usage": engine.kv_peak_usage,
            "prefix_hit_ratio": engine.prefix_hit_ratio,
        });
        if let Some(tiers) = &engine.kv_tiers {
            row["kv_tiers"] = json!(tiers);
        }
        row
    });
    workers.collect()
}
