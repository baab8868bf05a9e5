//! Checks a script before it runs.
//!
//! Assertions written as literals are checked before the first run, so that a mistyped metric costs no runs. Drawn
//! runs also learn here which values they must compute.

use rhai::AST;

use crate::assertion::compared::{self, ComparedValue};
use crate::assertion::decided::DecisionCondition;
use crate::assertion::draws::Watched;
use crate::assertion::{check_assertion, check_value};
use crate::script::calls::{Call, each_call, literal};
use crate::script::error::{Scripted, Thrown};

/// Checks every `expect`, `value` and `interval` with literal arguments. Returns the distinct statistics that draws
/// must compute.
pub(crate) fn check(script: &AST) -> Scripted<Vec<Watched>> {
    let mut outcome = Ok(());
    let mut watched = Vec::new();
    each_call(script, |call| {
        outcome = check_call(&call).map(|asked| watched.extend(asked.filter(|one| !watched.contains(one))));
        outcome.is_ok()
    });
    outcome.map(|()| watched)
}

fn check_call(&Call { call, is_method, position }: &Call<'_>) -> Scripted<Option<Watched>> {
    // In a method call, the first argument (the result) precedes the dot.
    let arguments = call.args.len() + usize::from(is_method);
    let texts: Vec<&str> = call.args.iter().filter_map(literal).collect();
    let checked = match (call.name.as_str(), arguments, &texts[..]) {
        ("expect", 3.., [metric, condition]) => check_assertion(metric, condition),
        ("value", 3.., [metric, statistic]) => check_value(metric, statistic),
        ("expect", 2, [text]) if DecisionCondition::is_one(text) => {
            DecisionCondition::parse(text).map(|_| None).map_err(Thrown::from)
        }
        ("expect", 2, [text]) => compared::gate(text).map(|_| None).map_err(Thrown::from),
        ("value", 2, [text]) => ComparedValue::parse(text).map(|_| None).map_err(Thrown::from),
        ("interval", 2, [text]) => compared::subject(text).map(|_| None).map_err(Thrown::from),
        _ => return Ok(None),
    };
    checked.map_err(|thrown| thrown.at(position))
}
