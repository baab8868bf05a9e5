//! Formats of measurements. Predictions of the true model show whether the input was read correctly.

use serde_json::{Value, json};
use vcr_tests::Folder;

use crate::{COLUMNS, ENGINE, csv, error, measured, prediction, table, world};

/// The true model's prediction for an input.
#[track_caller]
fn predicted(folder: &Folder, input: &str, args: &[&str]) -> Value {
    let mut found = prediction(folder, &[&["truth.json", input, "--engine", ENGINE], args].concat());
    found["name"] = Value::Null;
    found
}

fn jsonl(rows: impl Iterator<Item = Value>) -> String {
    rows.map(|row| format!("{row}\n")).collect()
}

#[test]
fn tables_of_all_formats_say_the_same() {
    let folder = world();
    let rows = measured(&folder, &["-e", "count=60"]);
    folder.write("a.csv", csv(&rows, &COLUMNS));
    folder.write(
        "a.jsonl",
        jsonl(rows.iter().map(|row| COLUMNS.iter().map(|name| (*name, row[name].clone())).collect())),
    );
    let _ = folder.vcr(&["inspect", "convert", "a.csv", "-o", "a.parquet"]).ended(0);
    let expected = predicted(&folder, "a.csv", &[]);
    for name in ["itl mean", "ttft p99", "e2e p50"] {
        assert!(error(&expected, name).abs() < 1e-6, "the truth is right: {expected:#}");
    }
    for input in ["a.jsonl", "a.parquet"] {
        assert_eq!(predicted(&folder, input, &[]), expected, "{input}");
    }
    // The requests that `vcr run` writes also contain queue times.
    let own = predicted(&folder, "requests.jsonl", &[]);
    assert_eq!(error(&own, "ttft mean"), error(&expected, "ttft mean"), "{own:#}");
    assert!(own["comparisons"].as_array().expect("an array").iter().any(|each| each["metric"] == "queue"));
}

#[test]
fn columns_have_other_names_and_units() {
    let folder = world();
    let mut rows = measured(&folder, &["-e", "count=60"]);
    folder.write("plain.csv", csv(&rows, &COLUMNS));
    for row in &mut rows {
        for name in ["ttft_ms", "e2e_ms"] {
            row[name] = json!(row[name].as_f64().expect("a time") / 1e3);
        }
    }
    folder.write("a.csv", csv(&rows, &["sent", "in", "out", "first", "total"]));
    let maps = ["arrival_ms=sent", "prompt_tokens=in", "output_tokens=out", "ttft_s=first", "e2e_s=total"];
    let args: Vec<&str> = maps.iter().flat_map(|map| ["--map", map]).collect();
    let (found, expected) = (predicted(&folder, "a.csv", &args), predicted(&folder, "plain.csv", &[]));
    for name in ["ttft p50", "itl p50", "e2e mean"] {
        assert!((error(&found, name) - error(&expected, name)).abs() < 1e-6, "{name}: {found:#}");
    }
}

#[test]
fn times_between_tokens_stand_in_for_the_end() {
    let folder = world();
    let rows = measured(&folder, &["-e", "count=60"]);
    let number = |row: &Value, name: &str| row[name].as_f64().expect("a number");
    let with_itl = |row: &Value| {
        let gaps = number(row, "output_tokens") - 1.0;
        let itl = if gaps > 0.0 { (number(row, "e2e_ms") - number(row, "ttft_ms")) / gaps } else { 0.0 };
        json!({"arrival_ms": row["arrival_ms"], "prompt_tokens": row["prompt_tokens"], "output_tokens": row["output_tokens"],
            "ttft_ms": row["ttft_ms"], "mean_itl_ms": itl})
    };
    folder.write("a.jsonl", jsonl(rows.iter().map(with_itl)));
    let found = predicted(&folder, "a.jsonl", &[]);
    for name in ["itl mean", "e2e p50"] {
        assert!(error(&found, name).abs() < 1e-4, "{name}: {found:#}");
    }
    // With only the first-token times, the times of other tokens are unknown, not zero.
    let bare = csv(&rows, &COLUMNS);
    let bare = bare.lines().filter_map(|line| Some(format!("{}\n", line.rsplit_once(',')?.0)));
    folder.write("bare.csv", bare.collect::<String>());
    let found = predicted(&folder, "bare.csv", &[]);
    let metrics: Vec<&Value> =
        found["comparisons"].as_array().expect("an array").iter().map(|each| &each["metric"]).collect();
    assert!(metrics.iter().all(|metric| **metric == "ttft"), "{found:#}");
    let fit = ["fit", "bare.csv", "--engine", ENGINE, "-o", "model.json"];
    folder.vcr(&fit).failed(2, &["no request has a time between tokens: expected both `ttft` and `e2e`"]);
    assert!(!folder.path().join("model.json").exists());
}

/// Prompts with common prefixes: with their contents, the true model fits; without them, prompts are predicted far
/// too slow.
#[test]
fn prompts_that_share_a_beginning_are_found_in_the_cache() {
    const SHARED: u64 = 1024;
    let folder = world();
    let rows = measured(&folder, &["-e", "count=80", "-e", "rate=10", "-e", &format!("shared={SHARED}")]);
    assert!(rows[10]["cached_tokens"] == SHARED, "the truth shares: {}", rows[10]);
    let with = |name: &str, content: &dyn Fn(u64, u64) -> Vec<u64>| {
        let row = |(index, row): (usize, &Value)| {
            let mut own: Value = COLUMNS.iter().map(|name| (*name, row[*name].clone())).collect();
            own[name] = content(index as u64, row["prompt_tokens"].as_u64().expect("a number")).into();
            own
        };
        folder.write(&format!("{name}.jsonl"), jsonl(rows.iter().enumerate().map(row)));
    };
    with("hash_ids", &|index, tokens| {
        (0..tokens / 16)
            .map(|block| if block < SHARED / 16 { block } else { 1_000_000 * (index + 1) + block })
            .collect()
    });
    with("prompt_token_ids", &|index, tokens| {
        (0..tokens).map(|token| if token < SHARED { token } else { 1_000_000 + 10_000 * index + token }).collect()
    });
    folder.write("none.csv", csv(&rows, &COLUMNS));
    let cached: Vec<String> = rows.iter().map(|row| row["cached_tokens"].to_string()).collect();
    let lines = csv(&rows, &COLUMNS);
    let title = String::from("cached_tokens");
    let lines = lines.lines().zip(std::iter::once(&title).chain(&cached));
    folder.write("cached.csv", lines.map(|(line, cached)| format!("{line},{cached}\n")).collect::<String>());
    // Lengths alone do not show which of two simultaneous requests computes the common prefix.
    for (input, most) in [("hash_ids.jsonl", 0.01), ("prompt_token_ids.jsonl", 0.01), ("cached.csv", 0.1)] {
        let found = predicted(&folder, input, &["--block-size", "16"]);
        assert!(error(&found, "ttft mean").abs() < most, "{input}: {found:#}");
    }
    let found = predicted(&folder, "none.csv", &[]);
    assert!(error(&found, "ttft mean") > 0.2, "{found:#}");
}

#[test]
fn sessions_keep_think_times_instead_of_arrivals() {
    let folder = world();
    let rows = measured(&folder, &["-e", "count=40", "-e", "turns=2", "-e", "rate=10"]);
    let columns = [&COLUMNS[..], &["session"]].concat();
    folder.write(
        "a.jsonl",
        jsonl(rows.iter().map(|row| columns.iter().map(|name| (*name, row[*name].clone())).collect())),
    );
    let mut slow = crate::truth();
    slow["step"]["coefficients"]["step"] = json!(2.4e7);
    folder.write("slow.json", slow.to_string());
    let tokens_per_s = |args: &[&str]| {
        let found = prediction(&folder, &[&["slow.json", "a.jsonl", "--engine", ENGINE], args].concat());
        found["throughput"]["simulated_tokens_per_s"].as_f64().expect("a number")
    };
    // A slower engine answers later, so the next turns start later too.
    let (literal, sessions) = (tokens_per_s(&[]), tokens_per_s(&["--sessions"]));
    assert!(sessions < literal * 0.98, "{sessions} of {literal}");
}

#[test]
fn runs_as_folders_are_fitted_to_as_files_are() {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=60"]);
    let _ = folder.run(&["--quiet", "-e", "count=60", "--out", "out", "--files", "report,requests"]).ended(0);
    let (file, run) = (predicted(&folder, "a.csv", &[]), predicted(&folder, "out", &[]));
    assert_eq!(error(&file, "e2e mean"), error(&run, "e2e mean"));
    std::fs::create_dir(folder.path().join("loads")).expect("the folder is writable");
    folder
        .vcr(&["calibrate", "truth.json", "loads", "--engine", ENGINE])
        .failed(2, &["the folder `loads` has no inputs"]);
    std::fs::copy(folder.path().join("a.csv"), folder.path().join("loads/a.csv")).expect("the folder is writable");
    assert_eq!(predicted(&folder, "loads", &[]), file);
}
