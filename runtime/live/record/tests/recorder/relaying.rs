//! Messages pass unchanged.

use vcr_wire::{Integer, Source, StartDpWave, UtilityCall};

use super::*;

/// Requests reach the right engine and outputs the right API server, and the capture contains all of them.
#[test]
fn several_engines_and_api_servers() {
    let mut chain = chain(Shape { clients: 2, engines: 2, coordinator: false });
    assert_eq!(chain.frontend.engines, [ready_response(0), ready_response(1)]);
    for client in 0..2 {
        for rank in 0..2 {
            chain.ask(client, rank, &add(&format!("{client}-{rank}"), client));
        }
    }
    for rank in 0..2 {
        for _ in 0..2 {
            let Received::Request { source, request, .. } = chain.asked(rank) else { panic!("a request was sent") };
            let Request::Add(request) = request else { panic!("{request:?}") };
            let client = request.client_index as usize;
            assert_eq!((source, request.request_id.as_str()), (Source::Client(client), &*format!("{client}-{rank}")));
            chain.answer(rank, client, &token(&request.request_id, 1.0, None));
            chain.answer(rank, client, &token(&request.request_id, 1.5, Some(FinishReason::Length)));
        }
    }
    for _ in 0..8 {
        let message = chain.answered();
        let outputs = EngineCoreOutputs::decode(&message.frames[0]).expect("outputs");
        assert!(outputs.outputs[0].request_id.starts_with(&message.client.to_string()));
    }
    chain.wait_until("all are over", |now| now.requests == 4);
    let (summary, lines) = chain.end();
    assert_eq!((summary.engines, summary.tokens, summary.steps, summary.breaks), (2, 8, 8, 0));
    for record in requests(&lines) {
        assert_eq!(record.id, Some(format!("{}-{}", record.client, record.rank)));
        assert_eq!((record.gap_ns.as_slice(), record.finish_reason.as_deref()), (&[500_000_000][..], Some("length")));
    }
}

/// Waves travel from an engine to the coordinator, and from it to every engine.
#[test]
fn a_coordinator() {
    let mut chain = chain(Shape { clients: 1, engines: 2, coordinator: true });
    let announcement = EngineCoreOutputs { engine_index: 1, start_wave: Some(3), ..EngineCoreOutputs::default() };
    chain.engines[1].outputs.send_to_coordinator(&frame(&announcement)).expect("it is sent");
    assert_eq!(chain.frontend.receive_as_coordinator(PATIENCE).expect("it works"), Some(announcement));
    let wave = StartDpWave { wave: 3, exclude_engine_index: Some(1) };
    chain.frontend.start_wave(wave.clone(), RULES()).expect("it is sent");
    for rank in 0..2 {
        let received = chain.asked(rank);
        assert!(
            matches!(&received, Received::Request { source: Source::Coordinator, request, .. }
            if *request == Request::StartDpWave(wave.clone())),
            "{received:?}"
        );
    }
    chain.end();
}

/// A message can have many frames, small, large or empty, in both directions.
#[test]
fn frames_of_tensors_pass_byte_for_byte() {
    let mut chain = chain(ONE);
    let aux: Vec<Vec<u8>> = (0..40_usize)
        .map(|index| (0..[0, 1, 30, 5000, 1 << 20][index % 5]).map(|byte| (byte * 7 + index) as u8).collect())
        .collect();
    chain.frontend.send(0, 0, &add("a", 0), &aux, RULES()).expect("it is sent");
    let Received::Request { aux: received, .. } = chain.asked(0) else { panic!("a request was sent") };
    assert!(received == aux, "requests keep their frames");
    let mut frames = vec![frame(&token("a", 1.0, Some(FinishReason::Length)))];
    frames.extend(aux);
    chain.engines[0].outputs.send_frames(0, &frames).expect("it is sent");
    assert!(chain.answered().frames == frames, "outputs keep their frames");
    chain.wait_until("it is over", |now| now.requests == 1);
    chain.end();
}

/// Utility calls and their results pass, and are not recorded as steps.
#[test]
fn calls() {
    let mut chain = chain(ONE);
    let call = UtilityCall { call_id: Integer::from(u64::MAX), method: "sleep".to_owned(), ..UtilityCall::default() };
    chain.ask(0, 0, &Request::Utility(call.clone()));
    assert!(matches!(chain.asked(0), Received::Request { request: Request::Utility(asked), .. } if asked == call));
    let result = vcr_wire::UtilityOutput::returned(call.call_id, true.into());
    chain.answer(0, 0, &EngineCoreOutputs { utility_output: Some(result), ..EngineCoreOutputs::default() });
    chain.answered();
    let (summary, _) = chain.end();
    assert_eq!((summary.steps, summary.undecodable), (0, 0));
}

/// Messages of other protocols are counted but not recorded.
#[test]
fn garbage_passes_unchanged_and_is_counted() {
    let mut chain = chain(ONE);
    chain.ask(0, 0, &add("a", 0));
    chain.asked(0);
    let garbage: [&[&[u8]]; 4] = [&[b"\xc1"], &[b"", b""], &[b"\x00", b"\x93\x01"], &[b"\x09", b"\x90", b"more"]];
    for frames in garbage {
        chain.frontend.send_frames(0, 0, frames).expect("it is sent");
    }
    for _ in garbage {
        assert!(matches!(chain.asked(0), Received::Malformed { .. }), "the engine's own decoder meets it");
    }
    for frames in garbage {
        chain.engines[0].outputs.send_frames(0, frames).expect("it is sent");
        assert_eq!(chain.answered().frames, frames);
    }
    chain.wait_until("all was looked at", |now| now.undecodable == 8);
    let (summary, lines) = chain.end();
    assert_eq!(breaks(&lines).len() as u64, summary.breaks);
    assert!(breaks(&lines).iter().all(|reason| reason.contains("cannot be read")), "{:?}", breaks(&lines));
    let records = requests(&lines);
    assert_eq!((records.len(), records[0].finish_reason.as_deref()), (1, None));
    assert!(records[0].error.as_deref().is_some_and(|error| error.contains("not recorded")), "{records:?}");
}
