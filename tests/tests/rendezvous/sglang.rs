//! SGLang's bootstrap server.

use serde_json::{Value, json};
use vcr_tests::{free_port, wait_until};

use crate::{Foreign, Worker, both, completed, foreign, reason};

/// Parameters that both workers get. Their roles follow from their processes.
fn of_both(port: u16, room: u64) -> Value {
    json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room})
}

fn prefill(more: &[&str]) -> Worker {
    Worker::start("sglang", &[&["--kv-transfer", "tcp", "--kv-rendezvous-role", "prefill"], more].concat())
}

#[test]
fn either_side_comes_first_and_kv_moves() {
    let (prefill, decode) = (prefill(&[]), Worker::decode("sglang"));
    assert_eq!(completed(&prefill.complete("a", &of_both(prefill.port, 1))), 1, "it computes one token");
    assert_eq!(completed(&decode.complete("a", &of_both(prefill.port, 1))), 5);
    let room = (1 << 62) + 1;
    let (decoded, computed) = both(
        || decode.complete("b", &of_both(prefill.port, room)),
        || {
            wait_until("the decode engine waits", || decode.metric("vcr_kv_rooms_total") == 2.0);
            prefill.complete("b", &of_both(prefill.port, room))
        },
    );
    assert_eq!((completed(&decoded), completed(&computed)), (5, 1));
    wait_until("the pages are counted", || decode.metric("vcr_kv_transfer_pages_received_total") == 1280.0);
    prefill.is_whole();
    decode.is_whole();
}

#[test]
fn requests_may_name_the_room_as_for_sglang() {
    let (prefill, decode) = (prefill(&[]), Worker::decode("sglang"));
    let body = json!({
        "model": "sim", "prompt": crate::prompt(), "max_tokens": 5, "ignore_eos": true,
        "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": 11,
    });
    assert_eq!(completed(&prefill.serve.post("/v1/completions", &body)), 1);
    assert_eq!(completed(&decode.serve.post("/v1/completions", &body)), 5);
    let chat = json!({
        "model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "ignore_eos": true,
        "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": 12,
    });
    assert_eq!(completed(&prefill.serve.post("/v1/chat/completions", &chat)), 1);
    assert_eq!(completed(&decode.serve.post("/v1/chat/completions", &chat)), 5);
    wait_until("both rooms are counted", || decode.metric("vcr_kv_rooms_total") == 2.0);
}

#[test]
fn a_worker_that_never_comes_is_named() {
    let (prefill, decode) =
        (prefill(&[]), Worker::start("sglang", &["--kv-rendezvous-role", "decode", "--kv-rendezvous-timeout", "1s"]));
    let error = reason(&decode.complete("a", &of_both(prefill.port, 7)));
    let expected = format!(
        "no peer answers for room 7 at 127.0.0.1:{} within 1s (the request of the room has not come",
        prefill.port
    );
    assert!(error.contains(&expected), "{error}");
    let nowhere = free_port();
    let error = reason(&decode.complete("a", &of_both(nowhere, 7)));
    assert!(
        error.contains(&format!("no peer answers for room 7 at 127.0.0.1:{nowhere} within 1s (Connection refused")),
        "{error}"
    );
    decode.is_whole();
}

/// A worker written for SGLang's protocol finds every rank, and meets the prefill engine.
#[test]
fn a_decode_worker_of_sglang_finds_the_rank_of_its_room() {
    let prefill = prefill(&["--data-parallel-size", "2", "--tensor-parallel-size", "2"]);
    let port = prefill.port.to_string();
    for room in ["5", "6"] {
        let (said, computed) = both(
            || foreign(&["sglang-decode", "127.0.0.1", &port, room]),
            || prefill.complete(room, &of_both(prefill.port, room.parse().expect("a number"))),
        );
        assert_eq!((completed(&computed), &said["answer"]), (1, &json!("01")), "{said}");
        let info = &said["info"];
        assert_eq!((&info["dp_size"], &info["attn_tp_size"], &info["page_size"]), (&json!(2), &json!(2), &json!(16)));
        assert_eq!((&said["health"], &said["missing"]), (&json!([200, "OK"]), &json!(404)));
        assert_eq!(said["places"][0], said["places"][1], "an engine has one port for all its tensor-parallel ranks");
    }
    prefill.is_whole();
}

/// A prefill worker written for SGLang's protocol is found by the number of the room, or by a query.
#[test]
fn a_prefill_worker_of_sglang_is_found() {
    let decode = Worker::start("sglang", &["--kv-rendezvous-role", "decode"]);
    let by_number = Foreign::start(&["sglang-prefill", "16", "yes"]);
    for (room, rank) in [(10, 0), (11, 1)] {
        assert_eq!(completed(&decode.complete(&room.to_string(), &of_both(by_number.port, room))), 5);
        assert_eq!(by_number.next(), json!({"room": room, "rank": rank}));
    }
    let by_asking = Foreign::start(&["sglang-prefill", "16", "no"]);
    assert_eq!(completed(&decode.complete("c", &of_both(by_asking.port, 10))), 5);
    assert_eq!(by_asking.next(), json!({"room": 10, "rank": 1}));
    let other_pages = Foreign::start(&["sglang-prefill", "64", "no"]);
    let error = reason(&decode.complete("d", &of_both(other_pages.port, 10)));
    assert!(error.contains("its page_size is 64, but a block has 16 tokens here (--block-size)"), "{error}");
}

#[test]
fn ranks_that_do_not_fit_are_not_registered() {
    let prefill = prefill(&["--tensor-parallel-size", "2"]);
    let port = prefill.port.to_string();
    let lies = foreign(&["sglang-rank", "127.0.0.1", &port, "127.0.0.1"]);
    assert_eq!(lies["status"], 400, "{lies}");
    assert!(lies["answer"].as_str().is_some_and(|text| text.contains("attn_tp_size: 1")), "{lies}");
    let elsewhere = foreign(&["sglang-rank", "127.0.0.1", &port, "192.0.2.1"]);
    assert_eq!(elsewhere["status"], 403, "{elsewhere}");
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let status = |answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>| match answer {
        Ok(answer) => answer.status().as_u16(),
        Err(ureq::Error::StatusCode(status)) => status,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(status(ureq::get(url("/route?prefill_dp_rank=x")).call()), 400);
    assert_eq!(status(ureq::put(url("/route")).send("{\"attn_tp_size\":")), 400);
    // One byte above the limit. The server has read the whole body when it answers, so closing the connection
    // cannot cut the client off.
    assert_eq!(status(ureq::put(url("/route")).send(vec![b' '; (4 << 20) + 1])), 413);
    assert_eq!(status(ureq::post(url("/query_dp_ranks")).send("[]")), 400);
    assert_eq!(status(ureq::delete(url("/route")).call()), 405);
}
