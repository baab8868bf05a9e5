//! The inputs of autoscalers, and how the host handles their answers.

use std::sync::{Arc, Mutex};

use vcr_core::scale::{Autoscaler, DESIRED_ENGINES_MAX, PoolView, ScaleError};
use vcr_guest::{GuestModule, Limits, Outcome, WithFallback};

use crate::components::built::built;
use crate::components::wat::{answer_error, answer_number, answer_worker, autoscaler, open, router};

fn guest(decide: &str) -> Box<dyn Autoscaler> {
    open(&autoscaler(decide)).autoscaler("{}", 7).expect("it configures")
}

fn view() -> PoolView {
    PoolView {
        now_ns: 5_000,
        up_engines: 1,
        starting_engines: 2,
        draining_engines: 3,
        arrived_requests: 4,
        arrived_prompt_tokens: 5,
        arrived_output_tokens: 6,
        completed_requests: 7,
        ttft_count: 8,
        ttft_sum_ns: 9,
        queue_count: 16,
        queue_sum_ns: 17,
        slo_requests: 18,
        slo_met_requests: 19,
        token_gap_count: 10,
        token_gap_sum_ns: u128::MAX,
        running_requests: 11,
        waiting_requests: 12,
        active_blocks: 13,
        total_blocks: 14,
        outstanding_prefill_tokens: 15,
        preemption_count: 20,
        engine_usd_per_hour: Some(2.5),
    }
}

/// Returns the desired number or the error text.
fn decide(scaler: &mut dyn Autoscaler) -> Result<u32, String> {
    scaler.desired(&view()).map_err(|error| error.to_string())
}

#[test]
fn all_that_is_seen_arrives_in_order() {
    let words = [4, 5, 6, 7, 8, 9, 16, 17, 18, 19, 10, u64::MAX, 11, 12, 13, 14, 15, 20];
    let mut conditions: Vec<String> = words
        .iter()
        .enumerate()
        .map(|(index, word)| {
            let at = 24 + 8 * index;
            format!("(i64.eq (i64.load offset={at} (local.get $pool)) (i64.const {}))", word.cast_signed())
        })
        .collect();
    conditions.push("(i64.eq (i64.load (local.get $pool)) (i64.const 5000))".to_owned());
    for (at, engines) in [(8, 1), (12, 2), (16, 3)] {
        conditions.push(format!("(i32.eq (i32.load offset={at} (local.get $pool)) (i32.const {engines}))"));
    }
    conditions.push("(i32.eq (i32.load8_u offset=168 (local.get $pool)) (i32.const 1))".to_owned());
    conditions.push("(f64.eq (f64.load offset=176 (local.get $pool)) (f64.const 2.5))".to_owned());
    for condition in conditions {
        let body = answer_number(&format!("(select (i32.const 4) (i32.const 1) {condition})"));
        assert_eq!(decide(guest(&body).as_mut()), Ok(4), "{condition}");
    }
}

#[test]
fn a_number_that_nobody_can_mean_is_refused_with_the_most_that_can() {
    let most = DESIRED_ENGINES_MAX.cast_signed();
    assert_eq!(decide(guest(&answer_number(&format!("(i32.const {most})"))).as_mut()), Ok(DESIRED_ENGINES_MAX));
    let text = decide(guest(&answer_number("(i32.const -1)")).as_mut()).expect_err("it is too much");
    assert_eq!(
        text,
        "autoscaler `hostile` failed: in `decide`: it asks for 4294967295 engines, but at most 1000000 are allowed; \
         answer the wanted number of running and starting engines"
    );
}

#[test]
fn hostile_autoscalers_are_stopped() {
    for (body, expected) in [
        ("(loop $again (br $again)) (unreachable)", "fuel"),
        ("(unreachable)", "it panicked"),
        ("(drop (memory.grow (i32.const 1024))) (unreachable)", "bytes of memory, but may have 67108864"),
    ] {
        let text = decide(guest(body).as_mut()).expect_err(expected);
        assert!(text.contains(expected) && text.contains("in `decide`"), "{text}");
    }
    let mut scaler = guest(&answer_error(32));
    let text = decide(scaler.as_mut()).expect_err("it answers an error");
    assert_eq!(text, "autoscaler `hostile` failed: in `decide`: `factor` is 0, but must be above 0");
    let text = decide(scaler.as_mut()).expect_err("it is gone");
    assert!(text.contains("in `decide`: it had failed before: `factor` is 0"), "{text}");
}

#[test]
fn a_check_finds_the_number_that_nobody_can_mean() {
    let module = open(&autoscaler(&answer_number("(i32.const -1)")));
    let report = vcr_guest::check(&module, "{}", 3, &|| 0).expect("it takes the config");
    let broken = |outcome: &Outcome| matches!(outcome, Outcome::Broken { reason } if reason.contains("it asks for 4294967295 engines"));
    assert!(broken(&report.checks[0].outcome), "{report:?}");
}

/// Always returns this number.
struct Constant(u32);

impl Autoscaler for Constant {
    fn desired(&mut self, _view: &PoolView) -> Result<u32, ScaleError> {
        Ok(self.0)
    }
}

#[test]
fn a_fallback_decides_from_the_first_failure_on() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    // Only the second answer is too large.
    let body = answer_number("(select (i32.const -1) (i32.const 3) (i32.eq (global.get $calls) (i32.const 2)))");
    let mut scaler = WithFallback::<dyn Autoscaler>::new(
        Ok::<_, ScaleError>(guest(&body)),
        Box::new(Constant(9)),
        Arc::new(move |reason: &str| kept.lock().expect("no holder panicked").push(reason.to_owned())),
    );
    let answers: Vec<_> = (0..4).map(|_| decide(&mut scaler)).collect();
    assert_eq!(answers, [Ok(3), Ok(9), Ok(9), Ok(9)]);
    assert_eq!(heard.lock().expect("no holder panicked").len(), 1);
}

#[test]
fn an_autoscaler_is_no_router_and_a_router_no_autoscaler() {
    let module = open(&autoscaler(&answer_number("(i32.const 1)")));
    let text = module.router("{}", 7).err().expect("it is an autoscaler").to_string();
    assert!(text.contains("it is a pool autoscaler (world `autoscaler`), but a router"), "{text}");
    let module = open(&router(&answer_worker("(i32.const 1)")));
    let text = module.autoscaler("{}", 7).err().expect("it is a router").to_string();
    assert!(text.contains("it is a router (world `router`), but a pool autoscaler"), "{text}");
}

#[test]
fn a_function_of_another_type_is_refused_when_it_is_loaded() {
    let wit = "package vcr:guest@0.1.0;
        interface types { record failure { message: string, traceback: option<string> } }
        interface scaling {
          use types.{failure};
          configure: func(config: string, seed: u64) -> result<_, failure>;
          decide: func(up-engines: u32) -> result<u32, failure>;
        }
        world autoscaler { export scaling; }";
    let text = crate::components::wat::autoscaler_text(&answer_number("(i32.const 1)"));
    let bytes = crate::components::wat::component(&text, wit);
    let error = GuestModule::from_bytes("other", &bytes, Limits::default()).expect_err("it does not fit").to_string();
    assert!(error.contains("`other`") && error.contains("does not fit the interface"), "{error}");
    assert!(error.contains("expected `record` found `u32`"), "{error}");
}

#[test]
fn the_shipped_autoscaler_passes_its_check_and_names_a_bad_target() {
    let Some(module) = built("target-load") else { return };
    let config = r#"{"metric": "prefill_tokens", "target": 8000, "scale_down_delay_ticks": 5}"#;
    let report = vcr_guest::check(&module, config, 3, &|| 0).expect("it takes the config");
    assert!(report.checks.iter().all(|check| check.outcome == Outcome::Passed), "{report:?}");
    let text = module.autoscaler(r#"{"target": 0}"#, 1).err().expect("no engine has a share of 0").to_string();
    assert!(text.contains("invalid `target`: expected a finite number above 0, got 0"), "{text}");
}
