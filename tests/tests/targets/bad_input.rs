//! Targets that do not exist, are another kind of server, or misbehave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use vcr_tests::{Folder, free_port};

use crate::Outputs;

const SMALL: &str = r#"
let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "1ms" }) }) });
let r = run(#{ cluster: c, workloads: [ burst(#{ count: 3, prompt_tokens: 32, output_tokens: 4 }) ] });
expect(r, "completed", "count == 3");
"#;

#[test]
fn unknown_targets_are_named() {
    let folder = Folder::with(SMALL);
    let said = |target: &str| folder.run(&["--target", target]);
    said("lives").failed(2, &["--target: expected \"virtual\", ", "got \"lives\"", "did you mean `live`"]);
    said("http").failed(2, &["--target: \"http\" needs the address of a server", "http(\"http://localhost:8000\""]);
    said("frontend").failed(2, &["needs the program and the model"]);
    said("http://").failed(2, &["invalid server address `http://`"]);
    said("http(\"ftp://x\")").failed(2, &["invalid server address `ftp://x`"]);
    said("http(\"http://x\", #{ modell: \"a\" })")
        .failed(2, &["`http` has no option `modell`", "did you mean `model`"]);
    said("http(\"http://x\", #{ headers: 7 })").failed(2, &["invalid `headers`: expected a map"]);
    said("http(\"http://x\", #{ prompts: \"tokens\" })").failed(2, &["prompts"]);
    said("frontend(#{ binary: \"no-such-program\" })").failed(2, &["model"]);
    let other = Folder::with(&SMALL.replace("cluster: c,", "cluster: c, target: \"liv\","));
    other.run(&[]).failed(2, &["test.rhai:3", "invalid `target`: expected \"virtual\", ", "got \"liv\""]);
}

#[test]
fn what_a_target_cannot_run_is_refused_by_name() {
    let folder = Folder::with(
        r#"
        let p = |name| pool(#{
            name: name, engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "1ms" }), data_parallel_size: 2,
            data_parallel_barrier: true,
        });
        let c = cluster(#{
            prefill: p.call("prefill"), decode: p.call("decode"),
            link: link(#{ kv_bytes_per_token: "1KiB", transfer: "full-prompt" }),
        });
        run(#{ name: "two pools", cluster: c, workloads: [ burst(#{ count: 3, prompt_tokens: 32, output_tokens: 4 }) ] });
    "#,
    );
    let parts = ["data-parallel ranks that wait for each other (pool `decode`)", "no transfers of whole prompts"];
    let needles = [
        "the target `frontend` cannot run `two pools`: it has no",
        ": each engine steps by itself; ",
        "--target serve",
    ];
    let frontend = "frontend(#{ binary: \"vllm-rs\", model: \"model\" })";
    folder.run(&["--target", frontend]).failed(2, &[&parts[..], &needles[..]].concat());
    let folder = Folder::with(&SMALL.replace("cluster: c,", "cluster: c, faults: [ crash(#{ at: \"1s\" }) ],"));
    let target = format!("http://127.0.0.1:{}", free_port());
    folder.run(&["--target", &target]).failed(2, &["the target `http` cannot run `run`: it has no planned faults"]);
    let folder = Folder::with(SMALL);
    folder.run(&["--target", "live", "--uncertainty", "5"]).failed(2, &["`--uncertainty`", "virtual time only"]);
}

#[test]
fn servers_that_are_not_there_are_an_error_and_no_result() {
    let folder = Folder::with(SMALL);
    let target = format!("http://127.0.0.1:{}", free_port());
    folder.run(&["--target", &target]).failed(2, &["cannot connect to", "refused", "start the server"]);
    let target = format!("https://127.0.0.1:{}", speaker(|_, _| Some("HTTP/1.1 200 OK\r\n\r\n".to_owned())));
    folder.run(&["--target", &target]).failed(2, &["no TLS connection to", "ca_file"]);
    let target = format!("http://127.0.0.1:{}", speaker(|_, _| Some("what is this\r\n\r\n".to_owned())));
    folder.run(&["--target", &target]).failed(2, &["the server's answer is invalid"]);
    let target = format!("http://127.0.0.1:{}", speaker(|_, _| Some(json("[1, 2"))));
    folder.run(&["--target", &target]).failed(2, &["not a server of OpenAI's API"]);
    folder
        .run(&["--target", "http(\"https://127.0.0.1:1\", #{ ca_file: \"none.pem\" })"])
        .failed(2, &["invalid `ca_file` `none.pem`"]);
}

#[test]
fn frontends_that_cannot_be_started_say_so() {
    let folder = Folder::with(SMALL);
    std::fs::create_dir(folder.path().join("model")).expect("a temporary folder is writable");
    let target = "frontend(#{ binary: \"no-such-program\", model: \"model\" })";
    folder.run(&["--target", target]).failed(2, &["invalid `model` `model`: expected a folder with a tokenizer.json"]);
    folder.write("model/tokenizer.json", "{}");
    folder.run(&["--target", target]).failed(2, &["cannot start `no-such-program`", "vllm-rs"]);
    let target = "frontend(#{ binary: \"/bin/false\", model: \"model\" })";
    folder.run(&["--target", target]).failed(3, &["the frontend ended"]);
    let target = "frontend(#{ binary: \"/bin/false\", model: \"model\", line: \"0.1\" })";
    folder.run(&["--target", target]).failed(2, &["invalid `line`"]);
}

/// The server's errors fail requests, each with its reason, and the report is kept.
#[test]
fn answers_that_are_none_fail_their_requests_only() {
    let event = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n");
    let tokens = event("a").repeat(2);
    let cases: [(&str, String); 6] = [
        (
            "the server answered with HTTP status 500",
            status("500 Internal Server Error", "{\"error\":{\"message\":\"no\"}}"),
        ),
        ("the server's answer is invalid", stream("<html>\n")),
        ("the server's answer is invalid", stream("data: {\"choices\": 7}\n\n")),
        ("the server's answer is invalid", stream(&event("a").repeat(100))),
        (
            "the server ended it with an error",
            stream(&format!("{tokens}data: {{\"error\":{{\"message\":\"the engine is gone\"}}}}\n\n")),
        ),
        ("the connection was lost", stream(&tokens)),
    ];
    for (reason, answer) in cases {
        let port = speaker(move |path, _| completion_or_model(path, &answer));
        let folder = Folder::with(SMALL);
        let given = ["--target", &format!("http://127.0.0.1:{port}"), "--out", "out", "--files", "report,requests"];
        let said = folder.run(&given).ended(1);
        let outputs = Outputs::read(&folder);
        let failures = &outputs.run()["metrics"]["failures"];
        let counted: u64 = failures.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
        assert_eq!(counted, 3, "{reason}: {failures}");
        assert_eq!(failures[reason], 3, "{failures}\n{}", said.stderr);
        assert!(said.stderr.contains("warning: run `run`: a request failed: "), "{}", said.stderr);
    }
}

/// A script error after a run keeps the run's measurements. A comparison of nothing fails, and a series without
/// values is all zeros.
#[test]
fn errors_after_a_run_keep_what_it_has_measured() {
    let answer = status("500 Internal Server Error", "{\"error\":{\"message\":\"no\"}}");
    let port = speaker(move |path, _| completion_or_model(path, &answer));
    let target = format!("http://127.0.0.1:{port}");
    let run = SMALL.lines().take(3).collect::<Vec<_>>().join("\n");
    let head = r#"{"kind":"meta","format":"vcr.capture","version":1}"#;
    let row = r#"{"kind":"request","arrival_ns":0,"prompt_tokens":5,"output_tokens":2,"finish_reason":"stop"}"#;
    let end = r#"{"kind":"end","at_ns":9,"requests":1,"unfinished":0}"#;
    let cases: [(&str, &[&str]); 5] = [
        (r#"value(r, "ttft", "p50");"#, &["`ttft` has no samples in this run"]),
        ("compare(r, r);", &["nothing to compare: no request was answered whole"]),
        (r#"compare(r, capture("timeless.jsonl"));"#, &["nothing to compare", "timeless.jsonl"]),
        (r#"compare(r, capture("none.jsonl"));"#, &["cannot read capture `none.jsonl`"]),
        (r#"series(r, "ttft");"#, &["unknown series `ttft`"]),
    ];
    for (line, needles) in cases {
        let folder = Folder::with(&format!("{run}\n{line}\n"));
        folder.write("timeless.jsonl", format!("{head}\n{row}\n{end}\n"));
        let said = folder.run(&["--target", &target, "--out", "out", "--files", "report,requests"]).ended(2);
        let needles = needles.iter().chain(&["measurements before the error were written, marked partial"]);
        for needle in needles {
            assert!(said.stderr.contains(needle), "{line}: {}", said.stderr);
        }
        let outputs = Outputs::read(&folder);
        assert_eq!(outputs.report["partial"]["stopped_by"], "error", "{line}");
        assert_eq!(outputs.counter("failed"), 3, "{line}");
    }
    // In virtual time, the same run can be repeated, so nothing is written.
    let folder = Folder::with(&format!("{run}\nseries(r, \"ttft\");\n"));
    folder.run(&["--out", "out"]).failed(2, &["unknown series `ttft`"]);
    assert!(!folder.path().join("out/report.json").exists());
    let line = r#"check("zeros", series(r, "completed_per_s").reduce(|sum, value| sum + value, 0.0) == 0.0);"#;
    let folder = Folder::with(&format!("{run}\n{line}\nexpect(r, \"ttft\", \"p50 < 1s\");\n"));
    let outcome = folder.run(&["--target", &target, "--json"]).ended(1).json();
    let passed = [0, 1].map(|index: usize| outcome["assertions"][index]["passed"].clone());
    assert_eq!(passed, [true, false], "zeros, and no samples: {outcome:#}");
}

/// A server that falls silent, or whose answer never ends.
#[test]
fn silent_servers_are_waited_for_no_longer_than_asked() {
    let port = speaker(move |path, socket| {
        let answer = completion_or_model(path, "");
        if answer.as_ref().is_some_and(String::is_empty) {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
            _ = socket.write_all(format!("{head}data: {{\"choices\":[{{\"text\":\"a\"}}]}}\n\n").as_bytes());
            for _ in 0..200 {
                thread::sleep(Duration::from_millis(50));
                if socket.write_all(b": still there\n\n").is_err() {
                    break;
                }
            }
            return None;
        }
        answer
    });
    let folder = Folder::with(SMALL);
    let target = format!("http(\"http://127.0.0.1:{port}\", #{{ idle_timeout: \"500ms\" }})");
    let said = folder.run(&["--target", &target, "--out", "out", "--files", "report,requests"]).ended(1);
    let outputs = Outputs::read(&folder);
    assert_eq!(outputs.run()["metrics"]["failures"]["the server sent nothing for too long"], 3, "{}", said.stderr);
    let run = outputs.run();
    assert_eq!(run["metrics"]["counters"]["generated_tokens"], 3, "what came until then is kept: {run:#}");
}

/// A run that a time limit ends is partial, with the results so far.
#[test]
fn a_run_on_a_silent_server_can_be_ended() {
    let port = speaker(move |path, _| {
        let answer = completion_or_model(path, "");
        if answer.as_ref().is_some_and(String::is_empty) {
            thread::sleep(Duration::from_secs(20));
        }
        answer
    });
    let folder = Folder::with(SMALL);
    let target = format!("http://127.0.0.1:{port}");
    let said = folder
        .vcr(&[
            "--timeout",
            "2s",
            "run",
            "test.rhai",
            "--target",
            &target,
            "--out",
            "out",
            "--files",
            "report,requests",
        ])
        .ended(124);
    assert!(said.stderr.contains("results so far were written, marked partial"), "{}", said.stderr);
    let outputs = Outputs::read(&folder);
    assert_eq!((&outputs.run()["partial"], &outputs.run()["unfinished_requests"]), (&true.into(), &3.into()));
}

/// Response of a fake server: its one model, or `answer`.
fn completion_or_model(path: &str, answer: &str) -> Option<String> {
    match path {
        "/v1/models" => Some(json("{\"data\":[{\"id\":\"sim\",\"owned_by\":\"vllm\"}]}")),
        "/v1/completions" => Some(answer.to_owned()),
        _ => Some(status("404 Not Found", "{}")),
    }
}

fn json(body: &str) -> String {
    status("200 OK", body)
}

fn status(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// An answer that ends when its connection is closed.
fn stream(events: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{events}")
}

/// Starts a server that reads a request, sends something, and disconnects. Returns its port.
fn speaker(say: impl Fn(&str, &mut TcpStream) -> Option<String> + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            let say = say.clone();
            thread::spawn(move || {
                let mut buffer = [0; 65_536];
                // These requests fit into one packet, or their beginning is enough.
                let count = socket.read(&mut buffer).unwrap_or(0);
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                if let Some(answer) = say(&path, &mut socket) {
                    _ = socket.write_all(answer.as_bytes());
                }
                // Closing a connection with unread input would reset it and discard the answer.
                _ = socket.shutdown(std::net::Shutdown::Write);
                _ = std::io::copy(&mut socket, &mut std::io::sink());
            });
        }
    });
    port
}
