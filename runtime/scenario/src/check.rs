//! `expect`, `check` and `value`: promises, and what became of them.

use std::sync::Arc;

use rhai::{Engine, ImmutableString, NativeCallContext};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Scripted, Thrown};
use crate::promise::{Promise, value};
use crate::run::RunResult;

/// A promise and whether it was kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Name of the run it is about; absent for free conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The metric, or what must be true.
    pub subject: String,
    /// The condition on the metric, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The value that was compared, in milliseconds for times; absent when there
    /// were no samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<f64>,
    /// That value for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_text: Option<String>,
    /// Whether the promise was kept.
    pub passed: bool,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let shared = Arc::clone(context);
    engine.register_fn(
        "expect",
        move |call: NativeCallContext<'_>,
              result: RunResult,
              metric: ImmutableString,
              condition: ImmutableString|
              -> Scripted<bool> {
            let promise = Promise::parse(&metric, &condition).and_then(|promise| promise.keep(&result.0));
            let check = promise.map_err(|error| Thrown::from(error).at(call.call_position()))?;
            let passed = check.passed;
            shared.state().checks.push(check);
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

/// Notes a condition that the script has worked out itself.
fn note(context: &Context, subject: &str, passed: bool, observed_text: Option<String>) -> bool {
    context.state().checks.push(Check {
        run: None,
        subject: subject.to_owned(),
        condition: None,
        observed: None,
        observed_text,
        passed,
    });
    passed
}
