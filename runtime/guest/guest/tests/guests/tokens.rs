//! The inputs of token sources, and how the host handles their answers.

use vcr_core::tokens::{AcceptedDrafts, BatchTokenSource, TokenAnswer, TokenRequest, TokenWant};
use vcr_guest::{GuestModule, Limits};

use crate::components::wat::{
    Bodies, DRAFTS_IMPORTS, REQUESTS_IMPORTS, accepting_source, answer, answer_at, answer_error, answer_list,
    answer_words, component, core_text, latency_wit, open, refusing_source, token_source, with_imports,
};

fn source(step: &str) -> Box<dyn BatchTokenSource> {
    open(&token_source(step)).token_source("{}", 7).expect("it configures")
}

const REQUEST: TokenRequest<'static> = TokenRequest {
    slot: 3,
    seed: 1 << 40,
    prompt: &[10, 11, 12],
    max_tokens: 100,
    min_tokens: 5,
    eos_token: Some(2),
    stop_tokens: &[20, 21],
    structured_output: "",
    thinking_token_budget: None,
};

fn want(count: u32) -> TokenWant {
    TokenWant { slot: 3, first_index: 0, count }
}

/// The tokens of a step, and the slots and reasons of refusals.
type Answered = (Vec<u32>, Vec<(u32, String)>);

/// Runs a step and returns the answer or the error text.
fn answered(
    source: &mut dyn BatchTokenSource,
    started: &[TokenRequest<'_>],
    ended: &[u32],
    wants: &[TokenWant],
) -> Result<Answered, String> {
    let mut answer = TokenAnswer { tokens: vec![77], ..TokenAnswer::default() };
    let result = source.step(started, ended, wants, &mut answer);
    assert_eq!(answer.tokens.remove(0), 77, "what was there stays");
    assert_eq!(answer.accepted_drafts, []);
    match result {
        Ok(()) => Ok((
            answer.tokens,
            answer
                .refusals
                .into_iter()
                .map(|refusal| {
                    assert_eq!(refusal.source, "hostile");
                    (refusal.slot, refusal.reason)
                })
                .collect(),
        )),
        Err(error) => {
            assert_eq!(answer, TokenAnswer::default(), "a failed call leaves nothing behind");
            Err(error.to_string())
        }
    }
}

/// Runs a step of a source that refuses nothing, and returns the tokens.
fn step(
    source: &mut dyn BatchTokenSource,
    started: &[TokenRequest<'_>],
    ended: &[u32],
    wants: &[TokenWant],
) -> Result<Vec<u32>, String> {
    let (tokens, refused) = answered(source, started, ended, wants)?;
    assert_eq!(refused, []);
    Ok(tokens)
}

/// The error text of a source with this body of `step`, asked for three tokens.
#[track_caller]
fn step_error(body: &str) -> String {
    step(source(body).as_mut(), &[REQUEST], &[], &[want(3)]).expect_err("it must fail")
}

/// The input of a guest, read by a guest that returns it as tokens.
#[track_caller]
fn echoed(address: &str, started: &[TokenRequest<'_>], ended: &[u32], wants: &[TokenWant]) -> Vec<u32> {
    let count: u32 = wants.iter().map(|want| want.count).sum();
    let body = answer_at(address, &format!("(i32.const {count})"));
    step(source(&body).as_mut(), started, ended, wants).expect("it answers")
}

#[test]
fn the_fields_of_a_step_arrive_in_order() {
    // Slot, seed, prompt, lengths, end token, stop tokens and an empty text: 72 bytes.
    let words = echoed("(local.get $started)", &[REQUEST], &[], &[want(18)]);
    let (slot, seed) = (words[0], [words[2], words[3]]);
    assert_eq!((slot, seed), (3, [0, 1 << 8]));
    assert_eq!((words[5], &words[6..8], words[9]), (3, &[100, 5][..], 2));
    assert_eq!((words[8] & 0xff, words[11], words[12] & 0xff, words[15] & 0xff), (1, 2, 0, 0));
    let endless = TokenRequest { eos_token: None, thinking_token_budget: Some(9), ..REQUEST };
    let words = echoed("(local.get $started)", &[endless], &[], &[want(18)]);
    assert_eq!((words[8] & 0xff, words[15] & 0xff, words[16]), (0, 1, 9));

    let prompt = "(i32.load offset=16 (local.get $started))";
    assert_eq!(echoed(prompt, &[REQUEST], &[], &[want(3)]), [10, 11, 12]);
    let two = [REQUEST, TokenRequest { prompt: &[], stop_tokens: &[30], ..REQUEST }];
    assert_eq!(echoed("(i32.load offset=40 (local.get $started))", &two, &[], &[want(2)]), [20, 21]);
    assert_eq!(echoed("(i32.load offset=112 (local.get $started))", &two, &[], &[want(1)]), [30]);
    assert_eq!(echoed("(local.get $ended)", &[], &[4, 9], &[want(2)]), [4, 9]);
    let wants = [want(2), TokenWant { slot: 5, first_index: 8, count: 4 }];
    for (column, expected) in [("$slots", [3, 5]), ("$first", [0, 8]), ("$counts", [2, 4])] {
        assert_eq!(echoed(&format!("(local.get {column})"), &[], &[], &wants)[..2], expected, "{column}");
    }
}

#[test]
fn structured_outputs_come_only_for_requests_that_have_one() {
    let some = TokenRequest { structured_output: "{\"a\":1}\n", ..REQUEST };
    let text = echoed("(i32.load offset=52 (local.get $started))", &[some], &[], &[want(2)]);
    let bytes: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, b"{\"a\":1}\n");
}

#[test]
fn a_step_about_nothing_makes_no_call() {
    let mut source = source("(unreachable)");
    assert_eq!(step(source.as_mut(), &[], &[], &[]), Ok(vec![]));
    let text = step(source.as_mut(), &[], &[3], &[]).expect_err("an end is told");
    assert!(text.contains("it panicked"), "{text}");
}

#[test]
fn long_requests_are_spread_over_calls() {
    // Returns the number of calls if one token is wanted, otherwise nothing.
    let body = format!(
        "(i32.store (i32.const 1024) (global.get $calls)) {}",
        answer_at("(i32.const 1024)", "(local.get $wants_len)")
    );
    let bytes = token_source(&body);
    for (room, calls) in [(1 << 20, 1), (40, 2), (39, 3), (1, 3)] {
        let limits = Limits { request_bytes_per_call: room, ..Limits::default() };
        let module = GuestModule::from_bytes("split", &bytes, limits).expect("it loads");
        let mut source = module.token_source("{}", 1).expect("it configures");
        assert_eq!(step(source.as_mut(), &[REQUEST; 3], &[], &[want(1)]), Ok(vec![calls]), "{room} bytes");
    }
}

#[test]
fn the_number_of_tokens_must_fit() {
    assert_eq!(
        step_error(&answer_words("i32", &[1, 2])),
        "token source `hostile` failed: in `step`: it answered 2 tokens, but 3 were wanted; answer exactly `count` \
         tokens for each want, one want after another"
    );
    let text = step_error(&answer_words("i32", &[1, 2, 3, 4]));
    assert!(text.contains("it answered 4 tokens, but 3 were wanted"), "{text}");
    assert_eq!(step(source(&answer_words("i32", &[1, 2, 3])).as_mut(), &[], &[], &[want(3)]), Ok(vec![1, 2, 3]));
}

#[test]
fn an_answer_may_be_as_long_as_was_asked_and_little_longer() {
    let grow = "(drop (memory.grow (i32.const 64)))";
    let body = format!("{grow} {}", answer_list(1024, 100_000));
    let tokens = step(source(&body).as_mut(), &[], &[], &[want(100_000)]).expect("it is what was wanted");
    assert_eq!(tokens.len(), 100_000);
    let text = step_error(&body);
    assert!(text.contains("larger than the 65548 bytes that an answer may have"), "{text}");
    let text = step_error(&answer_list(1024, 100_000_000));
    assert!(text.contains("it trapped: "), "more than its memory holds: {text}");
}

#[test]
fn work_is_metered_by_what_a_call_is_about() {
    let text = step_error("(loop $again (br $again)) (unreachable)");
    assert!(text.contains("used its 54000000 fuel"), "one request and three tokens: {text}");
    let text = step_error("(drop (memory.grow (i32.const 1024))) (unreachable)");
    assert!(text.contains("it asked for 67174400 bytes of memory"), "{text}");
    let text = step_error("(unreachable)");
    assert!(text.contains("in `step`: it panicked"), "{text}");
}

#[test]
fn an_error_in_words_is_passed_on_and_is_the_last() {
    let mut source = source(&answer_error(32));
    let text = step(source.as_mut(), &[], &[], &[want(1)]).expect_err("it answers an error");
    assert_eq!(text, "token source `hostile` failed: in `step`: `factor` is 0, but must be above 0");
    let text = step(source.as_mut(), &[], &[], &[want(1)]).expect_err("it is gone");
    assert!(text.contains("in `step`: it had failed before: `factor` is 0"), "{text}");
}

/// Calls `refuse` for a slot, with six letters of the data segment as the reason.
fn refuse(slot: &str) -> String {
    format!("(call $refuse {slot} (i32.const 513) (i32.const 6))")
}

/// Slot of the first request of `started`.
const FIRST: &str = "(i32.load (local.get $started))";

#[test]
fn a_refusal_is_of_one_request_and_the_call_goes_on() {
    // Refuses the first new request twice, and returns the wanted tokens.
    let body = format!(
        "(if (i32.ne (local.get $started_len) (i32.const 0)) (then {once} {once})) {}",
        answer_words("i32", &[5, 6]),
        once = refuse(FIRST)
    );
    let mut source = open(&refusing_source(&body)).token_source("{}", 7).expect("it configures");
    let other = TokenRequest { slot: 1, ..REQUEST };
    let wants = [want(1), TokenWant { slot: 1, first_index: 0, count: 1 }];
    let first = answered(source.as_mut(), &[REQUEST, other], &[], &wants).expect("it answers");
    assert_eq!(first, (vec![5, 6], vec![(3, "factor".to_owned())]));
    let later = [TokenWant { slot: 1, first_index: 1, count: 2 }];
    assert_eq!(answered(source.as_mut(), &[], &[3], &later), Ok((vec![5, 6], vec![])));
    let again = answered(source.as_mut(), &[REQUEST], &[], &wants).expect("another request has the slot");
    assert_eq!(again.1, [(3, "factor".to_owned())]);
}

#[test]
fn refusals_of_all_calls_of_a_step_count() {
    let body = format!(
        "(if (i32.ne (local.get $started_len) (i32.const 0)) (then {})) {}",
        refuse(FIRST),
        answer_at("(i32.const 1024)", "(local.get $wants_len)")
    );
    let limits = Limits { request_bytes_per_call: 1, ..Limits::default() };
    let module = GuestModule::from_bytes("hostile", &refusing_source(&body), limits).expect("it loads");
    let mut source = module.token_source("{}", 1).expect("it configures");
    let requests = [4, 2, 3].map(|slot| TokenRequest { slot, ..REQUEST });
    let (tokens, refused) = answered(source.as_mut(), &requests, &[], &[want(1)]).expect("it answers");
    assert_eq!(tokens.len(), 1);
    assert_eq!(refused.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [4, 2, 3]);
}

#[test]
fn a_refusal_that_means_nothing_is_a_fault() {
    let error = |body: &str, started: &[TokenRequest<'_>]| {
        let body = format!("{body} {}", answer_words("i32", &[1]));
        let mut source = open(&refusing_source(&body)).token_source("{}", 7).expect("it configures");
        answered(source.as_mut(), started, &[], &[want(1)]).expect_err("it is a fault")
    };
    let text = error(&refuse("(i32.const 9)"), &[REQUEST]);
    assert!(
        text.starts_with(
            "token source `hostile` failed: in `step`: it refused the request in slot 9, where none has started and not \
             ended; refuse requests that"
        ),
        "{text}"
    );
    let many = format!(
        "(local.set $wants_len (i32.const 20000))
         (loop $again {}
           (local.set $wants_len (i32.sub (local.get $wants_len) (i32.const 1)))
           (br_if $again (local.get $wants_len)))",
        refuse("(i32.const 3)")
    );
    let text = error(&many, &[REQUEST]);
    assert!(text.contains("it called `refuse` more than 16384 times in one call; refuse each request once"), "{text}");
    let long = "(drop (memory.grow (i32.const 16))) (call $refuse (i32.const 3) (i32.const 0) (i32.const 1000000))";
    let text = error(long, &[REQUEST]);
    assert!(text.contains("larger than the 65540 bytes"), "{text}");
}

fn accept(slot: &str, count: u32) -> String {
    format!("(call $accept {slot} (i32.const {count}))")
}

#[test]
fn accepted_drafts_are_in_the_answer_of_their_step() {
    let body = format!(
        "(if (i32.ne (local.get $started_len) (i32.const 0)) (then {} {})) {}",
        accept(FIRST, 1),
        accept(FIRST, 2),
        answer_at("(i32.const 1024)", "(local.get $wants_len)")
    );
    // Both requests arrive in one call, or each in its own call.
    for (room, expected) in [(1 << 20, &[(4, 1), (4, 2)][..]), (1, &[(4, 1), (4, 2), (2, 1), (2, 2)])] {
        let limits = Limits { request_bytes_per_call: room, ..Limits::default() };
        let module = GuestModule::from_bytes("accepting", &accepting_source(&body), limits).expect("it loads");
        let mut source = module.token_source("{}", 1).expect("it configures");
        let requests = [4, 2].map(|slot| TokenRequest { slot, ..REQUEST });
        let mut answer = TokenAnswer::default();
        let wants = [want(1)];
        source.step(&requests, &[], &wants, &mut answer).expect("it answers");
        let expected: Vec<_> = expected.iter().map(|&(slot, count)| AcceptedDrafts { slot, count }).collect();
        assert_eq!((answer.tokens.len(), &answer.accepted_drafts), (1, &expected), "{room} bytes");
        answer.clear();
        source.step(&[], &[], &wants, &mut answer).expect("it answers");
        assert_eq!(answer.accepted_drafts, [], "nothing new is said");
    }
}

#[test]
fn drafts_of_no_request_are_a_fault() {
    let error = |body: &str| {
        let body = format!("{body} {}", answer_words("i32", &[1]));
        let mut source = open(&accepting_source(&body)).token_source("{}", 7).expect("it configures");
        answered(source.as_mut(), &[REQUEST], &[], &[want(1)]).expect_err("it is a fault")
    };
    let text = error(&accept("(i32.const 9)", 2));
    assert!(
        text.starts_with(
            "token source `hostile` failed: in `step`: it accepted drafts of the request in slot 9, where none has \
             started and not ended; accept drafts of requests that"
        ),
        "{text}"
    );
    let many = format!(
        "(local.set $wants_len (i32.const 70000))
         (loop $again {}
           (local.set $wants_len (i32.sub (local.get $wants_len) (i32.const 1)))
           (br_if $again (local.get $wants_len)))",
        accept("(i32.const 3)", 1)
    );
    let text = error(&many);
    assert!(
        text.contains("it called `accept` more than 65536 times in one call; accept drafts of a request"),
        "{text}"
    );
}

#[test]
fn only_token_sources_may_remark_on_requests() {
    let plain = latency_wit().replacen("package vcr:guest@0.1.0;", "", 1);
    for (interface, function, imports) in [
        ("requests", "refuse: func(slot: u32, reason: string);", REQUESTS_IMPORTS),
        ("drafts", "accept: func(slot: u32, count: u32);", DRAFTS_IMPORTS),
    ] {
        let world = plain.replace("export latency;", &format!("import {interface}; export latency;"));
        let wit = format!("package vcr:guest@0.1.0;\ninterface {interface} {{ {function} }}\n{world}");
        let text = with_imports(&core_text("0.1.0", &Bodies::of_price(&answer(&["1"]))), imports);
        let error = GuestModule::from_bytes("model", &component(&text, &wit), Limits::default());
        let error = error.expect_err("it prices").to_string();
        assert!(error.contains(&format!("it imports `vcr:guest/{interface}@0.1.0`, which is not granted")), "{error}");
    }
}
