//! After errors the traffic continues, and the capture marks what is missing.

use vcr_base::output::OutputError;
use vcr_record::RecordError;

use super::*;

/// Sends requests one after the other. Each is answered with one token.
fn serve(chain: &mut Chain, requests: u64) {
    for index in 0..requests {
        let id = index.to_string();
        chain.ask(0, 0, &add(&id, 0));
        chain.asked(0);
        chain.answer(0, 0, &token(&id, 1.0, Some(FinishReason::Stop)));
        chain.answered();
    }
}

/// If no message fits into the queue, all are counted as lost. The traffic is unaffected.
#[test]
fn a_full_queue_holds_up_nobody() {
    let mut chain = chain_with(ONE, |config| config.queue_bytes = 1);
    serve(&mut chain, 50);
    let (summary, lines) = chain.end();
    assert!(summary.lost_messages >= 100 && summary.lost_bytes > 0, "{summary:?}");
    assert!(breaks(&lines).iter().any(|reason| reason.contains("were not recorded")), "{:?}", breaks(&lines));
    assert!(matches!(lines.last(), Some(CaptureLine::End(_))));
}

/// Requests with missing messages must not produce wrong records.
#[test]
fn requests_with_missing_messages_are_given_up() {
    let mut chain = chain_with(ONE, |config| config.queue_bytes = 4096);
    chain.ask(0, 0, &add("a", 0));
    chain.asked(0);
    chain.answer(0, 0, &token("a", 1.0, None));
    chain.wait_until("it is under way", |now| now.tokens == 1);
    let mut large = token("a", 2.0, None);
    large.outputs[0].new_token_ids = vec![70_000; 5000];
    chain.answer(0, 0, &large);
    chain.wait_until("that was too much", |now| now.lost_messages == 1);
    chain.answer(0, 0, &token("a", 3.0, Some(FinishReason::Stop)));
    chain.wait_until("the rest was seen", |now| now.steps == 2);
    let (summary, lines) = chain.end();
    assert_eq!((summary.broken, summary.requests, summary.unmatched_outputs), (1, 0, 1));
    let records = requests(&lines);
    assert_eq!((records.len(), records[0].output_tokens, records[0].finish_reason.as_deref()), (1, 1, None));
    assert!(records[0].error.is_some());
}

/// If the capture cannot be written, only the capture ends.
#[test]
fn a_disk_that_takes_nothing_holds_up_nobody() {
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let out = elsewhere.path().join("capture.jsonl");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recorder = Recorder::start(&RecordConfig { out, ..config(folder.path()) }).expect("it can be written now");
    drop(elsewhere);
    let (frontend, engines) = meet(folder.path(), recorder.engine_handshake(), ONE);
    let mut chain = Chain { frontend, engines, recorder, folder };
    serve(&mut chain, 20);
    chain.wait_until("what is not written is counted", |now| now.lost_messages >= 40);
    chain.recorder.handle().stop();
    assert!(matches!(chain.recorder.wait(), Err(RecordError::Write { .. })));
}

/// If the current file is removed, recording continues in a new file, and the lost records are counted. If nothing
/// more is recorded, the removal is an error.
#[test]
fn a_capture_that_is_removed_begins_again() {
    for more in [0, 1] {
        let mut chain = chain(ONE);
        serve(&mut chain, 5);
        let path = chain.capture();
        let deadline = Instant::now() + PATIENCE;
        while !path.exists() || requests(&lines(&path)).len() < 5 {
            assert!(Instant::now() < deadline, "nothing is flushed while the recorder runs");
            thread::sleep(Duration::from_millis(20));
        }
        fs::remove_file(&path).expect("it is there");
        if more > 0 {
            serve(&mut chain, more);
            chain.wait_until("the removal is noticed", |now| now.removed_files == 1);
            serve(&mut chain, 2);
            let (summary, lines) = chain.end();
            assert!((5..=6).contains(&summary.removed_requests), "{summary:?}");
            assert_eq!(requests(&lines).len() as u64 + summary.removed_requests, 8);
            assert!(matches!(&lines[..2], [CaptureLine::Meta(_), CaptureLine::Engine(_)]), "{:?}", &lines[..2]);
            assert!(matches!(lines.last(), Some(CaptureLine::End(_))));
            continue;
        }
        chain.recorder.handle().stop();
        match chain.recorder.wait() {
            Err(RecordError::Removed { path: of, requests }) => assert!(of == path && requests >= 5, "{requests}"),
            other => panic!("{other:?}"),
        }
    }
}

/// The frontend starts again at the same address, and the engine with the same identity.
#[test]
fn a_frontend_and_an_engine_that_start_again_are_served_again() {
    let mut chain = chain(ONE);
    chain.ask(0, 0, &add("first", 0));
    chain.asked(0);
    chain.wait_until("it has arrived", |now| now.arrivals == 1);
    let Chain { frontend, engines, recorder, folder } = chain;
    drop(frontend);
    let handle = recorder.handle();
    let deadline = Instant::now() + PATIENCE;
    while handle.summary().breaks < 1 {
        assert!(Instant::now() < deadline, "it is gone: {:?}", handle.summary());
        thread::sleep(Duration::from_millis(5));
    }
    drop(engines);
    let (frontend, engines) = meet(folder.path(), recorder.engine_handshake(), ONE);
    let mut chain = Chain { frontend, engines, recorder, folder };
    serve(&mut chain, 3);
    chain.wait_until("all are over", |now| now.requests == 3);
    let (summary, lines) = chain.end();
    assert_eq!((summary.engines, summary.broken), (2, 1));
    let reasons = breaks(&lines).join("\n");
    for expected in ["API server 0", "came again"] {
        assert!(reasons.contains(expected), "{reasons}");
    }
    assert_eq!(requests(&lines)[0].id.as_deref(), Some("first"));
}

#[test]
fn an_engine_that_dies_says_so_once() {
    let mut chain = chain(Shape { clients: 2, engines: 1, coordinator: false });
    chain.ask(0, 0, &add("a", 0));
    chain.asked(0);
    chain.engines[0].outputs.send_dead().expect("it is sent");
    for _ in 0..2 {
        assert_eq!(chain.answered().frames, [b"ENGINE_CORE_DEAD"]);
    }
    chain.wait_until("it was seen", |now| now.broken == 1);
    let (_, lines) = chain.end();
    let dead = breaks(&lines).iter().filter(|reason| reason.contains("dead")).count();
    assert_eq!(dead, 1);
}

/// Finished requests are on disk a moment later, whatever happens next.
#[test]
fn what_is_over_is_on_its_way_to_the_disk() {
    let mut chain = chain(ONE);
    serve(&mut chain, 5);
    let path = chain.capture();
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() || requests(&lines(&path)).len() < 5 {
        assert!(Instant::now() < deadline, "nothing is flushed while the recorder runs");
        thread::sleep(Duration::from_millis(20));
    }
    chain.end();
}

#[test]
fn files_and_settings_that_cannot_be_used() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = |change: &dyn Fn(&mut RecordConfig)| {
        let mut config = config(folder.path());
        change(&mut config);
        Recorder::start(&config).err().expect("it cannot be used")
    };
    let name = |name: &str| folder.path().join(name);
    assert!(matches!(error(&|config| config.out = name("a.csv")), RecordError::Suffix { .. }));
    fs::write(name("there.jsonl"), "mine").expect("it is writable");
    assert!(matches!(
        error(&|config| config.out = name("there.jsonl")),
        RecordError::Output(OutputError::Exists { .. })
    ));
    assert!(matches!(error(&|config| config.block_size_tokens = 0), RecordError::Setting { .. }));
    assert!(matches!(error(&|config| config.engine_handshake = "tcp:/x".to_owned()), RecordError::Link(_)));
    assert!(!name("capture.jsonl").exists(), "nothing is left of a recorder that did not start");
}
