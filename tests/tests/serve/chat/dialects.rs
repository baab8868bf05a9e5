//! Anthropic's Messages and OpenAI's Responses.

use serde_json::{Value, json};
use vcr_tests::Serve;

fn texts(events: &[Result<Value, String>], path: &str) -> String {
    events.iter().flatten().filter_map(|event| event.pointer(path)?.as_str().map(str::to_owned)).collect()
}

fn kinds(events: &[Result<Value, String>]) -> Vec<&str> {
    let mut kinds: Vec<_> = events.iter().flatten().filter_map(|event| event["type"].as_str()).collect();
    kinds.dedup();
    kinds
}

#[test]
fn each_api_has_the_text_of_the_chat() {
    let serve = Serve::start(&["--tokens", "random"]);
    let turns = json!([{"role": "user", "content": "Hello"}]);
    let chat = serve.post("/v1/chat/completions", &json!({"messages": turns, "max_tokens": 6})).body;
    let text = &chat["choices"][0]["message"]["content"];

    let request = json!({"model": "sim", "messages": turns, "max_tokens": 6});
    let message = serve.post("/v1/messages", &request).body;
    assert_eq!((&message["type"], &message["content"][0]["text"]), (&json!("message"), text));
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(message["usage"]["output_tokens"], 6);

    let request = json!({"model": "sim", "input": "Hello", "max_output_tokens": 6});
    let response = serve.post("/v1/responses", &request).body;
    assert_eq!((&response["object"], &response["output"][0]["content"][0]["text"]), (&json!("response"), text));
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["usage"]["total_tokens"], chat["usage"]["total_tokens"]);
}

#[test]
fn streams_have_the_events_of_their_api() {
    let serve = Serve::start(&["--tokens", "random"]);
    let mut request = json!({"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6});
    let whole = serve.post("/v1/messages", &request).body;
    request["stream"] = json!(true);
    let events = serve.stream("/v1/messages", &request);
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), expected);
    assert_eq!(texts(&events, "/delta/text"), whole["content"][0]["text"]);
    let [.., Ok(delta), Ok(_)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&delta["delta"]["stop_reason"], &delta["usage"]), (&whole["stop_reason"], &whole["usage"]));

    let mut request = json!({"model": "sim", "input": "Hello", "max_output_tokens": 6});
    let whole = serve.post("/v1/responses", &request).body;
    request["stream"] = json!(true);
    let events = serve.stream("/v1/responses", &request);
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds(&events), expected);
    assert_eq!(texts(&events, "/delta"), whole["output"][0]["content"][0]["text"]);
    let Some(Ok(last)) = events.last() else { panic!("{events:?}") };
    assert_eq!(last["response"]["usage"], whole["usage"]);
}

#[test]
fn a_prompt_is_counted_without_an_answer() {
    let serve = Serve::start(&[]);
    let turns = json!([{"role": "user", "content": "Hello"}]);
    let chat = serve.post("/v1/chat/completions", &json!({"messages": turns, "max_tokens": 1})).body;
    let counted = serve.post("/v1/messages/count_tokens", &json!({"model": "sim", "messages": turns})).body;
    assert_eq!(counted, json!({"input_tokens": chat["usage"]["prompt_tokens"]}));
}

#[test]
fn errors_are_those_of_the_api() {
    let serve = Serve::start(&["--store-responses"]);
    let reply = serve.post("/v1/messages", &json!({"model": "sim", "messages": []}));
    let error = json!({"type": "invalid_request_error", "message": "invalid max_tokens: expected a number above 0"});
    assert_eq!((reply.status, &reply.body), (400, &json!({"type": "error", "error": error})));
    let turns = json!([{"role": "user", "content": "Hello"}]);
    let reply = serve.post("/v1/messages", &json!({"model": "other", "messages": turns, "max_tokens": 1}));
    assert_eq!((reply.status, &reply.body["error"]["type"]), (404, &json!("not_found_error")));
    let reply = serve.post("/v1/responses", &json!({"model": "sim"}));
    assert_eq!((reply.status, &reply.body["error"]["type"]), (400, &json!("BadRequestError")));
    let earlier = json!({"model": "sim", "input": "Hello", "previous_response_id": "resp_1"});
    let reply = serve.post("/v1/responses", &earlier);
    assert_eq!((reply.status, &reply.body["error"]["message"]), (404, &json!("Response with id 'resp_1' not found.")));
}
