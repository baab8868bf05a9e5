//! Settings of one H100: simulations rank them as measured in the public study of single flags (`kubecon-effects`).
//! Its variants differ in flags that simulations support.
//!
//! The study does not publish how many drafts were accepted. The lowest rate of the variant with drafts tells, and all
//! of its rates are predicted with this number.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use vcr_tests::{Folder, sample_data};

/// Variants and their flags. Omitted are another scheduler (`v0_engine`) and a quantisation that was measured as fast as
/// no quantisation, probably because its manifest states option and value as one word (`quantization`).
const VARIANTS: [(&str, &str); 4] = [
    ("vllm", "--max-num-seqs 128 --no-enable-prefix-caching --no-enable-chunked-prefill"),
    ("vllm+batch_size", "--max-num-seqs 192 --no-enable-prefix-caching --no-enable-chunked-prefill"),
    ("vllm+chunking_and_prefix_caching", "--max-num-seqs 128 --enable-prefix-caching --enable-chunked-prefill"),
    (EAGLE, "--max-num-seqs 128 --spec-method eagle3 --spec-model eagle3 --spec-tokens 4"),
];
const BASE: &str = "vllm";
/// The variant with drafts.
const EAGLE: &str = "vllm+eagle";
const DRAFTS: u32 = 4;
/// The `config.json` of its head, `yuhuili/EAGLE3-LLaMA3.1-Instruct-8B`, as far as it determines work and memory.
const HEAD: &str = r#"{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1,
    "vocab_size": 128256, "draft_vocab_size": 32000, "max_position_embeddings": 2048, "torch_dtype": "float16"}"#;
/// Number of rates of each variant, up to beyond its capacity.
const STAGES: usize = 7;
/// Maximum number of requests that the client has in flight: 44 workers with 10 each.
const IN_FLIGHT: f64 = 440.0;
/// Lengths of `config.yaml`, as measured: ten shared prefixes, and 204 tokens in total.
const LENGTHS: &str = "prompt_tokens: 75, output_tokens: 62, shared_prefix_tokens: 128, prefix_groups: 10";
/// Smallest relative difference that counts.
const DIFFERS: f64 = 0.05;
const METRICS: [&str; 4] = ["E2E mean ms", "ITL mean ms", "TTFT median ms", "output tokens/s"];
/// `output_len` of `config.yaml`. The measured lengths are those of the text when it is tokenized again.
const OUTPUT_TOKENS: f64 = 64.0;

/// Values in the order of [`METRICS`].
type Values = [f64; 4];
/// Requested rate and measured values by variant and stage.
type Known = BTreeMap<(usize, usize), (f64, Values)>;

fn result(variant: &str, stage: usize) -> Option<Value> {
    let path = sample_data(&format!("kubecon-effects/{variant}/results/stage_{stage}_lifecycle_metrics.json"))?;
    Some(serde_json::from_str(&fs::read_to_string(path).expect("it can be read")).expect("JSON"))
}

/// A number of the requests that succeeded.
fn of(result: &Value, pointer: &str) -> f64 {
    result["successes"].pointer(pointer).and_then(Value::as_f64).expect("a number")
}

fn decoding_s(result: &Value) -> f64 {
    of(result, "/latency/request_latency/mean") - of(result, "/latency/time_to_first_token/mean")
}

fn measured(variant: &str, stage: usize) -> Option<(Value, Values)> {
    let result = result(variant, stage)?;
    let values = [
        of(&result, "/latency/request_latency/mean") * 1e3,
        // The client's own ITL is between parts of the stream, of which each output has two.
        decoding_s(&result) * 1e3 / (OUTPUT_TOKENS - 1.0),
        of(&result, "/latency/time_to_first_token/median") * 1e3,
        of(&result, "/throughput/output_tokens_per_sec"),
    ];
    Some((result["load_summary"].clone(), values))
}

/// Probability that a draft is accepted if all before it are, estimated at the lowest rate. With drafts, a step has one
/// output of one or more tokens, so the client counted fewer parts of the stream than without drafts.
fn acceptance() -> Option<f64> {
    let parts = |variant: &str| {
        let result = result(variant, 0)?;
        Some(decoding_s(&result) / of(&result, "/latency/time_per_output_token/mean"))
    };
    let tokens_per_step = parts(BASE)? / parts(EAGLE)?;
    let expected = |rate: f64| (0..=DRAFTS).map(|drafts| rate.powi(drafts as i32)).sum::<f64>();
    (0..1_000).map(|step| f64::from(step) / 1e3).find(|rate| expected(*rate) >= tokens_per_step)
}

fn run(name: &str, flags: &str, rates: &[f64], workload: &str) -> String {
    format!(
        "run(#{{ name: \"{name}\", workloads: [{workload}], cluster: cluster(#{{ engines: pool(#{{ deployment: \
         deployment(\"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 512 --gpu-memory-utilization 0.9 \
         {flags}\", #{{ gpu: \"h100-sxm\", latency: \"roofline\", acceptance_rates: {rates:?} }}) }}) }}) }});\n"
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
    let mut known = Known::new();
    let Some(acceptance) = acceptance() else { return };
    println!("Estimated at the lowest rate of {EAGLE}: a draft is accepted with probability {acceptance}.");
    for (index, (variant, flags)) in VARIANTS.iter().enumerate() {
        let rates = if *variant == EAGLE { &[acceptance; DRAFTS as usize][..] } else { &[] };
        for stage in 0..STAGES {
            let Some((load, values)) = measured(variant, stage) else { return };
            let (rate, count) = (load["requested_rate"].as_f64().expect("a rate"), &load["count"]);
            let open = format!("poisson(#{{ rate: {rate:?}, count: {count}, {LENGTHS} }})");
            script.push_str(&run(&format!("{index}-{stage}"), flags, rates, &open));
            known.insert((index, stage), (rate, values));
        }
        let closed = format!("closed_loop(#{{ concurrency: {IN_FLIGHT}, duration: \"60s\", {LENGTHS} }})");
        script.push_str(&run(&format!("{index}-full"), flags, rates, &closed));
    }
    let folder = Folder::with(&script);
    fs::create_dir(folder.path().join("eagle3")).expect("a temporary folder is writable");
    folder.write("eagle3/config.json", HEAD);
    let report = folder.run(&["--json", "--quiet"]).ended(0).json();
    let runs = report["runs"].as_array().expect("a list");
    let named = |name: &str| simulated(runs.iter().find(|run| run["name"] == name).expect("it was run"));
    let predicted = |variant: usize, stage: usize| {
        let open = named(&format!("{variant}-{stage}"));
        // Where requests wait, the client limits their number.
        let in_flight = open[0] / 1e3 * known[&(variant, stage)].0;
        if in_flight > IN_FLIGHT { named(&format!("{variant}-full")) } else { open }
    };
    print_table(&known, predicted);
    let [of_engine, of_drafts] = ranked(&known, predicted);
    // The numbers in docs/concepts/latency-models.md.
    assert_eq!((of_engine.agree, of_engine.differ), ([15, 16, 18, 18], [15, 16, 20, 18]), "{:?}", of_engine.wrong);
    assert_eq!((of_drafts.agree, of_drafts.differ), ([19, 20, 18, 18], [21, 21, 21, 18]), "{:?}", of_drafts.wrong);
}

/// Pairs of settings whose measurements differ, and those that simulations rank the same, by metric.
#[derive(Debug, Default)]
struct Pairs {
    agree: [u32; 4],
    differ: [u32; 4],
    wrong: Vec<(&'static str, usize, &'static str, &'static str)>,
}

/// The pairs without drafts, and those of a setting with drafts and one without.
fn ranked(known: &Known, predicted: impl Fn(usize, usize) -> Values) -> [Pairs; 2] {
    let mut pairs = [Pairs::default(), Pairs::default()];
    for stage in 0..STAGES {
        for (one, other) in (0..VARIANTS.len()).flat_map(|one| (one + 1..VARIANTS.len()).map(move |other| (one, other)))
        {
            let names = (VARIANTS[one].0, VARIANTS[other].0);
            let pairs = &mut pairs[usize::from(names.1 == EAGLE)];
            let (a, b) = (known[&(one, stage)].1, known[&(other, stage)].1);
            let (p, q) = (predicted(one, stage), predicted(other, stage));
            for metric in 0..METRICS.len() {
                if (a[metric] - b[metric]).abs() <= DIFFERS * a[metric].min(b[metric]) {
                    continue;
                }
                pairs.differ[metric] += 1;
                if (p[metric] < q[metric]) == (a[metric] < b[metric]) {
                    pairs.agree[metric] += 1;
                } else {
                    pairs.wrong.push((METRICS[metric], stage, names.0, names.1));
                }
            }
        }
    }
    pairs
}

fn print_table(known: &Known, predicted: impl Fn(usize, usize) -> Values) {
    println!("Measured and simulated: {}", METRICS.join(", "));
    for (&(variant, stage), (rate, values)) in known {
        let both = values.iter().zip(predicted(variant, stage));
        let texts: Vec<String> = both.map(|(measured, simulated)| format!("{measured:.1} {simulated:.1}")).collect();
        println!("{} at {rate:.0}/s: {}", VARIANTS[variant].0, texts.join(", "));
    }
}
