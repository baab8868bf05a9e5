//! Calls by hand, and what a check says of a call that failed.

use serde_json::json;
use vcr_guest::call;

use crate::components::built::built;
use crate::components::wat::{
    Bodies, answer, answer_worker, autoscaler, failure_injector, open, router, scheduler_policy, token_source,
};

#[test]
fn a_call_answers_json_and_takes_zeros_for_what_is_left_out() {
    let body = answer(&["1.5", "2.5"]);
    let module = open(&Bodies::of_price(&body).component());
    let input = json!({"run": {"decode-requests": 3, "kv-active-blocks": [7, 8]}});
    assert_eq!(call(&module, "{}", 1, "price-decodes", &input).expect("it answers"), json!([1.5, 2.5]));
    assert_eq!(call(&module, "{}", 1, "configure", &json!({})).expect("it answers"), json!(null));
    let module = open(&router(&answer_worker("(i32.load offset=24 (local.get $call))")));
    let input = json!({"request": {"prompt-tokens": 9, "phase": "decode"}});
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

/// Whatever a check sends can be sent by hand: the names are those of `wit/`.
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
