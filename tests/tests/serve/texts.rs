//! Answers whose texts come from a file.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::Serve;

fn started(name: &str, text: &str) -> (Serve, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    fs::write(&path, text).expect("it is writable");
    (Serve::start(&["--tokens", path.to_str().expect("a path is a text")]), folder)
}

fn asked(serve: &Serve, turns: Value) -> Value {
    let body = serve.post("/v1/chat/completions", &json!({"messages": turns, "max_tokens": 100})).body;
    assert_eq!(body["choices"][0]["finish_reason"], "stop", "{body}");
    body["choices"][0]["message"]["content"].clone()
}

#[test]
fn questions_of_a_data_set_get_their_answers_and_others_any() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let rows = [
        json!({"messages": [user("Who?")], "answer": "An owl."}),
        json!({"messages": [user("Where?"), assistant("In a tree."), user("Which?"), assistant("The old one.")]}),
        json!({"prompt": "Once", "answer": " upon a time"}),
    ];
    let (serve, _folder) = started("set.jsonl", &rows.map(|row| row.to_string()).join("\n"));
    for _ in 0..2 {
        assert_eq!(asked(&serve, json!([user("Where?")])), "In a tree.");
        assert_eq!(asked(&serve, json!([user("Who?")])), "An owl.");
        assert_eq!(asked(&serve, json!([user("Where?"), assistant("In a tree."), user("Which?")])), "The old one.");
    }
    let text = serve.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 20})).body;
    assert_eq!(text["choices"][0]["text"], " upon a time");
    let any = asked(&serve, json!([user("Why?")]));
    assert!(
        ["An owl.", "In a tree.", "The old one.", " upon a time"].contains(&any.as_str().expect("a text")),
        "{any}"
    );
}

#[test]
fn share_gpt_and_canned_answers_are_read() {
    let turns = json!([{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "A fox."}]);
    let (serve, _folder) = started("share.json", &json!([{"id": "1", "conversations": turns}]).to_string());
    assert_eq!(asked(&serve, json!([{"role": "user", "content": "Who?"}])), "A fox.");
    let (serve, _folder) = started("canned.jsonl", "{\"answer\": \"One.\"}\n{\"answer\": \"Two.\"}\n");
    let question = json!([{"role": "user", "content": "Who?"}]);
    let said: Vec<Value> = (0..3).map(|_| asked(&serve, question.clone())).collect();
    assert_eq!(said, ["One.", "Two.", "One."]);
}
