//! The page at `/_vcr/`: its contents, its access rules, and its look in a browser.

use serde_json::{Value, json};
use vcr_tests::{Call, Folder, Frontend, FrontendOptions, HttpAnswer, Running, Serve, browser, wait_until};

const CHATS: &str = "/v1/chat/completions";
const FAST: [&str; 4] = ["--time-to-first-token", "5ms", "--inter-token-latency", "1ms"];
const MOST_BYTES: usize = 400_000;

fn chat(text: &str, more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 8});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn send(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> HttpAnswer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    Call { method, path, headers: &headers, body: body.as_bytes() }.send(address)
}

fn told(address: &str, path: &str) -> Value {
    let answer = send(address, "GET", &format!("/_vcr/api/{path}"), &[], &Value::Null);
    serde_json::from_str(&answer.text()).expect("JSON")
}

/// The requests on the page, once there are `count` and all have ended.
fn requests(address: &str, count: usize) -> Vec<Value> {
    let list = || told(address, "requests?after=0")["requests"].as_array().expect("a list").clone();
    wait_until("all have ended", || {
        let list = list();
        list.len() == count && list.iter().all(|one| !one["end"].is_null())
    });
    list()
}

/// The address of the page, from a log.
fn page_of(running: &Running) -> String {
    let line = running.wait_for("the page is at ");
    let (_, url) = line.split_once("http://").expect("a URL");
    url.trim().trim_end_matches("/_vcr/").to_owned()
}

#[test]
fn exchanges_are_told_with_their_part_in_the_engine() {
    let serve = Serve::start(&FAST);
    let address = serve.address();
    let body = chat("a question", &json!({"stream": true, "temperature": 0.5}));
    let answer = send(address, "POST", CHATS, &[("Authorization", "Bearer secret-key")], &body);
    assert_eq!(answer.status, 200);
    let refused = send(address, "POST", CHATS, &[], &json!({"messages": 5}));
    // Periodic requests of probes are not shown.
    assert_eq!(send(address, "GET", "/health", &[], &Value::Null).status, 200);
    let list = requests(address, 2);
    let (one, other) = (&list[0], &list[1]);
    for (key, expected) in [
        ("number", json!(1)),
        ("path", json!(CHATS)),
        ("text", json!("a question")),
        ("stream", json!(true)),
        ("status", json!(200)),
        ("end", json!("whole")),
        ("requests", json!(1)),
        ("output_tokens", json!(8)),
    ] {
        assert_eq!(one[key], expected, "{key}: {one}");
    }
    assert_eq!((&other["status"], &other["requests"]), (&json!(refused.status), &json!(0)), "{other}");
    let detail = told(address, "requests/1");
    assert_eq!(detail["request_body"], body.to_string());
    assert_eq!(detail["body"], answer.text());
    assert_eq!(detail["request_headers"]["authorization"], "[redacted]");
    let parts = detail["parts"].as_array().expect("parts");
    let bytes: u64 = parts.iter().map(|part| part[1].as_u64().expect("a length")).sum();
    assert_eq!((bytes as usize, parts.len() > 1), (answer.text().len(), true), "{parts:?}");
    let times: Vec<f64> = ["queued_ms", "scheduled_ms", "first_token_ms", "last_token_ms"]
        .map(|key| detail["engine"][0][key].as_f64().unwrap_or_else(|| panic!("{key}: {detail}")))
        .into();
    assert!(times.is_sorted() && times[0] >= 0.0 && times[3] <= detail["ms"].as_f64().expect("a time"), "{times:?}");
    // The cache has the same prompt by now.
    _ = send(address, "POST", CHATS, &[], &chat(&"long ".repeat(200), &json!({})));
    _ = send(address, "POST", CHATS, &[], &chat(&"long ".repeat(200), &json!({})));
    let list = requests(address, 4);
    assert!(list[3]["cached_tokens"].as_u64() > Some(100), "{}", list[3]);
    let engines = told(address, "engines?after=0");
    let engine = &engines["engines"][0];
    assert!(engine["steps"].as_array().is_some_and(|steps| steps.len() > 8), "{engine}");
    let (_, step) = (&engine["steps"][0][0], &engine["steps"][0][1]);
    assert!(step["prefill_tokens"].as_u64() > Some(0), "{step}");
    // Deleted requests are forgotten.
    assert_eq!(send(address, "DELETE", "/_vcr/api/requests", &[], &Value::Null).status, 204);
    assert_eq!(told(address, "requests")["requests"], json!([]));
    assert_eq!(send(address, "GET", "/_vcr/api/requests/1", &[], &Value::Null).status, 404);
    let wrong = send(address, "GET", "/_vcr/api/requests?after=x", &[], &Value::Null);
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("invalid `after` `x`: expected a number of at least 0"), "{}", wrong.text());
}

#[test]
fn clients_that_leave_and_faults_that_they_meet_are_told() {
    let serve = Serve::start(&["--time-to-first-token", "60s", "--client-fault", "status:code=503,count=1"]);
    let address = serve.address();
    assert_eq!(send(address, "POST", CHATS, &[], &chat("a", &json!({}))).status, 503);
    let under_way = serve.begin(CHATS, &chat("b", &json!({})));
    wait_until("it is seen", || told(address, "requests/2")["engine"][0]["rank"] == 0);
    drop(under_way);
    let list = requests(address, 2);
    assert_eq!((&list[0]["fault"], &list[0]["status"]), (&json!("status"), &json!(503)));
    assert_eq!((&list[1]["fault"], &list[1]["end"]), (&Value::Null, &json!("client gone")));
}

#[test]
fn one_fault_of_several_is_removed() {
    let serve = Serve::start(&FAST);
    let address = serve.address();
    let change = |method: &str, of: &str, fault: &str| {
        send(address, method, &format!("/_vcr/api/control/{of}"), &[], &json!({"fault": fault})).status
    };
    let (slow, late) = ("slow-socket:bandwidth=1MB/s", "late:by=20ms,count=1");
    assert_eq!([slow, late].map(|fault| change("POST", "faults", fault)), [202, 202]);
    let faults = || told(address, "control/faults")["engines"][0]["faults"].clone();
    wait_until("both are there", || faults() == json!([slow, late]));
    assert_eq!(change("DELETE", "faults", slow), 202);
    wait_until("one is left", || faults() == json!([late]));
    assert_eq!(change("DELETE", "faults", "no fault"), 400);
    let (reset, status) = ("reset:after=5", "status:code=500");
    assert_eq!([reset, status].map(|fault| change("POST", "client-faults", fault)), [200, 200]);
    assert_eq!(change("DELETE", "client-faults", reset), 200);
    assert_eq!(told(address, "control/client-faults"), json!({"faults": [status]}));
    assert_eq!(change("DELETE", "client-faults", reset), 404);
}

#[test]
fn the_page_is_for_those_who_may_open_it() {
    let get = |address: &str, path: &str, headers: &[(&str, &str)]| send(address, "GET", path, headers, &Value::Null);
    let serve = Serve::start(&[&FAST[..], &["--api-key", "key", "--allowed-origins", "[\"*\"]"]].concat());
    let address = serve.address();
    let page = get(address, "/_vcr/", &[]);
    assert_eq!(page.status, 200, "without a key the page tells nothing");
    assert!(page.body.len() < MOST_BYTES, "{} bytes", page.body.len());
    assert_eq!(page.header("content-security-policy"), Some("frame-ancestors 'none'"));
    let (api, key) = ("/_vcr/api/requests", ("Authorization", "Bearer key"));
    assert_eq!(get(address, api, &[]).status, 401);
    assert_eq!(get(address, api, &[key]).status, 200);
    let own = format!("http://{address}");
    for (header, status) in [
        (("Origin", own.as_str()), 200),
        (("Origin", "http://evil.example"), 403),
        (("Sec-Fetch-Site", "same-origin"), 200),
        (("Sec-Fetch-Site", "cross-site"), 403),
    ] {
        assert_eq!(get(address, api, &[key, header]).status, status, "{header:?}");
    }
    // The page may make changes that other pages may not.
    let from_page = [key, ("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
    for path in ["/_vcr/api/control/pause", "/_vcr/api/control/resume", "/_vcr/api/server/reset_prefix_cache"] {
        let answer = send(address, "POST", path, &from_page, &Value::Null);
        assert!([200, 202].contains(&answer.status), "{path}: {}", answer.text());
    }
    assert_eq!(send(address, "POST", "/pause", &from_page, &Value::Null).status, 403);
    // The page may use only the part of the server that it needs.
    assert_eq!(send(address, "POST", &format!("/_vcr/api/server{CHATS}"), &from_page, &Value::Null).status, 404);

    let without = Serve::start(&["--no-ui"]);
    assert_eq!(get(without.address(), "/_vcr/", &[]).status, 404);
    let apart = Serve::start(&["--ui-address", "127.0.0.1:0"]);
    let own = page_of(&apart);
    assert_eq!(get(apart.address(), "/_vcr/", &[]).status, 404);
    assert_eq!(get(&own, "/_vcr/", &[]).status, 200);
    assert_eq!(get(&own, "/v1/models", &[]).status, 404, "and nothing else");
    assert_eq!(get(&own, "/_vcr/api/server/v1/models", &[]).status, 200);
    for (args, part) in [
        (&["serve", "--ui-address", "nowhere"][..], "cannot serve the page at `nowhere`"),
        (&["record", "--out", "a.jsonl", "--ui-address", "127.0.0.1:0"][..], "there is no page between"),
        (&["serve", "--no-ui", "--ui-address", "127.0.0.1:0"][..], "cannot be used with"),
    ] {
        let error = Folder::new().vcr(args).ended(2);
        assert!(error.stderr.contains(part), "{}", error.stderr);
    }
}

#[test]
fn engines_behind_a_frontend_have_a_page_of_engines() {
    let play = ["play", "--handshake-address", "tcp://127.0.0.1:1", "--data-parallel-size", "2"];
    for option in ["--admin-address", "--ui-address"] {
        let running = Running::start(&[&play[..], &[option, "127.0.0.1:0"]].concat());
        let address = page_of(&running);
        let page = send(&address, "GET", "/_vcr/", &[], &Value::Null);
        assert!(page.status == 200 && page.text().contains("\"command\":\"play\""), "{option}");
        let engines = told(&address, "engines?after=0");
        assert_eq!(engines["engines"][1]["state"], "connecting", "{option}");
        let pause = send(&address, "POST", "/_vcr/api/control/pause", &[], &Value::Null);
        assert_eq!(pause.status, 202, "{option}");
    }
}

/// The page shows what the engines' protocol contains.
#[test]
fn requests_of_a_frontend_are_on_the_page_of_its_engines() {
    let Some(mut frontend) = Frontend::start("0.33.0", &FrontendOptions::default()) else { return };
    let handshake = frontend.handshake_address();
    let times = ["--prefill-step-time", "20ms", "--decode-step-time", "5ms"];
    let play = ["play", "--handshake-address", &handshake, "--max-model-len", "4096", "--ui-address", "127.0.0.1:0"];
    let play = Running::start(&[&play[..], &times].concat());
    let address = page_of(&play);
    frontend.wait_until_it_serves();
    let prompt = json!((0..40).collect::<Vec<u32>>());
    for _ in 0..2 {
        _ = frontend.complete(&prompt, &json!({"max_tokens": 4}));
    }
    let list = requests(&address, 2);
    for (key, expected) in [
        ("end", json!("whole")),
        ("finish", json!("length")),
        ("prompt_tokens", json!(40)),
        ("cached_tokens", json!(32)),
        ("output_tokens", json!(4)),
        ("chunks", json!(4)),
    ] {
        assert_eq!(list[1][key], expected, "{key}: {}", list[1]);
    }
    assert!(list[1]["first_ms"].as_f64() > Some(19.0) && list[1]["ms"].as_f64() > Some(34.0), "{}", list[1]);
    let detail = told(&address, "requests/2");
    let times = ["queued_ms", "scheduled_ms", "first_token_ms", "last_token_ms"];
    let times = times.map(|key| detail["engine"][0][key].as_f64().expect("a time"));
    assert!(times.is_sorted(), "{times:?}");
    drop(frontend.stream("/v1/completions", &json!({"prompt": "a", "max_tokens": 4000})));
    assert_eq!(
        (&requests(&address, 3)[2]["end"], &requests(&address, 3)[2]["finish"]),
        (&json!("client gone"), &json!("abort"))
    );
    let Some(browser) = browser() else { return };
    let page = browser.report("live_page.py", &[&address, "play"]);
    assert_eq!(page["errors"], json!([]));
    assert!(page["row"].as_str().is_some_and(|row| row.contains("cmpl-") && row.contains("length")), "{page}");
    assert!(page["phases"].as_str().is_some_and(|text| text.contains("prefill") && text.contains("decode")), "{page}");
    assert_eq!(page["tools"], json!(["copy as scenario", "pin"]), "there are no bodies");
    assert_eq!(page["sections"], json!(["Time", "In the engine"]));
    assert!(!page["controls"].to_string().contains("Sleep"), "{page}");
}

#[test]
fn an_exchange_is_copied_as_a_capture() {
    let serve = Serve::start(&FAST);
    let address = serve.address();
    let body = chat("a question", &json!({"stream": true, "stream_options": {"include_usage": true}}));
    let key = ("Authorization", "Bearer secret-key");
    let answer = send(address, "POST", CHATS, &[key], &body);
    _ = requests(address, 1);
    let copied = send(address, "GET", "/_vcr/api/requests/1/capture", &[], &Value::Null).text();
    assert!(!copied.contains("secret-key"), "{copied}");
    assert_eq!(send(address, "GET", "/_vcr/api/requests/9/capture", &[], &Value::Null).status, 404);
    drop(serve);
    let folder = Folder::new();
    let tape = folder.write("copied.jsonl", copied);
    let summary = folder.vcr(&["inspect", "summarize", "copied.jsonl", "--json"]).ended(0).json();
    assert_eq!((&summary["requests"], &summary["http"]), (&json!(1), &json!(1)));
    let tape = Serve::start(&["--playback", tape.to_str().expect("paths of tests are text"), "--strict"]);
    assert_eq!(send(tape.address(), "POST", CHATS, &[key], &body).text(), answer.text());
}

#[test]
fn a_proxy_shows_what_it_passes_on() {
    let serve = Serve::start(&[&FAST[..], &["--no-ui"]].concat());
    let folder = Folder::new();
    let out = folder.path().join("day.jsonl");
    let upstream = format!("http://{}", serve.address());
    let out = out.to_str().expect("paths of tests are text");
    let proxy = Running::start(&["record", "--upstream", &upstream, "--port", "0", "--out", out]);
    let address = page_of(&proxy);
    let fault = json!({"fault": "status:code=429,count=1"});
    let added = send(&address, "POST", "/_vcr/api/control/client-faults", &[], &fault);
    assert_eq!(added.status, 200, "{}", added.text());
    let statuses = ["a", "b"].map(|text| send(&address, "POST", CHATS, &[], &chat(text, &json!({}))).status);
    assert_eq!(statuses, [429, 200]);
    let list = requests(&address, 2);
    assert_eq!((&list[0]["fault"], &list[1]["fault"]), (&json!("status"), &Value::Null));
    assert_eq!(list[1]["text"], "b");
    // The page's own requests are neither relayed nor recorded.
    assert_eq!(send(&address, "GET", "/_vcr/api/engines", &[], &Value::Null).status, 404);
    let removal = send(&address, "DELETE", "/_vcr/api/control/client-faults", &[], &json!({"fault": "x"}));
    assert_eq!(removal.status, 404, "there is no such fault");
    let removal = send(&address, "DELETE", "/_vcr/api/control/client-faults", &[], &fault);
    assert_eq!(serde_json::from_str::<Value>(&removal.text()).expect("JSON"), json!({"faults": []}));
}

#[test]
fn generations_behind_a_proxy_are_copied_as_scenarios() {
    let Some(browser) = browser() else { return };
    let serve = Serve::start(&["--time-to-first-token", "40ms", "--inter-token-latency", "10ms", "--no-ui"]);
    let folder = Folder::new();
    let out = folder.path().join("day.jsonl");
    let out = out.to_str().expect("paths of tests are text");
    let upstream = format!("http://{}", serve.address());
    let proxy = Running::start(&["record", "--upstream", &upstream, "--port", "0", "--out", out]);
    let address = page_of(&proxy);
    let streamed = json!({"stream": true, "stream_options": {"include_usage": true}});
    let messages = json!({"model": "sim", "messages": [{"role": "user", "content": "c"}], "max_tokens": 8});
    for (path, body) in [(CHATS, chat("a", &streamed)), (CHATS, chat("b", &json!({}))), ("/v1/messages", messages)] {
        assert_eq!(send(&address, "POST", path, &[], &body).status, 200, "{path}");
    }
    _ = requests(&address, 3);
    let page = browser.report("live_page.py", &[&address, "proxy"]);
    assert_eq!(page["errors"], json!([]));
    let scenarios = page["scenarios"].as_array().expect("a list");
    assert_eq!(scenarios.len(), 3, "{page}");
    for scenario in scenarios {
        let scenario = scenario.as_str().expect("a text");
        assert!(scenario.contains("output_tokens: 8 "), "{scenario}");
        _ = Folder::with(scenario).run(&[]).ended(0);
    }
}

#[test]
fn people_watch_a_conversation_and_inject_a_fault() {
    let Some(browser) = browser() else { return };
    let serve = Serve::start(&[&FAST[..], &["--data-parallel-size", "2"]].concat());
    let page = browser.report("live_page.py", &[serve.address()]);
    assert_eq!(page["errors"], json!([]));
    assert_eq!(page["elsewhere"], json!([]), "it asks its own server alone");
    assert_eq!(page["before"], "no requests yet: send one to this server");
    assert!(page["row"].as_str().is_some_and(|row| row.contains("How are you?") && row.contains("200")), "{page}");
    let messages = page["messages"].as_array().expect("a list");
    assert_eq!(messages[0], "systemBe brief.");
    assert_eq!(messages[1], "userHow are you?");
    assert!(
        messages[2].as_str().is_some_and(|text| text == format!("answer{}", page["answer"].as_str().expect("text")))
    );
    assert!(page["phases"].as_str().is_some_and(|text| text.contains("prefill") && text.contains("decode")), "{page}");
    assert!(page["chart"].as_u64() > Some(500), "the parts are drawn");
    assert_eq!(page["tools"], json!(["weather"]));
    assert_eq!(page["curl"], page["answer"], "the copied command asks the same");
    let folder = Folder::with(page["scenario"].as_str().expect("a text"));
    folder.write("copied.jsonl", page["capture"].as_str().expect("a text"));
    _ = folder.run(&[]).ended(0);
    _ = folder.vcr(&["inspect", "summarize", "copied.jsonl"]).ended(0);
    assert!(page["blocks"].as_str().is_some_and(|text| text.contains("KV blocks of the prompt found")), "{page}");
    assert!(page["states"].as_str().is_some_and(|text| text.contains(" cached, ")), "{page}");
    assert_eq!(page["active"], json!(["status:code=503,count=1"]));
    assert_eq!(page["statuses"], json!([503, 200]), "once");
    assert!(page["faulty"].as_str().is_some_and(|row| row.contains("503") && row.contains("fault: status")), "{page}");
    assert_eq!(page["filtered"], 1);
    assert!(page["compared"].as_str().is_some_and(|text| text.contains("messages.1.content")), "{page}");
    assert_eq!(page["removed"], json!(["none"]));
    assert_eq!(page["paused"], "serving, paused");
    let charts = page["engine_charts"].as_array().expect("charts");
    assert!(charts.len() > 4 && charts.contains(&json!("kv")), "{page}");
    let layouts = page["layouts"].as_array().expect("layouts");
    assert_eq!(layouts.len(), 20);
    for layout in layouts {
        assert!(layout["page"].as_u64() <= layout["width"].as_u64(), "it scrolls to the side: {layout}");
        assert_eq!(layout["overflowing"], json!([]), "{layout}");
        assert!(layout["contrast"][0].as_f64() >= Some(4.5), "{layout}");
    }
}
