//! Keys, faults that clients meet, certificates, made-up metrics, and files of llm-d-inference-sim.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Folder, Said, Serve, frontend_model, vcr};

const REQUEST: &str = r#"{"prompt": "a", "max_tokens": 6, "ignore_eos": true}"#;

fn metrics(serve: &Serve) -> String {
    let answer = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
    answer.into_body().read_to_string().expect("it is text")
}

fn request(stream: bool) -> Value {
    let mut request: Value = serde_json::from_str(REQUEST).expect("JSON");
    request["stream"] = json!(stream);
    request
}

#[test]
fn a_sequence_of_calls_fails_and_recovers() {
    let faults = ["--client-fault", "status:code=429,retry-after=3s,call=2", "--client-fault", "no-usage:call=3"];
    let serve = Serve::start(&faults);
    let call = || serve.post("/v1/completions", &request(false));
    assert_eq!(call().status, 200);
    let limited = call();
    assert_eq!((limited.status, &limited.body["error"]["type"]), (429, &json!("RateLimitError")));
    let bare = call();
    assert_eq!((bare.status, &bare.body["usage"]), (200, &Value::Null));
    assert_eq!(call().body["usage"]["completion_tokens"], 6);
    let told = metrics(&serve);
    for line in [
        r#"vcr:faults_injected_total{kind="status"} 1"#,
        r#"vcr:faults_injected_total{kind="no-usage"} 1"#,
        r#"vllm:request_success_total{model_name="sim",engine="0",finished_reason="length"} 3"#,
        r#"http_requests_total{method="POST",status="4xx",handler="/v1/completions"} 1"#,
    ] {
        assert!(told.lines().any(|other| other == line), "{line} is not in\n{told}");
    }
}

#[test]
fn streams_break_in_the_middle() {
    let faults = [
        "--client-fault",
        "error-event:after=2,call=1",
        "--client-fault",
        "twice-done:call=2",
        "--client-fault",
        "reset:after=2,call=3",
    ];
    let serve = Serve::start(&faults);
    let events = serve.stream("/v1/completions", &request(true));
    assert_eq!(events.iter().flatten().filter(|event| event["error"]["code"] == 500).count(), 1, "{events:?}");
    let events = serve.stream("/v1/completions", &request(true));
    assert_eq!(events.iter().filter(|event| **event == Err("[DONE]".to_owned())).count(), 2, "{events:?}");
    let mut connection = serve.begin("/v1/completions", &request(true));
    let error = connection.read_to_end(&mut Vec::new()).expect_err("it is reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(serve.post("/v1/completions", &request(false)).status, 200);
}

/// The connection after a reset one is served.
#[test]
fn a_refused_connection_is_reset_before_anything_is_read() {
    let serve = Serve::start(&["--client-fault", "refuse:call=1"]);
    let refused = TcpStream::connect(serve.address()).and_then(|mut stream| {
        stream.write_all(b"GET /health HTTP/1.1\r\n\r\n")?;
        stream.read(&mut [0])
    });
    let kind = refused.expect_err("it is reset").kind();
    assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind}");
    assert_eq!(serve.post("/v1/completions", &request(false)).status, 200);
    assert!(metrics(&serve).contains(r#"vcr:faults_injected_total{kind="refuse"} 1"#));
}

#[test]
fn requests_are_logged_where_that_is_wanted() {
    let ask = |serve: &Serve| serve.post_with("/v1/completions", "X-Request-Id: abc", &request(false)).status;
    let serve = Serve::start_with(&[("RUST_LOG", "access=debug")], &[]);
    assert_eq!(ask(&serve), 200);
    let line = serve.wait_for("request_id=abc");
    let forged = "X-Request-Id: a\" level=ERROR status=500";
    assert_eq!(serve.post_with("/v1/completions", forged, &request(false)).status, 200);
    let _ = serve.wait_for(r#"request_id="a\" level=ERROR status=500""#);
    for part in [" peer=127.0.0.1:", " method=POST", " path=\"/v1/completions\"", " status=200", " elapsed_ms="] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let quiet = Serve::start(&[]);
    assert_eq!(ask(&quiet), 200);
    assert!(!quiet.log().contains("request_id"), "{}", quiet.log());
}

#[test]
fn keys_guard_the_api() {
    let serve = Serve::start(&["--api-key", "secret"]);
    let refused = serve.post("/v1/completions", &request(false));
    assert_eq!((refused.status, refused.body), (401, json!({"error": "Unauthorized"})));
    assert_eq!(serve.get("/health").status, 200);
    let url = format!("http://{}/v1/completions", serve.address());
    let answer =
        ureq::post(url).header("Authorization", "Bearer secret").content_type("application/json").send(REQUEST);
    assert_eq!(answer.expect("it is answered").status(), 200);
}

/// Every route that changes the engines needs a key, and refuses requests from web pages.
#[test]
fn nobody_changes_engines_without_a_key_or_from_a_page() {
    const CHANGES: [&str; 21] = [
        "/sleep",
        "/wake_up",
        "/pause",
        "/resume",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/release_kv_cache_memory",
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/collective_rpc",
        "/update_weight_version",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/shutdown_weight_transfer_engine",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/weight_checker",
    ];
    let guarded = Serve::start(&["--api-key", "secret", "--allowed-origins", "[\"http://a.example\"]"]);
    let open = Serve::start(&["--allowed-origins", "[\"*\"]"]);
    let key = ("Authorization", "Bearer secret");
    for path in CHANGES {
        assert_eq!(guarded.post(path, &json!({})).status, 401, "{path}");
        if path == "/weight_checker" {
            // This route is not simulated.
            continue;
        }
        for page in [("Origin", "http://a.example"), ("Sec-Fetch-Site", "cross-site")] {
            assert_eq!(guarded.ask("POST", path, &[key, page], &json!({})).status, 403, "{path} {page:?}");
            assert_eq!(open.ask("POST", path, &[page], &json!({})).status, 403, "{path} {page:?}");
        }
    }
    for path in ["/tokenize", "/pooling", "/classify", "/score", "/rerank", "/vllm.grpc.engine.VllmEngine/Generate"] {
        assert_eq!(guarded.post(path, &json!({})).status, 401, "{path}");
    }
    for path in ["/server_info", "/v1/models", "/nothing"] {
        assert_eq!(guarded.get(path).status, 401, "{path}");
    }
    for path in ["/health", "/ready", "/version", "/load", "/metrics", "/is_paused", "/is_sleeping"] {
        assert_eq!(guarded.get(path).status, 200, "{path}");
    }
    assert_eq!(guarded.ask("POST", "/pause", &[key], &json!({})).status, 200);
    assert_eq!(guarded.get("/is_paused").body, json!({"is_paused": true}));
}

#[test]
fn an_empty_key_is_an_error() {
    let folder = Folder::new();
    folder.vcr(&["serve", "--port", "0", "--api-key", ""]).failed(2, &["--api-key", "expected a key"]);
    for name in ["VLLM_API_KEY", "VCR_API_KEY"] {
        let mut command = Command::new(vcr());
        Said::of(command.args(["serve", "--port", "0"]).env(name, "")).failed(2, &["expected a key"]);
    }
}

#[test]
fn made_up_metrics_replace_the_real_ones() {
    let serve = Serve::start(&["--fake-metrics", r#"{"running-requests": 10}"#]);
    assert_eq!(serve.post("/v1/completions", &request(false)).status, 200);
    let told = metrics(&serve);
    assert!(told.contains(r#"vllm:num_requests_running{model_name="sim",engine="0"} 10"#), "{told}");
    assert!(!told.contains("vllm:request_success_total{"), "{told}");
}

#[test]
fn what_cannot_be_served_is_told_at_start() {
    let folder = Folder::new();
    folder.write("bad.yaml", "prot: 1\n");
    folder.write("cert.pem", "no certificate");
    for (args, wanted) in [
        (&["--ssl-certfile", "nowhere.pem"][..], "invalid certificate `nowhere.pem`"),
        (&["--ssl-certfile", "cert.pem"], "there is no certificate in it"),
        (&["--client-fault", "statsu"], "expected one of status, rate_limit"),
        (&["--fake-metrics", "{\"x\": 1}"], "invalid --fake-metrics: unknown field `x`"),
        (&["--llm-d-config", "bad.yaml"], "invalid setting `prot`"),
        (&["--allowed-origins", "*"], "expected a JSON list"),
    ] {
        folder.vcr(&[&["serve", "--port", "0"], args].concat()).failed(2, &[wanted]);
    }
    for option in ["--config", "--llm-d-config"] {
        let said = folder.vcr(&["serve", "--port", "0", option, "bad.yaml"]).ended(2).stderr;
        assert!(said.starts_with(&format!("error: {option} bad.yaml: ")) && said.lines().count() == 1, "{said}");
    }
    let serve = Serve::start(&[]);
    let port = serve.address().rsplit(':').next().expect("a port").to_owned();
    folder.vcr(&["serve", "--port", &port]).failed(2, &["cannot listen on 127.0.0.1"]);
}

#[test]
fn a_file_of_llm_d_inference_sim_is_read() {
    let folder = Folder::new();
    let config = "model: org/model\nmax-model-len: 512\nlatency-calculator: per-token\nfailure-injection-rate: 100\n\
                  failure-types: [server_error]\nlatencies:\n  time-to-first-token: 1ms\n";
    let path = folder.write("llm-d.yaml", config);
    let path = path.to_str().expect("a path is a text");
    let serve = Serve::start(&["--llm-d-config", path, "--max-model-len", "256"]);
    let refused = serve.post("/v1/completions", &request(false));
    assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &json!(503)));
    assert_eq!(serve.get("/v1/models").status, 200);
    assert!(serve.log().contains("cannot honour latency-calculator"), "{}", serve.log());
    drop(serve);
    let fixed = "model: org/model\nmax-model-len: 512\n";
    let path = folder.write("llm-d.yaml", fixed);
    let serve = Serve::start(&["--llm-d-config", path.to_str().expect("a text"), "--max-model-len", "256"]);
    let models = serve.get("/v1/models").body;
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("org/model"), &json!(256)));
}

/// The metrics use the first served name, also if the model is a folder.
#[test]
fn metrics_have_the_first_name_of_the_model() {
    let Some(model) = frontend_model() else { return };
    let model = model.to_str().expect("a path is a text").to_owned();
    let serve = Serve::start(&[&model, "--served-model-name", "one", "two"]);
    assert!(metrics(&serve).contains(r#"vllm:num_requests_running{model_name="one",engine="0"} 0"#));
}

#[test]
fn health_says_whether_a_server_is_up() {
    let serve = Serve::start(&[]);
    let folder = Folder::new();
    let url = format!("http://{}", serve.address());
    let _ = folder.vcr(&["health", &url]).ended(0);
    let _ = folder.vcr(&["health", &format!("{url}/v1/models")]).ended(0);
    folder.vcr(&["health", &format!("{url}/nothing")]).failed(1, &["/nothing answered with status 404: expected 200"]);
    for invalid in ["https://127.0.0.1:1", "http://127.0.0.1", "http://:80", "http://h:80/a b", "http://h:0", "h"] {
        folder.vcr(&["health", invalid]).failed(2, &["invalid URL", "expected http://HOST:PORT[/PATH]"]);
    }
    drop(serve);
    folder.vcr(&["health", &url]).failed(1, &["no answer from"]);
}

/// `vcr health` copes with a peer that is not an HTTP server, and with a silent one.
#[test]
fn health_does_not_trust_its_peer() {
    let folder = Folder::new();
    for (answer, problem) in
        [("HELO\n".to_owned(), "not HTTP"), ("x".repeat(100_000), "not HTTP"), (String::new(), "no answer from")]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            // Read the whole request first: closing a connection with unread bytes resets it, which may lose the
            // answer.
            let mut asked = std::io::BufRead::lines(std::io::BufReader::new(&stream));
            while asked.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            // The client may close the connection before everything is written.
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        });
        folder.vcr(&["health", &url]).failed(1, &[problem]);
        peer.join().expect("it has answered");
    }
}
