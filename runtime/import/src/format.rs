//! The formats that can be imported, and how a file shows which one it is.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde_json::Value;
use vcr_trace::{OUTPUT_COLUMNS, PROMPT_COLUMNS, VcrOutput};

use crate::ImportError;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A capture, ours or vllm-vcr's.
    Capture,
    /// A report of guidellm 0.6, as JSON.
    Guidellm,
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
    pub const ALL: [Self; 11] = [
        Self::Capture,
        Self::Guidellm,
        Self::Mooncake,
        Self::AgenticMooncake,
        Self::AppliedCompute,
        Self::DynamoTrace,
        Self::Azure,
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
            Self::Mooncake => "mooncake",
            Self::AgenticMooncake => "agentic-mooncake",
            Self::AppliedCompute => "applied-compute",
            Self::DynamoTrace => "dynamo-trace",
            Self::Azure => "azure",
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
            Some(b'{') => of_row(row).or_else(|| of_document(text)).ok_or_else(unknown),
            Some(b'[') => Ok(Self::Dataset),
            Some(_) if row.starts_with(b"TIMESTAMP") => Ok(Self::Azure),
            Some(_) if stem.ends_with(".csv") => {
                let header = String::from_utf8_lossy(row);
                Self::of_columns(name, header.split(',').map(|cell| cell.trim_matches(['"', ' '])))
            }
            _ => Err(unknown()),
        }
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

/// By the keys of a first row that is a whole object.
fn of_row(row: &[u8]) -> Option<Format> {
    let row: Value = match serde_json::from_slice(row) {
        Ok(row) => row,
        // A capture that breaks off in its first line says so best itself.
        Err(error) => return (error.is_eof() && row.starts_with(b"{\"kind\":\"meta\"")).then_some(Format::Capture),
    };
    let row = row.as_object()?;
    let has = |keys: &[&str]| keys.iter().any(|key| row.contains_key(*key));
    let schema = row.get("schema").and_then(Value::as_str).unwrap_or_default();
    Some(match () {
        () if has(&["kind", "meta"]) => Format::Capture,
        () if has(&END_COLUMNS) && has(&PROMPT_COLUMNS) && has(&OUTPUT_COLUMNS) => Format::Requests,
        () if has(&["ttft_ms"]) => Format::Capture,
        () if has(&["resourceSpans"]) => Format::Otel,
        () if has(&["benchmarks"]) => Format::Guidellm,
        () if schema.starts_with("dynamo.agentic_mooncake") => Format::AgenticMooncake,
        () if has(&["wait_for", "branches", "dependencies"]) => Format::AgenticMooncake,
        () if has(&["event_type"]) || schema.starts_with("dynamo.request") => Format::DynamoTrace,
        () if has(&["num_turns"]) => Format::AppliedCompute,
        () if has(&["hash_ids", "input_length"]) => Format::Mooncake,
        () if has(&["queued_ts", "input_toks"]) => Format::LlmServingSim,
        () if has(&PROMPT_COLUMNS) && has(&OUTPUT_COLUMNS) => Format::Requests,
        () if has(crate::readers::dataset::KNOWN_KEYS) => Format::Dataset,
        () => return None,
    })
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
            ("{\n  \"metadata\": {\"guidellm_version\": \"0.6.0\"", Format::Guidellm),
            (r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#, Format::Mooncake),
            (r#"{"schema":"dynamo.agentic_mooncake","version":2}"#, Format::AgenticMooncake),
            (r#"{"event_type":"request_payload","request_id":"a"}"#, Format::DynamoTrace),
            (r#"{"num_turns":1}"#, Format::AppliedCompute),
            ("TIMESTAMP,ContextTokens,GeneratedTokens", Format::Azure),
            (r#"{"request_id":"bench-0","input_toks":1,"queued_ts":1}"#, Format::LlmServingSim),
            (r#"{"instruction":"a","output":"b"}"#, Format::Dataset),
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
    fn names_are_read_back() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("x".parse::<Format>().expect_err("unknown").contains("expected capture, guidellm"));
    }
}
