use super::perfetto::{PerfettoExport, PerfettoFormat};
use super::proto::{COUNTER, INSTANT, SLICE_BEGIN, SLICE_END, TracePacket};
use super::*;
use std::fs::File;
use std::path::Path;

use crate::capture::{BlockHash, CaptureReader, ReadOptions, RequestRecord, StepRecord};
use crate::{Trace, TraceOptions};
use prost::Message;
use serde_json::{Value, json};

use crate::import::{ImportOptions, import};

fn sample() -> Vec<CaptureLine> {
    let request = |id: &str, arrival_ns, session: Option<&str>, hashes: &[u64], whole| {
        CaptureLine::Request(Box::new(RequestRecord {
            id: Some(id.to_owned()),
            arrival_ns: Some(arrival_ns),
            prompt_tokens: 40,
            output_tokens: 4,
            block_hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
            prompt_hash: Some(BlockHash(whole)),
            session: session.map(str::to_owned),
            queue_ns: Some(100),
            ttft_ns: Some(1000),
            gap_ns: vec![500, 500],
            gap_tokens: Some(vec![1, 2]),
            finish_reason: Some("abort".to_owned()),
            ..RequestRecord::default()
        }))
    };
    let scheduler = json!({"num_running_reqs": 2, "num_waiting_reqs": 1, "kv_cache_usage": 0.5});
    let step = |step, at_ns| {
        let scheduler = Some(scheduler.clone());
        CaptureLine::Step(Box::new(StepRecord {
            step,
            at_ns,
            tokens: 3,
            outputs: 2,
            scheduler,
            ..StepRecord::default()
        }))
    };
    let meta = CaptureMeta {
        format: crate::capture::CAPTURE_FORMAT.to_owned(),
        version: crate::capture::CAPTURE_VERSION,
        block_size_tokens: Some(16),
        ..CaptureMeta::default()
    };
    vec![
        CaptureLine::Meta(Box::new(meta)),
        request("b", 1500, None, &[1, 2], 9),
        request("a", 0, Some("x"), &[1, 2], 9),
        step(0, 1000),
        step(1, 1500),
        request("c", 3000, Some("x"), &[1, 3], 8),
    ]
}

fn new_file(path: &Path) -> File {
    File::create_new(path).expect("the file is new")
}

fn exported(target: Target, suffix: &str) -> (String, Vec<Note>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(format!("out{suffix}"));
    let mut exporter = Exporter::new(new_file(&path), &path, target);
    sample().into_iter().for_each(|line| exporter.add(line).expect("a line"));
    let notes = exporter.finish().expect("an end");
    (std::fs::read_to_string(&path).expect("a text"), notes)
}

#[test]
fn a_table_has_a_row_for_each_request() {
    let (text, notes) = exported(Target::Csv, ".csv");
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[2], "a,,x,0,0,,40,0,0,4,100,1000,500,500,2000,abort,0,0,,0000000000000009");
    let notes: Vec<_> = notes.iter().map(|note| (note.count, note.what.as_str())).collect();
    let lost = [
        (2, "`step` lines"),
        (3, "requests lost their `block_hashes`"),
        (3, "requests lost their `gap_ns`"),
        (3, "requests lost their `gap_tokens`"),
    ];
    assert_eq!(notes, lost);
}

#[test]
fn mooncake_rows_keep_arrivals_sessions_and_prefixes() {
    let (text, notes) = exported(Target::Mooncake, ".jsonl");
    let options = TraceOptions { block_size_tokens: std::num::NonZeroU32::new(16), ..TraceOptions::default() };
    let trace = Trace::read(text.as_bytes(), "out", crate::Format::Mooncake, &options).expect("a trace");
    let names: Vec<_> = trace.requests.iter().map(|request| request.request_id.as_deref().expect("a name")).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let ids: Vec<_> = trace.requests.iter().map(|request| trace.hash_ids(request).to_vec()).collect();
    // The partial blocks of a and b are equal; that of c differs.
    assert_eq!(ids, [[0, 1, 2], [0, 1, 2], [0, 3, 4]]);
    assert_eq!(trace.requests[1].arrival_ns, Some(1500));
    // c arrives 1000 ns after the end of a, which takes 2000 ns.
    assert_eq!((trace.requests[2].turn, trace.requests[2].delay_ns), (1, 1000));
    assert!(notes.iter().any(|note| note.what == "requests lost their times" && note.count == 3));
}

#[test]
fn captures_come_back_as_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.jsonl.zst");
    let mut exporter = Exporter::new(new_file(&path), &path, Target::Capture);
    sample().into_iter().for_each(|line| exporter.add(line).expect("a line"));
    exporter.finish().expect("an end");
    let mut lines = Vec::new();
    let mut sink = |line| {
        lines.push(line);
        Ok(())
    };
    import(&path, &ImportOptions::default(), &mut sink).expect("a capture");
    assert_eq!(lines, sample());
    let mut reader = CaptureReader::open(&path, &ReadOptions::default()).expect("a capture");
    assert!(reader.next_line().expect("a line").is_some());
}

#[test]
fn parts_of_a_capture_become_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.jsonl");
    let mut exporter = Exporter::new(new_file(&path), &path, Target::Capture);
    let end = |at_ns, requests, continues| CaptureLine::End(CaptureEnd { at_ns, requests, unfinished: 1, continues });
    let [meta, request, ..] = &sample()[..] else { panic!("there are lines") };
    for line in [meta.clone(), request.clone(), end(5, 1, true), request.clone(), end(9, 2, false)] {
        exporter.add(line).expect("a line");
    }
    exporter.finish().expect("an end");
    let text = std::fs::read_to_string(&path).expect("a text");
    let last: CaptureLine = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last, CaptureLine::End(CaptureEnd { at_ns: 9, requests: 3, unfinished: 2, continues: false }));
    assert_eq!(text.lines().count(), 4);
}

#[test]
fn tables_are_not_packed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.csv.gz");
    let mut exporter = Exporter::new(new_file(&path), &path, Target::Csv);
    let error = exporter.add(sample().remove(0)).expect_err("packed").to_string();
    assert!(error.contains("only captures are packed"), "{error}");
}

fn traced(format: PerfettoFormat) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut export = PerfettoExport::new(&mut bytes, format).expect("a header");
    sample().iter().for_each(|line| export.add(line).expect("a line"));
    assert_eq!(export.finish().expect("an end"), 0);
    bytes
}

#[test]
fn json_traces_have_lanes_phases_steps_and_counters() {
    let trace: Value = serde_json::from_slice(&traced(PerfettoFormat::Json)).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    // a and b overlap; c takes the first free thread.
    let threads: Vec<_> = ["a", "b", "c"].iter().map(|name| named(name)[0]["tid"].clone()).collect();
    assert_eq!(threads, [1, 2, 1]);
    let (prefill, decode) = (named("prefill"), named("decode"));
    assert_eq!((&prefill[0]["ts"], &prefill[0]["dur"]), (&json!(0.1), &json!(0.9)));
    assert_eq!((&decode[0]["ts"], &decode[0]["dur"]), (&json!(1.0), &json!(1.0)));
    let steps = named("step");
    assert_eq!((steps.len(), &steps[1]["ts"], &steps[1]["dur"]), (2, &json!(1.0), &json!(0.5)));
    assert_eq!(named("KV cache usage")[0]["args"]["value"], 0.5);
    // There are twelve tokens in nine outputs, all within the first second.
    assert_eq!(named("output tokens/s")[0]["args"]["value"], 12.0);
    assert_eq!(named("tokens/output")[0]["args"]["value"], 12.0 / 9.0);
    assert_eq!(named("abort").len(), 3);
}

/// A trace contains its packets in field 1.
#[derive(Clone, PartialEq, Message)]
struct WholeTrace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[test]
fn packets_decode_to_balanced_slices_with_known_names() {
    let trace = WholeTrace::decode(&traced(PerfettoFormat::Proto)[..]).expect("packets");
    let mut names = std::collections::BTreeMap::new();
    let mut tracks = std::collections::BTreeSet::new();
    let mut open: std::collections::BTreeMap<u64, Vec<(String, u64)>> = std::collections::BTreeMap::new();
    let mut slices = Vec::new();
    let (mut instants, mut counters) = (0, 0);
    for packet in &trace.packet {
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            assert!(names.insert(name.iid, name.name.clone()).is_none(), "a name is written once");
        }
        if let Some(track) = &packet.track_descriptor {
            tracks.insert(track.uuid.expect("a number"));
        }
        let Some(event) = &packet.track_event else { continue };
        let (track, at_ns) = (event.track_uuid.expect("a track"), packet.timestamp.expect("a time"));
        match event.r#type.expect("a type") {
            SLICE_BEGIN => {
                let name = event.name.clone().or_else(|| names[&event.name_iid].clone()).expect("a name");
                open.entry(track).or_default().push((name, at_ns));
            }
            SLICE_END => {
                let (name, start_ns) = open.get_mut(&track).and_then(Vec::pop).expect("a slice is open");
                slices.push((name, start_ns, at_ns));
            }
            INSTANT => instants += 1,
            COUNTER => counters += 1,
            other => panic!("{other} is not a type of event"),
        }
        assert!(tracks.contains(&track), "tracks are described before they are used");
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    let expected = [("step", 1000, 1000), ("step", 1000, 1500), ("queue", 0, 100), ("prefill", 100, 1000)];
    for (slice, (name, start_ns, end_ns)) in slices.iter().zip(expected) {
        assert_eq!((slice.0.as_str(), slice.1, slice.2), (name, start_ns, end_ns));
    }
    assert_eq!((slices.len(), instants), (2 + 3 * 4, 3));
    assert!(counters > 10, "{counters}");
}
