//! Spans of requests, as a collector receives them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use vcr_tests::{Folder, Serve, grpc_packages, self_signed, wait_until};

/// Head and body of a request.
type Message = (String, Vec<u8>);

/// Starts a collector that accepts everything. Returns its address and its requests.
fn collector() -> (String, Receiver<Message>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            _ = sender.send(read(stream));
        }
    });
    (format!("http://{address}"), messages)
}

fn read(mut stream: TcpStream) -> Message {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle of a socket"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).expect("a head has an end");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("it has a length");
    let mut body = vec![0; length.parse().expect("a number")];
    reader.read_exact(&mut body).expect("the body is complete");
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("it reads");
    (head, body)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_request_has_a_span_below_that_of_its_caller() {
    let (endpoint, messages) = collector();
    let serve = Serve::start(&["--otlp-traces-endpoint", &endpoint, "--otel-service-name", "here"]);
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = json!({"prompt": "a b", "max_tokens": 3, "ignore_eos": true, "temperature": 0.5, "request_id": "mine"});
    assert_eq!(serve.post_with("/v1/completions", parent, &body).status, 200);
    let (head, sent) = messages.recv_timeout(Duration::from_secs(60)).expect("the span comes");
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("application/x-protobuf"), "{head}");
    for text in [
        "service.name",
        "here",
        "vllm.llm_engine",
        "llm_request",
        "gen_ai.latency.time_to_first_token",
        "gen_ai.latency.e2e",
        "gen_ai.latency.time_in_queue",
        "gen_ai.latency.time_in_model_prefill",
        "gen_ai.latency.time_in_model_decode",
        "gen_ai.latency.time_in_model_inference",
        "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens",
        "gen_ai.request.id",
        "cmpl-mine",
        "gen_ai.request.temperature",
        "gen_ai.request.max_tokens",
        "gen_ai.request.top_p",
        "gen_ai.request.n",
    ] {
        assert!(contains(&sent, text.as_bytes()), "{text} is not in {}", String::from_utf8_lossy(&sent));
    }
    // The caller's trace ID, and its span ID as the parent: fields 1 and 4 with their lengths.
    assert!(contains(&sent, b"\x0a\x10\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c"));
    assert!(contains(&sent, b"\x22\x08\xb7\xad\x6b\x71\x69\x20\x33\x31"));
    // 3 tokens, as an integer.
    assert!(contains(&sent, b"gen_ai.usage.completion_tokens\x12\x02\x18\x03"));
}

#[test]
fn what_is_not_sampled_is_not_sent_and_the_last_spans_are() {
    let (endpoint, messages) = collector();
    let mut serve = Serve::start(&["--otlp-traces-endpoint", &endpoint]);
    let unsampled = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let call = |id: &str| json!({"prompt": "a", "max_tokens": 1, "request_id": id});
    assert_eq!(serve.post_with("/v1/completions", unsampled, &call("unsampled")).status, 200);
    assert_eq!(serve.post("/v1/completions", &call("sampled")).status, 200);
    serve.terminate();
    assert!(serve.wait().success());
    let all: Vec<u8> = messages.try_iter().flat_map(|(_, body)| body).collect();
    assert!(contains(&all, b"cmpl-sampled") && !contains(&all, b"cmpl-unsampled"));
}

/// A collector that others wrote, over gRPC.
#[test]
fn spans_go_over_grpc_with_and_without_tls() {
    let Some(packages) = grpc_packages() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let own = self_signed(folder.path(), "localhost", "own");
    let [certificate, key] = own.paths();
    for (scheme, files) in [("grpc", &[][..]), ("grpcs", &[certificate, key])] {
        let mut collector = packages.run("tests/frontends/otlp_collector.py", files);
        let mut port = None;
        wait_until("the collector listens", || {
            port = collector.lines().iter().find_map(|line| line["port"].as_u64());
            port.is_some()
        });
        let endpoint = format!("{scheme}://localhost:{}", port.expect("it listens"));
        let mut args = vec!["--otlp-traces-endpoint", &endpoint];
        if !files.is_empty() {
            args.extend(["--otlp-traces-certificate", certificate]);
        }
        let serve = Serve::start(&args);
        let body = json!({"prompt": "a b", "max_tokens": 3, "ignore_eos": true, "request_id": "mine"});
        assert_eq!(serve.post("/v1/completions", &body).status, 200);
        let name: String = "cmpl-mine".bytes().map(|byte| format!("{byte:02x}")).collect();
        wait_until("the span comes", || {
            collector.lines().iter().any(|line| line["message"].as_str().is_some_and(|sent| sent.contains(&name)))
        });
    }
}

#[test]
fn spans_go_over_https_to_a_collector_that_is_trusted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let own = self_signed(folder.path(), "localhost", "own");
    let [certificate, key] = own.paths();
    let chain = vec![CertificateDer::from_pem_file(certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions are known").with_no_client_auth().with_single_cert(chain, key);
    let config = Arc::new(config.expect("the key fits"));
    let listener = TcpListener::bind("localhost:0").expect("a free port");
    let endpoint = format!("https://localhost:{}", listener.local_addr().expect("it has an address").port());
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            let mut bytes = [0; 1000];
            // A client that does not trust the certificate disconnects.
            if let Ok(count) = stream.read(&mut bytes) {
                _ = sender.send(bytes[..count].to_vec());
                _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let call = json!({"prompt": "a", "max_tokens": 1});
    let wary = Serve::start(&["--otlp-traces-endpoint", &endpoint]);
    assert_eq!(wary.post("/v1/completions", &call).status, 200);
    wary.wait_for("traces cannot be sent");
    let serve = Serve::start(&["--otlp-traces-endpoint", &endpoint, "--otlp-traces-certificate", certificate]);
    assert_eq!(serve.post("/v1/completions", &call).status, 200);
    let sent = messages.recv_timeout(Duration::from_secs(60)).expect("the span comes");
    assert!(sent.starts_with(b"POST /v1/traces HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&sent));
}

#[test]
fn endpoints_are_checked_at_start_and_a_lost_collector_does_no_harm() {
    let folder = Folder::new();
    for url in ["grpc://localhost:4317/path", "ftp://localhost:4318", "localhost"] {
        let stderr = folder.vcr(&["serve", "--port", "0", "--otlp-traces-endpoint", url]).ended(2).stderr;
        assert!(stderr.contains("expected http://HOST:PORT"), "{url}: {stderr}");
    }
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let serve = Serve::start(&["--otlp-traces-endpoint", &format!("http://{gone}")]);
    for _ in 0..3 {
        assert_eq!(serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200);
    }
    serve.wait_for("traces cannot be sent");
}
