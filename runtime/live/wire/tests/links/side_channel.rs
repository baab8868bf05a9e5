//! The side channel: notices, and queries for the metadata of a KV cache.

use std::time::Instant;

use super::*;

fn until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "nothing came");
        thread::yield_now();
    }
}

#[test]
fn one_port_takes_notices_and_answers_questions() {
    let transport = Transport::new();
    let mut board = NoticeBoard::bind(&transport, "tcp://127.0.0.1:*").expect("a port is free");
    let query = NixlQuery { pp_rank: 0, tp_rank: 1 };
    let metadata = NixlHandshake { compatibility_hash: "abc".to_owned(), agent_metadata_bytes: Blob(vec![1, 2, 3]) };
    board.set_metadata(query, &metadata);

    let address = board.address().to_owned();
    let ask = |query| MetadataRequest::send(&transport, &address, query).expect("it is sent");
    let unknown = ask(NixlQuery { pp_rank: 0, tp_rank: 2 });
    let known = ask(query);
    let mut sender = NoticeSender::new(&transport);
    sender.send(&address, "cmpl-1").expect("it is sent");

    let (mut notices, mut answer) = (Vec::new(), None);
    let answer = until(|| {
        notices.extend(board.try_receive().expect("it works"));
        // The answer and the notices may come in either order.
        answer = answer.take().or(known.try_receive().expect("it works"));
        answer.take_if(|_| !notices.is_empty())
    });
    assert_eq!((NixlHandshake::decode(&answer), notices), (Ok(metadata), vec!["cmpl-1".to_owned()]));
    assert_eq!(unknown.try_receive().expect("it works"), None);
}

/// Queries with a REQ socket, as vLLM's connector does.
#[test]
fn a_question_of_vllm_is_answered_with_the_metadata_and_a_clock() {
    let transport = Transport::new();
    let mut board = NoticeBoard::bind(&transport, "tcp://127.0.0.1:*").expect("a port is free");
    let metadata = NixlHandshake { compatibility_hash: "abc".to_owned(), ..NixlHandshake::default() };
    board.set_metadata(NixlQuery { pp_rank: 0, tp_rank: 0 }, &metadata);

    let context = zmq::Context::new();
    let socket = context.socket(zmq::REQ).expect("a socket");
    socket.connect(board.address()).expect("it is there");
    let before = monotonic_ns() as f64 / 1e9;
    socket.send(&b"\x93\xc4\x0cget_meta_msg\x00\x00"[..], 0).expect("it is sent");
    let frames = until(|| {
        assert_eq!(board.try_receive().expect("it works"), None, "a question is no notice");
        socket.recv_multipart(zmq::DONTWAIT).ok()
    });
    let [answer, clock] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(NixlHandshake::decode(answer), Ok(metadata));
    let Ok(Value::F64(clock)) = Value::decode(clock) else { panic!("{clock:?}") };
    assert!((before..before + PATIENCE.as_secs_f64()).contains(&clock), "{clock} is not after {before}");
}
