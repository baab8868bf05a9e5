//! The data that a fit leaves out, the measurement that it suggests next, and the certainty of predictions.

use std::fs;

use serde_json::Value;

use crate::{COLUMNS, ENGINE, csv, error, measured, prediction, table, world};

/// A tenth of the requests have 50 % longer token gaps. They change no price; `--warm-up none` shows that they
/// otherwise would.
#[test]
fn warm_ups_are_found_and_left_out() {
    let folder = world();
    let mut rows = measured(&folder, &["-e", "count=300"]);
    for row in rows.iter_mut().take(30) {
        let (ttft, e2e) = (row["ttft_ms"].as_f64().expect("a time"), row["e2e_ms"].as_f64().expect("a time"));
        row["e2e_ms"] = (ttft + (e2e - ttft) * 1.5).into();
    }
    folder.write("cold.csv", csv(&rows, &COLUMNS));
    table(&folder, "later.csv", &["-e", "count=200", "--seed", "9"]);
    let fit = |more: &[&str]| {
        let args = ["fit", "cold.csv", "--engine", ENGINE, "-o", "model.json", "--folds", "0", "--force"];
        folder.vcr(&[&args[..], more].concat()).ended(0).stderr
    };
    let said = fit(&[]);
    assert!(said.contains("cold.csv: the first ") && said.contains("are a warm-up and were not fitted"), "{said}");
    let without = error(&prediction(&folder, &["model.json", "later.csv"]), "itl mean").abs();
    assert!(without < 0.02, "{without}");
    assert!(!fit(&["--warm-up", "none"]).contains("warm-up"));
    folder.vcr(&["fit", "cold.csv", "-o", "m.json", "--warm-up", "soon"]).failed(2, &["auto, none or a duration"]);
}

/// If the suggested load is measured and added, the interval shrinks about as much as predicted.
#[test]
fn suggested_loads_shrink_the_interval_of_a_prediction() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=200", "-e", "rate=5"]);
    let target = "prompt_tokens: 4000, output_tokens: 100, concurrency: 8";
    let fit = |inputs: &[&str]| {
        let args = ["--engine", ENGINE, "-o", "model.json", "--folds", "0", "--force", "--json", "--suggest", target];
        folder.vcr(&[&["fit"], inputs, &args[..]].concat()).ended(0).json()["suggestion"].clone()
    };
    let width =
        |certainty: &Value| certainty["ttft"].as_f64().expect("a share") + certainty["itl"].as_f64().expect("one");
    let before = fit(&["a.csv"]);
    let first = &before["loads"][0];
    let command = first["command"].as_str().expect("a command");
    assert!(command.starts_with("vllm bench serve ") && command.contains("--save-detailed"), "{command}");
    assert!(width(&first["then"]) < 0.9 * width(&before["now"]), "{before:#}");
    let of = |name: &str| first["load"][name].as_u64().expect("a number");
    let at_once = first["load"]["pace"]["concurrency"].as_u64().expect("a closed loop");
    let suggested = format!(
        "let e = engine(#{{ {ENGINE} }});\n\
         let c = cluster(#{{ engines: pool(#{{ engine: e, latency: fitted(#{{ path: \"truth.json\" }}) }}) }});\n\
         run(#{{ cluster: c, workloads: [closed_loop(#{{ concurrency: {at_once}, count: {}, prompt_tokens: {}, \
         output_tokens: {} }})] }});\n",
        of("requests"),
        of("prompt_tokens"),
        of("output_tokens"),
    );
    folder.write("suggested.rhai", suggested);
    let _ = folder.vcr(&["run", "suggested.rhai", "-q", "--force", "--requests", "b.jsonl"]).ended(0);
    let text = fs::read_to_string(folder.path().join("b.jsonl")).expect("it was written");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    folder.write("b.csv", csv(&rows, &COLUMNS));
    let after = width(&fit(&["a.csv", "b.csv"])["now"]);
    let (said, had) = (width(&first["then"]), width(&before["now"]));
    assert!(after < had && (0.5..1.5).contains(&(after / said)), "{had} before, {said} expected, {after} found");
    folder.vcr(&["fit", "a.csv", "-o", "m.json", "--suggest", "long prompts"]).failed(2, &["expected prompt_tokens"]);
}

/// The model that produced the data is within its own intervals. A load far above the fitted one is reported as
/// extrapolation.
#[test]
fn predictions_have_intervals_and_extrapolation_is_said() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=200", "-e", "rate=5"]);
    table(&folder, "b.csv", &["-e", "count=400", "-e", "rate=40"]);
    let args = ["fit", "a.csv", "--engine", ENGINE, "-o", "model.json", "--folds", "0", "--force"];
    let _ = folder.vcr(&args).ended(0);
    let judged = prediction(&folder, &["model.json", "b.csv"]);
    let intervals = judged["intervals"].as_array().expect("intervals");
    let inside = intervals.iter().filter(|each| each["is_inside"] == Value::Bool(true)).count();
    assert!(inside * 100 >= intervals.len() * 85, "{inside} of {}: {judged:#}", intervals.len());
    let said = folder.vcr(&["calibrate", "model.json", "b.csv"]).ended(0);
    assert!(said.stdout.contains("90 % interval") && said.stdout.contains("inside"), "{}", said.stdout);
    assert!(said.stderr.contains("of the step time is outside the fitted range"), "{}", said.stderr);
    let said = folder.vcr(&["calibrate", "model.json", "b.csv", "--uncertainty", "0"]).ended(0);
    assert!(!said.stdout.contains("90 % interval"), "{}", said.stdout);
}
