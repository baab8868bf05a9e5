//! Options, headers and fields of llm-d-inference-sim that vLLM does not have.

use std::io::Read as _;
use std::process::Command;

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, read_answer, skip, wait_until};

const UNCACHED: &str = "cache_threshold";

fn prompt(seed: u32) -> Vec<u32> {
    (0..64).map(|place| 300 + (seed * 64 + place) % 200).collect()
}

fn ask(serve: &Serve, body: &Value) -> (Value, Value) {
    let reply = serve.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    (reply.body["choices"][0]["finish_reason"].clone(), reply.body["usage"]["completion_tokens"].clone())
}

/// Only a prompt with enough cached tokens gets an answer. The engine forgets the others.
#[test]
fn prompts_below_the_threshold_have_no_answer() {
    let serve = Serve::start(&["--tokens", "random", "--global-cache-hit-threshold", "0.5"]);
    let body = json!({"prompt": prompt(1), "max_tokens": 3, "ignore_eos": true});
    assert_eq!(ask(&serve, &body), (json!(UNCACHED), json!(0)));
    // The prefill of the first request has cached the prompt.
    assert_eq!(ask(&serve, &body), (json!("length"), json!(3)));
    let with = |seed: u32, threshold: f64| json!({"prompt": prompt(seed), "max_tokens": 3, "ignore_eos": true, "cache_hit_threshold": threshold});
    assert_eq!(ask(&serve, &with(2, 0.0)), (json!("length"), json!(3)));
    assert_eq!(ask(&serve, &with(1, 1.0)), (json!(UNCACHED), json!(0)));
    let refused = serve.post("/v1/completions", &with(1, 1.5));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("cache_hit_threshold")));
}

#[test]
fn the_header_asks_for_the_finish_reason() {
    let serve = Serve::start(&[]);
    let header = "X-Cache-Threshold-Finish-Reason: true";
    let chat = json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 5});
    for _ in 0..2 {
        let choice = &serve.post_with("/v1/chat/completions", header, &chat).body["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!(UNCACHED), &json!(null)));
    }
    let answered = serve.post_with("/v1/chat/completions", "X-Cache-Threshold-Finish-Reason: no", &chat).body;
    assert_ne!(answered["choices"][0]["finish_reason"], UNCACHED);
    let tokens = json!({"token_ids": prompt(1), "sampling_params": {"max_tokens": 2}});
    let generated = serve.post_with("/inference/v1/generate", header, &tokens).body;
    assert_eq!(generated["choices"][0]["finish_reason"], UNCACHED);
    let mut stream = serve.begin_with(
        "/v1/completions",
        ("X-Cache-Threshold-Finish-Reason", "true"),
        &json!({"prompt": prompt(1), "stream": true, "stream_options": {"include_usage": true}}),
    );
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it ends");
    assert!(answer.contains("\"finish_reason\":\"cache_threshold\""), "{answer}");
    assert!(answer.contains("\"completion_tokens\":0") && answer.contains("[DONE]"), "{answer}");
}

/// One request runs, one waits, and a third is refused until one of them has ended.
#[test]
fn a_full_queue_refuses_requests() {
    let args = ["--max-num-seqs", "1", "--max-waiting-queue-length", "1", "--inter-token-latency", "20ms"];
    let serve = Serve::start(&[&args[..], &["--tokens", "random"]].concat());
    let body = json!({"prompt": prompt(1), "max_tokens": 3000, "ignore_eos": true, "stream": true});
    let queue = || {
        let answer = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        ["running", "waiting"].map(|name| {
            let series = format!(r#"vllm:num_requests_{name}{{model_name="sim",engine="0"}} "#);
            text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("none").to_owned()
        })
    };
    let first = serve.begin("/v1/completions", &body);
    wait_until("one runs", || queue() == ["1", "0"]);
    let second = serve.begin("/v1/completions", &body);
    wait_until("one waits", || queue() == ["1", "1"]);
    let refused = serve.post("/v1/completions", &body);
    assert_eq!((refused.status, &refused.body["error"]["type"]), (429, &json!("RateLimitError")), "{}", refused.body);
    drop(first);
    wait_until("the second runs", || queue() == ["1", "0"]);
    let third = serve.begin("/v1/completions", &body);
    wait_until("the third waits", || queue() == ["1", "1"]);
    drop((second, third));
}

const CHAT: &str = "/v1/chat/completions";
const SEND_IMAGE: (&str, &str) = ("X-Send-Image", "true");

fn who() -> Value {
    json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 5, "n": 2})
}

fn is_image(part: &Value) -> bool {
    part["type"] == "image_url"
        && part["image_url"]["url"].as_str().is_some_and(|url| url.starts_with("data:image/png;"))
}

#[test]
fn text_answers_carry_an_image_if_their_request_asks_for_one() {
    let serve = Serve::start(&["--omni"]);
    let plain = serve.post(CHAT, &who()).body;
    let with = serve.post_with(CHAT, "X-Send-Image: true", &who()).body;
    for choice in with["choices"].as_array().expect("choices") {
        let content = choice["message"]["content"].as_array().expect("a text and an image");
        assert!(content[0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{choice}");
        assert!(content.len() == 2 && content[0]["type"] == "text" && is_image(&content[1]), "{choice}");
    }
    // An image does not count as tokens.
    assert_eq!(with["usage"], plain["usage"]);
    assert!(plain["choices"][0]["message"]["content"].is_string(), "{plain}");
    let refused = serve.post_with(CHAT, "X-Send-Image: false", &who()).body;
    assert!(refused["choices"][0]["message"]["content"].is_string(), "{refused}");
    // An answer with a tool call has no text, so it gets no image.
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}});
    let call = json!({"messages": who()["messages"], "tools": [tool], "tool_choice": "required"});
    let called = serve.post_with(CHAT, "X-Send-Image: true", &call).body;
    assert!(called["choices"][0]["message"]["content"].is_null(), "{called}");
    // Servers without these options ignore the header, and so do other APIs.
    let without = Serve::start(&[]).post_with(CHAT, "X-Send-Image: true", &who()).body;
    assert!(without["choices"][0]["message"]["content"].is_string(), "{without}");
    let messages = json!({"model": "sim", "messages": who()["messages"], "max_tokens": 5});
    let said = serve.post_with("/v1/messages", "X-Send-Image: true", &messages).body;
    assert!(said["content"][0]["text"].is_string(), "{said}");
}

/// The image of each answer comes after its text and before its end.
#[test]
fn streams_carry_images_behind_their_texts() {
    let serve =
        Serve::start(&["--omni", "--time-to-generate-image", "20ms", "--time-to-generate-image-std-dev", "5ms"]);
    let mut body = who();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let text = read_answer(serve.begin_with(CHAT, SEND_IMAGE, &body)).text();
    let events: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    for index in 0..2 {
        let of_choice = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let chunks: Vec<&Value> = of_choice.collect();
        let place = chunks.iter().position(|event| event["modality"] == "image").expect("there is an image");
        let content = &chunks[place]["choices"][0]["delta"]["content"];
        assert!(content.as_array().is_some_and(|parts| parts.len() == 1 && is_image(&parts[0])), "{content}");
        assert!(place > 1 && place + 2 == chunks.len(), "{text}");
        assert!(chunks[place + 1]["choices"][0]["finish_reason"].is_string(), "{text}");
    }
    assert!(events.last().is_some_and(|event| event["usage"]["completion_tokens"].is_u64()), "{text}");
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
}

#[test]
fn images_come_by_chance_where_they_are_not_asked_for() {
    let count = |rate: &str| {
        let serve = Serve::start(&["--omni", "--image-emission-rate", rate, "--seed", "3"]);
        let has_image = || serve.post(CHAT, &who()).body["choices"][0]["message"]["content"].is_array();
        (0..20).filter(|_| has_image()).count()
    };
    assert_eq!((count("0"), count("1")), (0, 20));
    let some = count("0.5");
    assert!((2..19).contains(&some), "{some}");
    assert_eq!(count("0.5"), some, "the same seed draws the same");
    let folder = Folder::new();
    let stderr = folder.vcr(&["serve", "--image-emission-rate", "0.5"]).ended(2).stderr;
    assert!(stderr.contains("--omni"), "{stderr}");
}

/// Only media have encoder outputs: one entry per medium, as large as its placeholders.
#[test]
fn an_encoder_without_a_language_model_tells_where_its_outputs_are() {
    let serve = Serve::start(&["--mm-encoder-only", "--image-tokens", "576", "--tokens", "echo"]);
    let image = |name: &str| json!({"type": "image_url", "image_url": {"url": format!("https://example.org/{name}")}});
    let chat = |parts: Value| json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 3});
    let answer =
        serve.post(CHAT, &chat(json!([image("a"), {"type": "text", "text": "Who?"}, image("b"), image("a")]))).body;
    let params = answer["ec_transfer_params"].as_object().expect("there are media");
    assert_eq!(params.len(), 2, "the same image has one output: {answer}");
    let (host, port) = serve.address().rsplit_once(':').expect("a port");
    for entry in params.values() {
        assert_eq!((&entry["peer_host"], entry["peer_port"].to_string().as_str()), (&json!(host), port), "{entry}");
        assert_eq!(entry["size_bytes"], json!(576 * 4096 * 2), "{entry}");
        assert!(entry["nixl_agent_metadata_b64"].as_str().is_some_and(|text| !text.is_empty()), "{entry}");
    }
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    assert!(serve.post(CHAT, &chat(json!("Who?"))).body["ec_transfer_params"].is_null());
    // Every answer token is the vocabulary's first. Media in token prompts have outputs, too.
    let place = json!({"offset": 1, "length": 2});
    let features = json!({"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [place]}});
    let tokens = json!({"token_ids": [1, 2, 2, 3], "features": features, "sampling_params": {"max_tokens": 3}});
    let generated = serve.post("/inference/v1/generate", &tokens).body;
    assert_eq!(generated["choices"][0]["token_ids"], json!([0, 0, 0]), "{generated}");
    assert_eq!(generated["ec_transfer_params"]["h"]["size_bytes"], json!(2 * 4096 * 2), "{generated}");
    let whole = Serve::start(&[]).post(CHAT, &chat(json!([image("a")]))).body;
    assert!(whole["ec_transfer_params"].is_null(), "{whole}");
}

/// Writes a data set as llm-d-inference-sim's tool does, with Python's SQLite.
const DATA_SET: &str = r#"
import hashlib, json, sqlite3, struct, sys
path, rows = sys.argv[1], json.loads(sys.argv[2])
db = sqlite3.connect(path)
db.execute("""CREATE TABLE llmd (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    prompt_hash BLOB NOT NULL,
    gen_tokens JSON NOT NULL,
    n_gen_tokens INTEGER NOT NULL
)""")
for tokens, strings, numbers in rows:
    digest = hashlib.sha256(b"".join(struct.pack("<I", token) for token in tokens)).digest()
    generated = json.dumps({"strings": strings, "numbers": numbers}).encode()
    db.execute("INSERT INTO llmd (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?, ?, ?)", (digest, generated, len(numbers)))
db.commit()
"#;

/// Runs the export command that a hint contains, which has one quoted argument, with Python's SQLite.
const EXPORT: &str = r#"
import sqlite3, sys
for (line,) in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]):
    print(line)
"#;

/// Python's output; `None` without Python.
fn python(script: &str, args: &[&str]) -> Option<String> {
    let output = Command::new("python3").args(["-c", script]).args(args).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("it is text"))
}

#[test]
fn data_sets_out_of_databases_answer_the_prompts_whose_hashes_they_have() {
    let folder = Folder::new();
    let path = folder.path().join("conversations.sqlite3");
    let database = path.to_str().expect("a path of tests is a text");
    let serve = Serve::start(&[]);
    let tokens = |body: &Value| serve.post("/tokenize", body).body["tokens"].clone();
    let chat = json!([{"role": "user", "content": "Who?"}]);
    let owl = json!({"prompt": "An owl.", "add_special_tokens": false});
    let rows = json!([
        [tokens(&json!({"messages": chat})), ["An", " owl", "."], tokens(&owl)],
        [tokens(&json!({"prompt": "Once"})), [" upon", " a", " time"], [1, 2, 3]],
    ]);
    if python(DATA_SET, &[database, &rows.to_string()]).is_none() {
        return skip("python3 is not there to write a SQLite database");
    }
    let stderr = folder.vcr(&["serve", "--port", "0", "--tokens", database]).ended(2).stderr;
    assert!(stderr.contains("a SQLite database is not read: expected a .jsonl file"), "{stderr}");
    let command = stderr.replace("\n", " ");
    let query = command.split('"').nth(1).expect("the hint has the query in quotes");
    let exported = folder.path().join("answers.jsonl");
    std::fs::write(&exported, python(EXPORT, &[database, query]).expect("python3 is there")).expect("writable");
    let path = exported.to_str().expect("a path of tests is a text");
    let serve = Serve::start(&["--tokens", path]);
    let content = |body: Value| serve.post(CHAT, &body).body["choices"][0]["message"]["content"].clone();
    assert_eq!(content(json!({"messages": chat})), "An owl.");
    let once = serve.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 100})).body;
    assert_eq!(
        (&once["choices"][0]["text"], &once["choices"][0]["finish_reason"]),
        (&json!(" upon a time"), &json!("stop"))
    );
    // An unknown prompt gets any of the answers.
    let other = content(json!({"messages": [{"role": "user", "content": "What?"}]}));
    assert!(other == "An owl." || other == " upon a time", "{other}");

    let config = folder.path().join("config.yaml");
    std::fs::write(&config, format!("model: m\ndataset-path: {path}\ndataset-table-name: llmd\n")).expect("writable");
    let serve = Serve::start(&["--llm-d-config", config.to_str().expect("a path of tests is a text")]);
    assert_eq!(serve.post(CHAT, &json!({"messages": chat})).body["choices"][0]["message"]["content"], "An owl.");
}
