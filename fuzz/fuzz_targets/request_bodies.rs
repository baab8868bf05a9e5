//! Bodies of requests: the first byte chooses the API, the second one a prefix of the others. No
//! body may panic, and a refused one has a status and a reason. Rendering is deterministic, in
//! tokens of the model.
#![no_main]

#[path = "../served.rs"]
mod served;

use libfuzzer_sys::fuzz_target;
use vcr_frontend::{RenderedApi, render_body, render_generate};

/// `None` is SGLang's `/generate`.
const APIS: [(Option<RenderedApi>, &[&str]); 5] = [
    (Some(RenderedApi::Chat), &["", MESSAGES, PARTS, CALLS]),
    (Some(RenderedApi::Completions), &["", r#"{"request_id":"r","prompt":"a","#, r#"{"prompt":"#]),
    (Some(RenderedApi::Messages), &["", r#"{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"#, BLOCKS]),
    (Some(RenderedApi::Responses), &["", r#"{"input":"a","#, r#"{"input":[{"role":"user","content":["#]),
    (None, &["", r#"{"rid":"r","text":"a","#, r#"{"rid":["r","s"],"input_ids":[[1],[2,3]],"#, SAMPLING]),
];
const MESSAGES: &str = r#"{"request_id":"r","messages":[{"role":"user","content":"a"}],"#;
const PARTS: &str = r#"{"request_id":"r","messages":[{"role":"user","content":[{"type":"text","text":"a"},"#;
const CALLS: &str = r#"{"tools":[{"function":{"name":"f"}}],"messages":[{"role":"assistant","tool_calls":["#;
const SAMPLING: &str = r#"{"text":["a","b"],"sampling_params":[{"n":2},{"#;
const BLOCKS: &str = r#"{"max_tokens":1,"messages":[{"role":"user","content":["#;

fuzz_target!(|bytes: &[u8]| {
    let [which, how, rest @ ..] = bytes else { return };
    let (api, heads) = APIS[usize::from(*which) % APIS.len()];
    let body = [heads[usize::from(*how) % heads.len()].as_bytes(), rest].concat();
    let (model, chats) = served::model();
    let render = || match api {
        Some(api) => render_body(api, &body, model, chats),
        None => render_generate(&body, model),
    };
    let rendered = render();
    match &rendered {
        Err(error) => {
            // Templates may fail on the contents of messages.
            let is_failed = error.message.starts_with("failed to submit chat request: ");
            assert!(error.status.is_client_error() || is_failed, "{error:?}");
            assert!(!error.message.is_empty());
            serde_json::to_vec(&error.body()).expect("an error is JSON");
        }
        Ok(value) => {
            let requests = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            assert!(requests.iter().all(|request| request["token_ids"].is_array() && request["model"] == "sim"));
        }
    }
    let again = render();
    let tokens = |value: &serde_json::Value| value.pointer("/token_ids").or(value.pointer("/0/token_ids")).cloned();
    assert_eq!(rendered.as_ref().ok().and_then(tokens), again.as_ref().ok().and_then(tokens));
});
