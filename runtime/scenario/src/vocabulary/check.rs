//! `expect`, `check` and `value`: assertions and their results.

use std::sync::Arc;

use rhai::{Engine, ImmutableString, NativeCallContext};

use crate::assertion::{Assertion, AssertionResult, value};
use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::vocabulary::run::RunResult;

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn(
        "expect",
        move |call: NativeCallContext<'_>,
              result: RunResult,
              metric: ImmutableString,
              condition: ImmutableString|
              -> Scripted<bool> {
            let assertion = Assertion::parse(&metric, &condition).and_then(|assertion| assertion.evaluate(&result.0));
            let check = assertion.map_err(|error| Thrown::from(error).at(call.call_position()))?;
            let passed = check.passed;
            shared.state().assertions.push(check);
            Ok(passed)
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
    engine.register_fn(
        "value",
        |call: NativeCallContext<'_>, result: RunResult, metric: ImmutableString, statistic: ImmutableString| {
            value(&result.0, &metric, &statistic).map_err(|error| Thrown::from(error).at(call.call_position()))
        },
    );
}

/// Records a condition that the script evaluated itself.
fn note(context: &Context, subject: &str, passed: bool, observed_text: Option<String>) -> bool {
    context.state().assertions.push(AssertionResult {
        run: None,
        subject: subject.to_owned(),
        condition: None,
        observed: None,
        observed_text,
        passed,
    });
    passed
}
