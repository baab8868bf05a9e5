//! The format of a trace, by the start of its file.
//!
//! A format is detected only if what the start says is certain. Otherwise the error lists the
//! formats that it may have, since they differ in the units of their times.

use serde_json::{Map, Value};

use crate::TraceFormat;
use crate::capture;
use crate::formats::csv::{Columns, cells_of};
use crate::formats::mooncake::is_field as is_mooncake_field;
use crate::formats::{azure, burstgpt, splitwise, vidur};

/// What the start of a file says of its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detected {
    /// It has this format.
    Certain(TraceFormat),
    /// It may have one of several.
    Unclear(Unclear),
    /// It has none of them.
    Unknown,
}

/// Why a format is not certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// The reason, as a sentence about "it".
    pub why: String,
    /// The formats that it may have.
    pub candidates: Vec<TraceFormat>,
}

/// The formats that are tables.
const TABLES: [(TraceFormat, &Columns); 4] = [
    (TraceFormat::Azure, &azure::COLUMNS),
    (TraceFormat::BurstGpt, &burstgpt::COLUMNS),
    (TraceFormat::Vidur, &vidur::COLUMNS),
    (TraceFormat::Splitwise, &splitwise::COLUMNS),
];
/// Fields that give the prompt of a Mooncake row.
const PROMPT_FIELDS: [&str; 6] = ["hash_ids", "input_length", "input_tokens", "text_input", "messages", "payload"];
/// Fractional timestamps that advance by less than this on average are more likely seconds.
const MIN_MEAN_GAP_MS: f64 = 1.0;

impl Detected {
    /// Finds the format of an unpacked file that starts with these bytes.
    #[must_use]
    pub fn of(start: &[u8]) -> Self {
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text).trim_ascii_end();
        if is_play(text) {
            return Self::Certain(TraceFormat::Weka);
        }
        if !row.starts_with(b"{") {
            return Self::of_header(row);
        }
        if is_capture(row) {
            return Self::Certain(TraceFormat::Capture);
        }
        if let Some(relative) = relative_of_mooncake(row) {
            return Self::Certain(relative);
        }
        match serde_json::from_slice(row) {
            Ok(row) => Self::of_row(&row, text),
            // The row is longer than the start, or damaged, which its reader says.
            Err(_) if has(row, "\"hash_ids\"") => match has(row, "\"chat_id\"") {
                true => Self::Certain(TraceFormat::QwenBailian),
                false => Self::Certain(TraceFormat::Mooncake),
            },
            Err(_) => Self::Unknown,
        }
    }

    /// By the fields of a first row, and the timestamps of those after it.
    fn of_row(row: &Map<String, Value>, text: &[u8]) -> Self {
        let has = |key: &str| row.contains_key(key);
        if has("chat_id") && has("timestamp") && has("input_length") {
            return Self::Certain(TraceFormat::QwenBailian);
        }
        if !PROMPT_FIELDS.into_iter().any(has) {
            return Self::Unknown;
        }
        let mut unknown: Vec<String> =
            row.keys().filter(|key| !is_mooncake_field(key)).map(|key| format!("`{key}`")).collect();
        unknown.sort();
        let candidates = vec![TraceFormat::Mooncake, TraceFormat::MooncakeDelta, TraceFormat::QwenBailian];
        if !unknown.is_empty() {
            let why = format!("its first row has {}, which mooncake rows do not have", unknown.join(", "));
            return Self::Unclear(Unclear { why, candidates });
        }
        match mean_gap_of_fractions(text) {
            Some(gap) if gap < MIN_MEAN_GAP_MS => {
                let why = format!(
                    "its timestamps advance by {gap:.3} on average, which is {:.0} requests a second if they are \
                     milliseconds; they may be seconds",
                    1e3 / gap
                );
                Self::Unclear(Unclear { why, candidates })
            }
            _ => Self::Certain(TraceFormat::Mooncake),
        }
    }

    /// By the header of a table: the format of which it has most columns.
    fn of_header(row: &[u8]) -> Self {
        let titles = cells_of(row);
        let found = TABLES.map(|(format, columns)| (columns.count_in(&titles), format));
        let most = found.iter().map(|(count, _)| *count).max().unwrap_or(0);
        let candidates: Vec<_> =
            found.into_iter().filter(|(count, _)| *count == most).map(|(_, format)| format).collect();
        match &candidates[..] {
            _ if most == 0 => Self::Unknown,
            [format] => Self::Certain(*format),
            _ => {
                let why = format!("its header `{}` fits several formats", titles.join(","));
                Self::Unclear(Unclear { why, candidates })
            }
        }
    }
}

fn has(text: &[u8], key: &str) -> bool {
    text.windows(key.len()).any(|window| window == key.as_bytes())
}

/// Whether a capture starts with such a row, of which the end may be missing.
fn is_capture(row: &[u8]) -> bool {
    const FIRST_KEYS_BYTES: usize = 4096;
    let starts = &row[..row.len().min(FIRST_KEYS_BYTES)];
    capture::detect(row).is_some() || has(starts, "\"vcr.capture\"") || has(starts, "\"ttft_ms\"")
}

/// Whether a corpus of plays starts so. A play may take many lines, and its end may be missing.
pub(crate) fn is_play(start: &[u8]) -> bool {
    let is_object = start.trim_ascii_start().starts_with(b"{");
    is_object && has(start, "\"hash_id_scope\"") && has(start, "\"requests\"") && !has(start, "\"schema\"")
}

/// The first row of a relative of the Mooncake format gives it away. Deltas do
/// not differ from whole prompts and must be named.
fn relative_of_mooncake(row: &[u8]) -> Option<TraceFormat> {
    let has = |key: &str| has(row, key);
    if has("\"dynamo.agentic_mooncake\"") || has("\"wait_for\"") || has("\"tool_wait_ms\"") {
        Some(TraceFormat::AgenticMooncake)
    } else if has("\"event_type\"") {
        Some(TraceFormat::Dynamo)
    } else {
        has("\"num_turns\"").then_some(TraceFormat::AppliedComputeAgentic)
    }
}

/// The mean difference of the timestamps of the whole rows at the start, if one is a fraction.
fn mean_gap_of_fractions(text: &[u8]) -> Option<f64> {
    #[derive(serde::Deserialize)]
    struct Stamped {
        #[serde(alias = "created_time")]
        timestamp: Option<f64>,
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

    fn certain(start: &str) -> TraceFormat {
        match Detected::of(start.as_bytes()) {
            Detected::Certain(format) => format,
            other => panic!("{start}: {other:?}"),
        }
    }

    fn unclear(start: &str) -> Unclear {
        match Detected::of(start.as_bytes()) {
            Detected::Unclear(unclear) => unclear,
            other => panic!("{start}: {other:?}"),
        }
    }

    #[test]
    fn starts_of_files_show_their_format() {
        for (start, format) in [
            (r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}"#, TraceFormat::Mooncake),
            (r#"{"input_length":1,"output_length":1}"#, TraceFormat::Mooncake),
            (r#"{"timestamp":0,"text_input":"x","output_length":1}"#, TraceFormat::Mooncake),
            (
                r#"{"messages":[{"role":"user","content":"x"}],"output_length":1,"session_id":"s"}"#,
                TraceFormat::Mooncake,
            ),
            (r#"{"timestamp":0,"hash_ids":[1,2"#, TraceFormat::Mooncake),
            (
                r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"input_length":1,"hash_ids":[1]}"#,
                TraceFormat::QwenBailian,
            ),
            (r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0.5,"hash_ids":[1"#, TraceFormat::QwenBailian),
            (r#"{"schema":"dynamo.agentic_mooncake","version":2}"#, TraceFormat::AgenticMooncake),
            (r#"{"event_type":"request_end"}"#, TraceFormat::Dynamo),
            (r#"{"num_turns":1}"#, TraceFormat::AppliedComputeAgentic),
            ("{\"hash_id_scope\": \"local\",\n\"requests\": [", TraceFormat::Weka),
            (r#"{"kind":"meta","format":"vcr.capture","version":1}"#, TraceFormat::Capture),
            ("\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n", TraceFormat::Azure),
            ("TIMESTAMP,ContextTokens\n", TraceFormat::Azure),
            ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", TraceFormat::BurstGpt),
            ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n", TraceFormat::BurstGpt),
            ("arrived_at,num_prefill_tokens,num_decode_tokens\n", TraceFormat::Vidur),
            (",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n", TraceFormat::Vidur),
            (
                "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n",
                TraceFormat::Splitwise,
            ),
        ] {
            assert_eq!(certain(start), format, "{start}");
        }
        for start in ["", "hello\n", "a,b,c\n", "{}", r#"{"prompt":"x"}"#, "{\n", "[1]"] {
            assert_eq!(Detected::of(start.as_bytes()), Detected::Unknown, "{start}");
        }
    }

    #[test]
    fn unknown_fields_make_a_format_unclear() {
        let said =
            unclear(r#"{"timestamp":0.2,"input_length":1,"output_length":1,"hash_ids":[1],"turn":1,"kind_of":"x"}"#);
        assert_eq!(said.why, "its first row has `kind_of`, `turn`, which mooncake rows do not have");
        assert_eq!(said.candidates[0], TraceFormat::Mooncake);
        assert!(said.candidates.contains(&TraceFormat::QwenBailian));
    }

    /// Timestamps in seconds would be replayed a thousand times too fast.
    #[test]
    fn fractions_that_are_too_dense_for_milliseconds_are_unclear() {
        let row = |timestamp: &str| format!("{{\"timestamp\":{timestamp},\"input_length\":1,\"output_length\":1}}\n");
        let dense = row("0") + &row("0.25") + &row("0.5");
        let said = unclear(&dense).why;
        assert!(said.contains("advance by 0.250 on average, which is 4000 requests a second if they are"), "{said}");
        for sparse in [row("0") + &row("12.5"), row("0.5") + &row("0.5"), row("0") + &row("1"), row("0.1")] {
            assert_eq!(certain(&sparse), TraceFormat::Mooncake, "{sparse}");
        }
    }
}
