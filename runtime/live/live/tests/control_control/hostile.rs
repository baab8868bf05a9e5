//! Malicious and mistaken clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::{PATIENCE, Site};

const CHANGES: [&str; 7] =
    ["/latency", "/time-scale", "/faults", "/pause", "/resume", "/reset-prefix-cache", "/shutdown"];

/// Arbitrary bytes, and JSON that is almost valid.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        Just("model".to_owned()),
        Just("factor".to_owned()),
        Just("fault".to_owned()),
        Just("engine".to_owned()),
        Just("config".to_owned()),
        ".{0,8}",
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_map(|value| format!("{value:e}")),
        "\"[ -~]{0,20}\"",
        Just("\"error:rate=2\"".to_owned()),
        Just("{}".to_owned()),
        Just("null".to_owned()),
        Just("[".repeat(500)),
        Just("{\"a\":".repeat(300)),
    ];
    let object = prop::collection::vec((key, value), 0..4).prop_map(|pairs| {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{key:?}: {value}")).collect();
        format!("{{{}}}", pairs.join(", ")).into_bytes()
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..200), object]
}

#[test]
fn no_body_is_the_servers_fault() {
    let site = Site::waiting(1);
    let mut runner = TestRunner::default();
    let any_change = (prop::sample::select(&CHANGES[..6]), body());
    let run = runner.run(&any_change, |(path, body)| {
        let answer = site.post(path, body);
        prop_assert!([202, 400, 404].contains(&answer.status), "{answer:?}");
        if answer.status != 202 {
            let status = answer.status;
            answer.error(status);
        }
        Ok(())
    });
    run.expect("it answers");
    site.end();
}

#[test]
fn bodies_have_a_limit() {
    let site = Site::waiting(1);
    for (bytes, status) in [(64 << 10, 400), ((64 << 10) + 1, 413), (3 << 20, 413)] {
        for path in CHANGES {
            let (error, _) = site.post(path, vec![b'x'; bytes]).error(status);
            assert_eq!(error.contains("the body is larger than 64 KiB"), status == 413, "{error}");
        }
    }
    site.end();
}

#[test]
fn bytes_that_are_no_request_end_their_connection_only() {
    let site = Site::waiting(1);
    let mut runner = TestRunner::default();
    let run = runner.run(&prop::collection::vec(any::<u8>(), 0..300), |bytes| {
        let mut stream = TcpStream::connect(site.admin).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        // The server may close the connection before it has read everything.
        _ = stream.write_all(&bytes);
        _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        if stream.read_to_end(&mut answer).is_ok() {
            prop_assert!(!answer.starts_with(b"HTTP/1.1 5"), "{}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    });
    run.expect("it goes on");
    assert_eq!(site.get("/healthz").status, 200);
    site.end();
}

/// Slow clients hold up neither other clients nor the end of the server.
#[test]
fn slow_clients_hold_nobody_up() {
    let site = Site::waiting(1);
    let slow: Vec<_> = (0..20)
        .map(|index| {
            let address = if index % 2 == 0 { site.admin } else { site.metrics };
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{").expect("it is taken");
            stream
        })
        .collect();
    assert_eq!(site.get("/healthz").status, 200);
    let began = Instant::now();
    site.end();
    assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
    drop(slow);
}
