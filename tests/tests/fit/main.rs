//! `vcr fit` and `vcr calibrate` on measurements whose true model is known: `vcr run` has simulated the requests
//! with a handwritten model.

mod calibrate;
mod component;
mod inputs;
mod model;
mod next;
mod observations;
mod recordings;
mod refusals;

use std::fs;

use serde_json::{Value, json};
use vcr_tests::Folder;

/// The engine of the true model, as a value of `--engine`.
const ENGINE: &str = "num_gpu_blocks: 8_000, max_num_batched_tokens: 2048";

/// A load on that engine. Tests vary it by parameters.
const SCENARIO: &str = r#"let e = engine(#{ num_gpu_blocks: param("blocks", 8000), max_num_batched_tokens: 2048 });
let c = cluster(#{ engines: pool(#{ engine: e, latency: fitted(#{ path: "truth.json" }) }) });
let w = poisson(#{ rate: `${param("rate", 25)}/s`, count: param("count", 400), prompt_tokens: lognormal(400, 350),
    output_tokens: lognormal(110, 70), shared_prefix_tokens: param("shared", 0), turns: param("turns", 1) });
run(#{ cluster: c, workloads: [w] });
"#;

/// The true model: a step takes exactly the sum of its terms.
fn truth() -> Value {
    json!({
        "format": "vcr.fitted/1",
        "step": {
            "coefficients": {"step": 6.0e6, "prefill_step": 1.5e6, "token": 2.5e4, "token_above_512": 1.0e4,
                "decode_context_token": 30.0, "attention_pair": 2.0},
            "range": {"min_decode_tokens": 1, "max_decode_tokens": 1024, "max_decode_context_tokens": 4_000_000,
                "max_prefill_tokens": 8192, "max_prefill_requests": 256, "max_prefill_context_tokens": 1_000_000},
        },
        "overheads": {"arrival_ns": 8_000_000, "arrival_per_prompt_token_ps": 2_000_000},
    })
}

/// A folder with the true model and its scenario, without measurements.
fn world() -> Folder {
    let folder = Folder::with(SCENARIO);
    folder.write("truth.json", truth().to_string());
    folder
}

/// Requests simulated with the true model, in the form of measurements.
#[track_caller]
fn measured(folder: &Folder, args: &[&str]) -> Vec<Value> {
    let _ = folder.run(&[&["--quiet", "--force", "--requests", "requests.jsonl"], args].concat()).ended(0);
    let text = fs::read_to_string(folder.path().join("requests.jsonl")).expect("it was written");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Columns of a table of requests.
const COLUMNS: [&str; 5] = ["arrival_ms", "prompt_tokens", "output_tokens", "ttft_ms", "e2e_ms"];

/// Rows as CSV with the header `titles`, which replace [`COLUMNS`].
fn csv(rows: &[Value], titles: &[&str]) -> String {
    let line = |row: &Value| COLUMNS.map(|column| row[column].to_string()).join(",");
    let lines = [titles.join(",")].into_iter().chain(rows.iter().map(line));
    lines.map(|line| line + "\n").collect()
}

/// Writes the requests of a simulation with the true model as a table.
#[track_caller]
fn table(folder: &Folder, name: &str, args: &[&str]) {
    folder.write(name, csv(&measured(folder, args), &COLUMNS));
}

/// The relative error of a comparison, such as `itl mean`, in a prediction as JSON.
#[track_caller]
fn error(prediction: &Value, name: &str) -> f64 {
    let comparisons = prediction["comparisons"].as_array().expect("an array of comparisons");
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    let found =
        comparisons.iter().find(|each| format!("{} {}", text(&each["metric"]), text(&each["statistic"])) == name);
    let found = found.unwrap_or_else(|| panic!("no `{name}` in {prediction:#}"));
    let ms = |side: &str| found[side].as_f64().expect("milliseconds");
    ms("simulated_ms") / ms("measured_ms") - 1.0
}

/// The only prediction of `vcr calibrate --json`.
#[track_caller]
fn prediction(folder: &Folder, args: &[&str]) -> Value {
    let said = folder.vcr(&[&["calibrate", "--json"], args].concat()).ended(0).json();
    assert_eq!(said["predictions"].as_array().map(Vec::len), Some(1), "{said:#}");
    said["predictions"][0].clone()
}
