//! Peers that break the protocol, and options that cannot be used.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::json;
use vcr_tests::{Folder, free_port};

use crate::{Worker, completed, reason};

/// Serves one decode engine: reads its room, and answers with `answer`. Returns the port.
fn liar(answer: Vec<u8>) -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let lie = move || {
        let (mut stream, _) = listener.accept().expect("a decode engine comes");
        stream.read_exact(&mut [0; 8]).expect("it names a room");
        stream.write_all(&answer).expect("it listens");
    };
    (port, thread::spawn(lie))
}

#[test]
fn peers_that_lie_fail_their_request_alone() {
    let decode = Worker::decode("dynamo");
    let header = |version: u8, length: u32| [&b"\x01vcrR"[..], &[version], &length.to_le_bytes()].concat();
    let described = |host: &str, blocks: usize| {
        let body = json!({
            "remote_engine_id": "p", "remote_request_id": "r", "remote_host": host, "remote_port": 9,
            "remote_block_ids": vec![1; blocks], "remote_registration_generation": null, "transfer_mode": "pull",
        })
        .to_string();
        [&header(1, body.len() as u32)[..], body.as_bytes()].concat()
    };
    for (answer, expected) in [
        (vec![7], "it answers with byte 0x07, expected 0x01"),
        (Vec::new(), "it closed the connection before the prompt was finished"),
        (b"\x01HTTP/1.1 400 Bad Request".to_vec(), "does not describe its KV as vcr does"),
        (header(9, 2), "it has version 9 of the room protocol, expected version 1"),
        (header(1, u32::MAX), "its description has 4294967295 bytes, at most 8388608 are allowed"),
        ([&header(1, 100)[..], b"{\"remote"].concat(), "its description was cut off: 8 of 100 bytes came"),
        ([&header(1, 2)[..], b"[]"].concat(), "its description cannot be read"),
        (
            described("192.0.2.1", 10),
            "its KV is at `192.0.2.1`, which is not an allowed KV peer (see --allow-remote-kv)",
        ),
        (described("127.0.0.1", 3), "remote_block_ids has 3 blocks, but the prompt has 10"),
    ] {
        let (port, liar) = liar(answer);
        let params = json!({"do_remote_prefill": true, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 1});
        let error = reason(&decode.complete("a", &params));
        assert!(error.contains(expected), "{error}");
        liar.join().expect("it has lied");
    }
    decode.is_whole();
    assert_eq!(completed(&decode.complete("a", &json!({}))), 5);
}

#[test]
fn garbage_at_the_port_of_rooms_disturbs_nobody() {
    let (prefill, decode) = (Worker::prefill("dynamo"), Worker::decode("dynamo"));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[1, 2, 3], &[]] {
        let mut stream = TcpStream::connect(("127.0.0.1", prefill.port)).expect("it listens");
        _ = stream.write_all(garbage);
    }
    assert_eq!(completed(&prefill.complete("a", &json!({"do_remote_decode": true, "bootstrap_room": 3}))), 1);
    let meeting = json!({"do_remote_prefill": true, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.port, "bootstrap_room": 3});
    assert_eq!(completed(&decode.complete("a", &meeting)), 5);
    prefill.is_whole();
}

/// The decode engine computes the prompt itself, as for every peer that a request may not name.
#[test]
fn rooms_that_cannot_be_used_are_a_miss() {
    let decode = Worker::decode("dynamo");
    let of = |host: &str, port: i64, room: serde_json::Value| json!({"do_remote_prefill": true, "bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room});
    assert_eq!(completed(&decode.complete("a", &of("192.0.2.1", 1, json!(1)))), 5);
    decode.serve.wait_for("host `192.0.2.1` is not an allowed KV peer");
    for (params, missing) in [
        (of("127.0.0.1", 70_000, json!(1)), "bootstrap_host, bootstrap_port"),
        (of("127.0.0.1", 1, json!(-1)), "bootstrap_room"),
        (of("127.0.0.1", 1, json!("x")), "bootstrap_room"),
    ] {
        assert_eq!(completed(&decode.complete("a", &params)), 5);
        decode.serve.wait_for(&format!("kv_transfer_params lack a usable {missing}"));
    }
    assert_eq!(decode.metric("vcr_kv_rooms_total"), 0.0);
}

#[test]
fn options_that_cannot_be_used_end_with_code_2() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let folder = Folder::new();
    let free = free_port().to_string();
    for (args, expected) in [
        (&["--kv-rendezvous-port", &*port][..], format!("cannot listen at 127.0.0.1:{port} for a KV rendezvous")),
        (
            &["--kv-rendezvous-port", "65535", "--data-parallel-size", "2"],
            "port 65535 + rank 1 exceeds 65535".to_owned(),
        ),
        (&["--kv-rendezvous-port", &free, "--kv-rendezvous-timeout", "0s"], "--kv-rendezvous-timeout 0s".to_owned()),
        (&["--kv-rendezvous", "carrier-pigeon"], "invalid value 'carrier-pigeon'".to_owned()),
    ] {
        let named = if args[0] == "--kv-rendezvous" { &[][..] } else { &["--kv-rendezvous", "dynamo"] };
        folder.vcr(&[&["serve", "--port", "0"], named, args].concat()).failed(2, &[&expected]);
    }
}
