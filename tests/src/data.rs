//! Published traces, which are too large for the repository: `shared/` beside it.

use std::path::{Path, PathBuf};

/// A file of the sample workloads; `None` if it is missing.
#[must_use]
pub fn sample(relative: &str) -> Option<PathBuf> {
    let path = vcr_skips::sample(&format!("workloads/{relative}"))?;
    Some(path.canonicalize().expect("it is there"))
}

/// A file of the sample data; `None` if it is missing.
#[must_use]
pub fn sample_data(relative: &str) -> Option<PathBuf> {
    let path = vcr_skips::sample(relative)?;
    Some(path.canonicalize().expect("it is there"))
}

/// Sums over a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    pub requests: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
}

/// The sums of a trace file, computed without the simulator's code.
///
/// # Panics
/// The file is neither Mooncake JSONL nor an Azure CSV.
#[must_use]
pub fn sample_sums(path: &Path) -> Sums {
    let text = std::fs::read_to_string(path).expect("a sample can be read");
    let is_csv = path.extension().is_some_and(|extension| extension == "csv");
    let mut sums = Sums { requests: 0, prompt_tokens: 0, output_tokens: 0 };
    for line in text.lines().skip(usize::from(is_csv)) {
        let (prompt, output) = if is_csv {
            let mut cells = line.trim().split(',').skip(1).map(|cell| cell.parse().expect("a count"));
            (cells.next().expect("a prompt"), cells.next().expect("an output"))
        } else {
            let row: serde_json::Value = serde_json::from_str(line).expect("a row is JSON");
            let count = |field: &str| row[field].as_u64().expect("a count");
            (count("input_length"), count("output_length"))
        };
        sums.requests += 1;
        sums.prompt_tokens += prompt;
        sums.output_tokens += output;
    }
    sums
}
