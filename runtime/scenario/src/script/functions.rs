//! The functions and kinds of values that scripts know, by name: for error texts
//! and docs.

/// Every function of the vocabulary with its usage, for error texts and docs.
pub const FUNCTIONS: &[(&str, &str)] = &[
    ("param", "param(\"name\", default)"),
    ("engine", "engine(#{ num_gpu_blocks: 16_385, ... })"),
    ("kv_tiers", "kv_tiers(#{ host_blocks: 50_000, kv_bytes_per_token: \"128KiB\", ... })"),
    ("pool", "pool(#{ engines: 2, engine: ..., latency: ..., router: \"round-robin\" })"),
    ("autoscale", "autoscale(#{ policy: \"target_requests\", target: 8, interval: \"30s\", max: 16, ... })"),
    ("cluster", "cluster(#{ engines: pool }) or cluster(#{ prefill: pool, decode: pool, link: link })"),
    ("conditional", "conditional(#{ policy: \"isl-bounding\", eff_isl_threshold: 2048, ... })"),
    ("link", "link(#{ bandwidth: \"64GB/s\", kv_bytes_per_token: \"128KiB\" })"),
    ("kv_bytes_per_token", "kv_bytes_per_token(\"llama-3.1-8b\")"),
    ("kv_aware", "kv_aware(#{ overlap_score_credit: 1.0, ... })"),
    ("kv_router", "kv_router(#{ event_lag: \"5ms\", queue_threshold: 2.0, replicas: 2, ... })"),
    ("prefix_affinity", "prefix_affinity(#{ load_factor: 1.25, max_waiting: 32, ... })"),
    ("fixed", "fixed(#{ step: \"10ms\" })"),
    ("knobs", "knobs(#{ ttft: \"200ms\", itl: normal(\"12ms\", \"2ms\") })"),
    ("polynomial", "polynomial(#{ semantics: \"dynamo-1.6\" })"),
    ("profile", "profile(#{ path: \"profile.npz\" })"),
    ("tables", "tables(#{ system: \"h100_sxm\", model: \"meta-llama/Meta-Llama-3.1-70B\", tensor_parallel: 4 })"),
    ("trained_physics", "trained_physics(#{ coefficients: \"fit.json\", model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })"),
    ("roofline", "roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })"),
    ("shortest_prompt_first", "shortest_prompt_first(#{ aging_tokens_per_s: 200, max_chunk_tokens: 2_048 })"),
    ("fair_share", "fair_share(#{ weights: #{ \"3\": 2.0 }, default_weight: 1.0 })"),
    ("guest", "guest(#{ path: \"guest.wasm\", config: #{ ... } })"),
    ("normal", "normal(mean, std)"),
    ("lognormal", "lognormal(mean, std)"),
    ("gamma", "gamma(mean, std)"),
    ("exponential", "exponential(mean)"),
    ("uniform", "uniform(min, max)"),
    ("burst", "burst(#{ count: 100, at: \"10s\", prompt_tokens: 512, output_tokens: 64 })"),
    ("constant", "constant(#{ rate: \"5/s\", duration: \"1m\", prompt_tokens: 512, output_tokens: 64 })"),
    ("poisson", "poisson(#{ rate: \"5/s\", duration: \"1m\", prompt_tokens: 512, output_tokens: 64 })"),
    ("closed_loop", "closed_loop(#{ concurrency: 8, count: 100, prompt_tokens: 512, output_tokens: 64 })"),
    ("trace", "trace(#{ path: \"trace.jsonl\" })"),
    ("crash", "crash(#{ at: \"10s\", pool: \"decode\", engine: 0, restart_after: \"5s\" })"),
    ("slow_down", "slow_down(#{ at: \"10s\", pool: \"decode\", engine: 0, factor: 3.0, duration: \"5s\" })"),
    ("run", "run(#{ cluster: cluster, workloads: [ ... ] })"),
    ("run_all", "run_all([ #{ name: ..., cluster: ..., workloads: ... }, ... ])"),
    ("expect", "expect(result, \"ttft\", \"p99 < 4s\")"),
    ("check", "check(\"what must be true\", condition) or check(..., condition, \"what was seen\")"),
    ("value", "value(result, \"ttft\", \"p99\")"),
];

/// A value of this Rust type, as an error names it.
pub(crate) fn kind_of(type_name: &str) -> &'static str {
    let kinds = [
        ("EngineSpec", "an engine"),
        ("TiersSpec", "tiers of KV"),
        ("PoolSpec", "a pool"),
        ("ClusterSpec", "a cluster"),
        ("LinkSpec", "a link"),
        ("LatencySpec", "a latency model"),
        ("PolicySpec", "a scheduling policy"),
        ("GuestSpec", "a guest"),
        ("RouterConfig", "a router"),
        ("ScriptDistribution", "a distribution"),
        ("WorkloadConfig", "a workload"),
        ("FaultSpec", "a fault"),
        ("RunResult", "the result of a run"),
    ];
    kinds.iter().find(|(name, _)| type_name.contains(name)).map_or("something else", |(_, kind)| *kind)
}
