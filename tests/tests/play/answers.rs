//! Requests of clients, and their answers.

use serde_json::{Value, json};
use vcr_tests::{FrontendOptions, json_tokens, shipped_guest};

use crate::{is_from, text, with_each};

#[test]
fn completions_and_chats_whole_and_streamed() {
    with_each(&FrontendOptions::default(), &[], |version, frontend, play| {
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 7}));
        assert_eq!(answer["usage"]["completion_tokens"], 7);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let streamed = frontend.stream_completion(&json!("Hello world"), &json!({"max_tokens": 7}));
        assert_eq!(streamed.text, text(&answer), "the same prompt gives the same text");
        let minor = version.rsplit_once('.').expect("a version has parts").0;
        // Requests of vllm-rs 0.31 and later differ only if they name an adapter.
        let names = if is_from(version, 31) { "0.31 to 0.33" } else { minor };
        assert!(play.log().contains(names), "it knows the version: {}", play.log());

        let chat = frontend.chat("Hi", &json!({"max_tokens": 5}));
        assert_eq!(chat["choices"][0]["message"]["role"], "assistant");
        let more = json!({"max_tokens": 5, "stream_options": {"include_usage": true}});
        let streamed = frontend.stream_chat("Hi", &more);
        assert_eq!(chat["choices"][0]["message"]["content"], json!(streamed.text));
        assert_eq!(
            (streamed.finish_reason.as_deref(), &streamed.usage["completion_tokens"]),
            (Some("length"), &json!(5))
        );
        assert!(streamed.events.len() >= 6, "token by token");

        let seeded = |seed: u64| {
            text(&frontend.complete(&json!("Hello world"), &json!({"max_tokens": 7, "seed": seed}))).to_owned()
        };
        assert_eq!(seeded(5), seeded(5));
        assert_ne!(seeded(5), seeded(6));
        frontend.wait_for_metric("vllm:num_requests_running", 0.0);
        frontend.wait_for_metric("vllm:generation_tokens_total", 7.0 * 6.0 + 5.0 * 2.0);
    });
}

#[test]
fn logprobs_of_outputs_and_prompts() {
    with_each(&FrontendOptions::default(), &[], |_, frontend, _| {
        let answer =
            frontend.complete(&json!("Hello world"), &json!({"max_tokens": 4, "logprobs": 3, "temperature": 0}));
        let logprobs = &answer["choices"][0]["logprobs"];
        let own = logprobs["token_logprobs"].as_array().expect("one for each token");
        assert_eq!(own.len(), 4);
        for (own, top) in own.iter().zip(logprobs["top_logprobs"].as_array().expect("one map for each token")) {
            let best = top.as_object().expect("a map").values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
            assert_eq!(own.as_f64(), Some(best), "greedy takes the likeliest");
        }
        let chat = frontend.chat("Hi", &json!({"max_tokens": 3, "logprobs": true, "top_logprobs": 2}));
        let content = chat["choices"][0]["logprobs"]["content"].as_array().expect("one for each token");
        assert!(
            content.len() == 3
                && content.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 2))
        );
        let answer = frontend.complete(&json!([1, 2, 3, 4]), &json!({"max_tokens": 1, "prompt_logprobs": 1}));
        let prompt = answer["choices"][0]["prompt_logprobs"].as_array().expect("one for each token");
        assert_eq!((prompt.len(), &prompt[0]), (4, &Value::Null));
    });
}

/// Stop conditions of the engine and of the frontend.
#[test]
fn texts_end_where_requests_say() {
    with_each(&FrontendOptions::default(), &["--output-tokens", "9"], |_, frontend, play| {
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 50}));
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("stop"), &json!(10))
        );
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 50, "min_tokens": 20}));
        assert_eq!(answer["usage"]["completion_tokens"], 21);
        let answer = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 30, "ignore_eos": true}));
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("length"), &json!(30))
        );
        // The frontend handles stop strings: it ends the stream and aborts the request.
        let long = text(&answer).to_owned();
        let stop: String = long.chars().skip(long.chars().count() / 2).take(4).collect();
        let more = json!({"max_tokens": 30, "ignore_eos": true, "stop": stop});
        let stopped = frontend.complete(&json!("Hello world"), &more);
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        assert!(long.starts_with(text(&stopped)) && text(&stopped).len() < long.len());
        assert!(!play.log().contains("ERROR"), "{}", play.log());
    });
}

/// The token source serves structured output. The shipped guest generates JSON, which the frontend's parser must
/// accept.
#[test]
fn structured_output_and_tools() {
    let Some(tokens) = json_tokens() else { return };
    let Some(guest) = shipped_guest("json-tokens") else { return };
    let guest = guest.to_str().expect("a path in text");
    let options = FrontendOptions {
        args: ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"].map(str::to_owned).to_vec(),
        ..FrontendOptions::default()
    };
    with_each(&options, &["--tokens", guest, "--tokens-config", &tokens.to_string()], |_, frontend, _| {
        let schema = json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": false,
        });
        let format = json!({"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}});
        let chat = frontend.chat("Where to?", &json!({"max_tokens": 300, "response_format": format}));
        let content = chat["choices"][0]["message"]["content"].as_str().expect("it says something");
        let trip: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
        assert!(trip["city"].is_string() && trip["days"].is_i64(), "{trip}");
        assert_eq!(chat["choices"][0]["finish_reason"], "stop");

        // From 0.33 on, the frontend sends the schema of a tool only if the tool is strict.
        for is_strict in [true, false] {
            let tool = json!({"name": "go", "parameters": schema, "strict": is_strict});
            let tool = json!({"type": "function", "function": tool});
            let choice = json!({"type": "function", "function": {"name": "go"}});
            let chat = frontend.chat("Go!", &json!({"max_tokens": 300, "tools": [tool], "tool_choice": choice}));
            let call = &chat["choices"][0]["message"]["tool_calls"][0]["function"];
            assert_eq!(call["name"], "go", "{chat}");
            let arguments: Value =
                serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("it is JSON");
            let has_all = arguments["city"].is_string() && arguments["days"].is_i64();
            assert!(has_all || !is_strict && arguments.is_object(), "{arguments}");
        }
    });
}

/// The guest cannot follow some structured outputs. Such a request fails without any text, and others are served as
/// before.
#[test]
fn a_structured_output_that_cannot_be_followed_fails_its_request_alone() {
    let Some(tokens) = json_tokens() else { return };
    let Some(guest) = shipped_guest("json-tokens") else { return };
    let guest = guest.to_str().expect("a path in text");
    let args = ["--tokens", guest, "--tokens-config", &tokens.to_string()];
    with_each(&FrontendOptions::default(), &args, |version, frontend, play| {
        let ask = |regex: &str| {
            let body = json!({
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 30,
                "structured_outputs": {"regex": regex},
            });
            frontend.post("/v1/chat/completions", &body)
        };
        let refused = ask("(?=a)b");
        assert!(refused.status >= 400, "{version}: {}", refused.body);
        // The reason is part of the protocol from 0.33 on.
        let reason = "the regular expression `(?=a)b` cannot be followed: look-around";
        assert!(!is_from(version, 33) || refused.body.to_string().contains(reason), "{}", refused.body);
        let followed = ask("ab|cd").ok();
        let said = followed["choices"][0]["message"]["content"].as_str().expect("it says something");
        assert!(["ab", "cd"].contains(&said), "{said}");
        let log = play.log();
        assert!(log.contains("refused by the token source `json-tokens`") && log.contains(reason), "{log}");
        assert!(!log.contains("ERROR"), "{log}");
    });
}
