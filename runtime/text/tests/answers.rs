//! What a simulated model says: English, structured outputs, tool calls.

use serde_json::{Value, json};
use vcr_core::tokens::{BatchTokenSource as _, TokenAnswer, TokenRequest, TokenWant};
use vcr_text::tools::{self, Tool, ToolChoice, ToolError};
use vcr_text::{English, TextModel, Tokenizer};

const END: u32 = 258;

fn request(slot: u32, seed: u64, structured_output: &str) -> TokenRequest<'_> {
    TokenRequest {
        slot,
        seed,
        prompt: &[1, 2, 3],
        max_tokens: 2000,
        min_tokens: 0,
        eos_token: Some(END),
        stop_tokens: &[],
        structured_output,
    }
}

/// The answer up to its end, in pieces of `count` tokens, or the refusal.
fn said(model: &TextModel, tokenizer: &Tokenizer, request: &TokenRequest<'_>, count: u32) -> Result<String, String> {
    let mut source = model.source();
    let mut tokens: Vec<u32> = Vec::new();
    let mut started = vec![*request];
    while !tokens.contains(&END) && tokens.len() < 2000 {
        let mut answer = TokenAnswer::default();
        let want = TokenWant { slot: request.slot, first_index: tokens.len() as u32, count };
        source.step(&started, &[], &[want], &mut answer).expect("it answers");
        started.clear();
        if let Some(refusal) = answer.refusals.first() {
            return Err(refusal.reason.clone());
        }
        assert_eq!(answer.tokens.len(), count as usize);
        tokens.extend(answer.tokens);
    }
    let end = tokens.iter().position(|token| *token == END).expect("it ends");
    Ok(tokenizer.decode(&tokens[..end], false))
}

#[test]
fn plain_requests_get_english_however_many_tokens_are_wanted_at_once() {
    let tokenizer = Tokenizer::builtin();
    let model = TextModel::new(&tokenizer);
    for seed in 0..20 {
        let text = said(&model, &tokenizer, &request(4, seed, ""), 1).expect("nothing is refused");
        assert!(text.ends_with('.'), "{text}");
        assert_eq!(said(&model, &tokenizer, &request(9, seed, ""), 7), Ok(text), "neither slot nor steps matter");
    }
    let longer = TokenRequest { min_tokens: 700, ..request(0, 1, "") };
    let text = said(&model, &tokenizer, &longer, 1).expect("nothing is refused");
    assert!(text.ends_with('.') && tokenizer.encode(&text, false).expect("it has tokens").len() >= 700, "{text}");
}

#[test]
fn structured_outputs_are_followed_or_refused_by_name() {
    let tokenizer = Tokenizer::builtin();
    let model = TextModel::new(&tokenizer);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": false});
    for seed in 0..50 {
        let text = said(&model, &tokenizer, &request(0, seed, &json!({"json": schema}).to_string()), 1);
        let value: Value = serde_json::from_str(&text.expect("it can be followed")).expect("it is JSON");
        assert!(value["n"].is_i64(), "{value}");
        let text = said(&model, &tokenizer, &request(0, seed, r#"{"regex": "a[0-9]{3}z"}"#), 3).expect("it can");
        assert!(text.len() == 5 && text.starts_with('a') && text.ends_with('z'), "{text}");
        let text = said(&model, &tokenizer, &request(0, seed, r#"{"choice": ["yes", "no"]}"#), 1).expect("it can");
        assert!(["yes", "no"].contains(&text.as_str()), "{text}");
    }
    let refused = |wanted: &str| said(&model, &tokenizer, &request(0, 1, wanted), 1).expect_err("it cannot");
    assert!(refused(r#"{"grammar": "root = nonsense ::"}"#).contains("grammar"), "{}", refused(r#"{"grammar": "x"}"#));
    assert!(refused(r#"{"regex": "(?<=a)b"}"#).contains("regular expression"));
}

#[test]
fn a_refused_request_does_not_disturb_others() {
    let model = TextModel::new(&Tokenizer::builtin());
    let mut source = model.source();
    let mut answer = TokenAnswer::default();
    let wants = [0, 1].map(|slot| TokenWant { slot, first_index: 0, count: 4 });
    source.step(&[request(0, 1, "nonsense"), request(1, 1, "")], &[], &wants, &mut answer).expect("it answers");
    assert_eq!((answer.refusals.len(), answer.refusals[0].slot, answer.tokens.len()), (1, 0, 8));
    let alone = {
        let mut answer = TokenAnswer::default();
        model.source().step(&[request(1, 1, "")], &[], &wants[1..], &mut answer).expect("it answers");
        answer.tokens
    };
    assert_eq!(answer.tokens[4..], alone);
    answer.clear();
    source.step(&[request(0, 1, "")], &[0], &[wants[0]], &mut answer).expect("the slot is free again");
    assert_eq!(answer.tokens, alone);
}

fn weather() -> Vec<Tool> {
    serde_json::from_str(
        r#"[{"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"},
            "unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["place", "unit", "days"], "additionalProperties": false}},
            {"name": "clock"}]"#,
    )
    .expect("they are tools")
}

#[test]
fn arguments_of_calls_fit_their_schema() {
    for seed in 0..100 {
        let calls = tools::draw(&weather(), &ToolChoice::Required, true, seed).expect("it can call");
        assert!((1..=2).contains(&calls.len()));
        for call in &calls {
            assert!(call.id.starts_with("chatcmpl-tool-") && call.id.len() == 30, "{}", call.id);
            let arguments: Value = serde_json::from_str(&call.arguments).expect("they are JSON");
            if call.name == "weather" {
                assert!(
                    arguments["place"].is_string() && ["c", "f"].contains(&arguments["unit"].as_str().expect("a text"))
                );
                assert!((1..=7).contains(&arguments["days"].as_i64().expect("a number")), "{arguments}");
            } else {
                assert!(arguments.is_object(), "{arguments}");
            }
        }
        assert_eq!(tools::draw(&weather(), &ToolChoice::Required, true, seed), Ok(calls));
    }
}

#[test]
fn tool_choice_decides_which_calls_there_are() {
    let draw = |choice: ToolChoice, seed| tools::draw(&weather(), &choice, false, seed);
    assert_eq!(draw(ToolChoice::None, 1), Ok(Vec::new()));
    assert_eq!(draw(ToolChoice::Named("none".into()), 1), Err(ToolError::Unknown("none".into())));
    assert_eq!(tools::draw(&[], &ToolChoice::Required, false, 1), Err(ToolError::NoTools));
    assert_eq!(tools::draw(&[], &ToolChoice::Auto { probability: 1.0 }, false, 1), Ok(Vec::new()));
    let count =
        |probability| (0..1000).filter(|seed| draw(ToolChoice::Auto { probability }, *seed) != Ok(Vec::new())).count();
    assert_eq!((count(0.0), count(1.0)), (0, 1000));
    assert!((250..350).contains(&count(0.3)), "{}", count(0.3));
    for seed in 0..20 {
        let calls = draw(ToolChoice::Named("clock".into()), seed).expect("it can call");
        assert!(calls.len() == 1 && calls[0].name == "clock");
    }
    let broken: Vec<Tool> =
        serde_json::from_str(r#"[{"name": "odd", "parameters": {"not": {}}}]"#).expect("it is a tool");
    let error = tools::draw(&broken, &ToolChoice::Required, false, 1).expect_err("it cannot be followed");
    assert!(error.to_string().starts_with("invalid parameters of tool `odd`: the schema"), "{error}");
}

#[test]
fn calls_are_written_for_the_hermes_parser() {
    let calls = tools::draw(&weather(), &ToolChoice::Named("weather".into()), false, 1).expect("it can call");
    let text = tools::text(&calls);
    let inside = text.strip_prefix("<tool_call>\n").and_then(|text| text.strip_suffix("\n</tool_call>"));
    let call: Value = serde_json::from_str(inside.expect("it is tagged")).expect("it is JSON");
    assert_eq!(call["name"], "weather");
    assert_eq!(call["arguments"], serde_json::from_str::<Value>(&calls[0].arguments).expect("they are JSON"));
}

#[test]
fn reasoning_ends_with_a_sentence() {
    let tokenizer = Tokenizer::builtin();
    let english = English::new(&tokenizer);
    for seed in 0..50 {
        let text = tools::reasoning(&tokenizer, &english, seed, 60);
        assert!(text.ends_with('.') && tokenizer.encode(&text, false).expect("it has tokens").len() <= 60, "{text}");
    }
}
