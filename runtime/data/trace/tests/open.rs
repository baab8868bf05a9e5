//! Opens files: suffixes, packing and detection of the format.

use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;
use vcr_trace::{Format, FormatError, FormatOption, Trace, TraceError, TraceOptions};

const MOONCAKE: &str = "{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [1]}\n";
const AZURE: &str = "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n";

fn file(dir: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("the temporary folder is writable");
    path
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

#[test]
fn formats_are_found_by_suffix_then_by_content() {
    let dir = TempDir::new().unwrap();
    let two_members = [packed(MOONCAKE), packed(MOONCAKE)].concat();
    let cases: [(&str, Vec<u8>, usize); 6] = [
        ("a.jsonl", MOONCAKE.into(), 1),
        ("a.csv", AZURE.into(), 1),
        ("a", MOONCAKE.into(), 1),
        ("b.txt", AZURE.into(), 1),
        ("b.csv.gz", packed(AZURE), 1),
        ("c.jsonl.gz", two_members, 2),
    ];
    for (name, bytes, requests) in cases {
        let trace = Trace::open(&file(&dir, name, &bytes), &TraceOptions::default()).unwrap();
        assert_eq!(trace.requests.len(), requests, "{name}");
    }
}

/// With the wrong unit, a trace would be a thousand times too fast, so the format is not guessed.
#[test]
fn a_format_that_is_not_certain_is_an_error_with_candidates() {
    let dir = TempDir::new().unwrap();
    let row = "{\"timestamp\": 0.5, \"input_length\": 9, \"output_length\": 1, \"user\": \"x\"}\n";
    let path = file(&dir, "rows.jsonl", row.as_bytes());
    let option = FormatOption { format: "--trace-format", timestamp_unit: Some("--trace-timestamp-unit") };
    let naming = ": name it with `--trace-format`";
    for (format_option, end) in [
        (Some(option), ", and the unit of timestamps other than the format's with `--trace-timestamp-unit`"),
        (Some(FormatOption { timestamp_unit: None, ..option }), naming),
        (None, ""),
    ] {
        let error = Trace::open(&path, &TraceOptions { format_option, ..TraceOptions::default() }).unwrap_err();
        assert!(matches!(error, TraceError::Format(FormatError::Unclear { .. })), "{error}");
        let said = error.to_string();
        assert!(said.contains("first row has `user`") && said.contains("mooncake, "), "{said}");
        assert!(said.ends_with(end) && said.contains(naming) == format_option.is_some(), "{said}");
    }
    let named = TraceOptions { format: Some(Format::Mooncake), ..TraceOptions::default() };
    assert_eq!(Trace::open(&path, &named).unwrap().warnings.len(), 1);
}

#[test]
fn an_explicit_format_wins_over_the_suffix() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "rows.csv", MOONCAKE.as_bytes());
    let options = TraceOptions { format: Some(Format::Mooncake), ..TraceOptions::default() };
    assert!(Trace::open(&path, &options).is_ok());
    assert!(Trace::open(&path, &TraceOptions::default()).is_err());
}

#[test]
fn unreadable_files_say_which() {
    let dir = TempDir::new().unwrap();
    let open = |path: PathBuf| Trace::open(&path, &TraceOptions::default()).unwrap_err();
    assert!(matches!(open(dir.path().join("none.jsonl")), TraceError::Io { .. }));
    assert!(matches!(open(file(&dir, "notes.txt", b"hello\n")), TraceError::Format(FormatError::Unknown { .. })));
    assert!(matches!(open(file(&dir, "e.jsonl", b" \n")), TraceError::Format(FormatError::Empty { .. })));
    // A truncated archive is an error, not an early end of the trace.
    let half = packed(&MOONCAKE.repeat(500));
    let cut = file(&dir, "cut.jsonl.gz", &half[..half.len() - 12]);
    assert!(matches!(open(cut), TraceError::Io { .. }));
}

#[test]
fn relatives_of_mooncake_are_recognised_by_their_first_row() {
    let dir = TempDir::new().unwrap();
    let agentic = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":4,"hash_id_scope":"local"}
{"request_id":"a","output_length":1,"hash_ids":[1]}"#;
    let trace = Trace::open(&file(&dir, "agentic.jsonl", agentic.as_bytes()), &TraceOptions::default()).unwrap();
    assert!(trace.has_free_turns);
    let log = r#"{"event_type":"request_payload"}"#;
    let error = Trace::open(&file(&dir, "log.jsonl", log.as_bytes()), &TraceOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::Empty { .. }), "{error}");
    let sessions = r#"{"num_turns":0,"input_prompt_length":5}"#;
    let error = Trace::open(&file(&dir, "sessions.jsonl", sessions.as_bytes()), &TraceOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::NeedsClosedLoop { .. }), "{error}");
}
