//! The inputs of failure injectors, and how the host handles their answers.

use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultEvent};

use crate::components::wat::{answer_error, answer_list, failure_injector, open};

fn injector(decide: &str) -> Box<dyn FailureInjector> {
    open(&failure_injector(decide)).failure_injector("{}", 7).expect("it configures")
}

fn arrived(slot: u32, request_id: &str) -> FaultEvent<'_> {
    FaultEvent::Arrived { slot, request_id, prompt_tokens: 100, max_tokens: 50, priority: -2, adapter: None }
}

/// Makes a call and returns the actions or the error text.
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

/// Bytes of an event and of an action in the memory of a guest.
const EVENT_BYTES: usize = 36;
const ACTION_BYTES: usize = 24;

/// Returns these actions, each given as a kind and two numbers.
fn answer(actions: &[(u64, u64, u64)]) -> String {
    let store = |(index, (kind, first, second)): (usize, &(u64, u64, u64))| {
        let at = 1024 + ACTION_BYTES * index;
        format!(
            "(i32.store8 (i32.const {at}) (i32.const {kind}))
            (i64.store (i32.const {}) (i64.const {first})) (i64.store (i32.const {}) (i64.const {second}))",
            at + 8,
            at + 16
        )
    };
    let stores: String = actions.iter().enumerate().map(store).collect();
    format!("{stores} {}", answer_list(1024, actions.len()))
}

/// Makes a call that returns these actions. It announces a request in slot 3 and a utility call.
fn answered(actions: &[(u64, u64, u64)]) -> Result<Vec<FaultAction>, String> {
    let events = [arrived(3, "a"), FaultEvent::Utility { method: "sleep" }];
    decide(injector(&answer(actions)).as_mut(), &events)
}

/// Returns a number that the guest computes, encoded as the length of a stall.
fn stalled_for(number: &str, events: &[FaultEvent<'_>]) -> u64 {
    let body = format!(
        "(i32.store8 (i32.const 1024) (i32.const 1))
        (i64.store (i32.const 1032) (i64.and {number} (i64.const 0xffffffffffff))) {}",
        answer_list(1024, 1)
    );
    match decide(injector(&body).as_mut(), events).expect("it decides")[..] {
        [FaultAction::Stall { duration_ns }] => duration_ns,
        ref actions => panic!("one stall, not {actions:?}"),
    }
}

#[test]
fn events_arrive_in_order_and_emissions_in_a_row_as_one() {
    let events = [
        arrived(3, "first"),
        FaultEvent::Emitted { slot: 3, output_tokens: 9 },
        FaultEvent::Emitted { slot: 5, output_tokens: 8 },
        FaultEvent::Ended { slot: 3 },
        FaultEvent::Arrived {
            slot: 3,
            request_id: "b",
            prompt_tokens: 1,
            max_tokens: 1,
            priority: 0,
            adapter: Some(8),
        },
        FaultEvent::Utility { method: "sleep" },
    ];
    let load = |event: usize, offset: usize| {
        format!("(i64.load32_u offset={} (local.get $events))", event * EVENT_BYTES + offset)
    };
    let byte = |event: usize, offset: usize| {
        format!("(i64.load8_u offset={} (local.get $events))", event * EVENT_BYTES + offset)
    };
    for (event, kind) in [0, 1, 2, 0, 3].into_iter().enumerate() {
        assert_eq!(stalled_for(&byte(event, 0), &events), kind, "event {event}");
    }
    // Slot, name length, prompt tokens, output tokens, priority, adapter.
    for (offset, expected) in [(4, 3), (12, 5), (16, 100), (20, 50), (24, (1 << 32) - 2)] {
        assert_eq!(stalled_for(&load(0, offset), &events), expected, "offset {offset}");
    }
    assert_eq!(stalled_for(&byte(0, 28), &events), 0, "no adapter");
    assert_eq!((stalled_for(&byte(3, 28), &events), stalled_for(&load(3, 32), &events)), (1, 8));
    // Both columns of the emissions, then the ends.
    let column = |offset: usize, index: usize| {
        format!("(i64.load32_u offset={} (i32.load offset={} (local.get $events)))", 4 * index, EVENT_BYTES + offset)
    };
    for (column, expected) in [(column(4, 0), 3), (column(4, 1), 5), (column(12, 0), 9), (column(12, 1), 8)] {
        assert_eq!(stalled_for(&column, &events), expected);
    }
    assert_eq!(stalled_for(&load(1, 8), &events), 2, "two requests emitted");
    assert_eq!(stalled_for(&load(2, 4), &events), 3);
    assert_eq!(stalled_for("(i64.extend_i32_u (local.get $events_len))", &events), 5);
    assert_eq!(stalled_for("(i64.add (local.get $now) (local.get $step))", &[]), 5_002);
}

#[test]
fn every_action_is_understood() {
    let told = [
        (0, 3, 0),
        (1, 1_000_000_000_000_000_000, 0),
        (2, 0, 0),
        (2, 1, 60),
        (2, 1, 0),
        (3, 0, 0),
        (4, 0, 0),
        (5, 0, 0),
        (6, 70, 0),
        (7, 0, 0),
        (8, 0, 0),
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
    assert_eq!(answered(&told), Ok(actions.to_vec()));
    assert_eq!(answered(&[]), Ok(vec![]));
}

#[test]
fn actions_that_cannot_be_are_named() {
    let too_long = 1_000_000_000_000_000_001;
    for (action, expected) in [
        ((0, 4, 0), "`fail-request(4)`, fails a request that has not arrived"),
        ((1, too_long, 0), "`stall(1000000000000000001)`, takes longer than 1e18 ns"),
        ((2, 1, too_long), "`crash(1000000000000000001)`, takes longer than 1e18 ns"),
        ((6, u64::MAX, 0), "takes longer than 1e18 ns"),
    ] {
        let text = answered(&[(7, 0, 0), action]).expect_err(expected);
        assert!(text.starts_with("failure injector `hostile` failed: in `decide`: its action 1, `"), "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("says what each action may hold"), "{text}");
    }
    let text = answered(&[(9, 0, 0)]).expect_err("there is no such action");
    assert!(text.contains("it trapped: "), "{text}");
}

#[test]
fn only_a_request_that_is_there_can_be_failed() {
    let mut failing = injector(&answer(&[(0, 3, 0)]));
    let failed = Ok(vec![FaultAction::FailRequest { slot: 3 }]);
    assert_eq!(decide(failing.as_mut(), &[arrived(3, "a")]), failed);
    assert_eq!(decide(failing.as_mut(), &[FaultEvent::Ended { slot: 3 }, arrived(3, "b")]), failed, "another one");
    let text = decide(failing.as_mut(), &[]).expect_err("it was failed before");
    assert!(text.contains("fails a request that has not arrived"), "{text}");

    let mut failing = injector(&answer(&[(0, 3, 0)]));
    let text = decide(failing.as_mut(), &[arrived(3, "a"), FaultEvent::Ended { slot: 3 }]).expect_err("it has ended");
    assert!(text.contains("fails a request that has not arrived"), "{text}");
}

#[test]
fn only_a_utility_call_of_this_batch_can_be_failed() {
    let mut failing = injector(&answer(&[(8, 0, 0)]));
    let utility = [FaultEvent::Utility { method: "sleep" }];
    assert_eq!(decide(failing.as_mut(), &utility), Ok(vec![FaultAction::FailUtility]));
    let text = decide(failing.as_mut(), &[]).expect_err("there is none");
    assert!(text.contains("fails a utility call, but none was announced"), "{text}");
}

#[test]
fn every_request_can_be_failed_at_once() {
    // Writes an action for each arrival; the slots are 0, 1, 2, ...
    let body = format!(
        "(drop (memory.grow (i32.const 20)))
        (loop $each
          (i32.store
            (i32.add (i32.const 1000008) (i32.mul (local.get $index) (i32.const 24)))
            (local.get $index))
          (local.set $index (i32.add (local.get $index) (i32.const 1)))
          (br_if $each (i32.lt_u (local.get $index) (i32.const 5000))))
        {}",
        answer_list(1_000_000, 5_000)
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
