//! Finds the calls in a script.

use std::collections::BTreeSet;

use rhai::{AST, ASTNode, Expr, FnCallExpr, Position, Stmt};

/// The parameters that a script reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Names that are string literals in the script.
    pub names: BTreeSet<String>,
    /// Whether all names are string literals.
    pub are_all_known: bool,
}

pub(crate) struct Call<'a> {
    pub(crate) call: &'a FnCallExpr,
    /// Whether the call is a method call. Its first argument then stands before the dot.
    pub(crate) is_method: bool,
    pub(crate) position: Position,
}

/// Calls `see` for every call in the script, until `see` returns false.
pub(crate) fn each_call(script: &AST, mut see: impl FnMut(Call<'_>) -> bool) {
    script.walk(&mut |path: &[ASTNode<'_>]| {
        let (call, is_method, position) = match path.last() {
            Some(ASTNode::Expr(Expr::FnCall(call, position)) | ASTNode::Stmt(Stmt::FnCall(call, position))) => {
                (call, false, *position)
            }
            Some(ASTNode::Expr(Expr::MethodCall(call, position))) => (call, true, *position),
            _ => return true,
        };
        see(Call { call, is_method, position })
    });
}

/// Whether the script calls the function `name`.
pub(crate) fn calls(script: &AST, name: &str) -> bool {
    let mut is_called = false;
    each_call(script, |Call { call, .. }| {
        is_called |= call.name.as_str() == name;
        !is_called
    });
    is_called
}

/// Parameters whose value is stored in a variable that nothing reads.
pub(crate) fn unused_parameters(script: &AST) -> Vec<String> {
    let (mut taken, mut read) = (Vec::new(), BTreeSet::new());
    script.walk(&mut |path: &[ASTNode<'_>]| {
        match path.last() {
            Some(ASTNode::Stmt(Stmt::Var(variable, ..))) => {
                let (name, value, _) = variable.as_ref();
                if let Expr::FnCall(call, _) = value
                    && call.name.as_str() == "param"
                    && let Some(parameter) = call.args.first().and_then(literal)
                {
                    taken.push((name.name.to_string(), parameter.to_owned()));
                }
            }
            // A closure that captures a variable shares it, which counts as reading.
            Some(ASTNode::Stmt(Stmt::Share(variables))) => {
                read.extend(variables.iter().map(|(variable, ..)| variable.name.to_string()));
            }
            Some(ASTNode::Expr(Expr::Variable(variable, ..))) => {
                read.insert(variable.1.to_string());
            }
            _ => {}
        }
        true
    });
    taken.into_iter().filter(|(variable, _)| !read.contains(variable)).map(|(_, parameter)| parameter).collect()
}

/// The text of an argument that is a string literal.
pub(crate) fn literal(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::StringConstant(text, _) => Some(text.as_str()),
        _ => None,
    }
}

pub(crate) fn parameters(script: &AST) -> Parameters {
    let mut read = Parameters { are_all_known: true, ..Parameters::default() };
    each_call(script, |Call { call, .. }| {
        if call.name.as_str() == "param" {
            match call.args.first().and_then(literal) {
                Some(name) => {
                    read.names.insert(name.to_owned());
                }
                None => read.are_all_known = false,
            }
        }
        true
    });
    read
}
