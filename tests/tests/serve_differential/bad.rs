//! Requests that are refused, and some at the edge: values of other types or outside their ranges, prompts and
//! messages of odd shapes, bodies that are not JSON, and other methods, paths and content types.

use serde_json::{Value, json};

use super::case::Case;
use super::good::{CHAT, COMPLETIONS, DETOKENIZE, GENERATE, TOKENIZE};

/// A valid body for the path.
fn base(path: &str) -> Value {
    let turns = json!([{"role": "user", "content": "Hello"}]);
    match path {
        COMPLETIONS => json!({"model": "sim", "prompt": "Hello", "max_tokens": 3}),
        CHAT => json!({"model": "sim", "messages": turns, "max_tokens": 3}),
        GENERATE => json!({"model": "sim", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 3}}),
        TOKENIZE => json!({"model": "sim", "prompt": "Hello"}),
        DETOKENIZE => json!({"model": "sim", "tokens": [1, 2]}),
        _ => Value::Null,
    }
}

/// The valid body with another value at the pointer.
fn changed(path: &'static str, place: &str, value: Value) -> Case {
    let mut body = base(path);
    let (parent, field) = place.rsplit_once('/').unwrap_or(("", place));
    let name = format!("{place}={value}");
    body.pointer_mut(parent).expect("the base has it")[field] = value;
    Case::post(name, path, body)
}

/// Values that most fields refuse.
fn odd_values() -> Vec<Value> {
    vec![
        json!("text"),
        json!(-3),
        json!(0),
        json!(1.5),
        json!(true),
        json!([]),
        json!({}),
        json!(null),
        json!(1e30),
        json!([-1]),
        json!([""]),
        json!([99_999_999]),
        json!(""),
    ]
}

/// Fields of chats and completions.
const OPENAI_FIELDS: &[&str] = &[
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logprobs",
    "prompt_logprobs",
    "echo",
    "stream",
    "stream_options",
    "priority",
    "cache_salt",
    "request_id",
    "return_token_ids",
    "truncate_prompt_tokens",
    "use_beam_search",
    "length_penalty",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "thinking_token_budget",
    "kv_transfer_params",
    "vllm_xargs",
    "repetition_detection",
    "add_special_tokens",
];
const COMPLETION_FIELDS: &[&str] = &["prompt", "best_of", "suffix"];
const CHAT_FIELDS: &[&str] = &[
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "chat_template",
    "documents",
];
const GENERATE_FIELDS: &[&str] =
    &["model", "token_ids", "sampling_params", "stream", "stream_options", "priority", "cache_salt", "request_id"];
const SAMPLING_FIELDS: &[&str] = &[
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "prompt_logprobs",
    "allowed_token_ids",
];
/// Every field with every odd value.
fn odd_fields() -> Vec<Case> {
    let tokenize = &["model", "prompt", "messages", "add_special_tokens", "return_token_strs"];
    let sources: [(&'static str, &str, &[&[&str]]); 5] = [
        (COMPLETIONS, "", &[OPENAI_FIELDS, COMPLETION_FIELDS]),
        (CHAT, "", &[OPENAI_FIELDS, CHAT_FIELDS]),
        (GENERATE, "", &[GENERATE_FIELDS]),
        (GENERATE, "/sampling_params", &[SAMPLING_FIELDS]),
        (TOKENIZE, "", &[tokenize]),
    ];
    let mut cases = Vec::new();
    for (path, parent, fields) in sources {
        for field in fields.iter().flat_map(|fields| fields.iter()) {
            cases.extend(odd_values().into_iter().map(|value| changed(path, &format!("{parent}/{field}"), value)));
        }
    }
    cases
}

/// Values at and beyond the edges of ranges, and pairs that exclude each other.
fn edges() -> Vec<Case> {
    let mut cases = Vec::new();
    let ranges = [
        ("/temperature", json!(2.01)),
        ("/temperature", json!(-0.01)),
        ("/top_p", json!(1.01)),
        ("/top_k", json!(-2)),
        ("/min_p", json!(1.01)),
        ("/frequency_penalty", json!(2.5)),
        ("/presence_penalty", json!(-2.5)),
        ("/repetition_penalty", json!(2.5)),
        ("/n", json!(11)),
        ("/n", json!(129)),
        ("/logprobs", json!(21)),
        ("/prompt_logprobs", json!(21)),
        ("/prompt_logprobs", json!(-1)),
        ("/logprobs", json!(-1)),
        ("/max_tokens", json!(100_000)),
        ("/min_tokens", json!(4)),
        ("/min_tokens", json!(100_000)),
        ("/stop", json!(["a", "b", "c", "d"])),
        ("/stop", json!(["a", "b", "c", "d", "e"])),
        ("/stop", json!(["a", ""])),
        ("/stop_token_ids", json!([151_935])),
        ("/stop_token_ids", json!([151_936])),
        ("/allowed_token_ids", json!([151_935])),
        ("/allowed_token_ids", json!([151_936])),
        ("/logit_bias", json!({"151935": 1})),
        ("/logit_bias", json!({"151936": 1})),
        ("/logit_bias", json!({"x": 1})),
        ("/logit_bias", json!({"5": 101})),
        ("/seed", json!(9_223_372_036_854_775_807_i64)),
        ("/seed", json!(9_223_372_036_854_775_808_u64)),
        ("/truncate_prompt_tokens", json!(512)),
        ("/truncate_prompt_tokens", json!(513)),
        ("/truncate_prompt_tokens", json!(0)),
        ("/thinking_token_budget", json!(-2)),
        ("/repetition_detection", json!({"max_pattern_size": 0, "min_count": 1})),
        ("/stream_options", json!({"include_usage": true})),
    ];
    for path in [COMPLETIONS, CHAT] {
        for (place, value) in &ranges {
            cases.push(changed(path, place, value.clone()));
        }
        let mut streamed = changed(path, "/prompt_logprobs", json!(1)).json;
        streamed["stream"] = json!(true);
        cases.push(Case::post("prompt_logprobs of a stream", path, streamed));
    }
    for (name, body) in [
        ("top_logprobs alone", json!({"top_logprobs": 2})),
        ("top_logprobs of 21", json!({"logprobs": true, "top_logprobs": 21})),
        ("top_logprobs of -1", json!({"logprobs": true, "top_logprobs": -1})),
        ("both limits", json!({"max_completion_tokens": 2, "max_tokens": 9})),
        ("several ranges", json!({"temperature": 3, "top_p": 7})),
    ] {
        let mut request = base(CHAT);
        for (field, value) in body.as_object().into_iter().flatten() {
            request[field] = value.clone();
        }
        cases.push(Case::post(name, CHAT, request));
    }
    cases.push(changed(COMPLETIONS, "/max_tokens", json!(0)));
    let mut echoed = changed(COMPLETIONS, "/max_tokens", json!(0)).json;
    echoed["echo"] = json!(true);
    cases.push(Case::post("only the echo", COMPLETIONS, echoed.clone()));
    echoed["logprobs"] = json!(1);
    cases.push(Case::post("the echo with logprobs", COMPLETIONS, echoed));
    cases
}

/// Prompts of lengths around the longest that fits, and of every shape.
fn prompts() -> Vec<Case> {
    let mut cases = Vec::new();
    for length in [509, 511, 512, 513, 2000] {
        let tokens = vec![1; length];
        cases.push(changed(COMPLETIONS, "/prompt", json!(tokens)));
        cases.push(changed(GENERATE, "/token_ids", json!(tokens)));
        cases.push(changed(COMPLETIONS, "/prompt", json!("word ".repeat(length))));
        let turns = json!([{"role": "user", "content": "word ".repeat(length)}]);
        cases.push(changed(CHAT, "/messages", turns.clone()));
        cases.push(changed(TOKENIZE, "/messages", turns));
    }
    let shapes = [
        json!(""),
        json!([]),
        json!([[]]),
        json!([""]),
        json!(["a"]),
        json!([[1, 2]]),
        json!([1, "a"]),
        json!([1, -1]),
        json!([1.5]),
        json!([151_935]),
        json!([151_936]),
        json!([4_294_967_295_u64]),
        json!([4_294_967_296_u64]),
        json!({"prompt": "a"}),
    ];
    for shape in &shapes {
        cases.push(changed(COMPLETIONS, "/prompt", shape.clone()));
        cases.push(changed(GENERATE, "/token_ids", shape.clone()));
        cases.push(changed(DETOKENIZE, "/tokens", shape.clone()));
    }
    cases
}

fn messages() -> Vec<Case> {
    let shapes = [
        json!([]),
        json!([{}]),
        json!(["Hello"]),
        json!([null]),
        json!({"role": "user", "content": "Hello"}),
        json!([{"content": "Hello"}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": null}]),
        json!([{"role": "user", "content": ""}]),
        json!([{"role": "user", "content": []}]),
        json!([{"role": "user", "content": 5}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "user", "content": [{"type": "riddle"}]}]),
        json!([{"role": "user", "content": ["Hello"]}]),
        json!([{"role": "user", "content": "Hello", "name": "me"}]),
        json!([{"role": 5, "content": "Hello"}]),
        json!([{"role": "robot", "content": "Hello"}]),
        json!([{"role": "system", "content": "Be brief."}]),
        json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}]),
        json!([{"role": "assistant", "content": "Hello"}]),
        json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well"}]),
        json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": null}]),
        json!([{"role": "user", "content": "Hello"}, {"role": "assistant"}]),
        json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
        json!([{"role": "tool", "content": "42", "tool_call_id": "1"}]),
        json!([{"role": "tool", "content": "42"}]),
        json!([{"role": "function", "content": "42", "name": "f"}]),
        json!([{"role": "user", "content": "Hello", "extra": {"a": 1}}]),
    ];
    let mut cases = Vec::new();
    for shape in &shapes {
        for path in [CHAT, TOKENIZE] {
            cases.push(changed(path, "/messages", shape.clone()));
        }
    }
    for fields in [
        json!({"continue_final_message": true}),
        json!({"continue_final_message": true, "add_generation_prompt": true}),
        json!({"continue_final_message": true, "add_generation_prompt": false}),
        json!({"echo": true}),
    ] {
        let mut body = base(CHAT);
        body["messages"] = json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well"}]);
        for (field, value) in fields.as_object().into_iter().flatten() {
            body[field] = value.clone();
        }
        cases.push(Case::post("a last message of the assistant", CHAT, body));
    }
    cases
}

/// Bodies that are not JSON, or not an object.
fn bodies() -> Vec<Case> {
    let texts = [
        "",
        "{",
        "{\"prompt\": \"a\"",
        "null",
        "[]",
        "5",
        "\"text\"",
        "{}",
        "{\"prompt\": \"a\"} x",
        "{\"prompt\": \"a\", \"prompt\": \"b\"}",
        "{\"model\": \"sim\"}",
        "{\"model\": \"nope\"}",
        "{'model': 'sim'}",
        "{\"model\": \"\\ud800\"}",
        "\u{feff}{}",
    ];
    let paths = [COMPLETIONS, CHAT, GENERATE, TOKENIZE, DETOKENIZE];
    let mut cases = Vec::new();
    for path in paths {
        for text in texts {
            cases.push(Case::text(format!("body {text:?}"), path, text));
        }
        cases.push(changed(path, "/model", json!("nope")));
        cases.push(changed(path, "/model", json!(5)));
        for content_type in ["text/plain", "application/json; charset=utf-8", "application/x-json", "APPLICATION/JSON"]
        {
            let mut case = Case::post(format!("content type {content_type}"), path, base(path));
            case.headers = vec![("Content-Type", content_type.to_owned())];
            cases.push(case);
        }
        let mut case = Case::post("no content type", path, base(path));
        case.headers.clear();
        cases.push(case);
        for method in ["GET", "PUT", "DELETE"] {
            cases.push(Case::bare(format!("method {method}"), method, path));
        }
    }
    cases
}

/// Requests that are not about text: status, models, queries, headers, and unknown paths.
fn others() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in ["/v1/models", "/version", "/health", "/ping", "/load", "/is_sleeping", "/is_paused"] {
        for method in ["GET", "POST", "PUT", "HEAD"] {
            cases.push(Case::bare(format!("{method} {path}"), method, path));
        }
    }
    for path in ["/", "/v1", "/v1/", "/v1/completions/", "/nothing", "/v1/models/sim"] {
        cases.push(Case::bare(format!("GET {path}"), "GET", path));
        cases.push(Case::post(format!("POST {path}"), path, json!({})));
    }
    let admin = [
        "/sleep?level=9",
        "/sleep?level=x",
        "/sleep?mode=y",
        "/pause?mode=y",
        "/pause?clear_cache=2",
        "/pause",
        "/resume",
        "/pause?mode=keep",
        "/resume",
        "/sleep",
        "/wake_up",
        "/sleep?level=2",
        "/wake_up?tags=weights",
        "/wake_up?tags=kv_cache",
        "/wake_up",
        "/reset_prefix_cache",
        "/reset_prefix_cache?reset_running_requests=true",
        "/reset_prefix_cache?reset_running_requests=maybe",
        "/reset_prefix_cache?reset_external=true",
    ];
    for path in admin {
        cases.push(Case::bare(format!("POST {path}"), "POST", path));
        cases.push(Case::bare(format!("state after {path}"), "GET", "/is_sleeping"));
        cases.push(Case::bare(format!("state after {path}"), "GET", "/is_paused"));
    }
    for path in [COMPLETIONS, CHAT, GENERATE] {
        let headers = [
            ("X-Request-Id", "from-a-header"),
            ("X-Request-Id", ""),
            ("X-data-parallel-rank", "0"),
            ("X-data-parallel-rank", "7"),
            ("X-data-parallel-rank", "x"),
            ("X-Session-Id", "s"),
            ("X-Vllm-Priority", "3"),
            ("X-Vllm-Priority", "x"),
        ];
        for (name, value) in headers {
            cases.push(Case::post(format!("{name}: {value}"), path, base(path)).with_header(name, value));
        }
    }
    cases
}

/// Mistakes that people make in tools, in structures of outputs, and with pairs of fields.
pub(crate) fn common_mistakes() -> Vec<Case> {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let of_chats = [
        json!({"tool_choice": "auto"}),
        json!({"tool_choice": "auto", "tools": tools}),
        json!({"tool_choice": "always", "tools": tools}),
        json!({"tool_choice": 5, "tools": tools}),
        json!({"tool_choice": {"type": "function"}, "tools": tools}),
        json!({"tool_choice": {"type": "function", "function": {}}, "tools": tools}),
        json!({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": tools}),
        json!({"tools": []}),
        json!({"tools": {}}),
        json!({"tools": [{}]}),
        json!({"tools": [5]}),
        json!({"tools": [{"type": "web_search", "function": {"name": 5}}]}),
        json!({"reasoning_effort": "extreme"}),
        json!({"chat_template": "{{ messages }}"}),
        json!({"parallel_tool_calls": 5}),
        json!({"documents": ["a"]}),
        json!({"top_logprobs": 5}),
        json!({"continue_final_message": true, "add_generation_prompt": true}),
        json!({"max_completion_tokens": 100_000}),
        json!({"max_tokens": "many"}),
    ];
    let of_all = [
        json!({"model": "gpt-4o"}),
        json!({"response_format": {"type": "xml"}}),
        json!({"response_format": "json_object"}),
        json!({"response_format": {}}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}}),
        json!({"response_format": {"type": "structural_tag"}}),
        json!({"structured_outputs": {}}),
        json!({"structured_outputs": 5}),
        json!({"structured_outputs": {"choice": 5}}),
        json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        json!({"structured_outputs": {"json": "{"}}),
        json!({"n": 2, "temperature": 0}),
        json!({"n": 0}),
        json!({"stream": true, "stream_options": {"include_usage": "maybe"}}),
        json!({"stream_options": {"include_usage": true}}),
        json!({"vllm_xargs": {"a": {}}}),
        json!({"repetition_detection": {"max_pattern_size": 5}}),
        json!({"temperature": "hot"}),
        json!({"stop": ["a", "b", "c", "d", "e"]}),
        json!({"logit_bias": {"hello": 1}}),
    ];
    let mut cases = Vec::new();
    for (paths, mistakes) in [(&[CHAT][..], &of_chats[..]), (&[CHAT, COMPLETIONS], &of_all)] {
        for path in paths {
            for mistake in mistakes {
                let mut body = base(path);
                for (field, value) in mistake.as_object().into_iter().flatten() {
                    body[field] = value.clone();
                }
                cases.push(Case::post(format!("{mistake}"), path, body));
            }
        }
    }
    cases
}

/// All cases except [`common_mistakes`].
pub(crate) fn cases() -> Vec<Case> {
    [odd_fields(), edges(), prompts(), messages(), bodies(), others()].concat()
}
