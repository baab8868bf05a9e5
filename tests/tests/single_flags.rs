//! Settings of one H100: simulations rank them as measured in the public study of single flags (`kubecon-effects`).
//! Its variants differ in flags that simulations support.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use vcr_tests::{Folder, sample_data};

/// Variants and their flags. Omitted are another scheduler (`v0_engine`), drafts whose acceptance is not published
/// (`eagle`), and a quantisation whose kernels have no cost model here.
const VARIANTS: [(&str, &str); 3] = [
    ("vllm", "--max-num-seqs 128 --no-enable-prefix-caching --no-enable-chunked-prefill"),
    ("vllm+batch_size", "--max-num-seqs 192 --no-enable-prefix-caching --no-enable-chunked-prefill"),
    ("vllm+chunking_and_prefix_caching", "--max-num-seqs 128 --enable-prefix-caching --enable-chunked-prefill"),
];
/// Number of rates of each variant, up to beyond its capacity.
const STAGES: usize = 7;
/// Maximum number of requests that the client has in flight: 44 workers with 10 each.
const IN_FLIGHT: f64 = 440.0;
/// Lengths of `config.yaml`, as measured: ten shared prefixes, and 204 tokens in total.
const LENGTHS: &str = "prompt_tokens: 75, output_tokens: 62, shared_prefix_tokens: 128, prefix_groups: 10";
/// Smallest relative difference that counts.
const DIFFERS: f64 = 0.05;
const METRICS: [&str; 4] = ["E2E mean", "ITL mean", "TTFT median", "output tokens/s"];

/// Values in the order of [`METRICS`].
type Values = [f64; 4];

fn measured(variant: &str, stage: usize) -> Option<(Value, Values)> {
    let path = sample_data(&format!("kubecon-effects/{variant}/results/stage_{stage}_lifecycle_metrics.json"))?;
    let text = fs::read_to_string(path).expect("it can be read");
    let stage: Value = serde_json::from_str(&text).expect("JSON");
    let of = |pointer: &str| stage["successes"].pointer(pointer).and_then(Value::as_f64).expect("a number");
    let values = [
        of("/latency/request_latency/mean") * 1e3,
        of("/latency/inter_token_latency/mean") * 1e3,
        of("/latency/time_to_first_token/median") * 1e3,
        of("/throughput/output_tokens_per_sec"),
    ];
    Some((stage["load_summary"].clone(), values))
}

fn run(name: &str, flags: &str, workload: &str) -> String {
    format!(
        "run(#{{ name: \"{name}\", workloads: [{workload}], cluster: cluster(#{{ engines: pool(#{{ deployment: \
         deployment(\"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 512 --gpu-memory-utilization 0.9 \
         {flags}\", #{{ gpu: \"h100-sxm\", latency: \"roofline\" }}) }}) }}) }});\n"
    )
}

fn simulated(run: &Value) -> Values {
    let of = |pointer: &str| run["metrics"].pointer(pointer).and_then(Value::as_f64).expect("a number");
    let duration_s = of("/gauges/duration_ms") / 1e3;
    let tokens_per_s = of("/counters/output_tokens") / duration_s;
    [of("/trends/e2e_ms/mean"), of("/trends/itl_ms/mean"), of("/trends/ttft_ms/p50"), tokens_per_s]
}

#[test]
fn settings_rank_as_they_were_measured() {
    let mut script = String::new();
    let mut known: BTreeMap<(usize, usize), (f64, Values)> = BTreeMap::new();
    for (index, (variant, flags)) in VARIANTS.iter().enumerate() {
        for stage in 0..STAGES {
            let Some((load, values)) = measured(variant, stage) else { return };
            let (rate, count) = (load["requested_rate"].as_f64().expect("a rate"), &load["count"]);
            let open = format!("poisson(#{{ rate: {rate:?}, count: {count}, {LENGTHS} }})");
            script.push_str(&run(&format!("{index}-{stage}"), flags, &open));
            known.insert((index, stage), (rate, values));
        }
        let closed = format!("closed_loop(#{{ concurrency: {IN_FLIGHT}, duration: \"60s\", {LENGTHS} }})");
        script.push_str(&run(&format!("{index}-full"), flags, &closed));
    }
    let folder = Folder::with(&script);
    let report = folder.run(&["--json", "--quiet"]).ended(0).json();
    let runs = report["runs"].as_array().expect("a list");
    let named = |name: &str| simulated(runs.iter().find(|run| run["name"] == name).expect("it was run"));
    let predicted = |variant: usize, stage: usize| {
        let open = named(&format!("{variant}-{stage}"));
        // Where requests wait, the client limits their number.
        let in_flight = open[0] / 1e3 * known[&(variant, stage)].0;
        if in_flight > IN_FLIGHT { named(&format!("{variant}-full")) } else { open }
    };
    let (mut agree, mut of, mut wrong) = ([0; 4], [0; 4], Vec::new());
    for stage in 0..STAGES {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (a, b) = (known[&(one, stage)].1, known[&(other, stage)].1);
            let (p, q) = (predicted(one, stage), predicted(other, stage));
            for metric in 0..METRICS.len() {
                if (a[metric] - b[metric]).abs() <= DIFFERS * a[metric].min(b[metric]) {
                    continue;
                }
                of[metric] += 1;
                if (p[metric] < q[metric]) == (a[metric] < b[metric]) {
                    agree[metric] += 1;
                } else {
                    wrong.push((METRICS[metric], stage, VARIANTS[one].0, VARIANTS[other].0));
                }
            }
        }
    }
    // The numbers in docs/concepts/latency-models.md.
    assert_eq!((agree, of), ([15, 16, 18, 18], [15, 16, 20, 18]), "{wrong:?}");
}
