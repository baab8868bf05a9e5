//! Token sources: what reaches them, and what the host makes of their answers.

use vcr_core::tokens::{BatchTokenSource, TokenRequest, TokenWant};
use vcr_guest::{GuestModule, Limits};

use crate::wat_guest::{answer_at, answer_error, answer_list, answer_words, open, token_source};

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
};

fn want(count: u32) -> TokenWant {
    TokenWant { slot: 3, first_index: 0, count }
}

/// Takes a step and gives the tokens or the whole error text.
fn step(
    source: &mut dyn BatchTokenSource,
    started: &[TokenRequest<'_>],
    ended: &[u32],
    wants: &[TokenWant],
) -> Result<Vec<u32>, String> {
    let mut tokens = vec![77];
    let result = source.step(started, ended, wants, &mut tokens);
    assert_eq!(tokens.remove(0), 77, "what was there stays");
    match result {
        Ok(()) => Ok(tokens),
        Err(error) => {
            assert!(tokens.is_empty(), "a failed call leaves nothing behind");
            Err(error.to_string())
        }
    }
}

/// The error text of a source whose `step` is `body`, asked for three tokens.
#[track_caller]
fn step_error(body: &str) -> String {
    step(source(body).as_mut(), &[REQUEST], &[], &[want(3)]).expect_err("it must fail")
}

/// What a guest is sent, by way of one that answers with what it got.
#[track_caller]
fn echoed(address: &str, started: &[TokenRequest<'_>], ended: &[u32], wants: &[TokenWant]) -> Vec<u32> {
    let count: u32 = wants.iter().map(|want| want.count).sum();
    let body = answer_at(address, &format!("(i32.const {count})"));
    step(source(&body).as_mut(), started, ended, wants).expect("it answers")
}

#[test]
fn the_lists_of_a_step_arrive_in_order() {
    let words = echoed("(local.get $started)", &[REQUEST], &[], &[want(16)]);
    let low: Vec<u32> = words.iter().copied().step_by(2).collect();
    assert_eq!(low, [3, 0, 3, 100, 5, 2, 2, 0]);
    assert_eq!(words[3], 1 << 8, "the upper half of the seed");
    let endless = TokenRequest { eos_token: None, ..REQUEST };
    assert_eq!(echoed("(local.get $started)", &[endless], &[], &[want(16)])[10..12], [u32::MAX; 2]);

    let two = [REQUEST, TokenRequest { prompt: &[], stop_tokens: &[30], ..REQUEST }];
    assert_eq!(echoed("(local.get $tokens)", &two, &[], &[want(6)]), [10, 11, 12, 20, 21, 30]);
    assert_eq!(echoed("(local.get $ended)", &[], &[4, 9], &[want(2)]), [4, 9]);
    let wants = [want(2), TokenWant { slot: 5, first_index: 8, count: 4 }];
    assert_eq!(echoed("(local.get $wants)", &[], &[], &wants), [3, 0, 2, 5, 8, 4]);
}

#[test]
fn structured_outputs_come_only_for_requests_that_have_one() {
    let some = TokenRequest { structured_output: "{\"a\":1}\n", ..REQUEST };
    let text = echoed("(i32.load (local.get $texts))", &[REQUEST, some], &[], &[want(2)]);
    let bytes: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, b"{\"a\":1}\n");
}

#[test]
fn a_step_about_nothing_makes_no_call() {
    let mut source = source("(unreachable)");
    assert_eq!(step(source.as_mut(), &[], &[], &[]), Ok(vec![]));
    let text = step(source.as_mut(), &[], &[3], &[]).expect_err("an end is told");
    assert!(text.contains("it gave up"), "{text}");
}

#[test]
fn long_requests_are_spread_over_calls() {
    // Answers how many calls there were, where it is asked for one token, and
    // nothing where it is not.
    let body = format!(
        "(i32.store (i32.const 1024) (global.get $calls)) {}",
        answer_at("(i32.const 1024)", "(i32.div_u (local.get $wants_len) (i32.const 3))")
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
         tokens for each want, those of one want after another"
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
    assert!(text.contains("in `step`: it gave up: a panic"), "{text}");
}

#[test]
fn an_error_in_words_is_passed_on_and_is_the_last() {
    let mut source = source(&answer_error(32));
    let text = step(source.as_mut(), &[], &[], &[want(1)]).expect_err("it answers an error");
    assert_eq!(text, "token source `hostile` failed: in `step`: `factor` is 0, but must be above 0");
    let text = step(source.as_mut(), &[], &[], &[want(1)]).expect_err("it is gone");
    assert!(text.contains("in `step`: it had failed before: `factor` is 0"), "{text}");
}
