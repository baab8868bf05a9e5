//! Models: their predictions, their determinism, and inferred settings.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::Folder;

use crate::{ENGINE, error, prediction, table, truth, world};

fn read(folder: &Folder, name: &str) -> serde_json::Value {
    let text = fs::read_to_string(folder.path().join(name)).expect("it was written");
    serde_json::from_str(&text).expect("a model is JSON")
}

#[test]
fn a_fit_predicts_a_load_that_it_has_not_seen() {
    let folder = world();
    table(&folder, "a.csv", &[]);
    table(&folder, "b.csv", &["-e", "rate=16", "--seed", "7"]);
    let said = folder.vcr(&["fit", "a.csv", "--engine", ENGINE, "-o", "model.json"]).ended(0);
    for words in ["fitted to 800 times of 400 requests", "(in sample)", "cross-validated errors: ", "assumed, since"] {
        assert!(said.stdout.contains(words), "`{words}` is not in:\n{}", said.stdout);
    }
    let model = read(&folder, "model.json");
    assert_eq!((&model["format"], &model["provenance"]["engine"]), (&"vcr.fitted/1".into(), &ENGINE.into()));
    assert_eq!(model["provenance"]["inputs"][0]["requests"], 400);
    // The settings come from the model file.
    let found = prediction(&folder, &["model.json", "b.csv"]);
    assert_eq!(found["in_sample"], false);
    for (name, most) in [("itl mean", 0.03), ("e2e p50", 0.03), ("ttft p50", 0.08)] {
        assert!(error(&found, name).abs() < most, "{name} is {} off: {found:#}", error(&found, name));
    }
}

/// Requests that the engine computes one at a time, whose prompts take `gaps` times as long as a step.
fn slow_prompts(folder: &Folder, name: &str, gaps: u32, rate: &str) {
    let step_ns = 9.9e6;
    let mut truth = truth();
    truth["step"]["coefficients"] =
        json!({"step": step_ns, "token_above_128": f64::from(gaps - 1) * step_ns / f64::from(2056 - 128)});
    truth["overheads"] = json!({});
    folder.write("slow.json", truth.to_string());
    folder.write(
        "test.rhai",
        r#"let e = engine(#{ num_gpu_blocks: 27_000, max_num_batched_tokens: 8_192 });
let c = cluster(#{ engines: pool(#{ engine: e, latency: fitted(#{ path: "slow.json" }) }) });
let w = poisson(#{ rate: `${param("rate", 0.05)}/s`, count: 32, prompt_tokens: 2_056, output_tokens: uniform(40, 90) });
run(#{ cluster: c, workloads: [w] });
"#,
    );
    table(folder, name, &["-e", &format!("rate={rate}")]);
}

const SLOW_ENGINE: &str = "num_gpu_blocks: 27_000, max_num_batched_tokens: 8_192";

/// If the data contradicts the physical estimate for prompts, the fit starts from the data.
#[test]
fn prompts_that_take_many_steps_are_fitted() {
    for gaps in [52, 80, 160, 400] {
        let folder = Folder::new();
        slow_prompts(&folder, "a.csv", gaps, "0.05");
        let said = folder.vcr(&["fit", "a.csv", "--engine", SLOW_ENGINE, "--folds", "0", "-o", "model.json"]).ended(0);
        assert!(!said.stderr.contains("engine settings may be wrong"), "{gaps}: {}", said.stderr);
        let found = prediction(&folder, &["model.json", "a.csv"]);
        for (name, most) in [("ttft p50", 0.05), ("ttft p90", 0.05), ("itl p50", 0.03), ("e2e p50", 0.05)] {
            assert!(error(&found, name).abs() < most, "{gaps} gaps, {name}: {}", error(&found, name));
        }
    }
}

/// Loads in which prompts wait for each other do not bias the fit.
#[test]
fn slow_prompts_of_several_loads_are_fitted() {
    let folder = Folder::new();
    for (name, rate) in [("a.csv", "0.3"), ("b.csv", "1.0"), ("c.csv", "1.6")] {
        slow_prompts(&folder, name, 50, rate);
    }
    let fit = ["fit", "a.csv", "b.csv", "c.csv", "--engine", SLOW_ENGINE, "--folds", "0", "-o", "model.json"];
    let _ = folder.vcr(&fit).ended(0);
    for name in ["a.csv", "b.csv", "c.csv"] {
        let found = prediction(&folder, &["model.json", name]);
        for (metric, most) in [("ttft p50", 0.1), ("itl p50", 0.1), ("e2e p50", 0.1)] {
            assert!(error(&found, metric).abs() < most, "{name}, {metric}: {}", error(&found, metric));
        }
    }
}

#[test]
fn two_fits_give_the_same_bytes() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=150"]);
    for name in ["one.json", "two.json"] {
        let _ = folder.vcr(&["fit", "a.csv", "--engine", ENGINE, "--folds", "2", "-o", name]).ended(0);
    }
    let [one, two] = ["one.json", "two.json"].map(|name| fs::read(folder.path().join(name)).expect("it was written"));
    assert!(one == two, "the files differ");
}

#[test]
fn halves_of_a_file_are_fitted_and_judged_apart() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=160"]);
    let fit = ["fit", "a.csv", "--engine", ENGINE, "--folds", "0", "--part", "0..0.5", "-o", "model.json"];
    let _ = folder.vcr(&fit).ended(0);
    assert_eq!(read(&folder, "model.json")["provenance"]["inputs"][0]["part"], serde_json::json!([0.0, 0.5]));
    let second = prediction(&folder, &["model.json", "a.csv", "--part", "0.5..1"]);
    assert_eq!((&second["in_sample"], &second["requests"]), (&false.into(), &80.into()));
    assert_eq!(prediction(&folder, &["model.json", "a.csv"])["in_sample"], true);
    let said = folder.vcr(&["calibrate", "model.json", "a.csv", "--part", "0.2..0.6"]).ended(0);
    assert!(said.stdout.contains("(in sample: the model was fitted on it)"), "{}", said.stdout);
}

#[test]
fn the_number_of_blocks_is_inferred_from_a_full_cache() {
    let folder = world();
    table(&folder, "full.csv", &["-e", "blocks=600", "-e", "rate=40", "-e", "count=250", "--seed", "3"]);
    let engine = "--max-num-batched-tokens 2048 --num-gpu-blocks 850";
    let args = ["--infer", "num_gpu_blocks", "--folds", "0", "-o", "model.json", "--json"];
    let said = folder.vcr(&[&["fit", "full.csv", "--engine", engine], &args[..]].concat()).ended(0).json();
    let inferred = &said["inferred"][0];
    assert_eq!((&inferred["setting"], &inferred["given"]), (&"num_gpu_blocks".into(), &850.into()));
    let found = inferred["found"].as_u64().expect("a number of blocks");
    assert!((540..=660).contains(&found), "{inferred:#}");
    // The model file has the settings with that value, and they can be read.
    let stated = format!("--max-num-batched-tokens 2048 --num-gpu-blocks {found}");
    assert_eq!(said["model"]["provenance"]["engine"], stated.as_str());
    let _ = prediction(&folder, &["model.json", "full.csv"]);
    let pool = r#"pool(#{ engines: 1, latency: fixed(#{ step: "1ms" }) })"#;
    let args = ["fit", "full.csv", "--engine", pool, "--infer", "num_gpu_blocks", "-o", "other.json"];
    folder.vcr(&args).failed(2, &["`num_gpu_blocks` can be inferred if the pool in `--engine` states it"]);
}

#[test]
fn several_loads_share_one_model() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=100"]);
    table(&folder, "b.csv", &["-e", "count=100", "-e", "rate=12"]);
    let fit = ["fit", "a.csv", "b.csv", "--engine", ENGINE, "--engine", "--num-gpu-blocks 6000", "--folds", "0"];
    let said =
        folder.vcr(&[&fit[..], &["--shape", "llama-3.1-8b", "-o", "model.json", "--json"]].concat()).ended(0).json();
    let provenance = &said["model"]["provenance"];
    assert_eq!(provenance["inputs"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        (&provenance["shape"], &provenance["engine"]),
        (&"llama-3.1-8b".into(), &format!("{ENGINE}; --num-gpu-blocks 6000").into())
    );
    assert_eq!(said["in_sample"][1]["input"], "b.csv");
    // The command must name one of the two engines.
    folder.vcr(&["calibrate", "model.json", "b.csv"]).failed(2, &["`--engine` is missing", "--engine"]);
    let all = ["calibrate", "model.json", "a.csv", "b.csv", "--engine", ENGINE, "--json"];
    assert_eq!(folder.vcr(&all).ended(0).json()["predictions"][1]["in_sample"], true);
}

/// The true model with all prices of a step multiplied by `factor`.
fn truth_times(factor: f64) -> Value {
    let mut model = truth();
    let coefficients = model["step"]["coefficients"].as_object_mut().expect("an object of coefficients");
    for value in coefficients.values_mut() {
        *value = (value.as_f64().expect("a number") * factor).into();
    }
    model
}

#[test]
fn a_base_says_what_few_requests_do_not() {
    let folder = world();
    table(&folder, "few.csv", &["-e", "count=25", "-e", "rate=1"]);
    table(&folder, "busy.csv", &["-e", "count=200", "-e", "rate=24", "--seed", "2"]);
    folder.write("base.json", truth_times(1.25).to_string());
    let fit = ["fit", "few.csv", "--engine", ENGINE, "--folds", "0", "--force", "--json"];
    let base = ["--base", "fitted(#{ path: \"base.json\" })"];
    let off = |model: &str| {
        let predicted = prediction(&folder, &[model, "busy.csv", "--engine", ENGINE]);
        error(&predicted, "itl mean").abs()
    };
    let _ = folder.vcr(&[&fit[..], &["-o", "alone.json"]].concat()).ended(0);
    let said = folder.vcr(&[&fit[..], &base, &["-o", "corrected.json"]].concat()).ended(0).json();
    assert_eq!(said["model"]["provenance"]["base"], base[1]);
    assert!(said["base"]["deviation_p90"].as_f64().expect("a number") < 0.02, "a fitted model is followed: {said:#}");
    let (corrected, alone, untouched) = (off("corrected.json"), off("alone.json"), off("base.json"));
    assert!(corrected < 0.05 && corrected < alone && corrected < untouched, "{corrected} {alone} {untouched}");
}

#[test]
fn a_base_that_explains_less_is_left_out() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=100"]);
    folder.write("base.json", truth_times(0.1).to_string());
    let fit = ["fit", "a.csv", "--engine", ENGINE, "--folds", "0", "--json"];
    let _ = folder.vcr(&[&fit[..], &["-o", "alone.json"]].concat()).ended(0);
    let base = ["--base", "fitted(#{ path: \"base.json\" })", "-o", "corrected.json"];
    let said = folder.vcr(&[&fit[..], &base].concat()).ended(0);
    assert!(said.stderr.contains("is left out: with it the fit is "), "{}", said.stderr);
    assert_eq!((&said.json()["base"], &said.json()["model"]["provenance"]["base"]), (&Value::Null, &Value::Null));
    let model = |name: &str| fs::read_to_string(folder.path().join(name)).expect("it was written");
    assert_eq!(model("corrected.json"), model("alone.json"), "as if there were no base");
}
