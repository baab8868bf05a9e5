//! The formats of inputs, and how a file shows which one it is.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};
use vcr_trace::VcrOutput;

/// The format of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Observations, as `vcr mirror` writes them.
    Observations,
    /// `requests.jsonl` of `vcr run --out`.
    Run,
    /// OpenAI's streams, as they are or chunk by chunk.
    Sse,
    /// Responses of servers with their times.
    Responses,
    /// Request logs of servers.
    Log,
    /// `profile_export.jsonl` of aiperf.
    Aiperf,
    /// A table with a row for each request, as CSV or JSONL.
    Table,
    /// A capture, or what `vcr inspect convert` reads.
    Imported,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Observations,
        Self::Run,
        Self::Sse,
        Self::Responses,
        Self::Log,
        Self::Aiperf,
        Self::Table,
        Self::Imported,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observations => "observations",
            Self::Run => "run",
            Self::Sse => "sse",
            Self::Responses => "responses",
            Self::Log => "log",
            Self::Aiperf => "aiperf",
            Self::Table => "table",
            Self::Imported => "imported",
        }
    }

    /// Finds the format from the first bytes of a file, unpacked. What is none of ours may be a
    /// capture or something else that can be imported.
    pub(super) fn detect(name: &str, start: &[u8], has_columns: bool) -> Self {
        if has_columns {
            return Self::Table;
        }
        match VcrOutput::detect(start) {
            Some(VcrOutput::RunRequests) => return Self::Run,
            Some(VcrOutput::RequestTable) | None => {}
            Some(_) => return Self::Imported,
        }
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        // An empty file has no observations, whatever it was meant to be.
        if text.is_empty() || text.starts_with(b"{\"observation\":") {
            return Self::Observations;
        }
        let row = text.split(|byte| *byte == b'\n').next().unwrap_or(text).trim_ascii_end();
        if let Ok(row) = serde_json::from_slice::<Map<String, Value>>(row) {
            return of_row(&row);
        }
        if super::dump::is_dump(&String::from_utf8_lossy(row)) {
            return Self::Sse;
        }
        if super::log::is_log(start) {
            return Self::Log;
        }
        let stem = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
        let header = String::from_utf8_lossy(row);
        let has_id = header.split(',').any(|column| column.trim_matches(['"', ' ']) == "request_id");
        if stem.ends_with(".csv") && has_id { Self::Table } else { Self::Imported }
    }
}

fn of_row(row: &Map<String, Value>) -> Format {
    let has = |keys: &[&str]| keys.iter().any(|key| row.contains_key(*key));
    match () {
        () if has(&["observation"]) => Format::Observations,
        () if has(&["metadata"]) && has(&["metrics"]) => Format::Aiperf,
        () if super::log::is_event(row) => Format::Log,
        () if has(&["chunks"]) || (has(&["request_id"]) && has(&["data"])) => Format::Sse,
        () if has(&["response", "meta_info"]) || (has(&["choices"]) && has(&["id", "request_id"])) => Format::Responses,
        () if has(&["request_id"]) && super::table::LATENCIES.iter().any(|name| row.contains_key(*name)) => {
            Format::Table
        }
        () => Format::Imported,
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
        let known = Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("invalid format `{text}`: expected {known}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_show_the_format() {
        for (start, name, format) in [
            (r#"{"observation":1,"request_id":"a"}"#, "o.jsonl", Format::Observations),
            (r#"{"request_id":"a","observation":1}"#, "o.jsonl", Format::Observations),
            (r#"{"metadata":{},"metrics":{}}"#, "a.jsonl", Format::Aiperf),
            (r#"{"request_id":"a","chunks":[]}"#, "a.jsonl", Format::Sse),
            (r#"{"request_id":"a","at_ms":1,"data":{}}"#, "a.jsonl", Format::Sse),
            (r#"{"response":{},"latency_ms":1}"#, "a.jsonl", Format::Responses),
            (r#"{"text":"x","meta_info":{}}"#, "a.jsonl", Format::Responses),
            (r#"{"request_id":"a","choices":[]}"#, "a.jsonl", Format::Responses),
            (r#"{"timestamp":"t","event":"request.received","rid":"a"}"#, "a.log", Format::Log),
            ("INFO 11-02 03:04:05 [api.py:1] start\nINFO 11-02 [logger.py:1] Received request a: x", "a", Format::Log),
            ("[2026-01-02] start\n[2026-01-02] Receive: obj=GenerateReqInput()", "a.log", Format::Log),
            ("data: {}\n", "a.txt", Format::Sse),
            ("HTTP/1.1 200 OK\r\n", "a.txt", Format::Sse),
            ("0.25 event: message\n", "a.txt", Format::Sse),
            (r#"{"request_id":"a","latency_s":1}"#, "a.jsonl", Format::Table),
            ("request_id,latency_ms\n", "a.csv", Format::Table),
            ("id,latency_ms\n", "a.csv", Format::Imported),
            (r#"{"kind":"meta"}"#, "a.jsonl", Format::Imported),
            ("", "a.jsonl", Format::Observations),
        ] {
            assert_eq!(Format::detect(name, start.as_bytes(), false), format, "{start}");
        }
        assert_eq!(Format::detect("x", b"id,ms\n", true), Format::Table);
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("x".parse::<Format>().is_err());
    }
}
