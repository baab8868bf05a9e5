//! Recognises outputs of vcr by their start, so that no reader takes them for a file of another tool.

use std::fmt;

use crate::start::{Start, has_all};

/// A file that vcr wrote, except captures and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcrOutput {
    /// `requests.jsonl` of `vcr run --out`.
    RunRequests,
    /// The lines of `vcr replay --report-jsonl`.
    ReplayRequests,
    /// A CSV with a row for each request, as `vcr inspect convert` writes it, or another table with such columns.
    RequestTable,
    /// The table of `vcr replay --sweep-out`, as CSV or JSON.
    SweepTable,
    /// `report.json` of `vcr run`.
    RunReport,
    /// The report of `vcr replay`.
    ReplayReport,
    /// `steps.jsonl` of `vcr run --out`, or a recording of a scheduler.
    StepLog,
    /// `trace.json` of `vcr run --out`.
    TraceEvents,
}

impl VcrOutput {
    /// The kind of an unpacked file that starts with these bytes; `None` if it is not an output of vcr.
    #[must_use]
    pub fn detect(start: &[u8]) -> Option<Self> {
        Self::of(&Start::new(start))
    }

    pub(crate) fn of(start: &Start<'_>) -> Option<Self> {
        match &start.object {
            Some(Ok(row)) => Self::of_keys(|key| row.contains_key(key)),
            Some(Err(_)) => Self::of_document(start),
            None if start.text.starts_with(b"[") => {
                Self::of_document(start).filter(|output| *output == Self::SweepTable)
            }
            None => {
                let cells = std::str::from_utf8(start.row).ok()?.split(',');
                Self::of_columns(cells.map(|cell| cell.trim_matches(['"', ' '])))
            }
        }
    }

    /// The kind of a table with these columns; `None` if it is not an output of vcr.
    #[must_use]
    pub fn of_columns<'a>(columns: impl Iterator<Item = &'a str>) -> Option<Self> {
        let columns: Vec<&str> = columns.collect();
        let has_one = |names: &[&str]| columns.iter().any(|column| names.contains(column));
        match () {
            () if SWEEP_KEYS.iter().all(|key| columns.contains(key)) => Some(Self::SweepTable),
            () if has_one(&PROMPT_COLUMNS) && has_one(&OUTPUT_COLUMNS) => Some(Self::RequestTable),
            () => None,
        }
    }

    /// The kind of a file with these keys in its first row, or in a document on one line.
    fn of_keys(has: impl Fn(&str) -> bool) -> Option<Self> {
        let has_all = |keys: &[&str]| keys.iter().all(|key| has(key));
        match () {
            () if has_all(&["workload", "turn", "status", "max_tokens", "arrival_ms"]) => Some(Self::RunRequests),
            () if has_all(&["uuid", "arrival_time_ms", "terminal_status"]) => Some(Self::ReplayRequests),
            () if has_all(&["sched", "tot"]) || has_all(&["kind", "sched", "total"]) => Some(Self::StepLog),
            () if has_all(&["schema_version", "scenario", "runs"]) => Some(Self::RunReport),
            () if has_all(&["summary", "vcr"]) || has_all(&["num_requests", "vcr"]) => Some(Self::ReplayReport),
            () if has("traceEvents") => Some(Self::TraceEvents),
            () => None,
        }
    }

    /// The kind of a document of several lines, by the keys near its start.
    fn of_document(start: &Start<'_>) -> Option<Self> {
        let has_all = |keys: &[&str]| has_all(start.text, keys);
        match () {
            () if start.text.starts_with(b"[") => has_all(&SWEEP_KEYS).then_some(Self::SweepTable),
            () if has_all(&["schema_version", "scenario", "passed"]) => Some(Self::RunReport),
            () if has_all(&["coverage", "capture_per_request"]) || has_all(&["num_requests", "vcr"]) => {
                Some(Self::ReplayReport)
            }
            () if has_all(&["traceEvents"]) => Some(Self::TraceEvents),
            () => None,
        }
    }

    /// Whether the output contains requests that `vcr inspect` can convert to a capture.
    #[must_use]
    pub fn has_requests(self) -> bool {
        matches!(self, Self::RunRequests | Self::ReplayRequests | Self::RequestTable)
    }

    /// Advice for a user who gave the output as an input.
    #[must_use]
    pub fn next_step(self) -> &'static str {
        match self {
            Self::RunRequests | Self::ReplayRequests | Self::RequestTable => {
                "make a capture of it with `vcr inspect convert FILE -o capture.jsonl`"
            }
            Self::SweepTable => "each row is a whole run; open it as a table, or give the requests of one run",
            Self::RunReport => "give requests.jsonl, which `vcr run --out` writes beside it",
            Self::ReplayReport => "write the requests with `vcr replay --report-jsonl FILE`, and give that",
            Self::StepLog => "look at it with `vcr inspect steps`",
            Self::TraceEvents => "open it in ui.perfetto.dev",
        }
    }
}

const SWEEP_KEYS: [&str; 3] = ["completed_requests", "request_throughput_rps", "fingerprint"];
/// Names of the column with the prompt's length in tables of requests.
pub const PROMPT_COLUMNS: [&str; 3] = ["prompt_tokens", "input_tokens", "input_length"];
/// Names of the column with the answer's length in tables of requests.
pub const OUTPUT_COLUMNS: [&str; 4] = ["output_tokens", "output_length", "generated_tokens", "completion_tokens"];

impl fmt::Display for VcrOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunRequests => "the list of requests of `vcr run`",
            Self::ReplayRequests => "the list of requests of `vcr replay`",
            Self::RequestTable => "a table of requests",
            Self::SweepTable => "the table of a sweep of `vcr replay`",
            Self::RunReport => "the report of `vcr run`",
            Self::ReplayReport => "the report of `vcr replay`",
            Self::StepLog => "a log of engine steps",
            Self::TraceEvents => "a trace for Perfetto",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_ours_are_recognised_by_their_start() {
        let run = r#"{"of":"run","id":0,"workload":"w","session":0,"turn":0,"status":"completed","max_tokens":3,"arrival_ms":0.0,"ttft_ms":1.0}"#;
        let replay = r#"{"session_id":null,"uuid":"x","arrival_time_ms":0.0,"ttft_ms":1.0,"input_length":3,"terminal_status":"completed"}"#;
        for (start, output) in [
            (run, VcrOutput::RunRequests),
            (replay, VcrOutput::ReplayRequests),
            ("id,prompt_tokens,output_tokens\n1,2,3\n", VcrOutput::RequestTable),
            ("num_workers,completed_requests,request_throughput_rps,fingerprint\n", VcrOutput::SweepTable),
            ("[{\"completed_requests\":1,\n\"request_throughput_rps\":2,\"fingerprint\":\"\"}]", VcrOutput::SweepTable),
            ("{\n  \"schema_version\": 1,\n  \"scenario\": \"x\",\n  \"passed\": true", VcrOutput::RunReport),
            (r#"{"i":0,"s":0,"sched":[],"tot":0,"of":"base"}"#, VcrOutput::StepLog),
            ("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", VcrOutput::TraceEvents),
        ] {
            assert_eq!(VcrOutput::detect(start.as_bytes()), Some(output), "{start}");
        }
        for start in [
            r#"{"kind":"meta","format":"vcr.capture","version":1}"#,
            r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}"#,
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#,
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "prompt,response\n",
            "[{\"prompt\":1}]",
            "",
        ] {
            assert_eq!(VcrOutput::detect(start.as_bytes()), None, "{start}");
        }
    }
}
