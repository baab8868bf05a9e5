//! Errors in lines and their consequences.

use tempfile::TempDir;
use vcr_trace::capture::{CaptureError, CaptureLine, CaptureReader};

use crate::captures::{LENIENT, META, REQUEST, STRICT, line, read_text, request, scan, write};

/// Each invalid line, with the field that its error names and a part of the error's text.
const WRONG: &[(&str, &str, &str)] = &[
    (r#"{"kind":"request","output_tokens":1}"#, "prompt_tokens", "missing"),
    (r#"{"kind":"request","prompt_tokens":1}"#, "output_tokens", "missing"),
    (r#"{"kind":"request","prompt_tokens":0,"output_tokens":1}"#, "prompt_tokens", "no tokens"),
    (
        r#"{"kind":"request","prompt_tokens":"1","output_tokens":1}"#,
        "prompt_tokens",
        "whole number from 0 to 4294967295",
    ),
    (
        r#"{"kind":"request","prompt_tokens":-1,"output_tokens":1}"#,
        "prompt_tokens",
        "`-1`, expected a whole number from 0",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":2,"gap_ns":[-5]}"#,
        "gap_ns[0]",
        "`-5`, expected a whole number from 0",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":3,"gap_ns":[5]}"#,
        "output_tokens",
        "the outputs have 2 together",
    ),
    (r#"{"kind":"request","prompt_tokens":1,"output_tokens":3,"first_tokens":2}"#, "output_tokens", "have 2 together"),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":0,"mm_items":[{"hash":"a","offset":0,"tokens":4},{"hash":"b","offset":3,"tokens":1}]}"#,
        "mm_items[1].offset",
        "begins at token 3, but the item before it ends at 4",
    ),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":0,"mm_items":[{"hash":"a","offset":8,"tokens":2}]}"#,
        "mm_items[0].tokens",
        "ends at token 10, but the prompt has 9",
    ),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":0,"mm_items":[{"hash":"a","offset":8,"tokens":0}]}"#,
        "mm_items[0].tokens",
        "the item has no tokens",
    ),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":0,"mm_items":[{"hash":"","offset":0,"tokens":1}]}"#,
        "mm_items[0].hash",
        "the hash is empty",
    ),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":0,"mm_items":[{"hash":"a","offset":0,"tokens":4,"embeds":[[2,5]]}]}"#,
        "mm_items[0].embeds",
        "invalid run [2, 5]: expected ascending runs within the item's 4 tokens",
    ),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":0,"mm_hashes":["a"],"mm_items":[{"hash":"a","offset":0,"tokens":4}]}"#,
        "mm_hashes",
        "both `mm_items` and `mm_hashes` are given",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":3,"gap_ns":[5],"gap_tokens":[1]}"#,
        "output_tokens",
        "have 2",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":3,"gap_ns":[5],"gap_tokens":[1,1]}"#,
        "gap_tokens",
        "expected 1 items, got 2",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":3,"gap_ns":[5,5],"gap_tokens":[2,0]}"#,
        "gap_tokens[1]",
        "at least 1",
    ),
    (r#"{"kind":"request","prompt_tokens":1,"output_tokens":1,"first_tokens":0}"#, "first_tokens", "at least 1"),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":1,"output_token_ids":[1,2]}"#,
        "output_token_ids",
        "expected 1 items, got 2",
    ),
    (
        r#"{"kind":"request","prompt_tokens":2,"output_tokens":1,"prompt_token_ids":[1]}"#,
        "prompt_token_ids",
        "expected 2 items, got 1",
    ),
    (
        r#"{"kind":"request","prompt_tokens":9,"output_tokens":1,"block_hashes":[1]}"#,
        "block_hashes",
        "expected 2 items, got 1",
    ),
    (
        r#"{"kind":"request","prompt_tokens":4,"output_tokens":1,"block_hashes":["1"]}"#,
        "block_hashes[0]",
        "16 hexadecimal digits",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":2,"gap_ns":[1],"steps":{"running":[1]}}"#,
        "steps.running",
        "expected 2 items, got 1",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":2,"gap_ns":[1],"gap_summary":{"mean_ns":1,"count":1}}"#,
        "gap_summary",
        "keep one",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":2,"gap_summary":{"mean_ns":1,"count":2}}"#,
        "gap_summary.count",
        "fewer gaps",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":2,"gap_summary":{"count":1}}"#,
        "gap_summary.mean_ns",
        "missing",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":1,"cached_tokens":2}"#,
        "cached_tokens",
        "of a prompt of 1",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":1,"finish_reason":"tired"}"#,
        "finish_reason",
        "invalid finish reason `tired`: expected stop, length",
    ),
    (
        r#"{"kind":"request","prompt_tokens":1,"output_tokens":1,"arrival_ns":18446744073709551615,"ttft_ns":1}"#,
        "ttft_ns",
        "584 years",
    ),
    (r#"{"kind":"arrival","id":"a","arrival_ns":1.5,"prompt_tokens":1}"#, "arrival_ns", "whole number"),
    (r#"{"kind":"arival","id":"a"}"#, "kind", "unknown kind of line `arival`"),
    (r#"{"id":"a"}"#, "kind", "missing"),
    (META, "", "a second meta line"),
    (
        r#"{"kind":"meta","format":"vcr.capture","version":3}"#,
        "version",
        "of version 3 where the first is of version 1",
    ),
    (r#"{"kind":"request","prompt_tokens":1,"output_tokens":1"#, "", "cut off"),
    ("garbage", "", "expected value"),
    (r#"{"kind":"end","at_ns":1,"requests":7,"unfinished":0}"#, "requests", "counts 7 requests"),
];

#[test]
fn wrong_lines_are_refused_with_line_and_field_and_skipped_leniently() {
    for (wrong, field, part) in WRONG {
        let text = format!("{META}\n{REQUEST}\n{wrong}\n{REQUEST}\n");
        let error = read_text(&text, &STRICT).expect_err(wrong).to_string();
        let place = if field.is_empty() { "line 3: ".to_owned() } else { format!("line 3, field `{field}`: ") };
        assert!(error.starts_with(&format!("capture `t`, {place}")), "{wrong}: {error}");
        assert!(error.contains(part), "{wrong}: {error}");
        assert!(!error.contains(" at line 1"), "{wrong}: {error}");

        let (_, summary) = read_text(&text, &LENIENT).unwrap_or_else(|error| panic!("{wrong}: {error}"));
        // After an `end` line, even one with wrong counts, no line may follow.
        let skipped = if wrong.contains("\"end\"") { 2 } else { 1 };
        assert_eq!((summary.requests, summary.skipped_lines), (3 - skipped, skipped), "{wrong}");
        assert_eq!(summary.warnings[0].first_line, 3, "{wrong}");
    }
}

#[test]
fn problems_of_one_kind_are_counted_together() {
    let wrong = r#"{"kind":"request","prompt_tokens":1}"#;
    let text = format!("{META}\n{wrong}\n{wrong}\n{{}}\n{REQUEST}\n");
    let (_, summary) = read_text(&text, &LENIENT).expect("lenient");
    let counts: Vec<(u32, u32)> = summary.warnings.iter().map(|warning| (warning.first_line, warning.lines)).collect();
    assert_eq!(counts, [(2, 2), (4, 1), (5, 1)]);
    assert!(summary.warnings[0].to_string().contains("2 line(s) skipped, first line 2, field `output_tokens`"));
}

#[test]
fn a_reader_goes_on_behind_an_error() {
    let text = format!("{META}\n{{}}\n{REQUEST}\n");
    let mut reader = CaptureReader::from_reader(text.as_bytes(), "t", &STRICT).expect("a capture");
    assert!(reader.next_line().is_err());
    assert!(matches!(reader.next_line(), Ok(Some((3, CaptureLine::Request(_))))));
}

#[test]
fn nothing_follows_the_end() {
    let end = r#"{"kind":"end","at_ns":1,"requests":1,"unfinished":0}"#;
    for after in [REQUEST, "{\"kind\":\"req"] {
        let error = read_text(&format!("{META}\n{REQUEST}\n{end}\n{after}"), &STRICT).expect_err("more").to_string();
        assert!(error.starts_with("capture `t`, line 4: "), "{error}");
    }
}

#[test]
fn unknown_fields_are_kept_and_counted() {
    let text = format!("{META}\n{{\"prompt_tokens\":1,\"new\":[1],\"output_tokens\":1,\"kind\":\"request\"}}\n");
    let (lines, summary) = read_text(&text, &STRICT).expect("whole");
    let CaptureLine::Request(record) = &lines[0].1 else { panic!("{lines:?}") };
    assert_eq!(record.other.get("new"), Some(&serde_json::json!([1])));
    assert_eq!(record.other.len(), 1);
    assert!(summary.warnings[0].to_string().contains("unknown field `new` on 1 line(s), first on line 2"));
    let again = serde_json::to_value(&lines[0].1).expect("JSON");
    assert_eq!(again["new"], serde_json::json!([1]));
}

#[test]
fn a_record_that_changed_on_disk_is_noticed() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("c.jsonl");
    write(&path, 0, &[line(request("a"))]);
    let (file, positions, _) = scan(&path);
    let text = std::fs::read_to_string(&path).expect("there").replace("\"request\"", "\"arrival\"");
    std::fs::write(&path, text).expect("writable");
    assert!(matches!(file.record_at(positions[0]), Err(CaptureError::Line { line: 2, .. })));
    std::fs::write(&path, "").expect("writable");
    assert!(matches!(file.record_at(positions[0]), Err(CaptureError::Io { .. })));
}
