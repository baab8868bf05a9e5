//! An engine and a frontend of this crate.

use vcr_wire::Protocol as _;
use vcr_wire::*;

use super::*;

const RULES: fn() -> &'static ProtocolRules = || VllmMinor::V0_33.rules();

fn a_request_an_abort_and_a_call(config: FrontendConfig) {
    let (frontend, mut engines) = linked(config);
    let engine = &mut engines[0];
    assert_eq!(frontend.engines, [ready_response(0)]);
    assert_eq!(engine.outputs.clients(), 1);
    assert!(engine.inputs.receive(MOMENT).expect("it works").is_none(), "nothing was sent");

    let request = add("a-1", 0);
    frontend.send(0, 0, &request, &[b"tensor".to_vec()], RULES()).expect("it is sent");
    let received = engine.inputs.receive(PATIENCE).expect("it works");
    assert_eq!(received, Some(Received::Request { source: Source::Client(0), request, aux: vec![b"tensor".to_vec()] }));
    for (index, finish) in [None, None, Some(FinishReason::Length)].into_iter().enumerate() {
        engine.outputs.send(0, &token(0, "a-1", index as u32, finish)).expect("it is sent");
        let (client, outputs) = next_outputs(&frontend);
        assert_eq!((client, outputs.outputs[0].new_token_ids[0]), (0, index as u32));
        assert_eq!(outputs.outputs[0].finish_reason, finish);
    }

    let abort = Request::Abort(vec!["a-1".to_owned(), "unknown".to_owned()]);
    frontend.send(0, 0, &abort, &[], RULES()).expect("it is sent");
    assert_eq!(next_request(engine), (Source::Client(0), abort));

    let call_id = Integer::from(u64::MAX);
    let call = UtilityCall { call_id, method: "is_sleeping".to_owned(), ..UtilityCall::default() };
    frontend.send(0, 0, &Request::Utility(call.clone()), &[], RULES()).expect("it is sent");
    assert_eq!(next_request(engine).1, Request::Utility(call));
    let result = UtilityOutput::returned(call_id, false.into());
    let mut frame = Vec::new();
    let message = EngineCoreOutputs { utility_output: Some(result.clone()), ..EngineCoreOutputs::default() };
    message.encode(&mut frame, RULES());
    engine.outputs.send(0, &frame).expect("it is sent");
    assert_eq!(next_outputs(&frontend).1.utility_output, Some(result));

    engine.outputs.send_dead().expect("it is sent");
    let last = frontend.receive(PATIENCE).expect("it works").expect("it says so");
    assert_eq!(last.decode(), Ok(EngineMessage::Dead));
}

#[test]
fn over_tcp_sockets() {
    a_request_an_abort_and_a_call(over_tcp(1, 1));
}

#[test]
fn over_ipc_sockets() {
    let folder = tempfile::tempdir().expect("there is room");
    a_request_an_abort_and_a_call(over_ipc(folder.path(), 1, 1));
}

/// Two API servers and two engines: requests arrive at the right engine, and answers at the right server.
#[test]
fn several_servers_and_engines() {
    let folder = tempfile::tempdir().expect("there is room");
    let (frontend, mut engines) = linked(over_ipc(folder.path(), 2, 2));
    assert_eq!(frontend.engines.iter().map(|engine| engine.data_parallel_rank).collect::<Vec<_>>(), [0, 1]);
    for client in 0..2 {
        for rank in 0..2_u16 {
            let request = add(&format!("{client}-{rank}"), client as u32);
            frontend.send(client, rank, &request, &[], RULES()).expect("it is sent");
        }
    }
    for (rank, engine) in engines.iter_mut().enumerate() {
        for _ in 0..2 {
            let (source, Request::Add(request)) = next_request(engine) else { panic!("a request was sent") };
            assert_eq!(source, Source::Client(request.client_index as usize));
            assert_eq!(request.request_id, format!("{}-{rank}", request.client_index));
            let frame = token(rank as u32, &request.request_id, 7, Some(FinishReason::Stop));
            engine.outputs.send(request.client_index as usize, &frame).expect("it is sent");
        }
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (client, outputs) = next_outputs(&frontend);
        assert_eq!(outputs.outputs[0].request_id, format!("{client}-{}", outputs.engine_index));
        seen.push((client, outputs.engine_index));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

/// The coordinator sends READY when all engines have subscribed. Then both sides send waves.
#[test]
fn with_a_coordinator() {
    let (frontend, mut engines) = linked(FrontendConfig { coordinator: true, ..over_tcp(1, 2) });
    let mut frame = Vec::new();
    let announcement = EngineCoreOutputs { engine_index: 1, start_wave: Some(3), ..EngineCoreOutputs::default() };
    announcement.encode(&mut frame, RULES());
    engines[1].outputs.send_to_coordinator(&frame).expect("it is sent");
    assert_eq!(frontend.receive_as_coordinator(PATIENCE).expect("it works"), Some(announcement));
    let wave = StartDpWave { wave: 3, exclude_engine_index: Some(1) };
    frontend.start_wave(wave.clone(), RULES()).expect("it is sent");
    // The excluded engine gets the message too, and must recognise its rank.
    for engine in &mut engines {
        assert_eq!(next_request(engine), (Source::Coordinator, Request::StartDpWave(wave.clone())));
    }
}

/// Inputs and outputs on two threads, with many messages: none is lost or reordered.
#[test]
fn halves_live_on_two_threads() {
    const REQUESTS: u32 = 2_000;
    let (frontend, mut engines) = linked(over_tcp(1, 1));
    let EngineLink { mut inputs, outputs, .. } = engines.remove(0);
    let (sender, receiver) = std::sync::mpsc::channel();
    let receiving = thread::spawn(move || {
        for _ in 0..REQUESTS {
            let received = inputs.receive(PATIENCE).expect("it works").expect("a request comes");
            let Received::Request { request: Request::Add(request), .. } = received else { panic!("{received:?}") };
            sender.send(request.request_id).expect("the other half lives");
        }
    });
    let sending = thread::spawn(move || {
        for id in receiver {
            outputs.send(0, &token(0, &id, 1, Some(FinishReason::Length))).expect("it is sent");
        }
    });
    for index in 0..REQUESTS {
        frontend.send(0, 0, &add(&index.to_string(), 0), &[], RULES()).expect("it is sent");
    }
    for index in 0..REQUESTS {
        assert_eq!(next_outputs(&frontend).1.outputs[0].request_id, index.to_string());
    }
    receiving.join().expect("no panic");
    sending.join().expect("no panic");
}
