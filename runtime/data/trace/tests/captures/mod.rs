mod wrong;

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};
use tempfile::TempDir;
use vcr_trace::capture::{
    Arrival, BlockHash, BrokenOff, CAPTURE_FORMAT, CaptureEnd, CaptureError, CaptureFile, CaptureLine, CaptureMeta,
    CapturePosition, CaptureReader, CaptureSummary, CaptureWriter, FinishReason, ReadOptions, RequestRecord,
};

const STRICT: ReadOptions = ReadOptions { lenient: false };
const LENIENT: ReadOptions = ReadOptions { lenient: true };
const META: &str = r#"{"kind":"meta","format":"vcr.capture","version":1,"block_size_tokens":4}"#;
const REQUEST: &str = r#"{"kind":"request","prompt_tokens":9,"output_tokens":1,"finish_reason":"stop"}"#;

fn meta(part: u32) -> CaptureMeta {
    CaptureMeta {
        format: CAPTURE_FORMAT.to_owned(),
        version: 1,
        part,
        block_size_tokens: Some(4),
        ..Default::default()
    }
}

fn arrival(id: &str) -> CaptureLine {
    CaptureLine::Arrival(Arrival { id: id.to_owned(), arrival_ns: 5, prompt_tokens: 9 })
}

fn request(id: &str) -> RequestRecord {
    RequestRecord {
        id: Some(id.to_owned()),
        arrival_ns: Some(5),
        prompt_tokens: 9,
        block_hashes: vec![BlockHash(1), BlockHash(2)],
        output_tokens: 4,
        ttft_ns: Some(10),
        gap_ns: vec![7, 8],
        gap_tokens: Some(vec![1, 2]),
        finish_reason: Some("stop".to_owned()),
        ..RequestRecord::default()
    }
}

fn line(record: RequestRecord) -> CaptureLine {
    CaptureLine::Request(Box::new(record))
}

fn end(requests: u64, continues: bool) -> CaptureLine {
    CaptureLine::End(CaptureEnd { requests, continues, ..CaptureEnd::default() })
}

fn write(path: &Path, part: u32, lines: &[CaptureLine]) {
    let mut writer = CaptureWriter::create(path, meta(part)).expect("the file is new");
    for line in lines {
        writer.write(line).expect("it is written");
    }
    writer.finish().expect("it is written");
}

type Read = Result<(Vec<(u32, CaptureLine)>, CaptureSummary), CaptureError>;

fn drain(mut reader: CaptureReader<'_>) -> Read {
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line()? {
        lines.push(line);
    }
    assert!(reader.next_line()?.is_none(), "the end stays the end");
    Ok((lines, reader.summary()))
}

fn read(path: &Path, options: &ReadOptions) -> Read {
    drain(CaptureReader::open(path, options)?)
}

fn read_text(text: &str, options: &ReadOptions) -> Read {
    drain(CaptureReader::from_reader(text.as_bytes(), "t", options)?)
}

fn scan(path: &Path) -> (CaptureFile, Vec<CapturePosition>, CaptureSummary) {
    let file = CaptureFile::open(path, &STRICT).expect("a capture");
    let mut positions = Vec::new();
    let summary = file.scan(|head| positions.push(head.position)).expect("whole");
    (file, positions, summary)
}

#[test]
fn every_packing_reads_back_and_at_random() {
    let folder = TempDir::new().expect("a folder");
    let lines = [arrival("a"), arrival("b"), line(request("b")), line(request("a")), end(2, false)];
    for name in ["c.jsonl", "c.jsonl.gz", "c.jsonl.zst"] {
        let path = folder.path().join(name);
        write(&path, 0, &lines);
        let (read, summary) = read(&path, &STRICT).expect("whole");
        assert_eq!(read.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        assert!(read.iter().map(|(_, line)| line).eq(&lines), "{name}");
        assert_eq!(summary, CaptureSummary { requests: 2, ..CaptureSummary::default() });

        let (file, positions, summary) = scan(&path);
        assert_eq!(summary.requests, 2);
        assert_eq!(file.record_at(positions[1]).expect("there"), request("a"));
        assert_eq!(file.record_at(positions[0]).expect("there"), request("b"));
        assert_eq!(positions[0].line(), 4);
    }
}

#[test]
fn heads_tell_what_replay_sorts_by() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("c.jsonl");
    write(&path, 0, &[line(RequestRecord { lora: Some("l".to_owned()), ..request("a") }), end(1, false)]);
    let mut heads = 0;
    let file = CaptureFile::open(&path, &STRICT).expect("a capture");
    file.scan(|head| {
        heads += 1;
        assert_eq!((head.prompt_tokens, head.output_tokens, head.arrival_ns), (9, 4, Some(5)));
        assert_eq!((head.id, head.lora, head.session), (Some("a"), Some("l"), None));
        assert_eq!(head.block_hashes, [BlockHash(1), BlockHash(2)]);
        assert_eq!(head.finish_reason, Some(FinishReason::Stop));
        assert_eq!(head.duration_ns, Some(25));
    })
    .expect("whole");
    assert_eq!(heads, 1);
}

#[test]
fn files_are_shared_between_threads() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("c.jsonl.gz");
    let records: Vec<CaptureLine> = (0..50).map(|index| line(request(&format!("r{index}")))).collect();
    write(&path, 0, &records);
    let (file, positions, _) = scan(&path);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (index, position) in positions.iter().enumerate() {
                    let record = file.record_at(*position).expect("there");
                    assert_eq!(record.id, Some(format!("r{index}")));
                }
            });
        }
    });
}

#[test]
fn what_had_ended_survives_a_kill_at_any_byte() {
    let folder = TempDir::new().expect("a folder");
    let whole = folder.path().join("whole.jsonl");
    write(&whole, 0, &[arrival("a"), arrival("b"), line(request("a")), line(request("b")), end(2, false)]);
    let bytes = std::fs::read(&whole).expect("there");
    let first_line_bytes = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    for cut in first_line_bytes..bytes.len() - 1 {
        let path = folder.path().join("cut.jsonl");
        std::fs::write(&path, &bytes[..cut]).expect("writable");
        let (lines, summary) = read(&path, &STRICT).unwrap_or_else(|error| panic!("at {cut}: {error}"));
        let whole_lines = bytes[first_line_bytes..cut].iter().filter(|byte| **byte == b'\n').count();
        assert!(lines.len() == whole_lines || lines.len() == whole_lines + 1, "at {cut}");
        assert!(summary.broken_off.is_some(), "at {cut}");
        let arrived = lines.iter().filter(|(_, line)| matches!(line, CaptureLine::Arrival(_))).count() as u64;
        assert_eq!(summary.under_way, arrived - summary.requests);
        assert_eq!(scan(&path).2, summary);
    }
}

#[test]
fn cut_archives_end_as_files_do() {
    let folder = TempDir::new().expect("a folder");
    let records: Vec<CaptureLine> =
        (0..2000).flat_map(|index| [arrival(&format!("r{index}")), line(request(&format!("r{index}")))]).collect();
    for name in ["c.jsonl.gz", "c.jsonl.zst"] {
        let path = folder.path().join(name);
        write(&path, 0, &records);
        let bytes = std::fs::read(&path).expect("there");
        std::fs::write(&path, &bytes[..bytes.len() - 3]).expect("writable");
        let (lines, summary) = read(&path, &STRICT).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(summary.broken_off, Some(BrokenOff::CutArchive), "{name}");
        assert_eq!(summary.warnings.len(), 1);
        assert!(lines.len() <= records.len());
        assert_eq!(scan(&path).2, summary, "{name}");
    }
}

#[test]
fn damage_in_an_archive_is_an_error() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("c.jsonl.gz");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    writeln!(packed, "{META}").expect("a vector takes all");
    for index in 0..500_000u64 {
        let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        writeln!(packed, r#"{{"kind":"arrival","id":"{mixed}","arrival_ns":1,"prompt_tokens":1}}"#).expect("taken");
    }
    let mut bytes = packed.finish().expect("a vector takes all");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    std::fs::write(&path, &bytes).expect("writable");
    for options in [STRICT, LENIENT] {
        let error = read(&path, &options).expect_err("damaged");
        assert!(matches!(error, CaptureError::Packed { line: 1.., .. } | CaptureError::Line { .. }), "{error}");
    }
    assert!(CaptureFile::open(&path, &STRICT).is_err());
}

fn rotated(folder: &Path, suffixes: [&str; 3]) -> Vec<PathBuf> {
    let names = ["c.jsonl", "c.1.jsonl", "c.2.jsonl"];
    let paths: Vec<PathBuf> =
        names.iter().zip(suffixes).map(|(name, packing)| folder.join(format!("{name}{packing}"))).collect();
    write(&paths[0], 0, &[arrival("a"), arrival("b"), line(request("a")), end(1, true)]);
    write(&paths[1], 1, &[line(request("b")), arrival("c"), end(1, true)]);
    write(&paths[2], 2, &[line(request("c")), end(1, false)]);
    paths
}

#[test]
fn rotated_captures_read_as_one() {
    let folder = TempDir::new().expect("a folder");
    let paths = rotated(folder.path(), ["", ".gz", ""]);
    for path in [&paths[0], &folder.path().to_owned()] {
        let (lines, summary) = read(path, &STRICT).expect("whole");
        let ids: Vec<_> = lines
            .iter()
            .filter_map(|(_, line)| match line {
                CaptureLine::Request(record) => record.id.as_deref(),
                _ => None,
            })
            .collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(summary, CaptureSummary { requests: 3, ..CaptureSummary::default() });
        let (file, positions, summary) = scan(path);
        assert_eq!(summary.requests, 3);
        assert_eq!(file.record_at(positions[2]).expect("there").id.as_deref(), Some("c"));
    }
    let (_, summary) = read(&paths[1], &STRICT).expect("from its middle");
    assert_eq!((summary.requests, summary.warnings.len()), (2, 1));
}

#[test]
fn missing_parts_are_named() {
    let folder = TempDir::new().expect("a folder");
    let paths = rotated(folder.path(), ["", "", ""]);
    std::fs::remove_file(&paths[1]).expect("there");
    for path in [&paths[0], &folder.path().to_owned()] {
        let error = read(path, &STRICT).expect_err("a part is missing").to_string();
        assert!(error.contains("c.1.jsonl`, which is missing"), "{error}");
        let file = CaptureFile::open(path, &STRICT).expect("the first is there");
        assert_eq!(file.scan(|_| ()).expect_err("a part is missing").to_string(), error);
    }
    let (_, summary) = read(&paths[0], &LENIENT).expect("as far as it goes");
    assert_eq!((summary.requests, summary.broken_off), (1, Some(BrokenOff::MissingPart)));

    std::fs::remove_file(&paths[0]).expect("there");
    let error = read(folder.path(), &STRICT).expect_err("the first is missing").to_string();
    assert!(error.contains("c.jsonl`, which is missing"), "{error}");
}

#[test]
fn parts_under_wrong_names_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let paths = rotated(folder.path(), ["", "", ""]);
    std::fs::rename(&paths[2], &paths[1]).expect("there");
    let error = read(&paths[0], &STRICT).expect_err("part 2 is not part 1");
    assert!(matches!(error, CaptureError::WrongPart { part: 2, expected: 1, .. }), "{error}");
}

#[test]
fn a_part_that_breaks_off_is_only_passed_over_leniently() {
    let folder = TempDir::new().expect("a folder");
    let paths = rotated(folder.path(), ["", "", ""]);
    std::fs::remove_file(&paths[1]).expect("there");
    write(&paths[1], 1, &[line(request("b"))]);
    let error = read(&paths[0], &STRICT).expect_err("lines are lost");
    assert!(matches!(error, CaptureError::BrokenPart { .. }), "{error}");
    let (_, summary) = read(&paths[0], &LENIENT).expect("the rest");
    assert_eq!((summary.requests, summary.broken_off, summary.warnings.len()), (3, None, 1));
}

#[test]
fn an_empty_or_half_begun_last_part_is_a_clean_break() {
    let folder = TempDir::new().expect("a folder");
    let paths = rotated(folder.path(), ["", "", ""]);
    for start in ["", "{\"kind\":\"meta\",\"for"] {
        std::fs::write(&paths[2], start).expect("writable");
        let (_, summary) = read(&paths[0], &STRICT).expect("whole as far as it goes");
        assert_eq!((summary.requests, summary.under_way), (2, 1));
        assert!(summary.broken_off.is_some());
    }
}

#[test]
fn a_folder_holds_one_capture() {
    let folder = TempDir::new().expect("a folder");
    let open = || CaptureReader::open(folder.path(), &STRICT).map(|_| ()).map_err(|error| error.to_string());
    assert!(open().expect_err("empty").contains("holds 0 captures"));
    write(&folder.path().join("llama-3.1.jsonl"), 0, &[end(0, false)]);
    open().expect("a name with a dot");
    write(&folder.path().join("other.jsonl.gz"), 0, &[end(0, false)]);
    assert!(open().expect_err("two").contains("holds 2 captures (llama-3.1.jsonl, other.jsonl.gz)"));
}

#[test]
fn files_that_are_no_captures_are_refused() {
    let newer = r#"{"kind":"meta","format":"vcr.capture","version":2,"holds":7}"#;
    for (text, part) in [
        ("", "holds no line"),
        (REQUEST, "line 1: a capture starts with"),
        ("hello", "line 1: a capture starts with"),
        (r#"{"kind":"meta","format":"other","version":1}"#, "line 1: a capture starts with"),
        (newer, "field `version`: unknown version 2, expected 1"),
        (r#"{"kind":"meta","format":"vcr.capture"}"#, "field `version`: the field is missing"),
        (r#"{"kind":"meta","format":"vcr.capture","version":1,"block_size_tokens":0}"#, "field `block_size_tokens`"),
    ] {
        for options in [STRICT, LENIENT] {
            let error = read_text(text, &options).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
