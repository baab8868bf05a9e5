//! Events that end the wait of an engine, and events that do not.

use vcr_wire::Protocol as _;
use vcr_wire::*;

use super::*;

fn in_a_moment() -> Option<u64> {
    Some(monotonic_ns() + MOMENT.as_nanos() as u64)
}

fn next_id(engine: &mut EngineLink) -> Option<String> {
    match engine.inputs.try_receive_message().expect("it works")? {
        Received::Request { request: Request::Add(request), .. } => Some(request.request_id),
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_end_it_if_they_are_wanted() {
    let (frontend, mut engines) = linked(over_tcp(1, 1));
    let engine = &mut engines[0];
    let waiter = Waiter::new().expect("there are descriptors");
    assert_eq!(next_id(engine), None);
    assert_eq!(engine.inputs.try_receive_loss().expect("it works"), None);
    for id in ["a", "b"] {
        frontend.send(0, 0, &add(id, 0), &[], VllmMinor::V0_33.rules()).expect("it is sent");
    }

    // While messages are unwanted, they neither end the wait nor get lost.
    let until_ns = in_a_moment();
    assert!(!waiter.wait(&mut engine.inputs, false, None, None, until_ns).expect("it works"));
    assert!(Some(monotonic_ns()) >= until_ns, "something ended the waiting early");
    assert_eq!(next_id(engine), None, "no call looked for messages");

    // The messages must end this wait, which has no time limit.
    waiter.wait(&mut engine.inputs, true, None, None, None).expect("it works");
    assert_eq!(next_id(engine).as_deref(), Some("a"));
    // ZeroMQ has taken the second message already, so no descriptor shows it.
    waiter.wait(&mut engine.inputs, true, None, None, None).expect("it works");
    assert_eq!(next_id(engine).as_deref(), Some("b"));
    assert_eq!(next_id(engine), None);

    let until_ns = in_a_moment();
    assert!(!waiter.wait(&mut engine.inputs, true, None, None, until_ns).expect("it works"));
    assert!(Some(monotonic_ns()) >= until_ns, "something ended the waiting early");
}

#[test]
fn a_call_and_a_lost_frontend_end_it() {
    let (frontend, mut engines) = linked(over_tcp(1, 1));
    let engine = &mut engines[0];
    let waiter = Waiter::new().expect("there are descriptors");
    assert_eq!(next_id(engine), None);
    assert_eq!(engine.inputs.try_receive_loss().expect("it works"), None);

    let waker = waiter.waker();
    let calling = thread::spawn(move || waker.wake());
    assert!(waiter.wait(&mut engine.inputs, true, None, None, None).expect("it works"));
    calling.join().expect("no panic");

    drop(frontend);
    while !matches!(engine.inputs.try_receive_loss().expect("it works"), Some(Received::FrontendLost { client: 0 })) {
        // The loss ends waits even while messages are unwanted.
        waiter.wait(&mut engine.inputs, false, None, None, None).expect("it works");
    }
}
