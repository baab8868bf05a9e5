//! The publisher of KV events, with subscribers that use ZeroMQ directly.

use vcr_wire::*;

use super::*;

fn batch(hash: u64) -> KvEventBatch {
    let event = BlockRemoved { block_hashes: vec![BlockHash::Int(hash)], ..BlockRemoved::default() };
    KvEventBatch { ts: 1.5, events: vec![KvEvent::BlockRemoved(Box::new(event))], data_parallel_rank: None }
}

#[test]
fn subscribers_get_batches_and_what_they_missed() {
    let folder = tempfile::tempdir().expect("there is room");
    let config = KvEventsConfig {
        endpoint: format!("ipc://{}/events", folder.path().display()),
        replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv".to_owned(),
        buffer_steps: 3,
        ..KvEventsConfig::default()
    };
    let mut publisher = KvEventPublisher::open(&Transport::new(), config, 2).expect("the addresses are free");
    let said = publisher.config().clone();
    assert_eq!((said.enable_kv_cache_events, said.publisher.as_str()), (true, "zmq"));
    for hash in 0..4 {
        assert_eq!(publisher.publish(&batch(hash)).expect("it is sent"), hash);
    }

    let context = zmq::Context::new();
    let subscriber = context.socket(zmq::SUB).expect("a socket");
    subscriber.set_subscribe(b"kv").expect("it subscribes");
    subscriber.set_rcvtimeo(PATIENCE.as_millis() as i32).expect("it is patient");
    subscriber.connect(&said.endpoint).expect("it is there");
    // A subscription takes a moment to arrive; earlier batches are missed.
    thread::sleep(MOMENT);
    publisher.publish(&batch(4)).expect("it is sent");
    let message = KvEventMessage::decode(&subscriber.recv_multipart(0).expect("it comes")).expect("it is a batch");
    let expected = KvEventBatch { data_parallel_rank: Some(2), ..batch(4) };
    assert_eq!(message, KvEventMessage { topic: "kv".to_owned(), sequence: 4, batch: expected });

    let client = context.socket(zmq::DEALER).expect("a socket");
    client.set_rcvtimeo(PATIENCE.as_millis() as i32).expect("it is patient");
    client.connect(said.replay_endpoint.as_ref().expect("there is one")).expect("it is there");
    // An invalid request has no answer.
    client.send_multipart([&b""[..], b"123"], 0).expect("it is sent");
    client.send_multipart([&b""[..], &1_u64.to_be_bytes()], 0).expect("it is sent");
    let deadline = std::time::Instant::now() + PATIENCE;
    while publisher.serve_replays().expect("it works") == 0 {
        assert!(std::time::Instant::now() < deadline, "the question arrives");
        thread::sleep(Duration::from_millis(1));
    }
    // Three of the four missed batches are kept.
    for sequence in 2..5 {
        let frames = client.recv_multipart(0).expect("it comes");
        assert!(frames[0].is_empty());
        let message = KvEventMessage::decode(&frames[1..]).expect("it is a batch");
        assert_eq!((message.topic.as_str(), message.sequence), ("kv", sequence));
    }
    let end: [&[u8]; 4] = [b"", b"", &[0xff; 8], b""];
    assert_eq!(client.recv_multipart(0).expect("it comes"), end);
}

#[test]
fn an_endpoint_in_use_is_named() {
    let config = || KvEventsConfig { endpoint: "tcp://*:0".to_owned(), ..KvEventsConfig::default() };
    let first = KvEventPublisher::open(&Transport::new(), config(), 0).expect("a free port");
    let endpoint = first.config().endpoint.replace("0.0.0.0", "*");
    let config = KvEventsConfig { endpoint: endpoint.clone(), ..config() };
    let Err(error) = KvEventPublisher::open(&Transport::new(), config, 0) else { panic!("the port is taken") };
    assert_eq!(error.to_string(), format!("the address {endpoint} is in use by another process"));
}
