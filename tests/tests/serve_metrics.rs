//! The metrics of `vcr serve`, compared with vLLM's own frontend.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use vcr_frontend::FrontendKind;
use vcr_frontend::metrics::{EngineRecorder, Iteration, Kind, Metrics, MetricsOptions, RequestRecord, TABLE};
use vcr_tests::{Folder, Frontend, FrontendOptions, Play, Serve, frontend_model, wait_until};
use vcr_wire::{EngineCoreEvent, EventType, FinishReason, PrefillStats, PrefixCacheStats, SchedulerStats};

const VERSION: &str = "0.33.0";
const MAX_MODEL_LEN: u64 = 4096;
/// Prefixes of metrics that vLLM does not have.
const OURS: &[&str] = &["vcr:", "process_"];

/// Series with sorted labels, and their values.
type Series = BTreeMap<String, f64>;

/// Metrics of a page: families with type and help, and series.
fn page(text: &str) -> (BTreeMap<String, (String, String)>, Series) {
    let mut families: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut series = Series::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            families.entry(name.to_owned()).or_default().1 = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            families.entry(name.to_owned()).or_default().0 = kind.to_owned();
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
            let mut labels: Vec<_> =
                labels.trim_end_matches('}').split("\",").map(|label| label.trim_end_matches('"')).collect();
            labels.sort_unstable();
            series.insert(format!("{name}{{{}}}", labels.join(",")), value.parse().expect("a number"));
        }
    }
    (families, series)
}

fn ours() -> Metrics {
    Metrics::new(&MetricsOptions {
        model_name: "sim".to_owned(),
        engines: vec![0],
        max_model_len_tokens: MAX_MODEL_LEN,
        frontend: FrontendKind::Rust,
        ..MetricsOptions::default()
    })
}

fn of_vllm(series: &Series) -> BTreeSet<&String> {
    series.keys().filter(|name| name.starts_with("vllm:")).collect()
}

fn served() -> Option<(Frontend, Play)> {
    let mut frontend = Frontend::start(VERSION, &FrontendOptions::default())?;
    let play = Play::start(&frontend.handshake_address(), &["--max-model-len", "4096"]);
    frontend.wait_until_it_serves();
    Some((frontend, play))
}

fn scrape(frontend: &Frontend) -> String {
    let answer = ureq::get(frontend.url("/metrics")).call().expect("it is served");
    answer.into_body().read_to_string().expect("it is text")
}

/// Counts a request as the engine answers it: one token per message.
fn answered(engine: &EngineRecorder, prompt_tokens: u64, generated_tokens: u64) {
    engine.scheduler(&SchedulerStats {
        num_running_reqs: 1,
        prefix_cache_stats: PrefixCacheStats { requests: 1, queries: prompt_tokens, ..PrefixCacheStats::default() },
        ..SchedulerStats::default()
    });
    let mut record = RequestRecord::new(engine, 1.0, prompt_tokens, Some(generated_tokens));
    let event = |kind, timestamp| EngineCoreEvent { kind, timestamp };
    let events = [event(EventType::Queued, 1.0), event(EventType::Scheduled, 1.0)];
    let prefill = PrefillStats {
        num_prompt_tokens: prompt_tokens,
        num_computed_tokens: prompt_tokens,
        ..PrefillStats::default()
    };
    for token in 0..generated_tokens {
        let mut iteration = Iteration::default();
        let now_s = 1.0 + token as f64 * 1e-4;
        let (events, prefill) = if token == 0 { (&events[..], Some(&prefill)) } else { (&[][..], None) };
        record.output(&mut iteration, now_s, now_s, 1, events, prefill);
        engine.iteration(&iteration);
    }
    let generated_tokens = record.finish(1.1, FinishReason::Length);
    engine.call_finished(1, generated_tokens);
    engine.scheduler(&SchedulerStats::default());
}

#[test]
fn names_types_help_and_first_series_are_those_of_vllm() {
    let Some((frontend, _play)) = served() else { return };
    let (theirs, their_series) = page(&scrape(&frontend));
    let (mine, my_series) = page(&ours().exposition());
    for (name, family) in &theirs {
        assert_eq!(mine.get(name), Some(family), "{name}");
    }
    for name in mine.keys().filter(|name| !theirs.contains_key(*name)) {
        assert!(OURS.iter().any(|prefix| name.starts_with(prefix)), "vLLM has no {name}");
    }
    assert_eq!(of_vllm(&my_series), of_vllm(&their_series));
}

#[test]
fn the_same_requests_leave_the_same_counts() {
    let Some((frontend, _play)) = served() else { return };
    let metrics = ours();
    let engine = EngineRecorder::new(&metrics, 0);
    let mut tokens = 0.0;
    for (text, stream, max_tokens) in [("Once upon a time", false, 20), ("Hello", true, 7), ("Once", false, 1)] {
        let more = json!({"max_tokens": max_tokens, "ignore_eos": true, "stream_options": stream.then(|| json!({"include_usage": true}))});
        let usage = if stream {
            frontend.stream_completion(&json!(text), &more).usage
        } else {
            frontend.complete(&json!(text), &more)["usage"].clone()
        };
        let prompt_tokens = usage["prompt_tokens"].as_u64().expect("a count");
        assert_eq!(usage["completion_tokens"], max_tokens);
        answered(&engine, prompt_tokens, max_tokens);
        tokens += max_tokens as f64;
    }
    frontend.wait_for_metric("vllm:request_success_total", 3.0);
    // vLLM counts the latest step slightly later.
    frontend.wait_for_metric("vllm:iteration_tokens_total_count", tokens);
    assert_eq!(frontend.metric("vllm:generation_tokens_total"), tokens);
    let (_, theirs) = page(&scrape(&frontend));
    let (_, mine) = page(&metrics.exposition());
    assert_eq!(of_vllm(&mine), of_vllm(&theirs));
    // Durations differ between the servers, so only their counts are compared.
    let is_time = |name: &str| name.contains("_seconds_sum{") || name.contains("_seconds_bucket{");
    for name in of_vllm(&theirs).into_iter().filter(|name| !is_time(name)) {
        assert_eq!(mine[name], theirs[name], "{name}");
    }
}

#[test]
fn the_table_has_each_name_once() {
    let names: BTreeSet<_> = TABLE.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), TABLE.len());
    for metric in TABLE {
        assert!(!metric.help.is_empty());
        assert!(metric.kind != Kind::Counter || !metric.name.ends_with("_total"), "{}", metric.name);
    }
}

/// Sends the same requests through vLLM's frontend and through `vcr serve`.
#[test]
fn vcr_serve_counts_what_vllm_counts() {
    let Some((frontend, _play)) = served() else { return };
    let Some(model) = frontend_model() else { return };
    let model = model.to_str().expect("a path is a text").to_owned();
    let serve = Serve::start(&[&model, "--served-model-name", "sim", "--max-model-len", "4096", "--frontend", "rust"]);
    for (text, stream, max_tokens) in [("Once upon a time", false, 20), ("Hello", true, 7), ("Once", false, 1)] {
        let more = json!({"max_tokens": max_tokens, "ignore_eos": true});
        let asked =
            json!({"model": "sim", "prompt": text, "max_tokens": max_tokens, "ignore_eos": true, "stream": stream});
        if stream {
            frontend.stream_completion(&json!(text), &more);
            assert!(serve.stream("/v1/completions", &asked).len() > 7);
        } else {
            frontend.complete(&json!(text), &more);
            assert_eq!(serve.post("/v1/completions", &asked).status, 200);
        }
    }
    // Both servers refuse this request before an engine sees it.
    let unknown = json!({"model": "nope", "prompt": "a"});
    assert_eq!(frontend.post("/v1/completions", &unknown).status, 404);
    assert_eq!(serve.post("/v1/completions", &unknown).status, 404);
    frontend.wait_for_metric("vllm:request_success_total", 3.0);
    let url = format!("http://{}/metrics", serve.address());
    let mine = ureq::get(url).call().expect("it is served").into_body().read_to_string().expect("it is text");
    let ((my_families, mine), (families, theirs)) = (page(&mine), page(&scrape(&frontend)));
    for (name, family) in &families {
        assert_eq!(my_families.get(name), Some(family), "{name}");
    }
    assert_eq!(of_vllm(&mine), of_vllm(&theirs));
    let is_time = |name: &str| name.contains("_seconds_sum{") || name.contains("_seconds_bucket{");
    for name in of_vllm(&theirs).into_iter().filter(|name| !is_time(name)) {
        assert_eq!(mine[name], theirs[name], "{name}");
    }
    // The number of other requests differs: the test polls the models of vLLM's frontend until it serves.
    let of_completions = |series: &Series| -> Series {
        let is_meant = |name: &String| name.starts_with("http_requests_total{") && name.contains("/v1/completions");
        series.iter().filter(|(name, _)| is_meant(name)).map(|(name, value)| (name.clone(), *value)).collect()
    };
    assert_eq!(of_completions(&mine), of_completions(&theirs));
}

/// GPU metrics for autoscalers: busy engines report utilisation and power, once per GPU.
#[test]
fn gpus_have_the_metrics_of_the_exporter() {
    let args = ["--gpu-metrics-address", "127.0.0.1:0", "--gpu-metrics-gpu", "l4", "--tensor-parallel-size", "2"];
    let serve = Serve::start(&[&args[..], &["--pod-name", "vllm-0", "--decode-step-time", "20ms"]].concat());
    let line = serve.wait_for("metrics of GPUs are at ");
    let url = line.rsplit("metrics of GPUs are at ").next().expect("it has an address").trim().to_owned();
    let scrape = || ureq::get(&url).call().expect("it answers").into_body().read_to_string().expect("text");
    let value = |text: &str, field: &str| -> f64 {
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(&format!("{field}{{"))).collect();
        assert_eq!(lines.len(), 2, "two GPUs: {text}");
        lines[1].rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    };
    let idle = scrape();
    assert_eq!(value(&idle, "DCGM_FI_DEV_POWER_USAGE"), 7.2);
    assert!(idle.contains("modelName=\"NVIDIA L4\"") && idle.contains(",namespace=\"\",pod=\"vllm-0\"}"), "{idle}");
    wait_until("the engine is seen at work", || {
        let request = json!({"prompt": "a", "max_tokens": 40, "ignore_eos": true});
        assert_eq!(serve.post("/v1/completions", &request).status, 200);
        let busy = scrape();
        value(&busy, "DCGM_FI_DEV_GPU_UTIL") > 0.0 && value(&busy, "DCGM_FI_DEV_POWER_USAGE") > 7.2
    });
}

#[test]
fn gpus_without_known_boards_are_refused() {
    let refused = |args: &[&str], wanted: &str| Folder::new().vcr(&[&["play"], args].concat()).failed(2, &[wanted]);
    let address = ["--gpu-metrics-address", "127.0.0.1:0"];
    refused(&[&address[..], &["--gpu-metrics-gpu", "h900"]].concat(), "invalid --gpu-metrics-gpu `h900`: unknown GPU");
    refused(
        &[&address[..], &["--gpu-metrics-gpu", "mi300x"]].concat(),
        "the power and clocks of this GPU are not known",
    );
    refused(&["--gpu-metrics-gpu", "l4"], "--gpu-metrics-address");
}
