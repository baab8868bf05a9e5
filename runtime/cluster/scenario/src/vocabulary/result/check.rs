//! `expect`, `check`, `value` and `has`: assertions, their results, and metrics of runs.

use std::sync::Arc;

use rhai::{Engine, ImmutableString, Map, NativeCallContext};

use crate::assertion::draws::Draws;
use crate::assertion::malformed::Malformed;
use crate::assertion::{Assertion, AssertionResult, check_names, is_known, quantile_of_draws, value};
use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::Options;
use crate::vocabulary::run::{NOTHING_TO_DRAW, RunResult};

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn(
        "expect",
        move |call: NativeCallContext<'_>,
              result: RunResult,
              metric: ImmutableString,
              condition: ImmutableString|
              -> Scripted<bool> {
            let assertion =
                Assertion::parse(&metric, &condition).and_then(|assertion| assertion.evaluate(&result.report));
            note_result(&shared, &call, assertion)
        },
    );
    let shared = Arc::clone(context);
    engine.register_fn(
        "expect",
        move |call: NativeCallContext<'_>,
              result: RunResult,
              metric: ImmutableString,
              condition: ImmutableString,
              options: Map|
              -> Scripted<bool> {
            let (confidence, draws) = share_of_draws(&shared, &call, &result, "expect", "confidence", options)?;
            let assertion = Assertion::parse(&metric, &condition).and_then(|assertion| match shared.is_check {
                true => assertion.evaluate(&result.report),
                false => assertion.evaluate_in_draws(&result.report, &draws, confidence),
            });
            note_result(&shared, &call, assertion)
        },
    );
    let shared = Arc::clone(context);
    engine.register_fn("check", move |subject: ImmutableString, passed: bool| -> bool {
        note(&shared, &subject, passed, None)
    });
    let shared = Arc::clone(context);
    engine.register_fn("check", move |subject: ImmutableString, passed: bool, observed: ImmutableString| -> bool {
        note(&shared, &subject, passed, Some(observed.to_string()))
    });
    let shared = Arc::clone(context);
    engine.register_fn(
        "value",
        move |call: NativeCallContext<'_>,
              result: RunResult,
              metric: ImmutableString,
              statistic: ImmutableString|
              -> Scripted<f64> {
            let thrown = |error| Thrown::from(error).at(call.call_position());
            if shared.reads_unmade_result() {
                return check_names(&result.report, &metric, &statistic).map(|()| 1.0).map_err(thrown);
            }
            value(&result.report, &metric, &statistic).map_err(thrown)
        },
    );
    engine.register_fn(
        "has",
        |call: NativeCallContext<'_>, result: RunResult, metric: ImmutableString| -> Scripted<bool> {
            is_known(&result.report, &metric).map_err(|error| Thrown::from(error).at(call.call_position()))
        },
    );
    let shared = Arc::clone(context);
    engine.register_fn(
        "value",
        move |call: NativeCallContext<'_>,
              result: RunResult,
              metric: ImmutableString,
              statistic: ImmutableString,
              options: Map|
              -> Scripted<f64> {
            let (share, draws) = share_of_draws(&shared, &call, &result, "value", "quantile", options)?;
            if shared.reads_unmade_result() {
                let asked = check_names(&result.report, &metric, &statistic).map(|()| 1.0);
                return asked.map_err(|error| Thrown::from(error).at(call.call_position()));
            }
            quantile_of_draws(&result.report, &draws, &metric, &statistic, share)
                .map_err(|error| Thrown::from(error).at(call.call_position()))
        },
    );
}

/// Reads the single option of a call about draws, which is a share, and returns it with the draws.
fn share_of_draws(
    context: &Context,
    call: &NativeCallContext<'_>,
    result: &RunResult,
    function: &'static str,
    option: &'static str,
    map: Map,
) -> Scripted<(f64, Arc<Draws>)> {
    let mut options = Options::new(function, &context.source, call, map);
    let share = options.f64(option);
    let share = options.required(option, share);
    if !(0.0..=1.0).contains(&share) {
        options.problem(option, format!("invalid `{option}`: expected a share from 0 to 1, got {share}"));
    }
    options.finish()?;
    if context.is_check {
        return Ok((share, Arc::new(Draws::new(Vec::new(), Vec::new()))));
    }
    let draws = result.draws.clone().ok_or_else(|| {
        let name = &result.report.name;
        let (why, hint) = match context.options.uncertainty {
            0 => ("it was not simulated with any", "--uncertainty 200 simulates each run with 200 draws"),
            _ => (NOTHING_TO_DRAW, "use a latency model that `vcr fit` made: fitted(#{ path: \"model.json\" })"),
        };
        let message = format!("`{option}` asks for the draws of the run `{name}`: {why}");
        Thrown::input(message).hint(hint).at(call.call_position())
    })?;
    Ok((share, draws))
}

fn note_result(
    context: &Context,
    call: &NativeCallContext<'_>,
    result: Result<AssertionResult, Malformed>,
) -> Scripted<bool> {
    let mut check = result.map_err(|error| Thrown::from(error).at(call.call_position()))?;
    // When a script is only checked, no run can violate the assertion.
    check.passed |= context.is_check;
    let passed = check.passed;
    context.state().assertions.push(check);
    Ok(passed)
}

/// Records a condition that the script has evaluated.
fn note(context: &Context, subject: &str, passed: bool, observed_text: Option<String>) -> bool {
    let passed = passed || context.is_check;
    context.state().assertions.push(AssertionResult {
        run: None,
        subject: subject.to_owned(),
        condition: None,
        observed: None,
        observed_text,
        confidence: None,
        held_share: None,
        passed,
    });
    passed
}
