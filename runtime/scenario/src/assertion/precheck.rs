//! Checks of a script before it runs.
//!
//! Assertions that are written out as texts are checked here, so that a mistyped
//! metric does not cost the runs before it, and drawn runs are asked for what they need.

use rhai::{AST, FnCallExpr, Position};

use crate::assertion::draws::Watched;
use crate::assertion::{check_assertion, check_value};
use crate::script::calls::{each_call, literal};
use crate::script::error::Scripted;

/// Checks every `expect` and `value` whose arguments are literal texts. Gives what is to
/// be asked of drawn runs, each once.
pub(crate) fn check(script: &AST) -> Scripted<Vec<Watched>> {
    let mut outcome = Ok(());
    let mut watched = Vec::new();
    each_call(script, |call, position| {
        outcome = check_call(call, position).map(|asked| watched.extend(asked.filter(|one| !watched.contains(one))));
        outcome.is_ok()
    });
    outcome.map(|()| watched)
}

fn check_call(call: &FnCallExpr, position: Position) -> Scripted<Option<Watched>> {
    let check = match call.name.as_str() {
        "expect" => check_assertion,
        "value" => check_value,
        _ => return Ok(None),
    };
    // As a method, the result stands before the dot.
    let texts: Vec<&str> = call.args.iter().filter_map(literal).collect();
    let [metric, condition] = texts[..] else { return Ok(None) };
    check(metric, condition).map_err(|thrown| thrown.at(position))
}
