//! The bootstrap server of vLLM's Mooncake connector, with the parameters of llm-d's sidecar.

use serde_json::{Value, json};
use vcr_tests::{free_port, wait_until};

use crate::{Foreign, Worker, both, completed, foreign, reason};

fn of_prefill(transfer: &str) -> Value {
    json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer})
}

fn of_decode(port: u16, engine: &str, transfer: &str) -> Value {
    json!({
        "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": transfer, "remote_engine_id": engine,
        "remote_bootstrap_addr": format!("http://127.0.0.1:{port}"),
    })
}

#[test]
fn either_side_comes_first_and_kv_moves() {
    let (prefill, decode) = (Worker::prefill("mooncake"), Worker::decode("mooncake"));
    assert_eq!(completed(&prefill.complete("a", &of_prefill("xfer-1"))), 1);
    assert_eq!(completed(&decode.complete("a", &of_decode(prefill.port, "vcr-engine-0", "xfer-1"))), 5);
    let (decoded, computed) = both(
        || decode.complete("b", &of_decode(prefill.port, "vcr-engine-0", "xfer-2")),
        || {
            wait_until("the decode engine waits", || decode.metric("vcr_kv_rooms_total") == 2.0);
            prefill.complete("b", &of_prefill("xfer-2"))
        },
    );
    assert_eq!((completed(&decoded), completed(&computed)), (5, 1));
    wait_until("the pages are counted", || decode.metric("vcr_kv_transfer_pages_received_total") == 1280.0);
    prefill.is_whole();
    decode.is_whole();
}

#[test]
fn a_worker_that_never_comes_is_named() {
    let prefill = Worker::prefill("mooncake");
    let decode = Worker::start("mooncake", &["--kv-rendezvous-role", "decode", "--kv-rendezvous-timeout", "1s"]);
    let other = reason(&decode.complete("a", &of_decode(prefill.port, "other", "x")));
    let expected = format!(
        "no peer answers for room `x` at 127.0.0.1:{} within 1s (engine `other` has not registered there; `vcr-engine-0` has)",
        prefill.port
    );
    assert!(other.contains(&expected), "{other}");
    let late = reason(&decode.complete("a", &of_decode(prefill.port, "vcr-engine-0", "x")));
    assert!(late.contains("room `x`: the prompt was not finished within 1s"), "{late}");
    let nowhere = free_port();
    let nobody = reason(&decode.complete("a", &of_decode(nowhere, "vcr-engine-0", "x")));
    assert!(nobody.contains(&format!("127.0.0.1:{nowhere} within 1s (Connection refused")), "{nobody}");
    decode.is_whole();
}

/// The worker asks as llm-d's sidecar and vLLM's connector do: for the engine of a data-parallel rank, and for the
/// worker of each tensor-parallel rank.
#[test]
fn a_decode_worker_of_vllm_finds_its_engine() {
    let prefill = Worker::start(
        "mooncake",
        &["--kv-transfer", "tcp", "--data-parallel-size", "2", "--tensor-parallel-size", "2"],
    );
    let port = prefill.port.to_string();
    let (said, computed) = both(
        || foreign(&["mooncake-decode", "127.0.0.1", &port, "vcr-engine-0_dp1", "xfer"]),
        || prefill.complete("a", &of_prefill("xfer")),
    );
    assert_eq!((completed(&computed), &said["answer"]), (1, &json!("01")), "{said}");
    let engines = &said["engines"];
    assert_eq!(engines["0"]["engine_id"], "vcr-engine-0_dp0", "{engines}");
    assert_eq!(engines["1"]["worker_addr"]["0"], engines["1"]["worker_addr"]["1"], "{engines}");
    prefill.is_whole();
}

#[test]
fn a_prefill_worker_of_vllm_is_found() {
    let other = Foreign::start(&["mooncake-prefill", "theirs", "xfer-1", "xfer-2"]);
    let decode = Worker::start("mooncake", &["--kv-rendezvous-role", "decode"]);
    assert_eq!(completed(&decode.complete("a", &of_decode(other.port, "theirs", "xfer-1"))), 5);
    let moves = Worker::decode("mooncake");
    let error = reason(&moves.complete("a", &of_decode(other.port, "theirs", "xfer-2")));
    assert!(error.contains("does not report the address of its KV"), "{error}");
}

#[test]
fn workers_that_do_not_fit_are_not_registered() {
    let prefill = Worker::prefill("mooncake");
    let port = prefill.port.to_string();
    let register = |addr: &str| foreign(&["mooncake-worker", "127.0.0.1", &port, addr]);
    assert_eq!(register("127.0.0.1:9")["status"], 422);
    assert_eq!(register("tcp://192.0.2.1:9")["status"], 403);
    assert_eq!(register("tcp://127.0.0.1:9")["status"], 200);
    let twice = register("tcp://127.0.0.1:8");
    assert_eq!(twice["status"], 400, "{twice}");
    assert!(twice["answer"].as_str().is_some_and(|text| text.contains("is at tcp://127.0.0.1:9, not at")), "{twice}");
}
