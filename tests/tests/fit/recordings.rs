//! The recordings of vLLM on an H100: fitted on one load, another is predicted.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use serde_json::Value;
use vcr_tests::{Folder, root};

use crate::{COLUMNS, error, prediction};

const ENGINE: &str = "num_gpu_blocks: 28934, max_num_seqs: 1024, max_num_batched_tokens: 8192, max_model_len: 32768, \
                      async_scheduling: true";

/// Writes a workload as a table. Its prompts share nothing.
fn load(folder: &Folder, name: &str) {
    let path = root().join(format!("tests/recordings/h100/llama-3.1-8b/{name}/requests.jsonl.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = COLUMNS.join(",") + "\n";
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let row: Value = serde_json::from_str(&line.expect("it is text")).expect("a line is JSON");
        let _ = writeln!(text, "{}", COLUMNS.map(|column| row[column].to_string()).join(","));
    }
    folder.write(&format!("{name}.csv"), text);
}

/// Bounds that are loose: they show when the method breaks, not when it improves.
#[test]
fn a_fit_of_half_the_load_predicts_three_quarters_of_it() {
    let folder = Folder::new();
    load(&folder, "p50");
    load(&folder, "p75");
    let _ = folder.vcr(&["fit", "p50.csv", "--engine", ENGINE, "--folds", "0", "-o", "model.json"]).ended(0);
    let found = prediction(&folder, &["model.json", "p75.csv"]);
    for (name, most) in [("itl mean", 0.1), ("e2e p50", 0.1), ("ttft p50", 0.3)] {
        assert!(error(&found, name).abs() < most, "{name} is {} off: {found:#}", error(&found, name));
    }
}
