//! The sample traces of vllm-vcr are read and written again.

use std::path::PathBuf;

use serde_json::Value;
use vcr_trace::capture::{
    BrokenOff, CaptureFile, CaptureFormat, CaptureLine, CaptureMeta, CaptureReader, HashScheme, ReadOptions,
    RequestRecord, VllmVcrDropped, VllmVcrWriter,
};

fn samples() -> Vec<PathBuf> {
    let Some(folder) = vcr_skips::sample("captures/vllm-vcr") else { return Vec::new() };
    let entries = std::fs::read_dir(&folder).expect("the folder can be listed");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    paths.sort();
    assert!(paths.len() >= 7, "{paths:?}");
    paths
}

fn read_all(mut reader: CaptureReader<'_>) -> (CaptureMeta, Vec<RequestRecord>) {
    let mut records = Vec::new();
    while let Some((_, line)) = reader.next_line().expect("it is whole") {
        let CaptureLine::Request(record) = line else { panic!("{line:?}") };
        records.push(*record);
    }
    assert_eq!(reader.summary().broken_off, None);
    assert_eq!(reader.summary().warnings, []);
    (reader.meta().clone(), records)
}

fn ns(ms: &Value) -> u64 {
    (ms.as_f64().expect("a number") * 1e6).round() as u64
}

fn numbers(list: &Value) -> Option<Vec<u32>> {
    serde_json::from_value(list.clone()).ok()
}

#[test]
fn samples_read_as_they_are() {
    for path in samples() {
        let reader = CaptureReader::open(&path, &ReadOptions::default()).expect("a trace");
        assert_eq!(reader.format(), CaptureFormat::VllmVcr);
        let (meta, records) = read_all(reader);
        assert_eq!(meta.hash, HashScheme::Fnv1a);
        let text = std::fs::read_to_string(&path).expect("readable");
        let mut rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let head = &rows.next().expect("a meta line")["meta"];
        assert_eq!(meta.model.as_deref(), head["model"].as_str());
        assert_eq!(meta.block_size_tokens.map(u64::from), head["block_size"].as_u64());
        assert_eq!(meta.other.get("max_num_seqs"), head.get("max_num_seqs"));
        let rows: Vec<Value> = rows.collect();
        assert_eq!(rows.len(), records.len());
        for (row, record) in rows.iter().zip(&records) {
            check(row, record);
        }
    }
}

fn check(row: &Value, record: &RequestRecord) {
    assert_eq!(row["prompt_tokens"], record.prompt_tokens);
    assert_eq!(row["output_tokens"], record.output_tokens);
    assert_eq!(row["cached_tokens"].as_u64().unwrap_or(0), u64::from(record.cached_tokens));
    assert_eq!(Some(ns(&row["ttft_ms"])), record.ttft_ns);
    assert_eq!(row.get("arrival_ms").map(ns), record.arrival_ns);
    assert_eq!(row["concurrency"].as_u64().unwrap_or(1), u64::from(record.concurrency.expect("given or 1")));
    let gaps: Vec<u64> = row["itl_ms"].as_array().map_or(Vec::new(), |gaps| gaps.iter().map(ns).collect());
    assert_eq!(gaps, record.gap_ns);
    assert_eq!(numbers(&row["itl_tokens"]), record.gap_tokens);
    assert_eq!(numbers(&row["output_token_ids"]), record.output_token_ids);
    assert_eq!(row["finish_reason"].as_str(), record.finish_reason.as_deref());
    let summary = record.gap_summary.map(|summary| (summary.mean_ns, u64::from(summary.count)));
    let its = row.get("itl_summary").map(|its| (ns(&its["mean_ms"]), its["count"].as_u64().expect("a count")));
    assert_eq!(its, summary);
    let hashes: Vec<u64> = record.block_hashes.iter().map(|hash| hash.0).collect();
    let its: Option<Vec<u64>> = serde_json::from_value(row["block_hashes"].clone()).ok();
    assert_eq!(its.unwrap_or_default(), hashes);
    if let Some(context) = row.get("itl_ctx") {
        let steps = record.steps.as_ref().expect("it has them");
        assert_eq!(numbers(&context["num_running"]).as_deref(), Some(&steps.running[1..]));
        assert_eq!(numbers(&context["prefill_tokens"]).as_deref(), Some(&steps.prefill_tokens[1..]));
    }
    assert!(record.is_over(), "every record of theirs is of a request that is over");
}

#[test]
fn samples_survive_being_written_and_read_again() {
    for path in samples() {
        let first = read_all(CaptureReader::open(&path, &ReadOptions::default()).expect("a trace"));
        let mut bytes = Vec::new();
        let mut writer = VllmVcrWriter::new(&mut bytes, &first.0).expect("a vector takes all");
        for record in &first.1 {
            writer.write(&CaptureLine::Request(Box::new(record.clone()))).expect("a vector takes all");
        }
        assert_eq!(writer.finish().expect("a vector takes all"), VllmVcrDropped::default(), "{}", path.display());
        let again = CaptureReader::from_reader(&bytes[..], "again", &ReadOptions::default()).expect("a trace");
        assert_eq!(read_all(again), first, "{}", path.display());
    }
}

fn read_text(text: &str) -> Result<Vec<RequestRecord>, String> {
    let mut reader =
        CaptureReader::from_reader(text.as_bytes(), "t", &ReadOptions::default()).map_err(|e| e.to_string())?;
    let mut records = Vec::new();
    while let Some((_, line)) = reader.next_line().map_err(|error| error.to_string())? {
        let CaptureLine::Request(record) = line else { continue };
        records.push(*record);
    }
    Ok(records)
}

#[test]
fn the_meta_line_may_be_absent() {
    let records = read_text("{\"prompt_tokens\":3,\"output_tokens\":1,\"ttft_ms\":1.5}\n").expect("a trace");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].ttft_ns, Some(1_500_000));
    assert_eq!(records[0].end_ns, Some(1_500_000));
}

#[test]
fn their_traces_are_not_rotated_and_may_break_off() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let row = "{\"prompt_tokens\":3,\"output_tokens\":1,\"ttft_ms\":1.5}\n";
    std::fs::write(folder.path().join("t.1.jsonl"), row).expect("writable");
    let path = folder.path().join("t.jsonl");
    std::fs::write(&path, format!("{row}{}", &row[..20])).expect("writable");
    let mut reader = CaptureReader::open(&path, &ReadOptions::default()).expect("a trace");
    assert!(reader.next_line().expect("whole").is_some());
    assert!(reader.next_line().expect("a clean break").is_none());
    assert_eq!(reader.summary().broken_off, Some(BrokenOff::HalfLine));
    let file = CaptureFile::open(&path, &ReadOptions::default()).expect("a trace");
    assert_eq!(file.scan(|_| ()).expect("a clean break"), reader.summary());
}

#[test]
fn the_first_output_gets_what_is_nearest() {
    let row = r#"{"prompt_tokens":30,"cached_tokens":10,"output_tokens":3,"ttft_ms":1,"itl_ms":[1],"itl_tokens":[1],
        "itl_ctx":{"num_running":[7],"prefill_tokens":[9]},"concurrency":4}"#
        .replace('\n', "");
    let records = read_text(&row).expect("a trace");
    let steps = records[0].steps.as_ref().expect("given");
    assert_eq!((&steps.running[..], &steps.prefill_tokens[..]), (&[4, 7][..], &[20, 9][..]));
    assert_eq!(records[0].first_tokens, Some(2));
}

#[test]
fn wrong_records_are_refused_with_line_and_field() {
    let good = r#"{"prompt_tokens":3,"output_tokens":1,"ttft_ms":1}"#;
    for (row, field) in [
        (r#"{"output_tokens":1,"ttft_ms":1}"#, "prompt_tokens"),
        (r#"{"prompt_tokens":3,"output_tokens":1}"#, "ttft_ms"),
        (r#"{"prompt_tokens":3,"output_tokens":2,"ttft_ms":1}"#, "itl_ms"),
        (r#"{"prompt_tokens":3,"output_tokens":1,"ttft_ms":-1}"#, "ttft_ms"),
        (r#"{"prompt_tokens":3,"output_tokens":2,"ttft_ms":1,"itl_ms":[-0.5]}"#, "itl_ms[0]"),
        (r#"{"prompt_tokens":3,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"itl_tokens":[1,1]}"#, "itl_tokens"),
        (r#"{"prompt_tokens":3,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"itl_tokens":[0]}"#, "gap_tokens[0]"),
        (r#"{"prompt_tokens":3,"output_tokens":2,"ttft_ms":1,"itl_ms":[1,1]}"#, "output_tokens"),
        (r#"{"prompt_tokens":3,"output_tokens":1,"ttft_ms":1,"output_token_ids":[1,2]}"#, "output_token_ids"),
        (r#"{"prompt_tokens":3,"output_tokens":1,"ttft_ms":1,"finish_reason":"tired"}"#, "finish_reason"),
    ] {
        let error = read_text(&format!("{good}\n\n{row}\n")).expect_err(row);
        assert!(error.starts_with(&format!("capture `t`, line 3, field `{field}`: ")), "{row}: {error}");
    }
}

#[test]
fn what_the_schema_lacks_is_dropped_and_counted() {
    let record = |record: RequestRecord| CaptureLine::Request(Box::new(RequestRecord { prompt_tokens: 5, ..record }));
    let mut bytes = Vec::new();
    let mut writer = VllmVcrWriter::new(&mut bytes, &CaptureMeta::default()).expect("a vector takes all");
    let over = || Some("stop".to_owned());
    let lines = [
        record(RequestRecord::default()),
        record(RequestRecord { finish_reason: over(), ..RequestRecord::default() }),
        record(RequestRecord { finish_reason: over(), ttft_ns: Some(1), output_tokens: 2, ..RequestRecord::default() }),
        record(RequestRecord {
            finish_reason: over(),
            ttft_ns: Some(1),
            output_tokens: 1,
            id: Some("a".to_owned()),
            priority: -1,
            ..RequestRecord::default()
        }),
        CaptureLine::Break(Default::default()),
        CaptureLine::Arrival(Default::default()),
        CaptureLine::End(Default::default()),
    ];
    for line in &lines {
        writer.write(line).expect("a vector takes all");
    }
    let dropped = writer.finish().expect("a vector takes all");
    assert_eq!((dropped.unfinished, dropped.without_times), (1, 2));
    assert_eq!(dropped.fields, [("id", 1), ("priority", 1)].into());
    assert_eq!(dropped.lines, [("break", 1)].into());
    let text = String::from_utf8(bytes).expect("text");
    // vllm-vcr uses other hashes, so the meta line names the scheme.
    assert_eq!(text.lines().next(), Some(r#"{"meta":{"hash":"xxh3-64"}}"#));
    assert_eq!(read_text(&text).expect("a trace").len(), 1);
}
