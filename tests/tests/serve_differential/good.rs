//! Requests that are answered. Each has some options of its API, drawn with a seed.

use serde_json::{Map, Value, json};

use super::case::{Case, Draws};

pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const GENERATE: &str = "/inference/v1/generate";
pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const TOKENIZE: &str = "/tokenize";
pub(crate) const DETOKENIZE: &str = "/detokenize";

/// An option, the percentage of requests that have it, and its values.
type Choice = (&'static str, usize, fn() -> Vec<Value>);

/// Options of all text requests.
const SAMPLING: &[Choice] = &[
    ("temperature", 40, || vec![json!(0), json!(0.7), json!(1), json!(2.0), json!(null)]),
    ("top_p", 25, || vec![json!(0.1), json!(0.95), json!(1)]),
    ("top_k", 25, || vec![json!(-1), json!(0), json!(20)]),
    ("min_p", 15, || vec![json!(0), json!(0.05), json!(1.0)]),
    ("frequency_penalty", 20, || vec![json!(-2), json!(0.5), json!(2)]),
    ("presence_penalty", 20, || vec![json!(-1.5), json!(0), json!(2)]),
    ("repetition_penalty", 15, || vec![json!(0.5), json!(1.1), json!(2)]),
    ("seed", 35, || vec![json!(0), json!(42), json!(-7), json!(1_234_567_890_123_i64)]),
    ("min_tokens", 25, || vec![json!(0), json!(1), json!(4)]),
    ("stop_token_ids", 20, || vec![json!([]), json!([11]), json!([220, 264, 279, 13])]),
    ("stop", 35, || vec![json!("e"), json!(["a", "o"]), json!([]), json!(" "), json!("never found")]),
    ("ignore_eos", 40, || vec![json!(true), json!(false)]),
    ("priority", 20, || vec![json!(-3), json!(0), json!(9)]),
    ("cache_salt", 15, || vec![json!("salt")]),
    ("return_token_ids", 45, || vec![json!(true), json!(false), json!(null)]),
];

/// Options of chats and completions.
const OPENAI: &[Choice] = &[
    ("include_stop_str_in_output", 25, || vec![json!(true), json!(false)]),
    ("skip_special_tokens", 15, || vec![json!(true), json!(false)]),
    ("logit_bias", 10, || vec![json!({"100": 5}), json!({})]),
    ("allowed_token_ids", 10, || vec![json!([5, 6, 7])]),
    ("bad_words", 10, || vec![json!(["bad", "worse words"]), json!([])]),
    ("request_id", 15, || vec![json!("my-own-id")]),
    ("session_id", 10, || vec![json!("a-session")]),
    ("return_tokens_as_token_ids", 20, || vec![json!(true), json!(false)]),
    ("truncate_prompt_tokens", 10, || vec![json!(2), json!(-1), json!(100)]),
    ("n", 10, || vec![json!(1), json!(null)]),
    ("user", 10, || vec![json!("me")]),
    ("unknown_field", 10, || vec![json!({"a": 1})]),
    ("response_format", 5, || vec![json!({"type": "text"})]),
    ("vllm_xargs", 5, || vec![json!({"a": "b", "c": 1})]),
    ("repetition_detection", 5, || vec![json!({"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3})]),
    ("add_special_tokens", 10, || vec![json!(true), json!(false)]),
];

fn chosen(draws: &mut Draws, tables: &[&[Choice]], to: &mut Map<String, Value>) {
    for (name, share, values) in tables.iter().flat_map(|table| table.iter()) {
        if draws.percent(*share) {
            to.insert((*name).to_owned(), draws.pick(&values()).clone());
        }
    }
}

fn text(draws: &mut Draws) -> String {
    const WORDS: &[&str] =
        &["Once", "upon", "a", "time", "Grüße", "日本", "\n", "🙂", "def f(x):", "  two", "1234", "<|im_end|>", "über"];
    let words: Vec<&str> = (0..=draws.below(6)).map(|_| *draws.pick(WORDS)).collect();
    words.join(" ")
}

fn tokens(draws: &mut Draws) -> Vec<usize> {
    (0..=draws.below(9)).map(|_| draws.below(100_000)).collect()
}

/// Adds options for streaming, and for the usage in a stream.
fn stream(draws: &mut Draws, body: &mut Map<String, Value>) {
    if !draws.percent(50) {
        return;
    }
    body.insert("stream".to_owned(), json!(true));
    let options = [
        json!({"include_usage": true}),
        json!({"include_usage": true, "continuous_usage_stats": true}),
        json!({"include_usage": false, "continuous_usage_stats": true}),
        json!({}),
    ];
    if draws.percent(60) {
        body.insert("stream_options".to_owned(), draws.pick(&options).clone());
    }
}

/// Adds one of the model's names, or none.
fn model(draws: &mut Draws, body: &mut Map<String, Value>) {
    if draws.percent(80) {
        body.insert("model".to_owned(), draws.pick(&[json!("sim"), json!("sim"), json!(""), json!(null)]).clone());
    }
}

fn completion(draws: &mut Draws) -> Value {
    let mut body = Map::new();
    model(draws, &mut body);
    let prompt = match draws.below(3) {
        0 => json!(tokens(draws)),
        _ => json!(text(draws)),
    };
    body.insert("prompt".to_owned(), prompt);
    chosen(draws, &[SAMPLING, OPENAI], &mut body);
    stream(draws, &mut body);
    const OWN: &[Choice] = &[
        ("max_tokens", 75, || vec![json!(1), json!(5), json!(12), json!(30)]),
        ("logprobs", 35, || vec![json!(0), json!(1), json!(3), json!(null)]),
        ("echo", 20, || vec![json!(true), json!(false)]),
        ("best_of", 5, || vec![json!(1)]),
    ];
    chosen(draws, &[OWN], &mut body);
    if !body.contains_key("stream") && draws.percent(20) {
        body.insert("prompt_logprobs".to_owned(), draws.pick(&[json!(0), json!(2)]).clone());
    }
    body.into()
}

fn turns(draws: &mut Draws) -> Value {
    let mut turns = Vec::new();
    if draws.percent(30) {
        turns.push(json!({"role": "system", "content": "Be brief."}));
    }
    for _ in 0..draws.below(3) {
        turns.push(json!({"role": "user", "content": text(draws)}));
        turns.push(json!({"role": "assistant", "content": text(draws)}));
    }
    turns.push(json!({"role": "user", "content": text(draws)}));
    turns.into()
}

fn chat(draws: &mut Draws) -> Value {
    let mut body = Map::new();
    model(draws, &mut body);
    body.insert("messages".to_owned(), turns(draws));
    chosen(draws, &[SAMPLING, OPENAI], &mut body);
    stream(draws, &mut body);
    body.insert("max_tokens".to_owned(), draws.pick(&[json!(4), json!(11), json!(25)]).clone());
    const OWN: &[Choice] = &[
        ("max_completion_tokens", 30, || vec![json!(6), json!(9)]),
        ("chat_template_kwargs", 15, || vec![json!({"enable_thinking": false}), json!({})]),
        ("continue_final_message", 5, || vec![json!(false)]),
        ("add_generation_prompt", 15, || vec![json!(true), json!(false)]),
        ("echo", 5, || vec![json!(false)]),
    ];
    chosen(draws, &[OWN], &mut body);
    if draws.percent(40) {
        body.insert("logprobs".to_owned(), json!(true));
        if draws.percent(70) {
            body.insert("top_logprobs".to_owned(), draws.pick(&[json!(0), json!(1), json!(3)]).clone());
        }
    }
    if !body.contains_key("stream") && draws.percent(15) {
        body.insert("prompt_logprobs".to_owned(), draws.pick(&[json!(0), json!(2)]).clone());
    }
    body.into()
}

fn generate(draws: &mut Draws) -> Value {
    let mut body = Map::new();
    model(draws, &mut body);
    body.insert("token_ids".to_owned(), json!(tokens(draws)));
    stream(draws, &mut body);
    let mut params = Map::new();
    chosen(draws, &[SAMPLING], &mut params);
    for outside in ["priority", "cache_salt", "return_token_ids"] {
        if let Some(value) = params.remove(outside).filter(|value| !value.is_null()) {
            body.insert(outside.to_owned(), value);
        }
    }
    const OWN: &[Choice] = &[
        ("logprobs", 35, || vec![json!(0), json!(1), json!(3)]),
        ("max_tokens", 90, || vec![json!(1), json!(7), json!(20)]),
        ("include_stop_str_in_output", 20, || vec![json!(true), json!(false)]),
    ];
    chosen(draws, &[OWN], &mut params);
    if !body.contains_key("stream") && draws.percent(20) {
        params.insert("prompt_logprobs".to_owned(), json!(1));
    }
    body.insert("sampling_params".to_owned(), params.into());
    if draws.percent(20) {
        body.insert("request_id".to_owned(), json!("mine"));
    }
    body.into()
}

fn message(draws: &mut Draws) -> Value {
    json!({"model": "sim", "max_tokens": 3, "messages": [{"role": "user", "content": text(draws)}]})
}

fn response(draws: &mut Draws) -> Value {
    json!({"model": "sim", "max_output_tokens": 3, "input": text(draws)})
}

fn tokenized(draws: &mut Draws) -> Value {
    let mut body = Map::new();
    model(draws, &mut body);
    if draws.percent(50) {
        body.insert("prompt".to_owned(), json!(text(draws)));
    } else {
        body.insert("messages".to_owned(), turns(draws));
    }
    const OWN: &[Choice] = &[
        ("add_special_tokens", 30, || vec![json!(true), json!(false)]),
        ("return_token_strs", 50, || vec![json!(true), json!(false), json!(null)]),
    ];
    chosen(draws, &[OWN], &mut body);
    if body.contains_key("messages") && draws.percent(30) {
        body.insert("add_generation_prompt".to_owned(), json!(draws.percent(50)));
    }
    body.into()
}

fn detokenized(draws: &mut Draws) -> Value {
    let mut body = Map::new();
    model(draws, &mut body);
    body.insert("tokens".to_owned(), json!(tokens(draws)));
    body.into()
}

/// An API path, the number of requests, and their generator.
type Source = (&'static str, usize, fn(&mut Draws) -> Value);

const SOURCES: &[Source] = &[
    (COMPLETIONS, 120, completion),
    (CHAT, 120, chat),
    (GENERATE, 50, generate),
    (MESSAGES, 2, message),
    (COUNT_TOKENS, 2, message),
    (RESPONSES, 2, response),
    (TOKENIZE, 20, tokenized),
    (DETOKENIZE, 10, detokenized),
];

pub(crate) fn cases(draws: &mut Draws) -> Vec<Case> {
    let mut cases = Vec::new();
    for (path, count, body) in SOURCES {
        for number in 0..*count {
            cases.push(Case::post(format!("good {number}"), path, body(draws)));
        }
    }
    cases
}
