//! Checks of a script before it runs.
//!
//! Assertions that are written out as texts are checked here, so that a mistyped
//! metric does not cost the runs before it.

use rhai::{AST, ASTNode, Expr, FnCallExpr, ImmutableString, Position, Stmt};

use crate::assertion::{check_assertion, check_value};
use crate::script::error::Scripted;

/// Checks every `expect` and `value` whose arguments are literal texts.
pub(crate) fn check(script: &AST) -> Scripted<()> {
    let mut outcome = Ok(());
    script.walk(&mut |path: &[ASTNode<'_>]| {
        let (call, position) = match path.last() {
            Some(ASTNode::Expr(Expr::FnCall(call, position) | Expr::MethodCall(call, position)))
            | Some(ASTNode::Stmt(Stmt::FnCall(call, position))) => (call.as_ref(), *position),
            _ => return true,
        };
        outcome = check_call(call, position);
        outcome.is_ok()
    });
    outcome
}

fn check_call(call: &FnCallExpr, position: Position) -> Scripted<()> {
    let check = match call.name.as_str() {
        "expect" => check_assertion,
        "value" => check_value,
        _ => return Ok(()),
    };
    // As a method, the result stands before the dot.
    let texts: Vec<&ImmutableString> = call.args.iter().filter_map(literal).collect();
    let [metric, condition] = texts[..] else { return Ok(()) };
    check(metric, condition).map_err(|thrown| thrown.at(position))
}

fn literal(expression: &Expr) -> Option<&ImmutableString> {
    match expression {
        Expr::StringConstant(text, _) => Some(text),
        _ => None,
    }
}
