//! Peers that are dead, wrong, or missing.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vcr_wire::Protocol as _;
use vcr_wire::*;

use super::*;

/// Starts a link that must fail, and returns the error.
fn refused(address: &str, rank: u16, timeout: Duration) -> String {
    let config = EngineLinkConfig { timeout, ..EngineLinkConfig::new(address, rank) };
    let Err(error) = EngineGreeting::hello(&Transport::new(), config) else { panic!("{address} is not a frontend") };
    error.to_string()
}

#[test]
fn a_frontend_that_is_not_there_is_named() {
    // A port that is free now.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    let address = format!("tcp://127.0.0.1:{port}");
    let expected = format!("nothing came from {address} within 0.2 s: nothing that speaks ZeroMQ listens there");
    assert_eq!(refused(&address, 3, MOMENT), expected);
    let unknown = refused("tcp://no-such-host.invalid:1", 3, MOMENT);
    assert!(unknown.contains("the host `no-such-host.invalid` does not resolve"), "{unknown}");
    assert_eq!(refused("elsewhere", 0, MOMENT), "elsewhere cannot be used: Invalid argument");
}

/// The listener does not speak the protocol.
#[test]
fn a_stranger_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", listener.local_addr().expect("it is bound"));
    assert!(refused(&address, 0, MOMENT).starts_with(&format!("nothing came from {address}")));

    let context = zmq::Context::new();
    let router = context.socket(zmq::ROUTER).expect("a socket");
    router.bind("tcp://127.0.0.1:*").expect("a free port");
    let address = router.get_last_endpoint().expect("it is bound").expect("a text");
    let expected = format!(
        "nothing came from {address} within 1 s: expected INIT; is it a frontend's handshake address, does the \
         frontend have an engine 3, and is this the only engine 3?"
    );
    assert_eq!(refused(&address, 3, 5 * MOMENT), expected);
    assert_eq!(router.recv_multipart(0).expect("it said HELLO")[0], [3, 0]);
    let answering = thread::spawn(move || {
        let hello = router.recv_multipart(0).expect("an engine comes");
        router.send_multipart([&hello[0][..], b"\x81\xa1x\x01"], 0).expect("it is sent");
    });
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(&address, 0) };
    let Err(error) = EngineGreeting::hello(&Transport::new(), config) else { panic!("it is no INIT") };
    assert_eq!(error.to_string(), format!("the frontend at {address} does not speak this protocol"));
    let source = std::error::Error::source(&error).expect("it says why").to_string();
    assert_eq!(source, "INIT: missing field `addresses` (byte 0)");
    answering.join().expect("no panic");
}

#[derive(Default)]
struct Notices(Vec<RelayNotice>);

impl RelayTap for Notices {
    fn passed(&mut self, message: Passed<'_>) {
        panic!("nothing can pass: {message:?}");
    }

    fn noticed(&mut self, _: u32, _: u64, notice: RelayNotice) {
        self.0.push(notice);
    }
}

/// If INIT were forwarded unchanged, the engine would bypass the relay.
#[test]
fn a_relay_keeps_an_init_that_it_cannot_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let router = zmq::Context::new().socket(zmq::ROUTER).expect("a socket");
    router.bind("tcp://127.0.0.1:*").expect("a free port");
    let frontend_handshake = router.get_last_endpoint().expect("it is bound").expect("a text");
    let config = RelayConfig {
        frontend_handshake,
        engine_handshake: "tcp://127.0.0.1:*".to_owned(),
        data: DataAddress::Ipc { folder: folder.path().to_owned() },
    };
    let mut relay = Relay::bind(&Transport::new(), config).expect("the addresses are free");
    let address = relay.engine_handshake().to_owned();
    let (stop, waker) = (Arc::new(AtomicBool::new(false)), relay.waker());
    let is_over = Arc::clone(&stop);
    let relaying = thread::spawn(move || {
        let mut notices = Notices::default();
        relay.run(&mut notices, &is_over).expect("it goes on");
        notices.0
    });
    let answering = thread::spawn(move || {
        let hello = router.recv_multipart(0).expect("an engine comes");
        router.send_multipart([&hello[0][..], b"\x81\xa1x\x01"], 0).expect("it is sent");
        router
    });
    let error = refused(&address, 0, 5 * MOMENT);
    assert!(error.contains("within 1 s: expected INIT"), "nothing was handed on: {error}");
    let _router = answering.join().expect("no panic");
    stop.store(true, Ordering::Relaxed);
    waker.wake();
    let notices = relaying.join().expect("no panic");
    let [RelayNotice::Hello { again: false }, RelayNotice::InitRefused { reason }] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert!(reason.ends_with("INIT: missing field `addresses` (byte 0)"), "{reason}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", taken.local_addr().expect("it is bound"));
    let config = FrontendConfig { handshake_address: address.clone(), ..over_tcp(1, 1) };
    let Err(error) = FrontendListener::bind(&Transport::new(), config) else { panic!("the port is taken") };
    assert_eq!(error.to_string(), format!("the address {address} is in use by another process"));
}

/// The frontend's error about an unexpected engine, as a real frontend reports it.
#[test]
fn a_wrong_identity_is_named() {
    let transport = Transport::new();
    let listener = FrontendListener::bind(&transport, over_tcp(1, 2)).expect("the addresses are free");
    let config = EngineLinkConfig { timeout: MOMENT, ..EngineLinkConfig::new(listener.handshake_address(), 300) };
    let engine = thread::spawn(move || EngineGreeting::hello(&transport, config).map(drop));
    let Err(error) = listener.accept(PATIENCE) else { panic!("there is no engine 300") };
    let expected = "invalid engine identity 2c01: expected 0 to 1, as 2 bytes little-endian";
    assert_eq!(error.to_string(), expected);
    engine.join().expect("no panic").expect_err("it gets no answer");
}

#[test]
fn a_missing_engine_is_named() {
    let transport = Transport::new();
    let listener = FrontendListener::bind(&transport, over_tcp(1, 2)).expect("the addresses are free");
    let address = listener.handshake_address().to_owned();
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(&address, 0) };
    // The engine sends HELLO and then nothing.
    let engine = thread::spawn(move || EngineGreeting::hello(&transport, config).map(drop));
    let Err(error) = listener.accept(MOMENT * 5) else { panic!("the engines never come") };
    let expected =
        format!("nothing came from {address} within 1 s: engine 0 has not sent READY, engine 1 has not sent HELLO");
    assert_eq!(error.to_string(), expected);
    engine.join().expect("no panic").expect("it was answered");
}

#[test]
fn a_dead_frontend_is_noticed() {
    let (frontend, mut engines) = linked(over_tcp(2, 1));
    drop(frontend);
    let engine = &mut engines[0];
    let mut lost = Vec::new();
    for _ in 0..2 {
        match engine.inputs.receive(PATIENCE).expect("it works") {
            Some(Received::FrontendLost { client }) => lost.push(client),
            other => panic!("{other:?}"),
        }
    }
    lost.sort_unstable();
    assert_eq!(lost, [0, 1]);
    // Sending neither blocks nor fails after the peer has disconnected.
    engine.outputs.send(0, b"without a reader").expect("it waits");
    let error = engine.outputs.send(2, b"").expect_err("there are two");
    assert_eq!(error.to_string(), "unknown API server 2: the frontend has 2");
    let error = engine.outputs.send_to_coordinator(b"").expect_err("there is none");
    assert_eq!(error.to_string(), "the frontend has no coordinator");
}

/// An invalid message affects only its sender.
#[test]
fn garbage_is_reported_and_passed_over() {
    let (frontend, mut engines) = linked(over_tcp(1, 1));
    let engine = &mut engines[0];
    for frames in [&[&b""[..]][..], &[b"\x00"], &[b"\x07", b"\x90"], &[b"\x00", b"\x92\xa3bad\x07"]] {
        frontend.send_frames(0, 0, frames).expect("it is sent");
    }
    frontend.send(0, 0, &add("good", 0), &[], VllmMinor::V0_33.rules()).expect("it is sent");
    let mut malformed = |expected_id: Option<&str>| match engine.inputs.receive(PATIENCE).expect("it works") {
        Some(Received::Malformed { source: Source::Client(0), error, request_id }) => {
            assert_eq!(request_id.as_deref(), expected_id);
            error.to_string()
        }
        other => panic!("{other:?}"),
    };
    assert!(malformed(None).ends_with("got 1 frames (byte 0)"));
    assert!(malformed(None).ends_with("got 1 frames (byte 0)"));
    assert!(malformed(None).starts_with("request: expected a request type from 0 to 3"));
    assert!(malformed(Some("bad")).starts_with("ADD, element 1 `prompt_token_ids`: expected an array"));
    let (_, Request::Add(good)) = next_request(engine) else { panic!("a request was sent") };
    assert_eq!(good.request_id, "good");
    let error = frontend.send_frames(0, 9, [b"\x00"]).expect_err("there is one engine");
    assert_eq!(error.to_string(), "engine 9 is not connected");
}

/// A frame beyond the limit ends the sender's connection and takes no memory.
#[test]
fn a_frame_beyond_the_limit_is_not_taken() {
    let frontend_transport = Transport::new();
    let listener = FrontendListener::bind(&frontend_transport, over_tcp(1, 1)).expect("the addresses are free");
    let address = listener.handshake_address().to_owned();
    let engine = thread::spawn(move || {
        let mut transport = Transport::new();
        transport.max_frame_bytes = 100_000;
        engine(&transport, &address, 0).expect("the frontend is there")
    });
    let frontend = listener.accept(PATIENCE).expect("the engine comes");
    let mut engine = engine.join().expect("no panic");
    frontend.send_frames(0, 0, [vec![0], vec![0; 200_000]]).expect("it is sent");
    let received = engine.inputs.receive(PATIENCE).expect("it works");
    assert_eq!(received, Some(Received::FrontendLost { client: 0 }));
}

/// A frontend that has greeted all its engines no longer listens at its handshake address. Other connections of the
/// same ZeroMQ context must continue.
#[test]
fn a_handshake_that_ends_early_ends_nothing_else() {
    let context = zmq::Context::new();
    let bound = |kind| {
        let socket = context.socket(kind).expect("a socket");
        socket.set_rcvtimeo(PATIENCE.as_millis() as i32).expect("a timeout");
        socket.bind("tcp://127.0.0.1:*").expect("a free port");
        let address = socket.get_last_endpoint().expect("it is bound").expect("a text");
        (socket, address)
    };
    let (router, address) = bound(zmq::ROUTER);
    let ((input, input_address), (_output, output_address)) = (bound(zmq::ROUTER), bound(zmq::PULL));
    let answering = thread::spawn(move || {
        let hello = router.recv_multipart(0).expect("an engine comes");
        let addresses =
            Addresses { inputs: vec![input_address], outputs: vec![output_address], ..Addresses::default() };
        let mut init = Vec::new();
        Init { addresses, ..Init::default() }.encode(&mut init);
        router.send_multipart([&hello[0][..], &init], 0).expect("it is sent");
    });
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(&address, 0) };
    let greeting = EngineGreeting::hello(&Transport::new(), config).expect("it is answered");
    answering.join().expect("no panic");
    // Wait until the end of the connection has been noticed.
    thread::sleep(MOMENT);
    let _link = greeting.ready(&ReadyResponse::default()).expect("it says what it is");
    assert_eq!(input.recv_multipart(0).expect("the engine registers")[0], [0, 0]);
}
