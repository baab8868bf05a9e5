//! Tests a server on a socket with clients that behave in different ways.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::*;
use crate::engine::current_connection;
use crate::metrics::{Metrics, MetricsOptions};
use crate::server::routes::Routes;

fn metrics() -> Metrics {
    Metrics::new(&MetricsOptions {
        model_name: "sim".to_owned(),
        engines: vec![0],
        max_model_len_tokens: 100,
        ..MetricsOptions::default()
    })
}

fn options() -> ListenOptions {
    ListenOptions {
        tls: None,
        head_timeout: Duration::from_secs(60),
        shutdown_timeout: Duration::from_secs(60),
        refuses: Arc::new(|| false),
        metrics: metrics(),
        rank: None,
        is_at_page: false,
        threads: Arc::default(),
    }
}

struct Direct;

impl Innermost for Direct {
    fn run(&self, request: Request, next: Next<'_>) -> impl Future<Output = Response> + Send {
        next.run(request)
    }
}

fn site(metrics: &Metrics) -> Arc<dyn Service> {
    async fn panics() {
        panic!("on purpose");
    }
    async fn resets() {
        current_connection().expect("a client's connection").reset();
        std::future::pending::<()>().await;
    }
    let routes = Routes::new()
        .route("/v1/models", get(|| async { "models" }))
        .route("/v1/messages", post(|| async { "message" }))
        .route("/health", get(|| async { "" }))
        .route("/thread", get(|| async { format!("thread {}", Handle::current().id()) }))
        .route("/panic", get(panics))
        .route("/reset", get(resets));
    let around = Around {
        metrics: metrics.clone(),
        fake_metrics: None,
        api_keys: list_of(&["one", "two"]),
        cors: Cors {
            origins: list_of(&["http://a.example"]),
            methods: list_of(&["*"]),
            headers: list_of(&["*"]),
            credentials: false,
        },
        log: RequestLog { has_id_header: true },
        pod: PodHeaders::default(),
        session_cookie: None,
        body: BodyLimits { max_bytes: 1000, timeout: Duration::from_secs(60) },
        body_memory_bytes: 1000,
        before: None,
        page: None,
    };
    around.site(routes, Direct)
}

fn list_of(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

/// Starts a server. Sending to the returned sender stops it.
async fn started(options: ListenOptions) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let site = site(&options.metrics);
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(serve(listener, site, options, async {
        let _ = ended.await;
    }));
    (address, end, task)
}

/// Sends a request on a connection that is then closed. Returns the response.
async fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("{head}host: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}

#[tokio::test]
async fn keys_guard_all_but_what_probes_read() {
    let (address, _end, _) = started(options()).await;
    let status = async |head: &str| ask(address, head).await.split(' ').nth(1).map(str::to_owned).unwrap_or_default();
    let refused = ask(address, "GET /v1/models HTTP/1.1\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.ends_with(r#"{"error":"Unauthorized"}"#), "{refused}");
    for (head, wanted) in [
        ("GET /v1/models HTTP/1.1\r\nauthorization: Bearer two\r\n", "200"),
        ("GET /v1/models HTTP/1.1\r\nauthorization: bearer one\r\n", "200"),
        ("GET /v1/models HTTP/1.1\r\nauthorization: Bearer onet\r\n", "401"),
        ("GET /v1/models HTTP/1.1\r\nauthorization: Bearer \r\n", "401"),
        ("GET /v1/models HTTP/1.1\r\nx-api-key: one\r\n", "401"),
        ("POST /v1/messages HTTP/1.1\r\nx-api-key: one\r\ncontent-length: 0\r\n", "200"),
        ("GET /v1/nothing HTTP/1.1\r\n", "401"),
        ("GET /nothing HTTP/1.1\r\n", "401"),
        ("POST /pause HTTP/1.1\r\ncontent-length: 0\r\n", "401"),
        ("POST /health HTTP/1.1\r\ncontent-length: 0\r\n", "401"),
        ("POST /vllm.grpc.engine.VllmEngine/Abort HTTP/1.1\r\ncontent-length: 0\r\n", "401"),
        ("GET /health HTTP/1.1\r\n", "200"),
        ("HEAD /health HTTP/1.1\r\n", "200"),
        ("POST /ping HTTP/1.1\r\ncontent-length: 0\r\n", "404"),
    ] {
        assert_eq!(status(head).await, wanted, "{head}");
    }
}

#[tokio::test]
async fn pages_of_allowed_origins_may_ask() {
    let (address, _end, _) = started(options()).await;
    let preflight = "OPTIONS /v1/models HTTP/1.1\r\naccess-control-request-method: POST\r\n\
                     access-control-request-headers: x-foo\r\norigin: ";
    let answer = ask(address, &format!("{preflight}http://a.example\r\n")).await;
    for line in [
        "HTTP/1.1 200",
        "access-control-allow-origin: http://a.example",
        "access-control-allow-methods: DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT",
        "access-control-allow-headers: x-foo",
        "access-control-max-age: 600",
        "vary: origin",
    ] {
        assert!(answer.contains(line), "{line} is not in {answer}");
    }
    let other = ask(address, &format!("{preflight}http://b.example\r\n")).await;
    assert!(!other.contains("allow-origin"), "{other}");
    let simple = ask(address, "GET /health HTTP/1.1\r\norigin: http://a.example\r\n").await;
    assert!(simple.contains("access-control-allow-origin: http://a.example"), "{simple}");
    let any = Cors { origins: list_of(&["*"]), credentials: true, ..Cors::default() };
    assert!(format!("{any:?}").contains('*'));
}

#[tokio::test]
async fn requests_have_ids_and_panics_stay_inside() {
    let (address, _end, _) = started(options()).await;
    let answer = ask(address, "GET /panic HTTP/1.1\r\nauthorization: Bearer one\r\nx-request-id: mine\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("x-request-id: mine"), "{answer}");
    assert!(answer.contains("Internal server error (request mine)") && !answer.contains("on purpose"), "{answer}");
    let answer = ask(address, "GET /health HTTP/1.1\r\n").await;
    let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("an id");
    assert_eq!(id.trim().len(), 32);
}

#[tokio::test]
async fn a_reset_is_no_orderly_end() {
    let (address, _end, _) = started(options()).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(b"GET /reset HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one\r\n\r\n").await.expect("it reads");
    let error = stream.read(&mut [0; 10]).await.expect_err("it is reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let (address, _end, _) = started(ListenOptions { refuses: Arc::new(|| true), ..options() }).await;
    // The connection may be reset before `connect` returns.
    if let Ok(mut stream) = TcpStream::connect(address).await {
        assert!(stream.read(&mut [0; 10]).await.is_err());
    }
}

#[tokio::test]
async fn clients_without_a_request_are_cut_off_and_harm_no_others() {
    let options = ListenOptions { head_timeout: Duration::from_millis(200), ..options() };
    let (address, _end, _) = started(options).await;
    let mut idle = Vec::new();
    for first in [&b""[..], b"G", b"PRI * HT", b"GET / HTTP/1.1\r\nx: "] {
        for _ in 0..50 {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(first).await.expect("it reads");
            idle.push(stream);
        }
    }
    assert!(ask(address, "GET /health HTTP/1.1\r\n").await.starts_with("HTTP/1.1 200"));
    for mut stream in idle {
        // The stream ends or is reset. Without the limit, this would wait forever.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

#[tokio::test]
async fn a_port_in_use_is_told() {
    let (address, _end, _) = started(options()).await;
    let error = bind(address).await.expect_err("it is in use").to_string();
    assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
}

#[tokio::test]
async fn the_end_waits_for_no_idle_connection() {
    let (address, end, task) = started(options()).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.expect("it answers");
    end.send(()).expect("it runs");
    task.await.expect("it ends");
}

/// If threads shared connections, the order of a step's tokens would vary.
#[test]
fn threads_get_connections_in_turn() {
    let threads = ServerThreads::start(3).expect("there are threads");
    let options = ListenOptions { threads: Arc::new(threads.pool()), ..options() };
    let names: Vec<String> = threads.first().block_on(async {
        let (address, _end, _) = started(options).await;
        let mut names = Vec::new();
        for _ in 0..6 {
            let answer = ask(address, "GET /thread HTTP/1.1\r\nauthorization: Bearer one\r\n").await;
            names.extend(answer.rsplit("\r\n").next().map(str::to_owned));
        }
        names
    });
    threads.shut_down();
    assert_eq!(names[..3], names[3..], "in turn");
    assert!(names.iter().all(|name| name.starts_with("thread ")), "{names:?}");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3, "{names:?}");
}

#[test]
fn certificates_that_are_none_are_told() {
    let files = |path: &str| TlsSettings {
        own: ServerCertificate::Files { certificates: path.into(), key: None },
        client_authorities: None,
        client_certificates: ClientCertificates::None,
    };
    let error = Tls::new(files("/nowhere/cert.pem")).expect_err("there is none").to_string();
    assert!(error.starts_with("invalid certificate `/nowhere/cert.pem`: expected a PEM file"), "{error}");
    let error = Tls::new(files(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).expect_err("no PEM").to_string();
    assert!(error.contains("there is no certificate in it"), "{error}");
    let error = ServerCertificate::self_signed(vec!["\u{e4}".to_owned()]).expect_err("no name").to_string();
    assert!(error.starts_with("cannot sign a certificate for \u{e4}: "), "{error}");
}
