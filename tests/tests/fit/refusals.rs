//! Errors for impossible measurements, settings and files contain a remedy, and no model is written.

use serde_json::{Value, json};
use vcr_tests::Folder;

use crate::{COLUMNS, ENGINE, csv, measured, table, world};

/// Fits to `a.csv`. The command must fail with these texts and write nothing.
#[track_caller]
fn refused(folder: &Folder, args: &[&str], needles: &[&str]) {
    folder.vcr(&[&["fit", "a.csv", "-o", "model.json"], args].concat()).failed(2, needles);
    assert!(!folder.path().join("model.json").exists(), "a model was written");
}

#[test]
fn requests_that_fix_nothing_are_refused() {
    let folder = world();
    let engine = ["--engine", ENGINE];
    let rows = measured(&folder, &["-e", "count=40"]);
    let write = |change: &dyn Fn(usize, &mut Value)| {
        let mut rows = rows.clone();
        rows.iter_mut().enumerate().for_each(|(index, row)| change(index, row));
        folder.write("a.csv", csv(&rows, &COLUMNS));
    };
    folder.write("a.csv", csv(&rows[..19], &COLUMNS));
    // All columns are known.
    refused(&folder, &engine, &["a.csv: 19 of 19 requests", "expected at least 20\n"]);
    write(&|index, row| row["ttft_ms"] = if index < 3 { json!(1e7) } else { row["ttft_ms"].clone() });
    refused(&folder, &engine, &["a.csv: 3 of 40 requests have their first token after their end", "units"]);
    write(&|_, row| row["e2e_ms"] = json!(row["ttft_ms"].as_f64().expect("a time") + 1e3));
    write(&|_, row| {
        let gaps = row["output_tokens"].as_u64().expect("a number") - 1;
        (row["ttft_ms"], row["e2e_ms"]) = (json!(20), json!(20 + 10 * gaps));
    });
    refused(&folder, &engine, &["a.csv: all requests have the same time between tokens: nothing to fit"]);
    write(&|index, row| row["prompt_tokens"] = if index == 6 { json!(0) } else { row["prompt_tokens"].clone() });
    refused(&folder, &engine, &["a.csv", "row 7", "the prompt has no tokens"]);
    write(&|_, row| row["ttft_ms"] = json!(0));
    refused(&folder, &engine, &["a.csv: 40 of 40 requests have a first-token time of 0"]);
    folder.write("a.csv", "");
    refused(&folder, &engine, &["a.csv"]);
    folder.write("a.csv", "arrival_ms,prompt_tokens\n0,1\n");
    refused(&folder, &engine, &["a.csv", "output_tokens"]);
}

#[test]
fn columns_without_a_unit_or_a_meaning_are_refused() {
    let folder = world();
    let titles = ["arrival_ms", "prompt_tokens", "output_tokens", "first", "e2e_ms"];
    folder.write("a.csv", csv(&measured(&folder, &["-e", "count=30"]), &titles));
    let with = |map: &'static str| ["--engine", ENGINE, "--map", map];
    refused(&folder, &with("ttft=first"), &["`a.csv`", "invalid column `ttft`: expected a unit", "`ttft_ms`"]);
    refused(&folder, &with("speed=first"), &["invalid name `speed` for the column `first`", "ttft_ms"]);
    let known = "expected one of arrival_ms, e2e_ms, first, output_tokens, prompt_tokens";
    refused(&folder, &with("ttft_ms=frist"), &["`a.csv`", "no column `frist` for `ttft_ms`", known]);
    refused(&folder, &with("ttft_ms="), &["expected NAME=COLUMN, such as ttft_ms=first_token"]);
    // If a column is missing, the error asks for it.
    let needles = ["0 of 30 requests", "first-token time", "--map ttft_ms=COLUMN`; not used are first"];
    refused(&folder, &["--engine", ENGINE], &needles);
    folder.write("a.csv", csv(&measured(&folder, &["-e", "count=30"]), &["a", "b", "c", "d", "e"]));
    let needles = ["the columns are a, b, c, d, e: expected arrival_ms, prompt_tokens", "--map prompt_tokens=COLUMN"];
    refused(&folder, &["--engine", ENGINE], &needles);
    let titles = ["arrival_ms", "prompt_tokens", "output_tokens", "ttft", "e2e_ms"];
    folder.write("a.csv", csv(&measured(&folder, &["-e", "count=30"]), &titles));
    refused(&folder, &["--engine", ENGINE], &["invalid column `ttft`", "`--map ttft_ms=ttft`"]);
}

#[test]
fn settings_that_are_none_are_refused_with_a_hint() {
    let folder = world();
    folder.write("a.csv", csv(&measured(&folder, &["-e", "count=30"]), &COLUMNS));
    refused(&folder, &["--engine", "max_num_sqs: 7"], &["max_num_sqs", "hint: "]);
    refused(&folder, &["--engine", ENGINE, "--engine", ENGINE], &["2 engines for 1 inputs", "repeat --engine"]);
    // Positions in errors refer to the user's text, and command lines are read like `vllm serve` reads them.
    refused(&folder, &["--engine", "max_num_seqs: abc"], &["--engine:1:15: Variable not found: abc"]);
    refused(&folder, &["--engine", "--max-num-sqs 7"], &["--engine: unknown argument `--max-num-sqs`", "did you mean"]);
    refused(&folder, &["--engine", "vllm serve m --stream-interval 4"], &["`--stream-interval 4` is not simulated"]);
    for line in ["vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2", "--model m --num-gpu-blocks-override 9000"] {
        let fit = ["fit", "a.csv", "--engine", line, "--folds", "0", "--force", "-o", "model.json"];
        let _ = folder.vcr(&fit).ended(0);
    }
}

#[test]
fn seconds_that_are_called_milliseconds_are_warned_of() {
    let folder = world();
    let mut rows = measured(&folder, &["-e", "count=40"]);
    for row in &mut rows {
        for name in ["ttft_ms", "e2e_ms"] {
            row[name] = json!(row[name].as_f64().expect("a time") / 1e3);
        }
    }
    folder.write("a.csv", csv(&rows, &COLUMNS));
    let said =
        folder.vcr(&["fit", "a.csv", "--engine", ENGINE, "--folds", "0", "--force", "-o", "model.json"]).ended(0);
    assert!(said.stderr.contains("warning: a.csv: the median time between tokens is 0.0"), "{}", said.stderr);
    assert!(said.stderr.contains("--map ttft_s=COLUMN"), "{}", said.stderr);
}

#[test]
fn rows_and_files_that_cannot_be_read_are_named() {
    let folder = world();
    let rows = measured(&folder, &["-e", "count=40"]);
    let engine = ["--engine", ENGINE];
    let with = |name: &str, value: Value| {
        let mut rows = rows.clone();
        rows[6][name] = value;
        folder.write("a.csv", csv(&rows, &COLUMNS));
    };
    with("arrival_ms", json!(-1e9));
    refused(&folder, &engine, &["`a.csv`, row 7, field `arrival_ms`", "sort the rows by arrival"]);
    with("e2e_ms", json!(-1));
    refused(&folder, &engine, &["`a.csv`, row 7, field `e2e_ms`", "invalid duration -1"]);
    with("ttft_ms", json!("NaN"));
    refused(&folder, &engine, &["`a.csv`, row 7, field `ttft_ms`"]);
    folder.write("b.parquet", "PAR1 and nothing more");
    folder.vcr(&["fit", "b.parquet", "--engine", ENGINE, "-o", "model.json"]).failed(2, &["`b.parquet`", "Parquet"]);
    assert!(!folder.path().join("model.json").exists(), "a model was written");
}

#[test]
fn engines_that_cannot_have_served_the_requests_are_refused() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=60"]);
    let small = format!("{ENGINE}, max_num_seqs: 4");
    refused(&folder, &["--engine", &small], &["were decoded at once, the engine takes 4", "`max_num_seqs`"]);
    refused(
        &folder,
        &["--engine", "num_gpu_blocks: 4"],
        &["no request could run", "more KV blocks than the engine has"],
    );
    refused(&folder, &["--engine", "max_num_seq: 4"], &["`engine` has no option `max_num_seq`"]);
    refused(&folder, &["--engine", "max_num_seqs"], &["--engine"]);
    refused(&folder, &["--engine", r#"fixed(#{ step: "1ms" })"#], &["--engine"]);
    refused(&folder, &[], &["`--engine` is missing", "--engine 'num_gpu_blocks: 27_000"]);
    let three = ["--engine", ENGINE, "--engine", ENGINE, "--engine", ENGINE];
    refused(&folder, &three, &["3 engines for 1 inputs: expected one, or one for each"]);
    refused(&folder, &["--engine", ENGINE, "--shape", "llama-9"], &["invalid model shape", "Llama-3.1-8B"]);
    refused(&folder, &["--engine", ENGINE, "--base", "fixed(#{ step: \"0ns\" })"], &["invalid base", "costs nothing"]);
    refused(&folder, &["--engine", ENGINE, "--base", "roofline("], &["--base"]);
    refused(&folder, &["--engine", ENGINE, "--infer", "speed"], &["expected num_gpu_blocks or max_num_seqs"]);
    refused(&folder, &["--engine", ENGINE, "--part", "0.5..0.2"], &["expected FROM..TO"]);
}

#[test]
fn models_that_explain_nothing_are_written_by_force_alone() {
    let folder = world();
    // Times that are unrelated to the load.
    let mut rows = measured(&folder, &["-e", "count=60"]);
    for (index, row) in rows.iter_mut().enumerate() {
        let ttft = if index % 3 == 0 { 900.0 } else { 9.0 };
        row["ttft_ms"] = json!(ttft);
        row["e2e_ms"] = json!(ttft + 1.0 + if index % 2 == 0 { 4_000.0 } else { 20.0 });
    }
    folder.write("a.csv", csv(&rows, &COLUMNS));
    refused(&folder, &["--engine", ENGINE, "--folds", "0"], &["the fit failed its checks: a.csv: ", "--force"]);
    let forced = ["fit", "a.csv", "--engine", ENGINE, "--folds", "0", "--force", "--json", "-o", "model.json"];
    let said = folder.vcr(&forced).ended(0).json();
    assert!(said["model"]["failed_checks"][0].as_str().expect("a text").contains("off in sample"), "{said:#}");
}

#[test]
fn outputs_that_exist_are_kept() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=30"]);
    folder.write("model.json", "mine");
    let fit = ["fit", "a.csv", "--engine", ENGINE, "--folds", "0"];
    folder.vcr(&[&fit[..], &["-o", "model.json"]].concat()).failed(2, &["cannot write `model.json`", "--force"]);
    folder.vcr(&[&fit[..], &["--force", "-o", "a.csv"]].concat()).failed(2, &["a.csv"]);
    assert_eq!(std::fs::read_to_string(folder.path().join("model.json")).expect("it is there"), "mine");
}

#[test]
fn corrupt_models_are_refused_wherever_they_are_read() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=30"]);
    let mut wrong = crate::truth();
    wrong["step"]["coefficients"]["stop"] = json!(1);
    let mut negative = crate::truth();
    negative["step"]["coefficients"]["step"] = json!(-1);
    let mut other = crate::truth();
    other["format"] = json!("vcr.fitted/9");
    let mut crooked = crate::truth();
    crooked["uncertainty"] = json!({"parameters": ["step"], "covariance": [[1.0, 2.0]]});
    let cases = [
        ("{\"format\"".to_owned(), "expected a file that `vcr fit` wrote"),
        (wrong.to_string(), "invalid `coefficients.stop`: expected one of step, "),
        (negative.to_string(), "invalid `coefficients.step`: expected a number of nanoseconds"),
        (other.to_string(), "invalid `format`: expected \"vcr.fitted/1\", found \"vcr.fitted/9\""),
        (crooked.to_string(), "invalid `uncertainty.covariance`: expected 1 rows of 1 numbers"),
    ];
    for (text, needle) in cases {
        folder.write("model.json", &text);
        let needles = ["invalid model file `model.json`", needle];
        folder.vcr(&["calibrate", "model.json", "a.csv", "--engine", ENGINE]).failed(2, &needles);
        folder.write("one.rhai", "fitted(#{ path: \"model.json\" });");
        folder.vcr(&["run", "one.rhai"]).failed(2, &["one.rhai:1:1", needle]);
    }
    folder.vcr(&["calibrate", "nowhere.json", "a.csv"]).failed(2, &["cannot read `nowhere.json`"]);
}
