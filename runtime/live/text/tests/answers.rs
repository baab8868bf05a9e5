//! Outputs of a simulated model: English, structured outputs, tool calls.

use std::sync::Arc;

use serde_json::{Value, json};
use vcr_base::random::Distribution;
use vcr_core::tokens::{BatchTokenSource as _, TokenAnswer, TokenRequest, TokenWant};
use vcr_text::tools::{CallForm, Tool};
use vcr_text::{ReasoningForm, TextModel, Tokenizer};

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
        thinking_token_budget: None,
    }
}

/// Generates an answer up to its end, in pieces of `count` tokens. Returns its text, or the refusal.
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

/// Parses a text that contains only calls in the `hermes` format.
fn calls(text: &str) -> Vec<Value> {
    let inside = text.strip_prefix("<tool_call>\n").and_then(|text| text.strip_suffix("\n</tool_call>"));
    let calls = inside.unwrap_or_else(|| panic!("{text}")).split("\n</tool_call><tool_call>\n");
    calls.map(|call| serde_json::from_str(call).unwrap_or_else(|error| panic!("{error}: {call}"))).collect()
}

#[test]
fn calls_are_written_in_their_form_and_fit_their_schema() {
    let tokenizer = Tokenizer::builtin();
    let model = TextModel::new(&tokenizer);
    let form = CallForm::named("hermes").expect("it is a form");
    let mut most = [0, 0];
    for seed in 0..100 {
        for may_repeat in [false, true] {
            let wanted = json!({"structural_tag": form.constraint(weather().iter(), may_repeat)}).to_string();
            let text = said(&model, &tokenizer, &request(0, seed, &wanted), 2).expect("it can be followed");
            let calls = calls(&text);
            most[usize::from(may_repeat)] = most[usize::from(may_repeat)].max(calls.len());
            for call in calls {
                let arguments = &call["arguments"];
                if call["name"] == "weather" {
                    let unit = arguments["unit"].as_str().expect("a text");
                    assert!(arguments["place"].is_string() && ["c", "f"].contains(&unit), "{arguments}");
                    assert!((1..=7).contains(&arguments["days"].as_i64().expect("a number")), "{arguments}");
                } else {
                    assert!(call["name"] == "clock" && arguments.is_object(), "{call}");
                }
            }
        }
    }
    assert_eq!(most, [1, 2]);
}

#[test]
fn reasoning_comes_before_any_answer_unless_the_prompt_has_ended_it() {
    let tokenizer = Tokenizer::builtin();
    let form = ReasoningForm::named("qwen3", &tokenizer).expect("it has the marks");
    let model = TextModel::new(&tokenizer).with_reasoning(Some(form), None);
    let plain = TextModel::new(&tokenizer);
    let closed = tokenizer.encode("<think>\n\n</think>\n\n", false).expect("it has tokens");
    for (seed, wanted) in (0..20).flat_map(|seed| ["", r#"{"choice": ["yes", "no"]}"#].map(|wanted| (seed, wanted))) {
        let asked = request(0, seed, wanted);
        let text = said(&model, &tokenizer, &asked, 3).expect("nothing is refused");
        let (thought, answer) = text.split_once("\n</think>\n\n").unwrap_or_else(|| panic!("{text}"));
        assert!(thought.starts_with("<think>\n") && thought.ends_with('.'), "{text}");
        assert_eq!(said(&plain, &tokenizer, &asked, 1), Ok(answer.to_owned()), "the answer is the same without");
        assert_eq!(said(&model, &tokenizer, &TokenRequest { prompt: &closed, ..asked }, 1), Ok(answer.to_owned()));
    }
}

#[test]
fn reasoning_leaves_half_of_the_output_to_the_answer() {
    let tokenizer = Tokenizer::builtin();
    let form = ReasoningForm::named("deepseek_v3", &tokenizer).expect("it has the marks");
    let length = |value| Some(Distribution::Constant { value });
    let model = TextModel::new(&tokenizer).with_reasoning(Some(form), length(500.0));
    for seed in 0..20 {
        let asked = TokenRequest { max_tokens: 40, ..request(0, seed, r#"{"choice": ["yes"]}"#) };
        let text = said(&model, &tokenizer, &asked, 1).expect("nothing is refused");
        assert!(text.ends_with("</think>yes"), "{text}");
        assert!(tokenizer.encode(&text, false).expect("it has tokens").len() <= 24, "{text}");
    }
}

/// As with vLLM's logits processor, the end of reasoning comes right after the budget.
#[test]
fn reasoning_ends_at_its_budget() {
    let tokenizer = Tokenizer::builtin();
    let form = ReasoningForm::named("qwen3", &tokenizer).expect("it has the marks");
    let model = TextModel::new(&tokenizer).with_reasoning(Some(form), None);
    let whole = said(&model, &tokenizer, &request(0, 1, ""), 1).expect("nothing is refused");
    for budget in [0, 1, 5, 1000] {
        let asked = TokenRequest { thinking_token_budget: Some(budget), ..request(0, 1, "") };
        let text = said(&model, &tokenizer, &asked, 1).expect("nothing is refused");
        let (thought, answer) = text.split_once("</think>\n\n").unwrap_or_else(|| panic!("{text}"));
        let thought = thought.strip_prefix("<think>").expect("it reasons");
        let tokens = tokenizer.encode(thought, false).expect("it has tokens").len();
        assert!(whole.ends_with(answer) && whole.starts_with(&format!("<think>{thought}")), "{text}");
        assert!(if budget < 1000 { tokens == budget as usize } else { text == whole }, "{budget}: {text}");
    }
}

#[test]
fn texts_end_at_their_length_but_not_before_the_least_one() {
    let tokenizer = Tokenizer::builtin();
    let end = |lengths, min_tokens| {
        let mut source = TextModel::new(&tokenizer).with_output_tokens(lengths).source();
        let mut answer = TokenAnswer::default();
        let asked = TokenRequest { min_tokens, ..request(3, 1, "") };
        source
            .step(&[asked], &[], &[TokenWant { slot: 3, first_index: 0, count: 250 }], &mut answer)
            .expect("it writes");
        answer.tokens.iter().position(|token| *token == END)
    };
    let constant = |value| Some(Distribution::Constant { value });
    assert_eq!(end(constant(7.0), 0), Some(7));
    assert_eq!(end(constant(7.0), 20), Some(20));
    assert!(end(None, 0).is_some_and(|end| end > 0));
}

#[test]
fn a_structure_is_read_once() {
    let model = TextModel::new(&Tokenizer::builtin());
    let asked = |number: usize| json!({"json": {"const": number}}).to_string();
    let first = model.structure(&asked(0), &|| false).expect("it can be followed");
    assert!(Arc::ptr_eq(&first, &model.clone().structure(&asked(0), &|| false).expect("it can")));
    for number in 1..200 {
        model.structure(&asked(number), &|| false).expect("it can");
    }
    assert!(
        !Arc::ptr_eq(&first, &model.structure(&asked(0), &|| false).expect("it can")),
        "the oldest ones are forgotten"
    );
}
