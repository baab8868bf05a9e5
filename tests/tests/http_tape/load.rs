//! Captures of HTTP as loads.

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve};

use crate::{CHATS, Recording, chat, post, streamed, url};

const SCENARIO: &str = r#"
let pool = pool(#{ engines: 1, engine: engine(#{}), latency: fixed(#{ step: "10ms" }) });
let again = run(#{ name: "again", cluster: cluster(#{ engines: pool }),
    workloads: [trace(#{ path: "day.jsonl", bodies: "recorded" })] });
expect(again, "completed", "count == 4");
"#;

#[test]
fn requests_are_sent_again_as_they_were() {
    let folder = Folder::with(SCENARIO);
    let serve = Serve::start(&[]);
    let recording = Recording::start(&url(&serve), &folder.path().join("day.jsonl"), &[]);
    let message = json!({"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "four"}]});
    let headers = [("X-Tenant", "blue"), ("X-Session-Id", "talk"), ("Authorization", "Bearer some-secret")];
    let calls = [
        (format!("{CHATS}?page=1"), streamed("one")),
        (CHATS.to_owned(), chat("two", &json!({}))),
        ("/v1/completions".to_owned(), json!({"model": "sim", "prompt": "three", "max_tokens": 7})),
        ("/v1/messages".to_owned(), message),
    ];
    for (path, body) in &calls {
        assert_eq!(post(&recording.address, path, &headers, body).status, 200, "{path}");
    }
    recording.end();
    drop(serve);

    let again = Serve::start(&["--keep-requests", "100"]);
    let out = ["--target", &url(&again), "--out", "out", "--files", "requests"];
    _ = folder.run(&out).ended(0);
    let seen = again.get("/_vcr/requests").body["requests"].clone();
    let seen: Vec<Value> = seen.as_array().expect("a list").iter().filter(|one| is_a_call(one)).cloned().collect();
    let target = |one: &Value| match one["query"].as_str() {
        Some(query) => format!("{}?{query}", one["path"].as_str().expect("a path")),
        None => one["path"].as_str().expect("a path").to_owned(),
    };
    let body = |one: &Value| serde_json::from_str::<Value>(one["body"].as_str().expect("a text")).expect("JSON");
    assert_eq!(
        seen.iter().map(|one| (target(one), body(one))).collect::<Vec<_>>(),
        calls,
        "in the order of the session"
    );
    for one in &seen {
        assert_eq!((&one["headers"]["x-tenant"], &one["headers"]["x-session-id"]), (&json!("blue"), &json!("talk")));
        assert_eq!(one["headers"].get("authorization"), None, "the capture does not have it");
    }
    let rows = std::fs::read_to_string(folder.path().join("out/requests.jsonl")).expect("it was written");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let tokens: Vec<_> = rows.iter().map(|row| row["output_tokens"].as_u64()).collect();
    assert_eq!(tokens, [Some(6), Some(6), Some(7), Some(5)], "those of the answers");
    _ = folder.vcr(&["compare", "day.jsonl", "out/requests.jsonl"]).ended(0);

    // A server of another model than the recorded one.
    let other = Serve::start(&["--served-model-name", "other"]);
    let target = format!(r#"target: http("{}", #{{ model: "other" }}), workloads:"#, url(&other));
    let renamed = Folder::with(&SCENARIO.replace("workloads:", &target));
    std::fs::copy(folder.path().join("day.jsonl"), renamed.path().join("day.jsonl")).expect("a copy");
    _ = renamed.run(&[]).ended(0);

    let meta = r#"{"kind":"meta","format":"vcr.capture","version":1}"#;
    let request =
        r#"{"kind":"request","arrival_ns":1,"prompt_tokens":5,"output_tokens":1,"end_ns":9,"finish_reason":"stop"}"#;
    let end = r#"{"kind":"end","at_ns":9,"requests":1,"unfinished":0}"#;
    folder.write("day.jsonl", format!("{meta}\n{request}\n{end}\n"));
    folder.run(&[]).failed(2, &["day.jsonl has no requests of HTTP", "vcr record --upstream"]);
}

fn is_a_call(one: &Value) -> bool {
    one["method"] == "POST" && one["path"] != "/tokenize"
}
