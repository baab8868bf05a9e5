use super::*;

const MS: u64 = 1_000_000;

fn chaos(rules: &str) -> Chaos {
    let script = serde_json::from_str(&format!(r#"{{"rules": [{rules}]}}"#)).expect("the script can be read");
    Chaos::configure(script, 7).expect("the script makes sense")
}

fn decide(chaos: &mut Chaos, now_ns: u64, events: &[FaultEvent<'_>]) -> Vec<FaultAction> {
    let mut actions = Vec::new();
    chaos.decide(&FaultBatch { now_ns, step: 0, events }, &mut actions).expect("it decides");
    actions
}

fn arrived(slot: u32, request_id: &str, prompt_tokens: u32) -> FaultEvent<'_> {
    FaultEvent::Arrived { slot, request_id, prompt_tokens, max_tokens: 100, priority: 0, adapter: None }
}

const FAIL_0: FaultAction = FaultAction::FailRequest { slot: 0 };
const FAIL_1: FaultAction = FaultAction::FailRequest { slot: 1 };

#[test]
fn requests_are_distinguished_by_name_and_prompt() {
    let mut chaos = chaos(r#"{"match": {"request_id": "bad", "prompt_tokens": [10, 20]}, "action": "fail_request"}"#);
    let events = [arrived(0, "good", 15), arrived(1, "so-bad-1", 20), arrived(2, "bad", 21), arrived(3, "bad", 9)];
    assert_eq!(decide(&mut chaos, 0, &events), [FAIL_1]);
}

#[test]
fn a_rule_happens_once_to_a_request_that_has_enough_tokens() {
    let mut chaos = chaos(r#"{"after_tokens": 5, "action": {"stall": {"ms": 1.5}}}"#);
    let stall = FaultAction::Stall { duration_ns: 1_500_000 };
    assert_eq!(decide(&mut chaos, 0, &[arrived(0, "a", 1)]), []);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Emitted { slot: 0, output_tokens: 4 }]), []);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Emitted { slot: 0, output_tokens: 6 }]), [stall]);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Emitted { slot: 0, output_tokens: 7 }]), []);
    let again = [FaultEvent::Ended { slot: 0 }, arrived(0, "b", 1), FaultEvent::Emitted { slot: 0, output_tokens: 5 }];
    assert_eq!(decide(&mut chaos, 0, &again), [stall], "another request in the same slot");
}

#[test]
fn every_nth_is_counted_over_the_requests_that_fit() {
    let mut chaos = chaos(r#"{"match": {"request_id": "x"}, "every": 3, "action": "drop_message"}"#);
    let happened: Vec<usize> = (0..12)
        .map(|slot| decide(&mut chaos, 0, &[arrived(slot, if slot % 2 == 0 { "x" } else { "y" }, 1)]).len())
        .collect();
    assert_eq!(happened, [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn chance_is_that_of_the_seed() {
    let happened = |seed| {
        let script = r#"{"rules": [{"match": {}, "probability": 0.25, "action": "corrupt_message"}]}"#;
        let mut chaos = Chaos::configure(serde_json::from_str(script).expect("a script"), seed).expect("it is good");
        (0..1_000).map(|slot| decide(&mut chaos, 0, &[arrived(slot, "a", 1)]).len()).collect::<Vec<_>>()
    };
    let first = happened(1);
    assert_eq!(first, happened(1));
    assert_ne!(first, happened(2));
    assert!((200..300).contains(&first.iter().sum::<usize>()), "{}", first.iter().sum::<usize>());
}

#[test]
fn time_alone_makes_a_rule_happen_once() {
    let mut chaos =
        chaos(r#"{"at_ms": 10, "action": {"crash": {"restart_after_ms": 2}}}, {"at_ms": 20, "action": {"crash": {}}}"#);
    assert_eq!(decide(&mut chaos, 9 * MS, &[]), []);
    assert_eq!(decide(&mut chaos, 10 * MS, &[]), [FaultAction::Crash { restart_after_ns: Some(2 * MS) }]);
    assert_eq!(decide(&mut chaos, 15 * MS, &[]), []);
    assert_eq!(decide(&mut chaos, 30 * MS, &[]), [FaultAction::Crash { restart_after_ns: None }]);
    assert_eq!(decide(&mut chaos, 40 * MS, &[]), []);
}

#[test]
fn a_rule_about_requests_may_wait_for_a_time() {
    let mut chaos = chaos(r#"{"match": {}, "at_ms": 10, "action": "fail_request"}"#);
    assert_eq!(decide(&mut chaos, 5 * MS, &[arrived(0, "a", 1)]), []);
    let later = [FaultEvent::Emitted { slot: 0, output_tokens: 1 }, arrived(1, "b", 1)];
    assert_eq!(decide(&mut chaos, 10 * MS, &later), [FAIL_0, FAIL_1]);
}

#[test]
fn a_burst_is_a_window() {
    let mut chaos = chaos(r#"{"match": {}, "at_ms": 10, "until_ms": 20, "action": "fail_request"}"#);
    assert_eq!(decide(&mut chaos, 9 * MS, &[arrived(0, "a", 1)]), []);
    assert_eq!(decide(&mut chaos, 19 * MS, &[arrived(1, "b", 1)]), [FAIL_1]);
    let later = [FaultEvent::Emitted { slot: 0, output_tokens: 1 }, arrived(2, "c", 1)];
    assert_eq!(decide(&mut chaos, 20 * MS, &later), []);
}

#[test]
fn a_request_fails_once_and_only_while_it_is_there() {
    let mut chaos = chaos(r#"{"match": {}, "action": "fail_request"}, {"after_tokens": 0, "action": "fail_request"}"#);
    assert_eq!(decide(&mut chaos, 0, &[arrived(0, "a", 1)]), [FAIL_0]);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Emitted { slot: 0, output_tokens: 1 }]), []);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Ended { slot: 0 }]), []);
    assert_eq!(decide(&mut chaos, 0, &[arrived(1, "a", 1), FaultEvent::Ended { slot: 1 }]), []);
}

#[test]
fn utility_calls_fail_by_name() {
    let mut chaos = chaos(r#"{"utility": "sleep", "action": "fail_utility"}"#);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Utility { method: "is_sleeping" }]), [FaultAction::FailUtility]);
    assert_eq!(decide(&mut chaos, 0, &[FaultEvent::Utility { method: "profile" }]), []);
}

#[test]
fn rules_happen_in_the_order_of_events_then_of_the_script() {
    let mut chaos = chaos(
        r#"{"match": {}, "action": "lose_kv_events"},
           {"match": {}, "action": "duplicate_message"},
           {"at_ms": 0, "action": {"delay_message": {"ms": 3}}}"#,
    );
    let delay = FaultAction::DelayMessage { by_ns: 3 * MS };
    let (lose, duplicate) = (FaultAction::LoseKvEvents, FaultAction::DuplicateMessage);
    let events = [arrived(0, "a", 1), arrived(1, "b", 1)];
    assert_eq!(decide(&mut chaos, 0, &events), [delay, lose, duplicate, lose, duplicate]);
}

#[test]
fn mistakes_in_the_script_are_named() {
    for (rule, expected) in [
        (r#"{"action": "drop_message"}"#, "it never happens: give `match`, `after_tokens`, `utility` or `at_ms`"),
        (r#"{"match": {}, "every": 0, "action": "drop_message"}"#, "invalid `every`: expected at least 1, got 0"),
        (
            r#"{"match": {}, "probability": 1.5, "action": "drop_message"}"#,
            "invalid `probability`: expected 0 to 1, got 1.5",
        ),
        (r#"{"at_ms": -1, "action": "drop_message"}"#, "invalid `at_ms`: expected 0 to 1e12, got -1"),
        (r#"{"at_ms": 5, "until_ms": 5, "action": "drop_message"}"#, "invalid `until_ms`: expected later than `at_ms`"),
        (r#"{"at_ms": 1, "every": 2, "action": "drop_message"}"#, "the rule is about neither"),
        (r#"{"at_ms": 1, "action": "fail_request"}"#, "`fail_request` needs `match` or `after_tokens`"),
        (r#"{"match": {}, "action": "fail_utility"}"#, "`fail_utility` needs `utility`"),
        (r#"{"match": {}, "utility": "x", "action": "drop_message"}"#, "about requests and about utility calls"),
        (r#"{"match": {"prompt_tokens": [2, 1]}, "action": "drop_message"}"#, "lesser number first, got [2, 1]"),
        (
            r#"{"at_ms": 1, "action": {"stall": {"ms": 1e13}}}"#,
            "invalid `action.stall.ms`: expected 0 to 1e12, got 10000000000000",
        ),
    ] {
        let script = format!(r#"{{"rules": [{{"match": {{}}, "action": "drop_message"}}, {rule}]}}"#);
        let script = serde_json::from_str(&script).expect("it can be read");
        let error = Chaos::configure(script, 1).err().expect(expected);
        assert!(error.starts_with("`rules[1]`: ") && error.contains(expected), "{error}");
    }
    for (script, expected) in [
        (r#"{"rules": [{"action": "explode"}]}"#, "unknown variant `explode`"),
        (r#"{"rules": [{"macth": {}, "action": "drop_message"}]}"#, "unknown field `macth`"),
        (r#"{"rules": [{"action": {"stall": {"s": 1}}}]}"#, "unknown field `s`"),
        (r#"{}"#, "missing field `rules`"),
    ] {
        let error = serde_json::from_str::<Script>(script).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
