//! `param(name, default)`: a value that `-e NAME=VALUE` overrides.

use std::sync::Arc;

use rhai::{Dynamic, Engine, ImmutableString, NativeCallContext};
use vcr_base::suggestion::{did_you_mean, nearest};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::describe;
pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    let context = Arc::clone(context);
    engine.register_fn(
        "param",
        move |call: NativeCallContext<'_>, name: ImmutableString, default: Dynamic| -> Scripted<Dynamic> {
            let given = context.options.parameters.get(name.as_str());
            let value = match given {
                Some(text) => typed(&name, text, &default).map_err(|thrown| thrown.at(call.call_position()))?,
                None => default,
            };
            context.state().parameters.insert(name.to_string(), value.to_string());
            Ok(value)
        },
    );
}

/// Fails if a given parameter is unknown to the script. Called before the first run, so that a typo does not cost a
/// run.
pub(crate) fn check_all_used(context: &Context) -> Result<(), Thrown> {
    let state = context.state();
    let Some(unknown) = context.options.parameters.keys().find(|name| !state.parameters.contains_key(*name)) else {
        return Ok(());
    };
    let thrown = Thrown::input(format!("the scenario has no parameter `{unknown}` before its first run"));
    let declaration = format!("param(\"{unknown}\"");
    if context.source.contains(&declaration) {
        return Err(thrown.hint(format!("move `{declaration}, ...)` before the first run")));
    }
    let known: Vec<&str> = state.parameters.keys().map(String::as_str).collect();
    Err(match nearest(unknown, known.iter().copied()) {
        Some(close) => thrown.hint(did_you_mean(close)),
        None if known.is_empty() => thrown.hint("it takes none; parameters are declared with param(\"name\", default)"),
        None => thrown.hint(format!("it takes {}", known.join(", "))),
    })
}

/// Parses a given text as a value of the default's type.
fn typed(name: &str, text: &str, default: &Dynamic) -> Result<Dynamic, Thrown> {
    let wrong = |wanted: &str| Thrown::argument(format!("invalid parameter `{name}`: expected {wanted}, got `{text}`"));
    if default.is_int() {
        return text.replace('_', "").parse::<i64>().map(Dynamic::from).map_err(|_| wrong("a whole number"));
    }
    if default.is_float() {
        return text.parse::<f64>().map(Dynamic::from).map_err(|_| wrong("a number"));
    }
    if default.is_bool() {
        return text.parse::<bool>().map(Dynamic::from).map_err(|_| wrong("true or false"));
    }
    if default.is_string() {
        return Ok(text.to_owned().into());
    }
    let message = format!("parameter `{name}` has {} as its default", describe(default));
    Err(Thrown::input(message).hint("use a text, a number, or true or false"))
}
