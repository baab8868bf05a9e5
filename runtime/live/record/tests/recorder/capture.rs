//! Contents of captures.

use serde_json::json;
use vcr_trace::capture::{ExtraKeys, PromptHasher};
use vcr_wire::{BlockHash, BlockRemoved, IterationDetails, KvEvent, KvEventBatch, KvEventPublisher};

use super::*;

#[test]
fn lines_of_one_request() {
    let mut chain = chain_with(ONE, |config| config.output_tokens = true);
    chain.ask(0, 0, &add("a", 0));
    chain.asked(0);
    let details = IterationDetails { num_ctx_tokens: 3, ..IterationDetails::default() };
    let mut first = token("a", 10.0, None);
    first.scheduler_stats.as_mut().expect("it has some").iteration_details = Some(details);
    chain.answer(0, 0, &first);
    chain.answer(0, 0, &token("a", 10.25, Some(FinishReason::Stop)));
    chain.wait_until("it is over", |now| now.requests == 1);
    let (summary, lines) = chain.end();
    assert_eq!((summary.arrivals, summary.tokens, summary.parts), (1, 2, 1));

    let [CaptureLine::Meta(meta), CaptureLine::Engine(engine), CaptureLine::Arrival(arrival), rest @ ..] = &lines[..]
    else {
        panic!("{lines:?}")
    };
    assert_eq!((meta.format.as_str(), meta.version, meta.source.as_deref()), ("vcr.capture", 1, Some("record")));
    assert_eq!((meta.model.as_deref(), meta.vllm_version.as_deref()), (Some("sim"), Some("0.33.0")));
    assert_eq!((meta.holds.output_tokens, meta.holds.prompt_tokens, meta.holds.steps), (true, false, true));
    assert_eq!(meta.fingerprint, engine.fingerprint);
    assert_eq!((engine.rank, &engine.settings["max_model_len"]), (0, &json!(4096)));
    assert_eq!((arrival.id.as_str(), arrival.prompt_tokens), ("a", 3));

    let [CaptureLine::Step(step), CaptureLine::Request(record), CaptureLine::Step(last), CaptureLine::End(end)] = rest
    else {
        panic!("{rest:?}")
    };
    assert_eq!((step.step, step.engine_ns, step.tokens, step.finished), (0, Some(10_000_000_000), 1, 0));
    let scheduler = step.scheduler.as_ref().expect("the engine reported it");
    assert_eq!(
        (&scheduler["num_running_reqs"], &scheduler["iteration_details"]["num_ctx_tokens"]),
        (&json!(1), &json!(3))
    );
    assert_eq!((last.step, last.finished), (1, 1));
    let hasher = PromptHasher::new(2);
    let chain = hasher.chain(&[1, 2, 3], &ExtraKeys::default());
    assert_eq!((&record.block_hashes, record.prompt_hash), (&chain.blocks, Some(chain.whole)));
    assert_eq!((record.arrival_ns, record.concurrency), (Some(arrival.arrival_ns), Some(1)));
    assert_eq!((record.gap_ns.as_slice(), record.output_token_ids.as_deref()), (&[250_000_000][..], Some(&[7, 7][..])));
    assert_eq!((record.finish_reason.as_deref(), record.params["max_tokens"].as_u64()), (Some("stop"), Some(5)));
    assert!(record.ttft_ns <= record.end_ns && record.ttft_ns.is_some());
    assert_eq!((end.requests, end.unfinished, end.continues), (1, 0, false));
}

/// Requests can be aborted by the frontend, by the engine with an output, or by the engine without one.
#[test]
fn aborts() {
    let mut chain = chain(ONE);
    for id in ["a", "b", "c", "d"] {
        chain.ask(0, 0, &add(id, 0));
        chain.asked(0);
        chain.answer(0, 0, &token(id, 1.0, None));
        chain.answered();
    }
    chain.ask(0, 0, &Request::Abort(vec!["a".to_owned(), "nobody".to_owned()]));
    chain.asked(0);
    // This output was sent before the engine saw the abort.
    chain.wait_until("the abort was seen", |now| now.requests == 1);
    chain.answer(0, 0, &token("a", 2.0, Some(FinishReason::Length)));
    chain.answer(0, 0, &token("b", 2.0, Some(FinishReason::Abort)));
    let finished_requests = Some(vec!["c".to_owned(), "b".to_owned()]);
    chain.answer(0, 0, &EngineCoreOutputs { finished_requests, ..EngineCoreOutputs::default() });
    chain.wait_until("all were seen", |now| now.requests == 3);
    let (summary, lines) = chain.end();
    assert_eq!((summary.aborted, summary.unmatched_outputs, summary.open), (3, 1, 1));
    let records = requests(&lines);
    let of = |id: &str| {
        let record = records.iter().find(|record| record.id.as_deref() == Some(id)).expect("it has a record");
        (record.output_tokens, record.finish_reason.as_deref(), record.end_ns.is_some())
    };
    assert_eq!(of("a"), (1, Some("abort"), true));
    assert_eq!(of("b"), (2, Some("abort"), true));
    assert_eq!(of("c"), (1, Some("abort"), true));
    assert_eq!(of("d"), (1, None, false), "it was under way in the end");
    let Some(CaptureLine::End(end)) = lines.last() else { panic!("it was ended in order") };
    assert_eq!((end.requests, end.unfinished), (3, 1));
}

#[test]
fn a_rotated_capture_is_whole() {
    let mut chain = chain_with(ONE, |config| config.rotation.size_bytes = Some(4000));
    const REQUESTS: u64 = 40;
    for index in 0..REQUESTS {
        let id = index.to_string();
        chain.ask(0, 0, &add(&id, 0));
        chain.asked(0);
        chain.answer(0, 0, &token(&id, 1.0, Some(FinishReason::Stop)));
        chain.answered();
    }
    chain.wait_until("all are over", |now| now.requests == REQUESTS);
    let path = chain.capture();
    let folder = path.parent().expect("it lies in a folder").to_owned();
    chain.recorder.handle().stop();
    let summary = chain.recorder.wait().expect("all went well");
    assert!(summary.parts > 3, "{summary:?}");
    let mut seen = Vec::new();
    for part in 0..summary.parts {
        let name = if part == 0 { "capture.jsonl".to_owned() } else { format!("capture.{part}.jsonl") };
        let lines = lines(&folder.join(name));
        assert!(matches!(&lines[0], CaptureLine::Meta(meta) if u64::from(meta.part) == part));
        assert!(matches!(&lines[1], CaptureLine::Engine(_)), "each part says who served");
        let Some(CaptureLine::End(end)) = lines.last() else { panic!("each part is ended") };
        assert_eq!(end.continues, part + 1 < summary.parts);
        assert_eq!(end.requests, requests(&lines).len() as u64);
        seen.extend(requests(&lines).iter().filter_map(|record| record.id.clone()));
    }
    assert_eq!(seen, (0..REQUESTS).map(|index| index.to_string()).collect::<Vec<_>>());
}

#[test]
fn kv_events_are_recorded_beside() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let endpoint = format!("ipc://{}/events", folder.path().display());
    let config = vcr_wire::KvEventsConfig {
        enable_kv_cache_events: true,
        publisher: "zmq".to_owned(),
        endpoint: endpoint.clone(),
        ..vcr_wire::KvEventsConfig::default()
    };
    let mut publisher = KvEventPublisher::open(&Transport::new(), config, 0).expect("the address is free");
    let chain = chain_with(ONE, |config| config.kv_events.push(endpoint));
    let removed = BlockRemoved { block_hashes: vec![BlockHash::Int(9)], ..BlockRemoved::default() };
    let deadline = Instant::now() + PATIENCE;
    // There is no message when the subscription becomes active.
    while chain.recorder.handle().summary().kv_batches == 0 {
        let events = vec![KvEvent::BlockRemoved(Box::new(removed.clone()))];
        let batch = KvEventBatch { ts: 1.0, events, data_parallel_rank: Some(0) };
        publisher.publish(&batch).expect("it is sent");
        assert!(Instant::now() < deadline, "no batch was recorded");
        thread::sleep(Duration::from_millis(20));
    }
    let (_, lines) = chain.end();
    let kv = lines.iter().find_map(|line| if let CaptureLine::Kv(kv) = line { Some(kv) } else { None });
    assert_eq!(kv.expect("a line").events[0]["block_hashes"], json!([9]));
    assert!(matches!(&lines[0], CaptureLine::Meta(meta) if meta.holds.kv_events));
}
