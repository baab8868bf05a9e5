//! Names of the functions and value kinds of scripts, for error messages and documentation.

/// Every function of the vocabulary with its usage, for error messages and documentation.
pub const FUNCTIONS: &[(&str, &str)] = &[
    ("param", "param(\"name\", default)"),
    ("engine", "engine(#{ num_gpu_blocks: 16_385, ... })"),
    ("vllm_args", "vllm_args(\"vllm serve MODEL --max-num-seqs 512\", #{ gpu: \"h100-sxm\", vllm_minor: \"0.33\" })"),
    ("model", "model(\"Qwen/Qwen3-8B\", #{ gpu: \"h100\", tensor_parallel: 2 }) or model(\"path/config.json\")"),
    (
        "deployment",
        "deployment(\"vllm serve MODEL -tp 2\", #{ gpu: \"h100-sxm\", latency: \"roofline\", price_per_hour: 2.5 })",
    ),
    ("kv_tiers", "kv_tiers(#{ host_blocks: 50_000, kv_bytes_per_token: \"128KiB\", ... })"),
    ("adapter_costs", "adapter_costs(#{ size: \"84MB\", disk: \"2GB/s\", host: \"25GB/s\", step: \"50us\", ... })"),
    ("lora_affinity", "lora_affinity(#{ weight: 1.0 })"),
    ("pool", "pool(#{ engines: 2, engine: ..., latency: ..., router: \"round-robin\" })"),
    ("autoscale", "autoscale(#{ policy: \"target_requests\", target: 8, interval: \"30s\", max: 16, ... })"),
    ("cluster", "cluster(#{ engines: pool }) or cluster(#{ prefill: pool, decode: pool, link: link })"),
    ("conditional", "conditional(#{ policy: \"isl-bounding\", eff_isl_threshold: 2048, ... })"),
    ("link", "link(#{ bandwidth: \"64GB/s\", kv_bytes_per_token: \"128KiB\" })"),
    ("kv_bytes_per_token", "kv_bytes_per_token(\"llama-3.1-8b\")"),
    ("kv_aware", "kv_aware(#{ overlap_score_credit: 1.0, ... })"),
    ("kv_router", "kv_router(#{ event_lag: \"5ms\", queue_threshold: 2.0, replicas: 2, ... })"),
    ("prefix_affinity", "prefix_affinity(#{ load_factor: 1.25, max_waiting: 32, ... })"),
    ("session_hash", "session_hash(#{ load_factor: 1.25 })"),
    ("sticky", "sticky(#{ router: \"least-loaded\", ttl: \"10m\" })"),
    ("fitted", "fitted(#{ path: \"model.json\" })"),
    ("fixed", "fixed(#{ step: \"10ms\" })"),
    ("knobs", "knobs(#{ ttft: \"200ms\", itl: normal(\"12ms\", \"2ms\") })"),
    ("per_request", "per_request(#{ ttft: \"200ms\", itl: normal(\"12ms\", \"2ms\") })"),
    ("polynomial", "polynomial(#{ semantics: \"dynamo-1.6\" })"),
    ("profile", "profile(#{ path: \"profile.npz\" })"),
    ("tables", "tables(#{ system: \"h100_sxm\", model: \"meta-llama/Meta-Llama-3.1-70B\", tensor_parallel: 4 })"),
    ("trained_physics", "trained_physics(#{ coefficients: \"fit.json\", model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })"),
    ("roofline", "roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })"),
    ("sampled", "sampled(#{ capture: \"run.jsonl.zst\" })"),
    ("shortest_prompt_first", "shortest_prompt_first(#{ aging_tokens_per_s: 200, max_chunk_tokens: 2_048 })"),
    ("fair_share", "fair_share(#{ weights: #{ \"3\": 2.0 }, default_weight: 1.0 })"),
    ("guest", "guest(#{ path: \"guest.wasm\", config: #{ ... } })"),
    ("plugin", "plugin(\"name\")"),
    ("normal", "normal(mean, std)"),
    ("lognormal", "lognormal(mean, std)"),
    ("gamma", "gamma(mean, std)"),
    ("exponential", "exponential(mean)"),
    ("uniform", "uniform(min, max)"),
    ("histogram", "histogram([[100, 5], [200, 400, 3]])"),
    ("stages", "stages([[\"1m\", 10], [\"5m\", 100], [\"30s\", 0]])"),
    ("spike", "spike(#{ base: 2, peak: 20, at: \"30s\", lasts: \"10s\", duration: \"2m\" })"),
    ("diurnal", "diurnal(#{ mean: 10, amplitude: 8, period: \"24h\" })"),
    ("on_off", "on_off(#{ on: 10, on_for: \"10s\", off_for: \"20s\" })"),
    ("burst", "burst(#{ count: 100, at: \"10s\", prompt_tokens: 512, output_tokens: 64 })"),
    ("constant", "constant(#{ rate: \"5/s\", duration: \"1m\", prompt_tokens: 512, output_tokens: 64 })"),
    ("poisson", "poisson(#{ rate: \"5/s\", duration: \"1m\", prompt_tokens: 512, output_tokens: 64 })"),
    ("bursty", "bursty(#{ rate: \"5/s\", burstiness: 0.5, duration: \"1m\", prompt_tokens: 512, output_tokens: 64 })"),
    ("closed_loop", "closed_loop(#{ concurrency: 8, count: 100, prompt_tokens: 512, output_tokens: 64 })"),
    ("trace", "trace(#{ path: \"trace.jsonl\" })"),
    ("agents", "agents(#{ count: 20, concurrency: 4, rounds: 3, tools: 2, task_tokens: 500, ... })"),
    ("dataset", "dataset(#{ path: \"ShareGPT.json\" })"),
    ("workload_file", "workload_file(\"workload.yaml\")"),
    ("crash", "crash(#{ at: \"10s\", pool: \"decode\", engine: 0, restart_after: \"5s\" })"),
    ("slow_down", "slow_down(#{ at: \"10s\", pool: \"decode\", engine: 0, factor: 3.0, duration: \"5s\" })"),
    ("frontend", "frontend(#{ binary: \"vllm-rs\", model: \"path/of/the/model\" })"),
    ("serve", "serve(#{ client_faults: [\"status:code=503,rate=10%\"] })"),
    ("http", "http(\"http://localhost:8000\", #{ model: \"...\", api_key_env: \"API_KEY\" })"),
    ("run", "run(#{ cluster: cluster, workloads: [ ... ] })"),
    ("run_all", "run_all([ #{ name: ..., cluster: ..., workloads: ... }, ... ])"),
    ("expect", "expect(result, \"ttft\", \"p99 < 4s\") or expect(comparison, \"ttft p50 error < 10%\")"),
    ("check", "check(\"what must be true\", condition) or check(..., condition, \"what was seen\")"),
    ("has", "has(result, \"preemptions\")"),
    ("value", "value(result, \"ttft\", \"p99\")"),
    (
        "series",
        "series(result, \"waiting\") or series(result, \"kv_usage\", #{ every: \"1s\", pool: \"decode\", engine: 0 })",
    ),
    ("requests", "requests(result) or requests(result, \"ttft_ms\")"),
    ("engines", "engines(result)"),
    (
        "saturation",
        "saturation(result) or saturation(result, #{ threshold: \"5s\", window: \"1m\", final_window: \"30s\" })",
    ),
    ("find_max", "find_max(\"rate\", 1.0, 64.0, |rate| ...) or find_max(..., #{ tolerance: 0.5 })"),
    ("find_min", "find_min(\"engines\", 1, 16, |engines| ...) or find_min(..., #{ tolerance: 2 })"),
    ("knee", "knee([[1, 100.0], [2, 198.0], ...])"),
    ("value", "value(result, \"ttft\", \"p99\") or value(comparison, \"ttft p50 error\")"),
    ("capture", "capture(\"day.jsonl.zst\")"),
    ("playback", "playback(capture(\"day.jsonl.zst\"))"),
    (
        "compare",
        "compare(result, capture(\"day.jsonl.zst\")) or compare(result, other_result, #{ workload: \"chat\" })",
    ),
    (
        "gate",
        "gate(stable, canary) or gate(stable, canary, \"policy.toml\") or gate(..., #{ limits: #{ ttft_p95: 0.1 } })",
    ),
    ("expect", "expect(gate, \"decision == promote\")"),
    ("interval", "interval(comparison, \"ttft p50 error\")"),
];

/// The phrase by which errors name a value of this Rust type.
pub(crate) fn kind_of(type_name: &str) -> &'static str {
    let kinds = [
        ("EngineSpec", "an engine"),
        ("DeploymentSpec", "a deployment"),
        ("TiersSpec", "tiers of KV"),
        ("AdapterCosts", "costs of adapters"),
        ("PoolSpec", "a pool"),
        ("ClusterSpec", "a cluster"),
        ("LinkSpec", "a link"),
        ("LatencySpec", "a latency model"),
        ("PolicySpec", "a scheduling policy"),
        ("GuestSpec", "a guest"),
        ("RouterConfig", "a router"),
        ("ScriptDistribution", "a distribution"),
        ("Histogram", "a histogram"),
        ("Curve", "stages of a load"),
        ("ModelSpec", "a model"),
        ("ScalingConfig", "an autoscaler"),
        ("ConditionalConfig", "conditional disaggregation"),
        ("Conversations", "a data set"),
        ("WorkloadConfig", "a workload"),
        ("FaultSpec", "a fault"),
        ("TargetSpec", "a target"),
        ("RunResult", "the result of a run"),
        ("RequestRows", "the requests of a run"),
        ("CaptureSpec", "a capture"),
        ("ComparisonResult", "a comparison"),
        ("GateResult", "a decision of a gate"),
    ];
    kinds.iter().find(|(name, _)| type_name.contains(name)).map_or("something else", |(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use super::FUNCTIONS;
    use crate::scenario::Scenario;
    use crate::vocabulary::script_engine;
    use crate::{RunOptions, Silent};

    /// Registered names that scripts should not use: refused functions, the length of requests, and a latency model
    /// for tests.
    const NOT_LISTED: [&str; 4] = ["exit", "sleep", "len", "spread"];

    /// Functions that the script engine adds to the language, without operators and properties.
    fn registered() -> BTreeSet<String> {
        let scenario = Scenario::compile(Path::new("a.rhai"), String::new()).expect("an empty script is one");
        let engine = script_engine(&Arc::new(scenario.context(RunOptions::default(), Arc::new(Silent), None)));
        let names = engine.collect_fn_metadata(None, |function| Some(function.metadata.name.to_string()), false);
        let is_word = |name: &String| name.chars().all(|char| char.is_ascii_lowercase() || char == '_');
        let is_listed = |name: &String| is_word(name) && !NOT_LISTED.contains(&name.as_str());
        names.into_iter().filter(is_listed).collect()
    }

    #[test]
    fn every_registered_function_has_its_usage() {
        let listed: BTreeSet<String> = FUNCTIONS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, registered());
    }

    #[test]
    fn the_page_of_the_language_lists_every_function() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/scenarios/language.md");
        let page = std::fs::read_to_string(page).expect("the page exists");
        let index = page.lines().skip_while(|line| *line != "## Function index").skip(1);
        let entries = index.take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("* [`"));
        let listed: Vec<&str> = entries.filter_map(|entry| entry.split('`').next()).collect();
        assert_eq!(listed, registered().iter().collect::<Vec<_>>());
    }
}
