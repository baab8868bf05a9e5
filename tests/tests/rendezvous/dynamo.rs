//! The TCP bootstrap of NVIDIA Dynamo's mocker.

use serde_json::{Value, json};
use vcr_tests::{client, free_port, wait_until};

use crate::{Foreign, Worker, both, completed, foreign, reason};

fn of_prefill(room: u64) -> Value {
    json!({"do_remote_decode": true, "bootstrap_room": room})
}

fn of_decode(port: u16, room: u64) -> Value {
    json!({"do_remote_prefill": true, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room})
}

#[test]
fn either_side_comes_first_and_kv_moves() {
    let (prefill, decode) = (Worker::prefill("dynamo"), Worker::decode("dynamo"));
    let computed = prefill.complete("a", &of_prefill(1));
    assert_eq!(completed(&computed), 1, "the decode engine computes the rest");
    assert_eq!(completed(&decode.complete("a", &of_decode(prefill.port, 1))), 5);
    let (decoded, computed) = both(
        || decode.complete("b", &of_decode(prefill.port, u64::MAX)),
        || {
            wait_until("the decode engine waits", || decode.metric("vcr_kv_rooms_total") == 2.0);
            prefill.complete("b", &of_prefill(u64::MAX))
        },
    );
    assert_eq!((completed(&decoded), completed(&computed)), (5, 1));
    // Ten blocks each, with K and V of 32 layers. Their bytes matched the pattern.
    wait_until("the pages are counted", || decode.metric("vcr_kv_transfer_pages_received_total") == 1280.0);
    assert_eq!(decode.metric("vcr_kv_rooms_missed_total"), 0.0);
    prefill.is_whole();
    decode.is_whole();
}

/// With NIXL, the room names the side channel.
#[test]
fn kv_moves_through_nixl_too() {
    let Some(python) = client("nixl") else { return };
    let library = python.nixl_library();
    let library = library.to_str().expect("a path in text");
    let moves = ["--kv-transfer", "nixl", "--nixl-library", library];
    let prefill = Worker::start("dynamo", &moves);
    let decode = Worker::start("dynamo", &[&moves[..], &["--kv-rendezvous-role", "decode"]].concat());
    for room in [1, 2] {
        let salt = room.to_string();
        let (decoded, computed) = both(
            || decode.complete(&salt, &of_decode(prefill.port, room)),
            || prefill.complete(&salt, &of_prefill(room)),
        );
        assert_eq!((completed(&decoded), completed(&computed)), (5, 1));
    }
    // Ten blocks each, with a region for each of 32 layers.
    wait_until("the pages are counted", || decode.metric("vcr_kv_transfer_pages_received_total") == 640.0);
    assert_eq!(decode.metric("vcr_kv_transfer_failures_total"), 0.0);
    prefill.is_whole();
    decode.is_whole();
}

#[test]
fn a_worker_that_never_comes_is_named() {
    let prefill = Worker::start("dynamo", &["--kv-rendezvous-timeout", "1s"]);
    let decode = Worker::start("dynamo", &["--kv-rendezvous-timeout", "1s", "--kv-rendezvous-role", "decode"]);
    let nobody = reason(&decode.complete("a", &of_decode(prefill.port, 7)));
    let expected =
        format!("the prefill worker at 127.0.0.1:{}, room 7: the prompt was not finished within 1s", prefill.port);
    assert!(nobody.contains(&expected), "{nobody}");
    let nowhere = free_port();
    let nobody = reason(&decode.complete("a", &of_decode(nowhere, 7)));
    let expected = format!("no prefill worker came to 127.0.0.1:{nowhere}, for room 7, within 1s (Connection refused");
    assert!(nobody.contains(&expected), "{nobody}");
    wait_until("both are counted", || decode.metric("vcr_kv_rooms_missed_total") == 2.0);
    decode.is_whole();
    assert_eq!(completed(&prefill.complete("b", &of_prefill(8))), 1);
    prefill.serve.wait_for("no decode engine came to room 8 within 1s");
    prefill.is_whole();
}

/// The decode engine has all of the second prompt in its cache except the end.
#[test]
fn what_is_cached_does_not_move_again() {
    let (prefill, decode) = (Worker::prefill("dynamo"), Worker::decode("dynamo"));
    for (room, pages) in [(1, 640.0), (2, 704.0)] {
        assert_eq!(completed(&prefill.complete("a", &of_prefill(room))), 1);
        assert_eq!(completed(&decode.complete("a", &of_decode(prefill.port, room))), 5);
        wait_until("the pages are counted", || decode.metric("vcr_kv_transfer_pages_received_total") == pages);
        prefill.is_whole();
    }
}

/// A decode engine can compute a prompt whose KV does not arrive.
#[test]
fn a_missed_prompt_may_be_computed_again() {
    let more =
        ["--kv-rendezvous-timeout", "1s", "--kv-load-failure-policy", "recompute", "--kv-rendezvous-role", "decode"];
    let decode = Worker::start("dynamo", &more);
    assert_eq!(completed(&decode.complete("a", &of_decode(free_port(), 7))), 5);
    wait_until("it is counted", || decode.metric("vcr_kv_loads_recomputed_total") == 1.0);
    decode.is_whole();
}

/// When a client disconnects, its request leaves the room. When a prefill engine gives up, it reports that.
#[test]
fn requests_that_end_early_leave_their_rooms() {
    let (prefill, decode) = (Worker::start("dynamo", &["--prefill-step-time", "1h"]), Worker::decode("dynamo"));
    let body =
        |params: &Value| json!({"model": "sim", "prompt": [1, 2, 3], "max_tokens": 5, "kv_transfer_params": params});
    let computing = prefill.serve.begin("/v1/completions", &body(&of_prefill(3)));
    wait_until("the prompt is computed", || prefill.metric("vcr_requests_total") == 1.0);
    let (decoded, ()) = both(
        || decode.complete("a", &of_decode(prefill.port, 3)),
        || {
            wait_until("the decode engine waits", || decode.metric("vcr_kv_rooms_total") == 1.0);
            drop(computing);
        },
    );
    let error = reason(&decoded);
    assert!(
        error.contains("room 3: refused: the prefill engine's request ended before its prompt was finished"),
        "{error}"
    );
    let waiting = decode.serve.begin("/v1/completions", &body(&of_decode(prefill.port, 4)));
    wait_until("the decode engine waits", || decode.metric("vcr_kv_rooms_total") == 2.0);
    drop(waiting);
    decode.is_whole();
}

/// The ports of ranks are consecutive, and each leads to the rooms of all ranks.
#[test]
fn each_rank_has_a_port() {
    let prefill = Worker::start("dynamo", &["--kv-transfer", "tcp", "--data-parallel-size", "2"]);
    let decode = Worker::decode("dynamo");
    for (room, port) in [(1, prefill.port), (2, prefill.port + 1), (3, prefill.port), (4, prefill.port + 1)] {
        let salt = room.to_string();
        assert_eq!(completed(&prefill.complete(&salt, &of_prefill(room))), 1);
        assert_eq!(completed(&decode.complete(&salt, &of_decode(port, room))), 5);
    }
    prefill.is_whole();
}

/// Dynamo's workers neither describe KV nor send notices.
#[test]
fn workers_of_dynamo_meet_those_of_vcr() {
    let prefill = Worker::prefill("dynamo");
    let port = prefill.port.to_string();
    let (answer, computed) =
        both(|| foreign(&["dynamo-decode", "127.0.0.1", &port, "5"]), || prefill.complete("a", &of_prefill(5)));
    assert_eq!((&answer["answer"], completed(&computed)), (&json!("01"), 1));
    prefill.is_whole();

    let other = Foreign::start(&["dynamo-prefill", "6", "7"]);
    let decode = Worker::start("dynamo", &["--kv-rendezvous-role", "decode"]);
    assert_eq!(completed(&decode.complete("a", &of_decode(other.port, 6))), 5);
    let moves = Worker::decode("dynamo");
    let error = reason(&moves.complete("a", &of_decode(other.port, 7)));
    assert!(error.contains("does not report the address of its KV; every --kv-transfer but none needs it"), "{error}");
}
