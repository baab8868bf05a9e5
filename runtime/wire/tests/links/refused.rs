//! Peers that are dead, wrong, or not there.

use std::net::TcpListener;

use vcr_wire::*;

use super::*;

/// Starts a link that must fail and returns why.
fn refused(address: &str, rank: u16, timeout: Duration) -> String {
    let config = EngineLinkConfig { timeout, ..EngineLinkConfig::new(address, rank) };
    let Err(error) = EngineGreeting::hello(&Transport::new(), config) else { panic!("{address} is no frontend") };
    error.to_string()
}

#[test]
fn a_frontend_that_is_not_there_is_named() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    let address = format!("tcp://127.0.0.1:{port}");
    let expected = format!(
        "nothing came from {address} within 0.2 s: INIT was expected; \
         is it a frontend's handshake address, and is this the only engine 3?"
    );
    assert_eq!(refused(&address, 3, MOMENT), expected);
    assert_eq!(refused("elsewhere", 0, MOMENT), "elsewhere cannot be used: Invalid argument");
}

/// Something listens, but it does not speak the protocol.
#[test]
fn a_stranger_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", listener.local_addr().expect("it is bound"));
    assert!(refused(&address, 0, MOMENT).starts_with(&format!("nothing came from {address}")));

    let context = zmq::Context::new();
    let router = context.socket(zmq::ROUTER).expect("a socket");
    router.bind("tcp://127.0.0.1:*").expect("a free port");
    let address = router.get_last_endpoint().expect("it is bound").expect("a text");
    let answering = thread::spawn(move || {
        let hello = router.recv_multipart(0).expect("an engine comes");
        router.send_multipart([&hello[0][..], b"\x81\xa1x\x01"], 0).expect("it is sent");
    });
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(&address, 0) };
    let Err(error) = EngineGreeting::hello(&Transport::new(), config) else { panic!("it is no INIT") };
    assert_eq!(error.to_string(), format!("the frontend at {address} is no peer of this protocol"));
    let source = std::error::Error::source(&error).expect("it says why").to_string();
    assert_eq!(source, "INIT, key `addresses`: it is missing (byte 4)");
    answering.join().expect("no panic");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", taken.local_addr().expect("it is bound"));
    let config = FrontendConfig { handshake_address: address.clone(), ..over_tcp(1, 1) };
    let Err(error) = FrontendListener::bind(&Transport::new(), config) else { panic!("the port is taken") };
    assert_eq!(error.to_string(), format!("the address {address} is in use by another process"));
}

/// What the frontend says of an engine that it does not expect, and what the
/// real one would say, too.
#[test]
fn a_wrong_identity_is_named() {
    let transport = Transport::new();
    let listener = FrontendListener::bind(&transport, over_tcp(1, 2)).expect("the addresses are free");
    let config = EngineLinkConfig { timeout: MOMENT, ..EngineLinkConfig::new(listener.handshake_address(), 300) };
    let engine = thread::spawn(move || EngineGreeting::hello(&transport, config).map(drop));
    let Err(error) = listener.accept(PATIENCE) else { panic!("there is no engine 300") };
    let expected = "an engine with the identity 2c01 came, but the engines here are 0 to 1, as 2 bytes little-endian";
    assert_eq!(error.to_string(), expected);
    engine.join().expect("no panic").expect_err("nobody answers it");
}

#[test]
fn a_missing_engine_is_named() {
    let transport = Transport::new();
    let listener = FrontendListener::bind(&transport, over_tcp(1, 2)).expect("the addresses are free");
    let address = listener.handshake_address().to_owned();
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(&address, 0) };
    // It says HELLO and then nothing.
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
    // Neither blocks nor fails, whoever is gone.
    engine.outputs.send(0, b"to nobody").expect("it waits");
    let error = engine.outputs.send(2, b"").expect_err("there are two");
    assert_eq!(error.to_string(), "there is no API server 2: the frontend has 2");
    let error = engine.outputs.send_to_coordinator(b"").expect_err("there is none");
    assert_eq!(error.to_string(), "the frontend has no coordinator");
}

/// A message that is none concerns nobody else.
#[test]
fn garbage_is_reported_and_passed_over() {
    let (frontend, mut engines) = linked(over_tcp(1, 1));
    let engine = &mut engines[0];
    for frames in [&[&b""[..]][..], &[b"\x00"], &[b"\x07", b"\x90"], &[b"\x00", b"\x92\xa3bad\x07"]] {
        frontend.send_frames(0, 0, frames).expect("it is sent");
    }
    frontend.send(0, 0, &add("good", 0), &[], Line::V0_33.rules()).expect("it is sent");
    let mut malformed = |expected_id: Option<&str>| match engine.inputs.receive(PATIENCE).expect("it works") {
        Some(Received::Malformed { source: Source::Client(0), error, request_id }) => {
            assert_eq!(request_id.as_deref(), expected_id);
            error.to_string()
        }
        other => panic!("{other:?}"),
    };
    assert!(malformed(None).ends_with("but the message has 1 frames (byte 0)"));
    assert!(malformed(None).ends_with("but the message has 1 frames (byte 0)"));
    assert!(malformed(None).starts_with("request: a request type from 0 to 3"));
    assert!(malformed(Some("bad")).starts_with("ADD, element 1 `prompt_token_ids`: an array was expected"));
    let (_, Request::Add(good)) = next_request(engine) else { panic!("a request was sent") };
    assert_eq!(good.request_id, "good");
    let error = frontend.send_frames(0, 9, [b"\x00"]).expect_err("there is one engine");
    assert_eq!(error.to_string(), "engine 9 is not connected");
}

/// A frame beyond the limit costs its sender the connection, not us the memory.
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
