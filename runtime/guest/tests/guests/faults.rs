//! Failure injectors: what reaches them, and what the host makes of their
//! answers.

use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultEvent};

use crate::components::wat::{answer_error, answer_list, answer_words, failure_injector, open};

fn injector(decide: &str) -> Box<dyn FailureInjector> {
    open(&failure_injector(decide)).failure_injector("{}", 7).expect("it configures")
}

fn arrived(slot: u32, request_id: &str) -> FaultEvent<'_> {
    FaultEvent::Arrived { slot, request_id, prompt_tokens: 100, max_tokens: 50, priority: -2, lora: None }
}

/// Makes a call and gives the actions or the whole error text.
fn decide(injector: &mut dyn FailureInjector, events: &[FaultEvent<'_>]) -> Result<Vec<FaultAction>, String> {
    let mut actions = vec![FaultAction::LoseKvEvents];
    let result = injector.decide(&FaultBatch { now_ns: 5_000, step: 2, events }, &mut actions);
    assert_eq!(actions.remove(0), FaultAction::LoseKvEvents, "what was there stays");
    match result {
        Ok(()) => Ok(actions),
        Err(error) => {
            assert!(actions.is_empty(), "a failed call leaves nothing behind");
            Err(error.to_string())
        }
    }
}

/// Result of an answer of these words, with a request in slot 3 and a utility call announced.
fn answered(words: &[u64]) -> Result<Vec<FaultAction>, String> {
    let events = [arrived(3, "a"), FaultEvent::Utility { method: "sleep" }];
    decide(injector(&answer_words("i64", words)).as_mut(), &events)
}

/// The word at `index` of the events, by way of a stall of so long.
fn event_word(index: usize, events: &[FaultEvent<'_>]) -> u64 {
    stalled_for(&format!("(i64.load offset={} (local.get $events))", 8 * index), events)
}

fn stalled_for(word: &str, events: &[FaultEvent<'_>]) -> u64 {
    let body = format!(
        "(i64.store (i32.const 1024) (i64.const 1))
        (i64.store (i32.const 1032) (i64.and {word} (i64.const 0xffffffffffff))) {}",
        answer_list(1024, 3)
    );
    match decide(injector(&body).as_mut(), events).expect("it decides")[..] {
        [FaultAction::Stall { duration_ns }] => duration_ns,
        ref actions => panic!("one stall, not {actions:?}"),
    }
}

#[test]
fn events_arrive_in_order() {
    let events = [
        arrived(3, "first"),
        FaultEvent::Emitted { slot: 3, output_tokens: 9 },
        FaultEvent::Ended { slot: 3 },
        FaultEvent::Arrived { slot: 3, request_id: "b", prompt_tokens: 1, max_tokens: 1, priority: 0, lora: Some(8) },
        FaultEvent::Utility { method: "sleep" },
    ];
    let expected: [[u64; 6]; 5] = [
        [0, 3, 100, 50, (1 << 48) - 2, (1 << 48) - 1],
        [1, 3, 9, 0, 0, 0],
        [2, 3, 0, 0, 0, 0],
        [0, 3, 1, 1, 0, 8],
        [3, 0, 0, 0, 0, 0],
    ];
    for (index, word) in expected.concat().into_iter().enumerate() {
        assert_eq!(event_word(index, &events), word, "word {index}");
    }
    assert_eq!(stalled_for("(i64.add (local.get $now) (local.get $step))", &[]), 5_002);
    // Three events have a text; `first` has five bytes.
    let lengths = "(i64.add
        (i64.mul (i64.const 100) (i64.extend_i32_u (local.get $texts_len)))
        (i64.extend_i32_u (i32.load offset=4 (local.get $texts))))";
    assert_eq!(stalled_for(lengths, &events), 305);
}

#[test]
fn every_action_is_understood() {
    let words = [
        [0, 3, 0],
        [1, 1_000_000_000_000_000_000, 0],
        [2, 0, 0],
        [2, 60, 1],
        [2, 0, 1],
        [3, 0, 0],
        [4, 0, 0],
        [5, 0, 0],
        [6, 70, 0],
        [7, 0, 0],
        [8, 0, 0],
    ];
    let actions = [
        FaultAction::FailRequest { slot: 3 },
        FaultAction::Stall { duration_ns: 1_000_000_000_000_000_000 },
        FaultAction::Crash { restart_after_ns: None },
        FaultAction::Crash { restart_after_ns: Some(60) },
        FaultAction::Crash { restart_after_ns: Some(0) },
        FaultAction::DropMessage,
        FaultAction::DuplicateMessage,
        FaultAction::CorruptMessage,
        FaultAction::DelayMessage { by_ns: 70 },
        FaultAction::LoseKvEvents,
        FaultAction::FailUtility,
    ];
    assert_eq!(answered(&words.concat()), Ok(actions.to_vec()));
    assert_eq!(answered(&[]), Ok(vec![]));
}

#[test]
fn actions_that_cannot_be_are_named() {
    let too_long = 1_000_000_000_000_000_001;
    for (words, expected) in [
        ([9, 0, 0], "the words [9, 0, 0], has an unknown kind: expected 0 to 8"),
        ([0, 4, 0], "the words [0, 4, 0], fails a request that is not there"),
        ([0, 1 << 32, 0], "fails a request that is not there"),
        ([1, too_long, 0], "takes longer than 1e18 ns"),
        ([2, too_long, 1], "takes longer than 1e18 ns"),
        ([6, u64::MAX, 0], "takes longer than 1e18 ns"),
        ([2, 5, 0], "does not say whether the engine comes back"),
        ([2, 5, 2], "does not say whether the engine comes back"),
        ([0, 3, 1], "has a word that is not 0 beyond those of its kind"),
        ([3, 1, 0], "has a word that is not 0 beyond those of its kind"),
    ] {
        let text = answered(&[[7, 0, 0], words].concat()).expect_err(expected);
        assert!(
            text.starts_with("failure injector `hostile` failed: in `decide`: its action 1, the words ["),
            "{text}"
        );
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("the SDK makes them of a `FaultAction`"), "{text}");
    }
    let text = answered(&[1, 2]).expect_err("it is not a whole action");
    assert!(text.contains("it answered 2 words, but an action has 3"), "{text}");
}

#[test]
fn only_a_request_that_is_there_can_be_failed() {
    let mut failing = injector(&answer_words("i64", &[0, 3, 0]));
    let failed = Ok(vec![FaultAction::FailRequest { slot: 3 }]);
    assert_eq!(decide(failing.as_mut(), &[arrived(3, "a")]), failed);
    assert_eq!(decide(failing.as_mut(), &[FaultEvent::Ended { slot: 3 }, arrived(3, "b")]), failed, "another one");
    let text = decide(failing.as_mut(), &[]).expect_err("it was failed before");
    assert!(text.contains("fails a request that is not there"), "{text}");

    let mut failing = injector(&answer_words("i64", &[0, 3, 0]));
    let text = decide(failing.as_mut(), &[arrived(3, "a"), FaultEvent::Ended { slot: 3 }]).expect_err("it has ended");
    assert!(text.contains("fails a request that is not there"), "{text}");
}

#[test]
fn only_a_utility_call_of_this_batch_can_be_failed() {
    let mut failing = injector(&answer_words("i64", &[8, 0, 0]));
    let utility = [FaultEvent::Utility { method: "sleep" }];
    assert_eq!(decide(failing.as_mut(), &utility), Ok(vec![FaultAction::FailUtility]));
    let text = decide(failing.as_mut(), &[]).expect_err("there is none");
    assert!(text.contains("fails a utility call, but none was announced"), "{text}");
}

#[test]
fn every_request_can_be_failed_at_once() {
    // Writes an action for each of its arrivals, whose slots are 0, 1, 2, ...
    let body = format!(
        "(drop (memory.grow (i32.const 20)))
        (loop $each
          (i64.store
            (i32.add (i32.const 1000008) (i32.mul (local.get $index) (i32.const 24)))
            (i64.extend_i32_u (local.get $index)))
          (local.set $index (i32.add (local.get $index) (i32.const 1)))
          (br_if $each (i32.lt_u (local.get $index) (i32.const 5000))))
        {}",
        answer_list(1_000_000, 15_000)
    );
    let events: Vec<FaultEvent<'_>> = (0..5_000).map(|slot| arrived(slot, "a")).collect();
    let actions = decide(injector(&body).as_mut(), &events).expect("120 kB are what it takes");
    assert_eq!(actions.len(), 5_000);
}

#[test]
fn hostile_injectors_are_stopped() {
    let utility = [FaultEvent::Utility { method: "sleep" }];
    for (body, expected) in [
        ("(loop $again (br $again)) (unreachable)", "used its 51000000 fuel"),
        ("(unreachable)", "it panicked"),
        ("(drop (memory.grow (i32.const 1024))) (unreachable)", "it asked for 67174400 bytes of memory"),
    ] {
        let text = decide(injector(body).as_mut(), &utility).expect_err(expected);
        assert!(text.contains(expected), "{text}");
    }
    let mut injector = injector(&answer_error(32));
    let text = decide(injector.as_mut(), &[]).expect_err("it answers an error");
    assert_eq!(text, "failure injector `hostile` failed: in `decide`: `factor` is 0, but must be above 0");
    let text = decide(injector.as_mut(), &[]).expect_err("it is gone");
    assert!(text.contains("in `decide`: it had failed before: `factor` is 0"), "{text}");
}
