//! Detects the format of a file from its start.
//!
//! All commands that read requests use this detector. It only returns a format if the start is unambiguous.
//! Otherwise the error lists the possible formats, because they differ in their units of time.

use serde_json::{Map, Value};

use crate::capture;
use crate::formats::csv::{Columns, cells_of};
use crate::formats::mooncake::is_field as is_mooncake_field;
use crate::formats::{azure, burstgpt, splitwise, vidur};
use crate::start::{Start, has_all};
use crate::{Format, FormatError, OUTPUT_COLUMNS, PROMPT_COLUMNS, VcrOutput};

const TABLES: [(Format, &Columns); 4] = [
    (Format::Azure, &azure::COLUMNS),
    (Format::BurstGpt, &burstgpt::COLUMNS),
    (Format::Vidur, &vidur::COLUMNS),
    (Format::Splitwise, &splitwise::COLUMNS),
];
/// Fields that describe the prompt in a Mooncake row.
const PROMPT_FIELDS: [&str; 6] = ["hash_ids", "input_length", "input_tokens", "text_input", "messages", "payload"];
/// Fractional timestamps that advance by less than this on average are probably seconds.
const MIN_MEAN_GAP_MS: f64 = 1.0;
/// First timestamps in this range are dates in seconds since 1970 rather than weeks in milliseconds.
const EPOCH_S: std::ops::Range<f64> = 1e9..1e10;
/// Columns of tables of requests that no line of a capture has.
const END_COLUMNS: [&str; 5] = ["e2e_ms", "e2e_s", "e2e_us", "e2e_ns", "mean_itl_ms"];
const LATENCY_COLUMNS: [&str; 4] = ["latency_ns", "latency_us", "latency_ms", "latency_s"];
/// Fields of a workload's row that a data set's row lacks.
const WORKLOAD_KEYS: [&str; 5] = ["hash_ids", "input_length", "output_length", "timestamp", "created_time"];
/// Starts of the names of columns with arrivals in a table of requests; the unit follows.
const ARRIVAL_STEMS: [&str; 3] = ["arrival_", "arrival_time_", "timestamp_"];
/// Keys that identify a row of a data set.
pub const DATASET_KEYS: [&str; 13] = [
    "prompt",
    "instruction",
    "question",
    "query",
    "input_text",
    "context",
    "messages",
    "text",
    "content",
    "train",
    "validation",
    "test",
    "data",
];
/// The first keys of [`DATASET_KEYS`], which are prompts.
const PROMPT_KEYS: usize = 7;
/// Keys of a JSON object whose values are the rows of a data set.
pub const DATASET_SPLITS: [&str; 4] = ["train", "validation", "test", "data"];
/// Number of bytes that contain a benchmark's settings. They are at the start of its result, which is one long
/// line.
const SETTINGS_BYTES: usize = 16 << 10;
/// The first bytes of a Parquet file.
pub const PARQUET_MAGIC: &[u8] = b"PAR1";
/// Starts of lines of a stream as `curl -iN` writes it.
const STREAM_LINES: [&str; 6] = ["data:", "HTTP/", "event:", "id:", "retry:", ":"];
const PAGE_STARTS: [&str; 2] = ["<!doctype html", "<html"];
const LOG_MARKS: [&str; 4] = ["Generated response ", "Received request ", "Finish: obj=", "Receive: obj="];

impl Format {
    /// Detects the format of an unpacked file from its name and its first bytes.
    ///
    /// # Errors
    /// If the format is not clear, or if the file is an output of vcr without requests.
    pub fn detect(name: &str, start: &[u8]) -> Result<Self, FormatError> {
        let start = Start::new(start);
        let (text, row) = (start.text, start.row);
        let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
        let name = || name.to_owned();
        match VcrOutput::of(&start) {
            Some(output) if output.has_requests() => return Ok(Self::Requests),
            Some(output) => return Err(FormatError::NoRequests { name: name(), output }),
            None => {}
        }
        let found = match text.first() {
            None => return Err(FormatError::Empty { name: name() }),
            Some(_) if text.starts_with(PARQUET_MAGIC) => Ok(Self::Dataset),
            Some(b'{') if stem.ends_with(".csv") => Err(Undetected::Unknown),
            Some(b'{') => of_object(&start, stem),
            Some(b'[') if is_array(text) => match has_all(&text[..text.len().min(400)], &["start_time", "end_time"]) {
                // In results of inference-perf, requests begin with their times.
                true => Ok(Self::InferencePerf),
                false => Ok(Self::Dataset),
            },
            Some(b'<') if PAGE_STARTS.iter().any(|start| is_start(text, start)) => Err(Undetected::Page),
            Some(_) => of_text(text, row, stem.ends_with(".csv")),
        };
        found.map_err(|undetected| undetected.of(name()))
    }

    /// Detects the format of a table from its columns.
    ///
    /// # Errors
    /// If the format is not clear, or if the table has no requests.
    pub fn of_columns<'a>(name: &str, columns: impl Iterator<Item = &'a str> + Clone) -> Result<Self, FormatError> {
        of_columns(columns).map_err(|undetected| undetected.of(name.to_owned()))
    }
}

enum Undetected {
    Unknown,
    Page,
    Unclear { why: String, candidates: Vec<Format> },
    Columns(String),
    NoRequests(VcrOutput),
}

impl Undetected {
    fn of(self, name: String) -> FormatError {
        match self {
            Self::Unknown => FormatError::Unknown { name, option: None },
            Self::Page => FormatError::Page { name },
            Self::Unclear { why, candidates } => {
                let candidates = candidates.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ");
                FormatError::Unclear { name, why, candidates, option: None }
            }
            Self::Columns(columns) => FormatError::UnknownColumns { name, columns },
            Self::NoRequests(output) => FormatError::NoRequests { name, output },
        }
    }
}

fn is_start(text: &[u8], start: &str) -> bool {
    text.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start.as_bytes()))
}

/// Whether a text that begins with a bracket is a JSON array, and not a line with its time in brackets.
fn is_array(text: &[u8]) -> bool {
    let inside = text[1..].trim_ascii_start();
    inside.first().is_none_or(|byte| b"{[]\"".contains(byte))
}

fn of_object(start: &Start<'_>, stem: &str) -> Result<Format, Undetected> {
    let (text, row) = (start.text, start.row);
    match &start.object {
        Some(Ok(row)) => of_row(row, text),
        _ if starts_play(text) => Ok(Format::Weka),
        // The capture reader has the best error for a capture that is cut off in its first line.
        Some(Err(error)) if error.is_eof() && row.starts_with(b"{\"kind\":\"meta\"") => Ok(Format::Capture),
        _ => of_bench(|keys| has_all(&text[..text.len().min(SETTINGS_BYTES)], keys))
            .or_else(|| of_part(text, row))
            .or_else(|| damaged(row, stem))
            .ok_or(Undetected::Unknown),
    }
}

/// The format of a first row that is a complete object. `text` also contains the next rows with their timestamps.
fn of_row(row: &Map<String, Value>, text: &[u8]) -> Result<Format, Undetected> {
    let has = |keys: &[&str]| keys.iter().any(|key| row.contains_key(*key));
    let has_all = |keys: &[&str]| keys.iter().all(|key| row.contains_key(*key));
    let schema = row.get("schema").and_then(Value::as_str).unwrap_or_default();
    let is_event = row.get("event").and_then(Value::as_str).is_some_and(|event| event.starts_with("request."));
    let is_timed = row.keys().any(|key| ARRIVAL_STEMS.iter().any(|stem| key.starts_with(stem)));
    let is_table = has(&PROMPT_COLUMNS) && has(&OUTPUT_COLUMNS);
    if let Some(format) = of_bench(has_all) {
        return Ok(format);
    }
    Ok(match () {
        () if is_play(has_all) => Format::Weka,
        () if has(&["observation"]) => Format::Observations,
        () if has(&["meta"]) || row.get("kind").is_some_and(|kind| kind == "meta") => Format::Capture,
        () if has(&["metadata"]) && has(&["metrics"]) => Format::Aiperf,
        () if is_event => Format::Log,
        () if has(&["chunks"]) || (has(&["request_id"]) && has(&["data"])) => Format::Sse,
        () if has(&["meta_info"]) || row.get("response").is_some_and(Value::is_object) => Format::Responses,
        () if has(&["choices"]) && has(&["id", "request_id"]) => Format::Responses,
        () if is_table && (has(&END_COLUMNS) || is_timed && !has(&["hash_ids", "ttft_ms"])) => Format::Requests,
        () if has(&["request_id"]) && has(&LATENCY_COLUMNS) => Format::Requests,
        () if has(&["ttft_ms"]) => Format::Capture,
        () if has(&["resourceSpans", "spans"]) || has_all(&["span_id", "attributes"]) => Format::Otel,
        () if has(&["benchmarks"]) => Format::Guidellm,
        () if schema.starts_with("dynamo.agentic_mooncake") => Format::AgenticMooncake,
        () if has(&["wait_for", "branches", "dependencies", "tool_wait_ms"]) => Format::AgenticMooncake,
        () if has(&["event_type"]) || schema.starts_with("dynamo.request") => Format::Dynamo,
        () if has(&["num_turns"]) => Format::AppliedComputeAgentic,
        () if has(&["queued_ts", "input_toks"]) => Format::LlmServingSim,
        () if has(&["chat_id"]) && has(&["timestamp"]) && has(&["input_length"]) => Format::QwenBailian,
        () if has(&WORKLOAD_KEYS) && has(&PROMPT_FIELDS) => return of_mooncake(row, text),
        () if is_table => Format::Requests,
        () if has(&DATASET_KEYS) => Format::Dataset,
        () if has(&PROMPT_FIELDS) => return of_mooncake(row, text),
        // A line about the file may precede a table of requests.
        () if of_second_row(text).is_some_and(|format| format == Format::Requests) => Format::Requests,
        () => return Err(Undetected::Unknown),
    })
}

fn of_second_row(text: &[u8]) -> Option<Format> {
    let (_, rest) = text.split_at_checked(text.iter().position(|byte| *byte == b'\n')? + 1)?;
    let second = rest.split(|byte| *byte == b'\n').next()?;
    of_row(&serde_json::from_slice(second).ok()?, b"").ok()
}

/// Whether a row is one of Mooncake's, by its fields and the timestamps of the next rows.
fn of_mooncake(row: &Map<String, Value>, text: &[u8]) -> Result<Format, Undetected> {
    let mut unknown: Vec<String> =
        row.keys().filter(|key| !is_mooncake_field(key)).map(|key| format!("`{key}`")).collect();
    unknown.sort();
    let candidates =
        vec![Format::Mooncake, Format::MooncakeDelta, Format::QwenBailian, Format::Requests, Format::Dataset];
    if !unknown.is_empty() {
        let why = format!("its first row has {}, which mooncake rows do not have", unknown.join(", "));
        return Err(Undetected::Unclear { why, candidates });
    }
    let first = row.get("timestamp").or_else(|| row.get("created_time")).and_then(Value::as_f64);
    if let Some(first) = first.filter(|first| EPOCH_S.contains(first)) {
        let why = format!("its first timestamp is {first}, which is a date if it is in seconds since 1970");
        return Err(Undetected::Unclear { why, candidates });
    }
    match mean_gap_of_fractions(text) {
        Some(gap) if gap < MIN_MEAN_GAP_MS => {
            let why = format!(
                "its timestamps advance by {gap:.3} on average, which is {:.0} requests a second if they are \
                 milliseconds; they may be seconds",
                1e3 / gap
            );
            Err(Undetected::Unclear { why, candidates })
        }
        _ => Ok(Format::Mooncake),
    }
}

/// The format of a document of several lines, or of a row that is longer than the start.
fn of_part(text: &[u8], row: &[u8]) -> Option<Format> {
    const FIRST_KEYS_BYTES: usize = 4096;
    let starts = &row[..row.len().min(FIRST_KEYS_BYTES)];
    let has_in = |text: &[u8], key: &str| has_all(text, &[key]);
    let in_row = |key: &str| has_in(row, key);
    Some(match () {
        () if has_in(text, "resourceSpans") || has_in(starts, "spans") => Format::Otel,
        () if has_in(text, "guidellm_version") || has_in(text, "benchmarks") => Format::Guidellm,
        () if ["dynamo.agentic_mooncake", "wait_for", "tool_wait_ms"].into_iter().any(in_row) => {
            Format::AgenticMooncake
        }
        () if in_row("event_type") => Format::Dynamo,
        () if in_row("num_turns") => Format::AppliedComputeAgentic,
        () if in_row("hash_ids") && in_row("chat_id") => Format::QwenBailian,
        () if in_row("hash_ids") => Format::Mooncake,
        () if capture::detect(row).is_some() || has_in(starts, "vcr.capture") || has_in(starts, "ttft_ms") => {
            Format::Capture
        }
        () if DATASET_SPLITS.iter().any(|split| has_in(text, split)) => Format::Dataset,
        () => return None,
    })
}

/// Whether a first line looks like a damaged Mooncake row. Mooncake's reader has the best error for it.
fn damaged(row: &[u8], stem: &str) -> Option<Format> {
    let is_row = ["timestamp", "input_length", "output_length"].into_iter().any(|key| has_all(row, &[key]));
    let is_lines = [".jsonl", ".json", ".ndjson"].iter().any(|suffix| stem.ends_with(suffix));
    (is_row && is_lines).then_some(Format::Mooncake)
}

fn of_text(text: &[u8], row: &[u8], is_csv: bool) -> Result<Format, Undetected> {
    if let Some(format) = of_header(row)? {
        return Ok(format);
    }
    if is_csv {
        return of_columns(cells_of(row).iter().map(String::as_str));
    }
    let line = String::from_utf8_lossy(row);
    // `ts` writes the time at the start of each line.
    let (word, rest) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
    let line = if word.parse::<f64>().is_ok() { rest.trim_start() } else { &line };
    if STREAM_LINES.iter().any(|mark| line.starts_with(mark)) {
        return Ok(Format::Sse);
    }
    let is_log = LOG_MARKS.iter().any(|mark| text.windows(mark.len()).any(|window| window == mark.as_bytes()));
    if is_log { Ok(Format::Log) } else { Err(Undetected::Unknown) }
}

fn of_header(row: &[u8]) -> Result<Option<Format>, Undetected> {
    let titles = cells_of(row);
    let found = TABLES.map(|(format, columns)| (columns.count_in(&titles), format));
    let most = found.iter().map(|(count, _)| *count).max().unwrap_or(0);
    let candidates: Vec<_> = found.into_iter().filter(|(count, _)| *count == most).map(|(_, format)| format).collect();
    match &candidates[..] {
        _ if most == 0 => Ok(None),
        [format] => Ok(Some(*format)),
        _ => {
            let why = format!("its header `{}` fits several formats", titles.join(","));
            Err(Undetected::Unclear { why, candidates })
        }
    }
}

fn of_columns<'a>(columns: impl Iterator<Item = &'a str> + Clone) -> Result<Format, Undetected> {
    let columns = columns.map(|cell| cell.trim_matches(['"', ' ']));
    let has = |names: &[&str]| columns.clone().any(|column| names.contains(&column));
    match VcrOutput::of_columns(columns.clone()) {
        Some(output) if output.has_requests() => Ok(Format::Requests),
        Some(output) => Err(Undetected::NoRequests(output)),
        // Observed answers also have texts, but no prompts.
        None if has(&["request_id"]) && (has(&LATENCY_COLUMNS) || !has(&DATASET_KEYS[..PROMPT_KEYS])) => {
            Ok(Format::Requests)
        }
        None if has(&DATASET_KEYS) => Ok(Format::Dataset),
        None => Err(Undetected::Columns(columns.collect::<Vec<_>>().join(", "))),
    }
}

fn of_bench(has_all: impl Fn(&[&str]) -> bool) -> Option<Format> {
    match () {
        () if !has_all(&["backend", "request_rate", "max_concurrency"]) => None,
        () if has_all(&["endpoint_type"]) || has_all(&["tokenizer_id"]) => Some(Format::VllmBench),
        () if has_all(&["dataset_name", "random_input_len"]) => Some(Format::SglangBench),
        () => None,
    }
}

/// Whether a corpus of plays starts like this. A play may have many lines, and its end may be missing.
pub(crate) fn starts_play(start: &[u8]) -> bool {
    let is_object = start.trim_ascii_start().starts_with(b"{");
    is_object && is_play(|keys| has_all(start, keys))
}

fn is_play(has_all: impl Fn(&[&str]) -> bool) -> bool {
    has_all(&["hash_id_scope", "requests"]) && !has_all(&["schema"])
}

/// The mean difference between the timestamps of the complete rows at the start, if any timestamp is a fraction.
fn mean_gap_of_fractions(text: &[u8]) -> Option<f64> {
    #[derive(serde::Deserialize)]
    struct Stamped {
        #[serde(alias = "created_time")]
        timestamp: Option<f64>,
    }
    // Most traces have no fractions, so their rows need not be parsed.
    if !text.contains(&b'.') {
        return None;
    }
    let rows = text.split(|byte| *byte == b'\n').filter_map(|row| serde_json::from_slice::<Stamped>(row).ok());
    let timestamps: Vec<f64> = rows.filter_map(|row| row.timestamp).collect();
    let earliest = timestamps.iter().copied().reduce(f64::min)?;
    let latest = timestamps.iter().copied().reduce(f64::max)?;
    let is_fraction = timestamps.iter().any(|timestamp| timestamp.fract() != 0.0);
    let gap = (latest - earliest) / (timestamps.len() - 1) as f64;
    (is_fraction && gap > 0.0).then_some(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certain(name: &str, start: &str) -> Format {
        Format::detect(name, start.as_bytes()).unwrap_or_else(|error| panic!("{start}: {error}"))
    }

    fn refused(name: &str, start: &str) -> String {
        Format::detect(name, start.as_bytes()).expect_err(start).to_string()
    }

    #[test]
    fn starts_of_files_show_their_format() {
        for (start, format) in [
            (r#"{"kind":"meta","format":"vcr.capture","version":1}"#, Format::Capture),
            (r#"{"kind":"meta","format":"vcr.ca"#, Format::Capture),
            (r#"{"meta":{"source":"tap"}}"#, Format::Capture),
            (r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}"#, Format::Capture),
            (r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#, Format::Mooncake),
            (r#"{"input_length":1,"output_length":1}"#, Format::Mooncake),
            (r#"{"timestamp":0,"text_input":"x","output_length":1}"#, Format::Mooncake),
            (r#"{"messages":[{"role":"user","content":"x"}],"output_length":1,"session_id":"s"}"#, Format::Mooncake),
            (r#"{"timestamp":0,"messages":[{"role":"user","content":"x"}],"output_length":1}"#, Format::Mooncake),
            (r#"{"timestamp":0,"hash_ids":[1,2"#, Format::Mooncake),
            (
                r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":1,"hash_ids":[1]}"#,
                Format::QwenBailian,
            ),
            (r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":1}"#, Format::QwenBailian),
            (r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"hash_ids":[1"#, Format::QwenBailian),
            (r#"{"schema":"dynamo.agentic_mooncake","version":2}"#, Format::AgenticMooncake),
            (r#"{"event_type":"request_end"}"#, Format::Dynamo),
            (r#"{"event_type":"request_payload","request_id":"a"}"#, Format::Dynamo),
            (r#"{"num_turns":1}"#, Format::AppliedComputeAgentic),
            ("{\"hash_id_scope\": \"local\",\n\"requests\": [", Format::Weka),
            ("\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n", Format::Azure),
            ("TIMESTAMP,ContextTokens\n", Format::Azure),
            ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", Format::BurstGpt),
            ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n", Format::BurstGpt),
            ("arrived_at,num_prefill_tokens,num_decode_tokens\n", Format::Vidur),
            (",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n", Format::Vidur),
            (
                "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n",
                Format::Splitwise,
            ),
            ("request_id,arrival_timestamp,prompt_size,token_size", Format::Splitwise),
            (r#"{"request_id":"bench-0","input_toks":1,"queued_ts":1}"#, Format::LlmServingSim),
            ("{\n  \"metadata\": {\"guidellm_version\": \"0.6.0\"", Format::Guidellm),
            (
                r#"{"date":"x","endpoint_type":"vllm","backend":"vllm","request_rate":"inf","max_concurrency":4,"ttfts":["#,
                Format::VllmBench,
            ),
            (
                r#"{"tag":null,"backend":"sglang","dataset_name":"random","request_rate":Infinity,"max_concurrency":4,"random_input_len":1"#,
                Format::SglangBench,
            ),
            (r#"{"metadata":{"session_num":0},"metrics":{}}"#, Format::Aiperf),
            ("[{\"start_time\": 1.5, \"end_time\": 2.5, \"request\": \"", Format::InferencePerf),
            ("[\n  {\n    \"start_time\": 1.5,\n    \"end_time\": 2.5,\n", Format::InferencePerf),
            (r#"{"resourceSpans":[]}"#, Format::Otel),
            (r#"{"session_id":"a","spans":[{"span_id":"b"#, Format::Otel),
            (r#"{"span_id":"b","trace_id":"a","start_time":"2026-01-05T10:00:00","attributes":{}}"#, Format::Otel),
            (r#"{"messages":[{"role":"user","content":"x"}]}"#, Format::Dataset),
            (r#"{"instruction":"a","output":"b"}"#, Format::Dataset),
            (r#"{"prompt":"x"}"#, Format::Dataset),
            (r#"{"prompt":"x","response":"y"}"#, Format::Dataset),
            ("[{\"a\":1}]", Format::Dataset),
            ("{\n\"train\": [", Format::Dataset),
            ("PAR1\0\0", Format::Dataset),
            (r#"{"arrival_ms":0,"prompt_tokens":1,"output_tokens":2,"ttft_ms":1,"mean_itl_ms":2}"#, Format::Requests),
            (r#"{"timestamp_ms":0,"input_length":1,"output_length":1}"#, Format::Requests),
            (
                "{\"record\":\"meta\",\"kind\":\"requests\"}\n{\"arrival_s\":1,\"prompt_tokens\":1,\"output_tokens\":1}\n",
                Format::Requests,
            ),
            (r#"{"prompt_tokens":1,"output_tokens":1,"arrival_ms":1}"#, Format::Requests),
            ("arrival_ms,prompt_tokens,output_tokens\n", Format::Requests),
            (r#"{"request_id":"a","latency_s":1}"#, Format::Requests),
            (r#"{"request_id":"a","latency_s":1,"ttft_ms":2}"#, Format::Requests),
            (r#"{"observation":1,"request_id":"a"}"#, Format::Observations),
            (r#"{"request_id":"a","observation":1}"#, Format::Observations),
            (r#"{"request_id":"a","chunks":[]}"#, Format::Sse),
            (r#"{"request_id":"a","at_ms":1,"data":{}}"#, Format::Sse),
            ("data: {}\n", Format::Sse),
            ("HTTP/1.1 200 OK\r\n", Format::Sse),
            ("0.25 event: message\n", Format::Sse),
            (r#"{"response":{},"latency_ms":1}"#, Format::Responses),
            (r#"{"text":"x","meta_info":{}}"#, Format::Responses),
            (r#"{"request_id":"a","choices":[]}"#, Format::Responses),
            (r#"{"timestamp":"t","event":"request.received","rid":"a"}"#, Format::Log),
            ("INFO 11-02 03:04:05 [api.py:1] start\nINFO 11-02 [logger.py:1] Received request a: x", Format::Log),
            ("[2026-01-02] start\n[2026-01-02] Receive: obj=GenerateReqInput()", Format::Log),
        ] {
            assert_eq!(certain("file", start), format, "{start}");
        }
        for name in ["a.csv", "a.csv.gz", "a.csv.zst"] {
            assert_eq!(certain(name, "prompt,response\n"), Format::Dataset);
            assert_eq!(certain(name, "request_id,latency_ms\n"), Format::Requests);
            assert_eq!(certain(name, "request_id,text,backend\n"), Format::Requests);
            assert_eq!(certain(name, "request_id,prompt,response\n"), Format::Dataset);
        }
        assert_eq!(certain("a.jsonl", r#"{"timestamp":0,"input_length"#), Format::Mooncake);
    }

    #[test]
    fn what_says_nothing_is_refused() {
        for (name, start) in
            [("a", "hello"), ("a", "a,b,c\n"), ("a.json", "{}"), ("a.json", "{\n"), ("a.json", "{\"x\": 1}")]
        {
            let error = refused(name, start);
            assert!(error.starts_with("cannot tell the format of `a"), "{error}");
            assert!(error.contains("known: capture, mooncake, "), "{error}");
        }
        let error = refused("a", "<!DOCTYPE HTML>\n<html lang=\"en\">\n<title>Directory listing for /a/</title>\n");
        assert_eq!(error, "`a` is an HTML page, which holds no requests; end the URL of a folder with `/`");
        let error = refused("a.csv", "x,y\n");
        assert!(error.starts_with("cannot tell the format of `a.csv` by its columns x, y: "), "{error}");
        let error = refused("a.csv", "completed_requests,request_throughput_rps,fingerprint\n");
        assert!(
            error.starts_with("`a.csv` is the table of a sweep of `vcr replay`, which holds no requests; "),
            "{error}"
        );
        assert_eq!(refused("a", " \n"), "`a` holds no request; give a file with at least one row");
    }

    #[test]
    fn unknown_fields_make_a_format_unclear() {
        let error = refused(
            "a",
            r#"{"timestamp":0.2,"input_length":1,"output_length":1,"hash_ids":[1],"turn":1,"kind_of":"x"}"#,
        );
        assert!(error.contains("its first row has `kind_of`, `turn`, which mooncake rows do not have"), "{error}");
        let candidates = "It may be mooncake, mooncake-delta, qwen-bailian, requests, dataset";
        assert!(error.ends_with(candidates), "{error}");
    }

    /// If these seconds were read as milliseconds, the replay would be a thousand times too fast.
    #[test]
    fn fractions_that_are_too_dense_for_milliseconds_are_unclear() {
        let row = |timestamp: &str| format!("{{\"timestamp\":{timestamp},\"input_length\":1,\"output_length\":1}}\n");
        let dense = refused("a", &(row("0") + &row("0.25") + &row("0.5")));
        assert!(dense.contains("advance by 0.250 on average, which is 4000 requests a second if they are"), "{dense}");
        for sparse in [row("0") + &row("12.5"), row("0.5") + &row("0.5"), row("0") + &row("1"), row("0.1")] {
            assert_eq!(certain("a", &sparse), Format::Mooncake, "{sparse}");
        }
    }

    #[test]
    fn seconds_since_1970_are_unclear() {
        let row = |timestamp: &str| format!("{{\"timestamp\":{timestamp},\"input_length\":1,\"output_length\":1}}\n");
        for seconds in ["1716300000", "1716300000.5"] {
            let error = refused("a", &(row(seconds) + &row("1716300001")));
            assert!(error.contains(&format!("its first timestamp is {seconds}, which is a date if")), "{error}");
        }
        for other in ["1716300000000", "86400000"] {
            assert_eq!(certain("a", &row(other)), Format::Mooncake);
        }
    }
}
