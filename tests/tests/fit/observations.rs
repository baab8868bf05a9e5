//! Observations: logged steps, steps that single tokens reveal, and means of loads.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::Folder;

use crate::{COLUMNS, ENGINE, csv, error, measured, prediction, table, world};

/// Runs a fit and returns the model.
#[track_caller]
fn fitted(folder: &Folder, args: &[&str]) -> Value {
    let fixed = ["fit", "--engine", ENGINE, "--folds", "0", "--force", "--quiet", "-o", "model.json"];
    let _ = folder.vcr(&[&fixed[..], args].concat()).ended(0);
    let text = fs::read_to_string(folder.path().join("model.json")).expect("it was written");
    serde_json::from_str(&text).expect("a model is JSON")
}

/// Relative errors of two prices: of a step with this many decodes of 500 tokens each, and of a step with a prompt
/// of this many tokens.
fn price_errors(model: &Value) -> [f64; 2] {
    let price = |coefficients: &Value, decodes: f64, prompt: f64| -> f64 {
        let of = |name: &str| coefficients[name].as_f64().unwrap_or(0.0);
        let tokens = decodes + prompt;
        let prefill = if prompt > 0.0 { 1.0 } else { 0.0 };
        of("step")
            + prefill * (of("prefill_step") + of("prefill_chunk") + decodes * of("mixed_decode"))
            + tokens * of("token")
            + (tokens - 128.0).max(0.0) * of("token_above_128")
            + (tokens - 512.0).max(0.0) * of("token_above_512")
            + (decodes + prefill) * of("sample")
            + decodes.min(8.0) * of("decode_up_to_8")
            + decodes.min(32.0) * of("decode_up_to_32")
            + decodes.min(128.0) * of("decode_up_to_128")
            + decodes * 500.0 * (of("decode_context_token") + of("decode_distinct_token"))
            + prompt * (prompt + 1.0) / 2.0 * of("attention_pair")
    };
    let truth = crate::truth();
    let steps = [(24.0, 0.0), (16.0, 1000.0)];
    let coefficients = |model: &Value| model["step"]["coefficients"].clone();
    steps.map(|(decodes, prompt)| {
        price(&coefficients(model), decodes, prompt) / price(&coefficients(&truth), decodes, prompt) - 1.0
    })
}

#[test]
fn step_logs_price_steps_by_their_own_times() {
    let folder = world();
    let _ = folder.run(&["--quiet", "--out", "run", "-e", "count=300"]).ended(0);
    let model = fitted(&folder, &["run/requests.jsonl", "--steps", "run/steps.jsonl"]);
    let seen = &model["provenance"]["observations"];
    assert!(seen["step_times"].as_u64() > Some(500), "{seen}");
    assert_eq!(model["provenance"]["inputs"].as_array().map(Vec::len), Some(2), "the log is an input too");
    for error in price_errors(&model) {
        assert!(error.abs() < 0.02, "{error}: {model:#}");
    }
    assert_eq!(fitted(&folder, &["run/requests.jsonl"])["provenance"]["observations"]["step_times"], 0);
    // There must be as many logs as inputs, in the order of the inputs.
    let fit = |more: &[&str]| {
        let fixed = ["fit", "run/requests.jsonl", "--engine", ENGINE, "--force", "-o", "other.json"];
        folder.vcr(&[&fixed[..], more].concat())
    };
    fit(&["--steps", "run/steps.jsonl", "--steps", "run/steps.jsonl"])
        .failed(2, &["2 step logs for 1 inputs: expected one for each", "repeat --steps in the order"]);
    folder.write("short.jsonl", "{\"s\":0,\"sched\":[[7,16,0,\"n\",[1]]],\"u\":0}\n");
    fit(&["--steps", "short.jsonl"]).failed(2, &["short.jsonl", "none of 1 steps has a start and a duration"]);
}

#[test]
fn single_tokens_of_a_recorded_capture_show_steps() {
    let folder = world();
    let _ = folder.run(&["--quiet", "--out", "run", "-e", "count=300"]).ended(0);
    let read = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(folder.path().join("run").join(name)).expect("it was written");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    };
    // When each request got tokens, according to the step log.
    let mut tokens: Vec<Vec<u64>> = vec![Vec::new(); 400];
    for step in read("steps.jsonl") {
        let Some(out) = step["out"].as_array() else { continue };
        let ms = |key: &str| step[key].as_f64().expect("a time");
        let end_ns = ((ms("start_ms") + ms("duration_ms")) * 1e6).round() as u64;
        for row in out {
            tokens[row[0].as_u64().expect("a number") as usize].push(end_ns);
        }
    }
    let capture = |source: &str| {
        let mut text =
            format!("{}\n", json!({"kind": "meta", "format": "vcr.capture", "version": 1, "source": source}));
        for (index, row) in read("requests.jsonl").iter().enumerate() {
            let at = |ms: &Value| (ms.as_f64().expect("a time") * 1e6).round() as u64;
            let (arrival_ns, times) = (at(&row["arrival_ms"]), &tokens[index]);
            let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let line = json!({"kind": "request", "arrival_ns": arrival_ns, "prompt_tokens": row["prompt_tokens"],
                "output_tokens": times.len(), "ttft_ns": times[0] - arrival_ns, "gap_ns": gaps,
                "finish_reason": "length"});
            text += &format!("{line}\n");
        }
        folder.write("capture.jsonl", text);
    };
    capture("record");
    let model = fitted(&folder, &["capture.jsonl"]);
    let seen = &model["provenance"]["observations"];
    assert!(seen["step_times"].as_u64() > Some(500), "{seen}");
    for error in price_errors(&model) {
        assert!(error.abs() < 0.03, "{error}: {model:#}");
    }
    capture("guidellm");
    let seen = fitted(&folder, &["capture.jsonl"])["provenance"]["observations"].clone();
    assert_eq!(seen["step_times"], 0, "a client's clock does not show steps");
}

/// A report in the format of `vllm bench serve`, for a load on the true model.
fn report(rows: &[Value], rate: f64) -> Value {
    let all = |of: &dyn Fn(&Value) -> f64| rows.iter().map(of).collect::<Vec<f64>>();
    let number = |row: &Value, name: &str| row[name].as_f64().expect("a number");
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let tpot =
        |row: &Value| (number(row, "e2e_ms") - number(row, "ttft_ms")) / (number(row, "output_tokens") - 1.0).max(1.0);
    json!({
        "completed": rows.len(), "request_rate": rate, "max_concurrency": null,
        "total_input_tokens": all(&|row| number(row, "prompt_tokens")).iter().sum::<f64>(),
        "total_output_tokens": all(&|row| number(row, "output_tokens")).iter().sum::<f64>(),
        "mean_ttft_ms": mean(all(&|row| number(row, "ttft_ms"))), "mean_tpot_ms": mean(all(&tpot)),
        "mean_e2el_ms": mean(all(&|row| number(row, "e2e_ms"))),
    })
}

#[test]
fn reports_of_load_generators_are_one_point_for_each_load() {
    let folder = world();
    for (name, rate) in [("a", 5.0), ("b", 15.0), ("c", 25.0)] {
        let rows = measured(&folder, &["-e", &format!("rate={rate}")]);
        folder.write(&format!("{name}.json"), report(&rows, rate).to_string());
    }
    let model = fitted(&folder, &["a.json", "b.json", "c.json"]);
    assert_eq!(model["provenance"]["observations"]["first_token_times"], 3, "{model:#}");
    table(&folder, "other.csv", &["-e", "rate=20"]);
    let other = prediction(&folder, &["model.json", "other.csv", "--engine", ENGINE]);
    for (name, limit) in [("itl mean", 0.06), ("e2e p50", 0.06), ("ttft p50", 0.25)] {
        assert!(error(&other, name).abs() < limit, "{name}: {other:#}");
    }
    // A report can be calibrated against too, and its loads can be left out in turn.
    let judged = prediction(&folder, &["model.json", "c.json", "--engine", ENGINE, "--html", "page.html"]);
    assert_eq!(judged["in_sample"], true, "{judged:#}");
    assert!(error(&judged, "itl mean").abs() < 0.05, "{judged:#}");
    assert_eq!(judged["comparisons"].as_array().map(Vec::len), Some(3));
    let fixed = ["fit", "a.json", "b.json", "c.json", "--engine", ENGINE, "--force", "-o", "folds.json", "--json"];
    let said = folder.vcr(&fixed).ended(0).json();
    let quality = said["model"]["quality"].as_array().expect("an array").clone();
    assert!(quality.iter().all(|each| each["cross_validated"].is_number()), "{quality:#?}");
    folder.write("none.json", json!({"completed": 5, "mean_ttft_ms": 3.0, "request_rate": 2}).to_string());
    let refused = folder.vcr(&["fit", "none.json", "--engine", ENGINE, "-o", "none.model.json"]);
    refused.failed(2, &["none.json", "load 1 of the report", "the lengths of prompts and answers are missing"]);
}

#[test]
fn threads_change_no_byte() {
    let folder = world();
    let rows = measured(&folder, &["-e", "count=120"]);
    folder.write("a.csv", csv(&rows[..60], &COLUMNS));
    folder.write("b.csv", csv(&rows[60..], &COLUMNS));
    let fit = |threads: &str| {
        let args = ["fit", "a.csv", "b.csv", "--engine", ENGINE, "--force", "-o", "m.json", "--threads", threads];
        let said = folder.vcr(&args).ended(0).stdout;
        (said, fs::read(folder.path().join("m.json")).expect("it was written"))
    };
    assert_eq!(fit("1"), fit("3"));
}

#[test]
fn sampled_steps_are_those_of_the_capture() {
    let mut capture = format!("{}\n", json!({"kind": "meta", "format": "vcr.capture", "version": 1}));
    for index in 0..40_u64 {
        let line = json!({"kind": "request", "arrival_ns": index * 1_000_000_000, "prompt_tokens": 64,
            "output_tokens": 11, "ttft_ns": 30_000_000, "gap_ns": vec![7_000_000; 10], "finish_reason": "length"});
        capture += &format!("{line}\n");
    }
    let folder = Folder::with(
        r#"let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 800 }),
    latency: sampled(#{ capture: param("capture", "run.jsonl") }) }) });
let w = poisson(#{ rate: "1/s", count: 20, prompt_tokens: 64, output_tokens: 5 });
run(#{ cluster: c, workloads: [w] });
"#,
    );
    folder.write("run.jsonl", capture);
    for row in measured(&folder, &[]) {
        let ms = |name: &str| row[name].as_f64().expect("a time");
        let gap_ms = (ms("e2e_ms") - ms("ttft_ms")) / 4.0;
        // If a prompt is in one of the steps, that gap is 30 ms instead of 7 ms.
        assert!((7.0 - 1e-9..=7.0 + 23.0 / 4.0 + 1e-9).contains(&gap_ms), "{row}");
        assert!(ms("ttft_ms") >= 30.0 - 1e-9, "{row}");
    }
    folder.write("empty.jsonl", format!("{}\n", json!({"kind": "meta", "format": "vcr.capture", "version": 1})));
    folder.run(&["-e", "capture=empty.jsonl"]).failed(2, &["empty.jsonl", "gaps between tokens"]);
}
