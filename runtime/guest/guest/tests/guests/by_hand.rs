//! Calls by hand, and the failed call in the report of a check.

use serde_json::{Value, json};
use vcr_guest::{GuestModule, HandCallError, HandInstance};

use crate::components::built::built;
use crate::components::wat::{
    Bodies, answer, answer_worker, autoscaler, failure_injector, open, router, scheduler_policy, token_source,
};

/// Makes one call of a fresh instance.
fn call(module: &GuestModule, config: &str, seed: u64, function: &str, input: &Value) -> Result<Value, HandCallError> {
    HandInstance::new(module, config, seed)?.call(function, input)
}

#[test]
fn a_call_answers_json_and_takes_zeros_for_what_is_left_out() {
    let body = answer(&["1.5", "2.5"]);
    let module = open(&Bodies::of_price(&body).component());
    let input = json!({"run": {"decode-requests": 3, "kv-active-blocks": [7, 8]}});
    assert_eq!(call(&module, "{}", 1, "price-decodes", &input).expect("it answers"), json!([1.5, 2.5]));
    assert_eq!(call(&module, "{}", 1, "configure", &json!({})).expect("it answers"), json!(null));
    let module = open(&router(&answer_worker("(i32.load offset=24 (local.get $call))")));
    let input = json!({"request": {"prompt-tokens": 9, "phase": "decode"}, "workers": {"worker": [2, 9]}});
    assert_eq!(call(&module, "{}", 1, "route", &input).expect("it answers"), json!({"worker": 9}));
}

#[test]
fn what_does_not_fit_is_named_with_its_path() {
    let module = open(&scheduler_policy("(unreachable)"));
    for (function, input, expected) in [
        ("decide", json!({"engin": {}}), "invalid input: unknown field `engin`: expected one of engine"),
        (
            "decide",
            json!({"engine": {"now": 1}}),
            "invalid input: unknown field `engine.now`: expected one of now-ns, ",
        ),
        (
            "decide",
            json!({"engine": {"events": [{"ended": {"slot": -1}}]}}),
            "`engine.events[0].ended.slot`: expected a whole number from 0 to 4294967295, got -1",
        ),
        (
            "decide",
            json!({"engine": {"events": [{"gone": 1}]}}),
            "`engine.events[0]`: expected an object with one of arrived, admitted, preempted, ended",
        ),
        ("route", json!({}), "unknown function `route`: expected one of configure, decide"),
        ("decide", json!({}), "guest `hostile` failed in `decide`: it panicked"),
    ] {
        let error = call(&module, "{}", 1, function, &input).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Any failed call of a check can be made by hand, because both use the names of `wit/`.
#[test]
fn a_failure_in_each_world_can_be_repeated() {
    let unreachable = "(unreachable)";
    for bytes in [
        scheduler_policy(unreachable),
        router(unreachable),
        autoscaler(unreachable),
        failure_injector(unreachable),
        token_source(unreachable),
        Bodies::of_step(unreachable).component(),
    ] {
        let module = open(&bytes);
        let report = vcr_guest::check(&module, "{}", 1, &|| 0).expect("it takes the config");
        let failed = report.failed_call.expect("the first call failed");
        let error = call(&module, "{}", 1, failed.function, &failed.input).expect_err("it fails again").to_string();
        assert!(error.contains("it panicked"), "{}: {error}", module.world());
    }
}

#[test]
fn a_shipped_guest_answers_by_hand() {
    let Some(module) = built("target-load") else { return };
    let config = r#"{"metric": "requests", "target": 4}"#;
    let input = json!({"pool": {"running-requests": 8, "waiting-requests": 1}});
    assert_eq!(call(&module, config, 1, "decide", &input).expect("it answers"), json!(3));
}

#[test]
fn columns_that_are_left_out_are_as_long_as_those_beside_them() {
    // The SDK refuses columns of different lengths.
    let Some(module) = built("prefix-affinity") else { return };
    let config = r#"{"max_waiting": 3}"#;
    let route = |workers: Value| call(&module, config, 1, "route", &json!({"request": {}, "workers": workers}));
    let chosen = |workers| route(workers).expect("it answers");
    assert_eq!(chosen(json!({"running-requests": [9, 1]})), json!({"worker": 1}));
    assert_eq!(chosen(json!({"worker": [4, 7], "waiting-requests": [2, 0]})), json!({"worker": 7}));
    assert_eq!(chosen(json!({"waiting-requests": [4, 4]})), json!("refuse"), "a request may be refused by default");
    assert_eq!(call(&module, config, 1, "route", &json!({})).expect("there is one engine"), json!({"worker": 0}));
    let error = route(json!({"worker": [0, 1], "active-blocks": [1]})).expect_err("they differ").to_string();
    assert!(error.contains("`workers`: expected columns of one length, got"), "{error}");
}

#[test]
fn the_example_of_each_function_has_all_fields_and_is_answered() {
    for (name, functions) in [
        ("roofline", &["price-step", "price-decodes"][..]),
        ("shortest-prompt-first", &["decide"]),
        ("prefix-affinity", &["route"]),
        ("target-load", &["decide"]),
        ("chaos", &["decide"]),
        ("json-tokens", &["step"]),
    ] {
        let Some(module) = built(name) else { return };
        let config = module.example_config().expect("shipped guests have one");
        for function in functions {
            let mut instance = HandInstance::new(&module, config, 1).expect("it takes its example");
            let example = instance.example(function).expect("it has the function");
            instance.call(function, &example).unwrap_or_else(|error| panic!("{name}: {error}: {example}"));
        }
    }
    let Some(module) = built("prefix-affinity") else { return };
    let mut instance = HandInstance::new(&module, "{}", 1).expect("it loads");
    let example = instance.example("route").expect("it has the function");
    assert_eq!(example["workers"]["last-step-ns"], json!([0, 0]));
    assert_eq!(example["request"]["phase"], "whole");
    let error = instance.example("decide").expect_err("a router has none").to_string();
    assert_eq!(error, "unknown function `decide`: expected one of configure, route");
}

/// In each world an invalid answer is refused with the same text as in a run.
#[test]
fn answers_are_checked_as_in_a_run() {
    let words = |bytes: Vec<u8>, function: &str, input: Value| {
        call(&open(&bytes), "{}", 1, function, &input).expect_err("the answer is invalid").to_string()
    };
    let text = words(router(&answer_worker("(i32.const 5)")), "route", json!({"workers": {"worker": [0, 1]}}));
    assert!(text.contains("it chose the engine 5 for request 0: expected one of 0, 1"), "{text}");
    let text = words(Bodies::of_price(&answer(&["-1"])).component(), "price-decodes", json!({"run": {}}));
    assert!(text.contains("-1 ns, which is negative"), "{text}");
    let text = words(Bodies::of_price(&answer(&["1", "2"])).component(), "price-decodes", json!({"run": {}}));
    assert!(text.contains("it answered 2 durations for 1 steps"), "{text}");
}

#[test]
fn an_instance_keeps_its_state_from_call_to_call() {
    let Some(module) = built("shortest-prompt-first") else { return };
    let mut instance = HandInstance::new(&module, "{}", 1).expect("it is instantiated");
    let mut decide = |event: Value| instance.call("decide", &json!({"engine": {"events": [event]}}));
    let arrived = json!({"arrived": {"slot": 3, "prompt-tokens": 700}});
    assert_eq!(decide(arrived).expect("it answers")["admission"]["slot"], json!([3]));
    let ended = json!({"ended": {"slot": 3}});
    assert_eq!(decide(ended).expect("it knows the request")["admission"]["slot"], json!([]));
}
