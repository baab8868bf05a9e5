//! The formats that can be imported, and how a file shows which one it is.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde_json::Value;
use vcr_trace::{Detected, OUTPUT_COLUMNS, PROMPT_COLUMNS, TraceFormat, Unclear, VcrOutput};

use crate::ImportError;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A capture, ours or vllm-vcr's.
    Capture,
    /// A report of guidellm, as JSON.
    Guidellm,
    /// A result of `vllm bench serve --save-detailed`.
    VllmBench,
    /// Results of `sglang.bench_serving --output-details`.
    SglangBench,
    /// `profile_export.jsonl` of aiperf.
    Aiperf,
    /// `per_request_lifecycle_metrics.json` of inference-perf.
    InferencePerf,
    /// Mooncake rows, with Dynamo's extensions.
    Mooncake,
    /// Mooncake rows with dependencies between requests.
    AgenticMooncake,
    /// Sessions of tool calls, one a row, as Applied Compute publishes them.
    AppliedCompute,
    /// Dynamo's log of requests.
    DynamoTrace,
    /// The Azure LLM inference traces.
    Azure,
    /// The usage traces of Qwen on Bailian.
    QwenBailian,
    /// The BurstGPT traces.
    BurstGpt,
    /// Traces of Vidur.
    Vidur,
    /// Traces of the Splitwise simulator.
    Splitwise,
    /// A run of LLMServingSim on a real engine, or one of its workloads.
    LlmServingSim,
    /// Prompts and responses: JSON, JSONL, CSV or Parquet.
    Dataset,
    /// OpenTelemetry spans with GenAI attributes, as OTLP JSON.
    Otel,
    /// A list of requests that vcr wrote, or a table with such columns.
    Requests,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Capture,
        Self::Guidellm,
        Self::VllmBench,
        Self::SglangBench,
        Self::Aiperf,
        Self::InferencePerf,
        Self::Mooncake,
        Self::AgenticMooncake,
        Self::AppliedCompute,
        Self::DynamoTrace,
        Self::Azure,
        Self::QwenBailian,
        Self::BurstGpt,
        Self::Vidur,
        Self::Splitwise,
        Self::LlmServingSim,
        Self::Dataset,
        Self::Otel,
        Self::Requests,
    ];

    /// The name on the command line and in `source` of a capture.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Guidellm => "guidellm",
            Self::VllmBench => "vllm-bench",
            Self::SglangBench => "sglang-bench",
            Self::Aiperf => "aiperf",
            Self::InferencePerf => "inference-perf",
            Self::Mooncake => "mooncake",
            Self::AgenticMooncake => "agentic-mooncake",
            Self::AppliedCompute => "applied-compute",
            Self::DynamoTrace => "dynamo-trace",
            Self::Azure => "azure",
            Self::QwenBailian => "qwen-bailian",
            Self::BurstGpt => "burstgpt",
            Self::Vidur => "vidur",
            Self::Splitwise => "splitwise",
            Self::LlmServingSim => "llmservingsim",
            Self::Dataset => "dataset",
            Self::Otel => "otel",
            Self::Requests => "requests",
        }
    }

    /// All names, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Finds the format from the first bytes of a file, unpacked, and from its
    /// name.
    ///
    /// # Errors
    /// When they say nothing, or the file is something of ours that holds no
    /// requests.
    pub fn detect(name: &str, start: &[u8]) -> Result<Self, ImportError> {
        match VcrOutput::detect(start) {
            Some(output) if output.has_requests() => return Ok(Self::Requests),
            Some(output) => return Err(ImportError::NoRequests { name: name.to_owned(), output }),
            None => {}
        }
        let unknown = || ImportError::UnknownFormat { name: name.to_owned(), known: Self::names() };
        if start.starts_with(b"PAR1") {
            return Ok(Self::Dataset);
        }
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text).trim_ascii_end();
        let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
        match text.first() {
            // Requests of inference-perf begin with their times.
            Some(b'[') if has_all(&text[..text.len().min(400)], &["start_time", "end_time"]) => Ok(Self::InferencePerf),
            Some(b'{') => match of_bench(text).or_else(|| of_row(row)) {
                Some(format) => Ok(format),
                // A document on one line may be longer than the start.
                None if serde_json::from_slice::<serde::de::IgnoredAny>(row).is_err() => match of_document(text) {
                    Some(format) => Ok(format),
                    None => Self::of_workload(name, text)?.ok_or_else(unknown),
                },
                None => {
                    let found = Self::of_workload(name, text)?.or_else(|| of_document(text));
                    found.or_else(|| of_second_row(text)).ok_or_else(unknown)
                }
            },
            Some(b'[') => Ok(Self::Dataset),
            Some(_) => match Self::of_workload(name, row)? {
                Some(format) => Ok(format),
                None if stem.ends_with(".csv") => {
                    let header = String::from_utf8_lossy(row);
                    Self::of_columns(name, header.split(',').map(|cell| cell.trim_matches(['"', ' '])))
                }
                None => Err(unknown()),
            },
            None => Err(unknown()),
        }
    }

    /// A workload, as `vcr replay` recognises it.
    fn of_workload(name: &str, start: &[u8]) -> Result<Option<Self>, ImportError> {
        match Detected::of(start) {
            Detected::Certain(format) => Ok(Self::of_trace(format)),
            Detected::Unknown => Ok(None),
            Detected::Unclear(Unclear { why, candidates }) => {
                let mut names: Vec<_> = candidates.into_iter().filter_map(Self::of_trace).map(Self::name).collect();
                names.extend([Self::Requests.name(), Self::Dataset.name()]);
                names.dedup();
                let candidates = names.join(", ");
                Err(ImportError::UnclearFormat { name: name.to_owned(), why, candidates })
            }
        }
    }

    /// The format of a workload, if it can be imported.
    fn of_trace(format: TraceFormat) -> Option<Self> {
        Some(match format {
            TraceFormat::Mooncake | TraceFormat::MooncakeDelta => Self::Mooncake,
            TraceFormat::AgenticMooncake => Self::AgenticMooncake,
            TraceFormat::AppliedComputeAgentic => Self::AppliedCompute,
            TraceFormat::Dynamo => Self::DynamoTrace,
            TraceFormat::Azure => Self::Azure,
            TraceFormat::QwenBailian => Self::QwenBailian,
            TraceFormat::BurstGpt => Self::BurstGpt,
            TraceFormat::Vidur => Self::Vidur,
            TraceFormat::Splitwise => Self::Splitwise,
            TraceFormat::Capture => Self::Capture,
            TraceFormat::Weka => return None,
        })
    }

    /// By the columns of a table.
    fn of_columns<'a>(name: &str, columns: impl Iterator<Item = &'a str> + Clone) -> Result<Self, ImportError> {
        match VcrOutput::of_columns(columns.clone()) {
            Some(output) if output.has_requests() => Ok(Self::Requests),
            Some(output) => Err(ImportError::NoRequests { name: name.to_owned(), output }),
            None if columns.clone().any(|column| crate::readers::dataset::KNOWN_KEYS.contains(&column)) => {
                Ok(Self::Dataset)
            }
            None => {
                let columns = columns.collect::<Vec<_>>().join(", ");
                Err(ImportError::UnknownColumns { name: name.to_owned(), columns })
            }
        }
    }

    /// By the columns of a Parquet file.
    pub(crate) fn of_parquet(path: &Path, name: &str) -> Result<Self, ImportError> {
        let columns = crate::parquet::columns(path, name)?;
        Self::of_columns(name, columns.iter().map(String::as_str))
    }

    /// Itself, unless the file is something of ours that has another format.
    pub(crate) fn fitting(self, name: &str, start: &[u8]) -> Result<Self, ImportError> {
        match VcrOutput::detect(start) {
            Some(output) if !output.has_requests() => Err(ImportError::NoRequests { name: name.to_owned(), output }),
            Some(output) if self != Self::Requests && output != VcrOutput::RequestTable => {
                Err(ImportError::OtherFormat { name: name.to_owned(), asked: self, output })
            }
            _ => Ok(self),
        }
    }
}

/// Columns of tables of requests that no line of a capture has.
const END_COLUMNS: [&str; 5] = ["e2e_ms", "e2e_s", "e2e_us", "e2e_ns", "mean_itl_ms"];

/// Fields of a row of a workload that a row of a data set lacks.
const WORKLOAD_KEYS: [&str; 5] = ["hash_ids", "input_length", "output_length", "timestamp", "created_time"];
/// The columns in which a table of requests has arrivals, with a unit at their end.
const ARRIVAL_STEMS: [&str; 3] = ["arrival_", "arrival_time_", "timestamp_"];

/// By the keys of a first row that is a whole object; none of workloads, which
/// [`Format::of_workload`] knows.
fn of_row(row: &[u8]) -> Option<Format> {
    let row: Value = match serde_json::from_slice(row) {
        Ok(row) => row,
        // A capture that breaks off in its first line says so best itself.
        Err(error) => return (error.is_eof() && row.starts_with(b"{\"kind\":\"meta\"")).then_some(Format::Capture),
    };
    let row = row.as_object()?;
    let has = |keys: &[&str]| keys.iter().any(|key| row.contains_key(*key));
    let schema = row.get("schema").and_then(Value::as_str).unwrap_or_default();
    let is_timed = row.keys().any(|key| ARRIVAL_STEMS.iter().any(|stem| key.starts_with(stem)));
    let is_table = has(&PROMPT_COLUMNS) && has(&OUTPUT_COLUMNS);
    Some(match () {
        () if has(&["meta"]) || row.get("kind").is_some_and(|kind| kind == "meta") => Format::Capture,
        () if is_table && (has(&END_COLUMNS) || is_timed && !has(&["hash_ids", "ttft_ms"])) => Format::Requests,
        () if has(&["ttft_ms"]) => Format::Capture,
        () if has(&["resourceSpans"]) => Format::Otel,
        () if has(&["benchmarks"]) => Format::Guidellm,
        () if has(&["metadata"]) && has(&["metrics"]) => Format::Aiperf,
        () if schema.starts_with("dynamo.agentic_mooncake") => Format::AgenticMooncake,
        () if has(&["wait_for", "branches", "dependencies"]) => Format::AgenticMooncake,
        () if has(&["event_type"]) || schema.starts_with("dynamo.request") => Format::DynamoTrace,
        () if has(&["num_turns"]) => Format::AppliedCompute,
        () if has(&["queued_ts", "input_toks"]) => Format::LlmServingSim,
        () if has(&WORKLOAD_KEYS) => return None,
        () if is_table => Format::Requests,
        () if has(crate::readers::dataset::KNOWN_KEYS) => Format::Dataset,
        () => return None,
    })
}

/// A table of requests with a line about the file before them.
fn of_second_row(text: &[u8]) -> Option<Format> {
    let second = text.split(|byte| *byte == b'\n').nth(1)?;
    of_row(second.trim_ascii()).filter(|format| *format == Format::Requests)
}

/// Whether a text has all these keys.
fn has_all(text: &[u8], keys: &[&str]) -> bool {
    keys.iter().all(|key| {
        let quoted = format!("\"{key}\"");
        text.windows(quoted.len()).any(|window| window == quoted.as_bytes())
    })
}

/// A result of a benchmark, which is one long line: by its settings, which come first.
fn of_bench(text: &[u8]) -> Option<Format> {
    const SETTINGS_BYTES: usize = 16 << 10;
    let settings = &text[..text.len().min(SETTINGS_BYTES)];
    match () {
        () if !has_all(settings, &["backend", "request_rate", "max_concurrency"]) => None,
        () if has_all(settings, &["endpoint_type"]) || has_all(settings, &["tokenizer_id"]) => Some(Format::VllmBench),
        () if has_all(settings, &["dataset_name", "random_input_len"]) => Some(Format::SglangBench),
        () => None,
    }
}

/// By what stands near the beginning of a document over many lines.
fn of_document(text: &[u8]) -> Option<Format> {
    let has = |key: &str| text.windows(key.len()).any(|window| window == key.as_bytes());
    match () {
        () if has("\"resourceSpans\"") => Some(Format::Otel),
        () if has("\"guidellm_version\"") || has("\"benchmarks\"") => Some(Format::Guidellm),
        () if crate::readers::dataset::SPLITS.iter().any(|split| has(&format!("\"{split}\""))) => Some(Format::Dataset),
        () => None,
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("invalid format `{text}`: expected {}", Self::names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_show_the_format() {
        for (start, format) in [
            (r#"{"kind":"meta","format":"vcr.capture","version":1}"#, Format::Capture),
            (r#"{"meta":{"source":"tap"}}"#, Format::Capture),
            (r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}"#, Format::Capture),
            (r#"{"arrival_ms":0,"prompt_tokens":1,"output_tokens":2,"ttft_ms":1,"mean_itl_ms":2}"#, Format::Requests),
            ("{\n  \"metadata\": {\"guidellm_version\": \"0.6.0\"", Format::Guidellm),
            (r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#, Format::Mooncake),
            (r#"{"schema":"dynamo.agentic_mooncake","version":2}"#, Format::AgenticMooncake),
            (r#"{"event_type":"request_payload","request_id":"a"}"#, Format::DynamoTrace),
            (r#"{"num_turns":1}"#, Format::AppliedCompute),
            ("TIMESTAMP,ContextTokens,GeneratedTokens", Format::Azure),
            (r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":1}"#, Format::QwenBailian),
            (r#"{"timestamp":0,"messages":[{"role":"user","content":"x"}],"output_length":1}"#, Format::Mooncake),
            (r#"{"messages":[{"role":"user","content":"x"}]}"#, Format::Dataset),
            (r#"{"timestamp_ms":0,"input_length":1,"output_length":1}"#, Format::Requests),
            ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", Format::BurstGpt),
            ("arrived_at,num_prefill_tokens,num_decode_tokens", Format::Vidur),
            ("request_id,arrival_timestamp,prompt_size,token_size", Format::Splitwise),
            (r#"{"request_id":"bench-0","input_toks":1,"queued_ts":1}"#, Format::LlmServingSim),
            (r#"{"instruction":"a","output":"b"}"#, Format::Dataset),
            (
                "{\"record\":\"meta\",\"kind\":\"requests\"}\n{\"arrival_s\":1,\"prompt_tokens\":1,\"output_tokens\":1}\n",
                Format::Requests,
            ),
            (r#"{"metadata":{"session_num":0},"metrics":{}}"#, Format::Aiperf),
            ("[{\"start_time\": 1.5, \"end_time\": 2.5, \"request\": \"", Format::InferencePerf),
            ("[\n  {\n    \"start_time\": 1.5,\n    \"end_time\": 2.5,\n", Format::InferencePerf),
            (
                r#"{"date":"x","endpoint_type":"vllm","backend":"vllm","request_rate":"inf","max_concurrency":4,"ttfts":["#,
                Format::VllmBench,
            ),
            (
                r#"{"tag":null,"backend":"sglang","dataset_name":"random","request_rate":Infinity,"max_concurrency":4,"random_input_len":1"#,
                Format::SglangBench,
            ),
            ("[{\"a\":1}]", Format::Dataset),
            ("{\n\"train\": [", Format::Dataset),
            ("PAR1\0\0", Format::Dataset),
            (r#"{"resourceSpans":[]}"#, Format::Otel),
            (r#"{"prompt_tokens":1,"output_tokens":1,"arrival_ms":1}"#, Format::Requests),
            ("arrival_ms,prompt_tokens,output_tokens\n", Format::Requests),
            (r#"{"kind":"meta","format":"vcr.ca"#, Format::Capture),
        ] {
            assert_eq!(Format::detect("file", start.as_bytes()).expect(start), format, "{start}");
        }
        for name in ["a.csv", "a.csv.gz", "a.csv.zst"] {
            assert_eq!(Format::detect(name, b"prompt,response\n").expect("csv"), Format::Dataset);
        }
        let error = Format::detect("a.csv", b"x,y\n").expect_err("no known column").to_string();
        assert!(error.starts_with("cannot tell the format of `a.csv` by its columns x, y: "), "{error}");
        let sweep = b"completed_requests,request_throughput_rps,fingerprint\n";
        let error = Format::detect("a.csv", sweep).expect_err("a sweep").to_string();
        assert!(
            error.starts_with("`a.csv` is the table of a sweep of `vcr replay`, which holds no requests; "),
            "{error}"
        );
        for (name, start) in [("a", ""), ("a", "hello"), ("a.json", "{\"x\": 1}"), ("a.json", "{\n")] {
            let error = Format::detect(name, start.as_bytes()).expect_err(start).to_string();
            assert!(error.starts_with("cannot tell the format of `a"), "{error}");
        }
    }

    #[test]
    fn what_is_not_certain_is_an_error_with_candidates() {
        let row = br#"{"timestamp":0.5,"input_length":1,"output_length":1,"ttft":0.2}"#;
        let error = Format::detect("a.jsonl", row).expect_err("unclear").to_string();
        assert!(error.contains("its first row has `ttft`"), "{error}");
        assert!(error.contains("It may be mooncake, qwen-bailian, requests, dataset: name it with --from"), "{error}");
    }

    #[test]
    fn names_are_read_back() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("x".parse::<Format>().expect_err("unknown").contains("expected capture, guidellm"));
    }
}
