//! Runs the shipped guests, except latency models, in the real host.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultEvent};
use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenRequest, TokenWant};

use crate::components::built::built;

const EOS: u32 = 999;

/// A vocabulary with a token for each byte, and for some longer texts.
fn vocabulary() -> String {
    json!({ "byte_tokens": (0..256).collect::<Vec<u32>>(), "vocabulary": { "\": ": 300, "[]": 301 } }).to_string()
}

fn text(tokens: &[u32]) -> String {
    let mut bytes = Vec::new();
    for token in tokens {
        match token {
            300 => bytes.extend(b"\": "),
            301 => bytes.extend(b"[]"),
            byte => bytes.push(u8::try_from(*byte).expect("a byte")),
        }
    }
    String::from_utf8(bytes).expect("whole characters")
}

/// Runs steps, with one token for each request a step, until all requests have ended.
fn outputs(source: &mut dyn BatchTokenSource, requests: &[TokenRequest<'_>]) -> BTreeMap<u32, Vec<u32>> {
    let mut outputs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let (mut started, mut ended) = (requests, Vec::new());
    let mut running: Vec<u32> = requests.iter().map(|request| request.slot).collect();
    while !running.is_empty() {
        let first_index = outputs.values().map(Vec::len).max().unwrap_or(0) as u32;
        let wants: Vec<TokenWant> = running.iter().map(|&slot| TokenWant { slot, first_index, count: 1 }).collect();
        let mut answer = TokenAnswer::default();
        source.step(started, &ended, &wants, &mut answer).expect("it answers");
        assert_eq!(answer.refusals, []);
        (started, ended) = (&[], Vec::new());
        for (want, token) in wants.iter().zip(answer.tokens) {
            let output = outputs.entry(want.slot).or_default();
            output.push(token);
            if token == EOS || output.len() == 500 {
                ended.push(want.slot);
            }
        }
        running.retain(|slot| !ended.contains(slot));
    }
    outputs
}

#[test]
fn json_tokens_speaks_json_to_those_who_want_it_and_words_to_others() {
    let Some(module) = built("json-tokens") else { return };
    let schema = json!({ "json": {
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "celsius": { "type": "integer", "minimum": -20, "maximum": 40 },
            "sky": { "enum": ["clear", "cloudy"] }
        },
        "required": ["city", "celsius", "sky"]
    } })
    .to_string();
    let plain = TokenRequest {
        slot: 0,
        seed: 1,
        prompt: &[1, 2, 3],
        max_tokens: 500,
        min_tokens: 0,
        eos_token: Some(EOS),
        stop_tokens: &[],
        structured_output: "",
        thinking_token_budget: None,
    };
    let requests = [
        plain,
        TokenRequest { slot: 1, structured_output: &schema, ..plain },
        TokenRequest { slot: 2, structured_output: r#"{"choice": ["yes", "no"]}"#, ..plain },
        TokenRequest { slot: 3, structured_output: r#"{"json_object": true}"#, min_tokens: 300, ..plain },
    ];
    let mut source = module.token_source(&vocabulary(), 1).expect("it configures");
    let said = outputs(source.as_mut(), &requests);
    let texts: Vec<String> = said.values().map(|tokens| text(tokens.strip_suffix(&[EOS]).expect("it ends"))).collect();
    assert!(texts[0].split(' ').count() >= 10, "{}", texts[0]);
    let weather: Value = serde_json::from_str(&texts[1]).expect("it is JSON");
    assert!(weather["city"].is_string() && (-20..=40).contains(&weather["celsius"].as_i64().expect("an integer")));
    assert!(weather["sky"] == "clear" || weather["sky"] == "cloudy");
    assert!(texts[2] == "yes" || texts[2] == "no", "{}", texts[2]);
    assert!(texts[3].len() >= 300 && serde_json::from_str::<Value>(&texts[3]).is_ok_and(|value| value.is_object()));

    let mut twin = module.token_source(&vocabulary(), 2).expect("it configures");
    assert_eq!(outputs(twin.as_mut(), &requests), said, "what is said depends on the requests alone");
}

#[test]
fn json_tokens_says_in_words_what_it_cannot_do() {
    let Some(module) = built("json-tokens") else { return };
    let error = module.token_source("{}", 1).err().expect("a vocabulary is missing").to_string();
    assert!(
        error.starts_with("guest `json-tokens` failed in `configure`: the vocabulary has no piece for `{`"),
        "{error}"
    );
    let request = TokenRequest {
        slot: 0,
        seed: 1,
        prompt: &[],
        max_tokens: 5,
        min_tokens: 0,
        eos_token: None,
        stop_tokens: &[],
        structured_output: r#"{"regex": "(?=a)b"}"#,
        thinking_token_budget: None,
    };
    let other = TokenRequest { slot: 1, structured_output: r#"{"choice": ["yes"]}"#, ..request };
    let wants = [0, 1].map(|slot| TokenWant { slot, first_index: 0, count: 3 });
    let mut source = module.token_source(&vocabulary(), 1).expect("it configures");
    let mut answer = TokenAnswer::default();
    source.step(&[request, other], &[], &wants, &mut answer).expect("one request ends, not the engine");
    assert_eq!(text(&answer.tokens[3..]), "yes");
    let refused: Vec<_> = answer.refusals.iter().map(|one| (one.slot, &*one.source, &*one.reason)).collect();
    let reason = "the regular expression `(?=a)b` cannot be followed: look-around, including look-ahead and look-behind, \
                  is not supported";
    assert_eq!(refused, [(0, "json-tokens", reason)]);
    let lenient = vocabulary().replacen('{', r#"{"strict": false, "#, 1);
    let mut lenient = module.token_source(&lenient, 1).expect("it configures");
    assert_eq!(outputs(lenient.as_mut(), &[request])[&0].len(), 500, "it speaks as to anyone");
}

/// The source must refuse exactly the check's requests that need an `@`, however calls are split.
#[test]
fn a_source_that_refuses_requests_passes_its_check() {
    let Some(module) = built("json-tokens") else { return };
    let characters = (b' '..=b'~').filter(|byte| *byte != b'@');
    let pieces: BTreeMap<String, u32> = characters.map(|byte| (char::from(byte).to_string(), byte.into())).collect();
    let config = json!({ "vocabulary": pieces }).to_string();
    let report = vcr_guest::check(&module, &config, 1, &|| 0).expect("it configures");
    assert!(report.checks.iter().all(|check| check.outcome == vcr_guest::Outcome::Passed), "{:?}", report.checks);
    let names: Vec<&str> = report.checks.iter().map(|check| check.name).collect();
    assert_eq!(names, ["answers", "repeated", "interleaved", "unstained", "split"]);
    let unfit = TokenRequest {
        slot: 0,
        seed: 1,
        prompt: &[],
        max_tokens: 5,
        min_tokens: 0,
        eos_token: None,
        stop_tokens: &[],
        structured_output: r#"{"regex": "[a-z]+@[a-z]+"}"#,
        thinking_token_budget: None,
    };
    let mut answer = TokenAnswer::default();
    module.token_source(&config, 1).expect("it configures").step(&[unfit], &[], &[], &mut answer).expect("it goes on");
    assert_eq!(answer.refusals.len(), 1, "the check's own request is one of them");
}

/// A step of a thousand requests, with a vocabulary of realistic size, stays far below the limits.
#[test]
fn json_tokens_has_fuel_enough_for_large_batches() {
    let Some(module) = built("json-tokens") else { return };
    // Ordered by token like a tokenizer's list, not by text.
    let pieces: Vec<String> =
        (0..150_000u64).map(|index| format!("\"p{:x}\": {}", index * 7_919 % 1_048_573, index + 1_000)).collect();
    let bytes: Vec<u32> = (0..256).collect();
    let config = format!(r#"{{"byte_tokens": {bytes:?}, "vocabulary": {{{}}}}}"#, pieces.join(", "));
    let mut source = module.token_source(&config, 1).expect("it configures");
    let prompt = vec![5; 4_000];
    let requests: Vec<TokenRequest<'_>> = (0..1_024)
        .map(|slot| TokenRequest {
            slot,
            seed: u64::from(slot),
            prompt: &prompt,
            max_tokens: 1_000,
            min_tokens: 0,
            eos_token: Some(EOS),
            stop_tokens: &[],
            structured_output: r#"{"json_object": true}"#,
            thinking_token_budget: None,
        })
        .collect();
    let wants: Vec<TokenWant> = (0..1_024).map(|slot| TokenWant { slot, first_index: 0, count: 4 }).collect();
    let mut answer = TokenAnswer::default();
    source.step(&requests, &[], &wants, &mut answer).expect("it answers");
    assert_eq!(answer.tokens.len(), 4 * 1_024);
}

fn decide(injector: &mut dyn FailureInjector, now_ns: u64, events: &[FaultEvent<'_>]) -> Vec<FaultAction> {
    let mut actions = Vec::new();
    injector.decide(&FaultBatch { now_ns, step: 0, events }, &mut actions).expect("it decides");
    actions
}

fn arrived(slot: u32, request_id: &str) -> FaultEvent<'_> {
    FaultEvent::Arrived { slot, request_id, prompt_tokens: 10, max_tokens: 50, priority: 0, adapter: Some(1) }
}

#[test]
fn chaos_follows_its_script() {
    let Some(module) = built("chaos") else { return };
    let script = json!({ "rules": [
        { "match": { "request_id": "burst" }, "after_tokens": 2, "every": 2, "action": "fail_request" },
        { "at_ms": 5, "action": { "crash": { "restart_after_ms": 1.5 } } },
        { "utility": "sleep", "action": "fail_utility" }
    ] });
    let mut chaos = module.failure_injector(&script.to_string(), 1).expect("it configures");
    let emitted = |slot| FaultEvent::Emitted { slot, output_tokens: 2 };
    assert_eq!(decide(chaos.as_mut(), 0, &[arrived(0, "burst-1"), arrived(1, "calm"), arrived(2, "burst-2")]), []);
    let failed = [FaultAction::FailRequest { slot: 2 }];
    assert_eq!(decide(chaos.as_mut(), 1, &[emitted(0), emitted(1), emitted(2)]), failed);
    let crash = FaultAction::Crash { restart_after_ns: Some(1_500_000) };
    let events = [FaultEvent::Ended { slot: 2 }, FaultEvent::Utility { method: "sleep" }];
    assert_eq!(decide(chaos.as_mut(), 5_000_000, &events), [crash, FaultAction::FailUtility]);
}

#[test]
fn chaos_names_mistakes_in_its_script() {
    let Some(module) = built("chaos") else { return };
    let error = module.failure_injector(r#"{"rules": [{"action": "drop_message"}]}"#, 1).err().expect("a mistake");
    assert_eq!(
        error.to_string(),
        "guest `chaos` failed in `configure`: `rules[0]`: it never happens: give `match`, `after_tokens`, `utility` \
         or `at_ms`"
    );
}
