//! Warns of divisions of whole numbers that drop a remainder, which few authors intend: `3 / 2` is 1, not 1.5.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rhai::{Engine, NativeCallContext};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};

/// Precedence of a division in the language.
const PRECEDENCE: u8 = 180;

/// Prints a warning, once per place in the script, if a division drops a remainder. The result does not change.
pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    // The script engine computes built-in number operators without calling functions, so `/` is redefined as a
    // custom operator.
    engine.disable_symbol("/");
    _ = engine.register_custom_operator("/", PRECEDENCE).expect("the symbol is free");
    engine.register_fn("/", |of: f64, by: f64| of / by);
    engine.register_fn("/", |of: f64, by: i64| of / by as f64);
    engine.register_fn("/", |of: i64, by: f64| of as f64 / by);
    // `/=` cannot be redefined like this, so scripts that use it look up all operators as functions, which doubles
    // the time of arithmetic.
    engine.set_fast_operators(!context.source.contains("/="));
    let divisions = Arc::new(Divisions { context: Arc::clone(context), warned: Mutex::default() });
    let assigning = Arc::clone(&divisions);
    engine.register_fn("/", move |call: NativeCallContext<'_>, of: i64, by: i64| divisions.divide(&call, of, by));
    engine.register_fn("/=", move |call: NativeCallContext<'_>, of: &mut i64, by: i64| -> Scripted<()> {
        *of = assigning.divide(&call, *of, by)?;
        Ok(())
    });
}

struct Divisions {
    context: Arc<Context>,
    /// Lines and columns of divisions with a printed warning.
    warned: Mutex<BTreeSet<(Option<usize>, Option<usize>)>>,
}

impl Divisions {
    fn divide(&self, call: &NativeCallContext<'_>, of: i64, by: i64) -> Scripted<i64> {
        let at = call.call_position();
        let result = of.checked_div(by).ok_or_else(|| {
            let problem = if by == 0 { "a number is divided by zero" } else { "the result is too large" };
            Thrown::input(format!("{of} / {by}: {problem}")).at(at)
        })?;
        let place = (at.line(), at.position());
        if of % by != 0 && self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
            let line = at.line().map(|line| format!("line {line}: ")).unwrap_or_default();
            self.context.reporter.warn(&format!(
                "{line}{of} / {by} is {result} for whole numbers, the rest is dropped; write {of}.0 / {by} for a \
                 fraction, or make sure that it divides"
            ));
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use crate::{Reporter, RunOptions, Scenario};

    #[derive(Default)]
    struct Warnings(Mutex<Vec<String>>);

    impl Reporter for Warnings {
        fn warn(&self, text: &str) {
            self.0.lock().expect("no test panics").push(text.to_owned());
        }
    }

    /// The warnings that a script prints, or its error.
    fn said(lines: &str) -> Result<Vec<String>, String> {
        let head = "let c = cluster(#{ engines: pool(#{ latency: fixed(#{ step: \"10ms\" }) }) });\n";
        let run = "\nrun(#{ cluster: c, workloads: [burst(#{ count: 1, prompt_tokens: 1, output_tokens: 1 })] });";
        let scenario = Scenario::compile("s.rhai".as_ref(), format!("{head}{lines}{run}")).expect("it compiles");
        let warnings = Arc::new(Warnings::default());
        let ran = scenario.run(RunOptions::default(), Arc::clone(&warnings) as _);
        ran.map_err(|error| error.to_string())?;
        Ok(warnings.0.lock().expect("no test panics").clone())
    }

    #[test]
    fn a_dropped_rest_is_said_once_for_each_place() {
        let two = said("let gpus = 3; let tp = 2;\nfor i in 0..5 { let engines = gpus / tp; }\nlet x = -7 / 2;");
        let two = two.expect("it runs");
        assert_eq!(two.len(), 2, "{two:?}");
        assert!(two[0].starts_with("line 3: 3 / 2 is 1 for whole numbers"), "{two:?}");
        assert!(two[1].starts_with("line 4: -7 / 2 is -3"), "{two:?}");
        let assigned = said("let gpus = 5;\ngpus /= 2;").expect("it runs");
        assert!(assigned.len() == 1 && assigned[0].starts_with("line 3: 5 / 2 is 2"), "{assigned:?}");
        let none = "let a = 4 / 2; let b = 3.0 / 2; let d = 3 / 2.0; let e = 7 % 2; let f = 10; f /= 5;";
        assert_eq!(said(none), Ok(Vec::new()));
        assert!(said("let zero = 0; let x = 3 / zero;").expect_err("it cannot be").contains("divided by zero"));
    }

    #[test]
    fn operators_stay_those_of_the_language() {
        let lines = "let a = 7; a += 3; a *= 2; a -= 1; a %= 12; let t = \"x\" + a; let quarter = 8 / 2 / 2;
            if a != 7 || t != \"x7\" || a < 7 || (a << 1) != 14 || -a != -7 || 2 ** 3 / 4 != 2 { throw \"other\" }
            if 1 + quarter * 6 / 2 - 2 * 3 != 1 || 7.0 / 2 != 3.5 || 7 / 2.0 != 3.5 { throw \"division\" }";
        assert_eq!(said(lines), Ok(Vec::new()));
        // With this assignment, number operators are looked up as functions.
        let assigned = format!("let b = 9.0; b /= 2; if b != 4.5 {{ throw b }}\n{lines}");
        assert_eq!(said(&assigned), Ok(Vec::new()));
        assert!(said("let a = 9_223_372_036_854_775_807; a += 1;").is_err(), "overflow is an error");
        assert!(said("let a = \"10ms\" / 2;").is_err(), "a text cannot be divided");
    }
}
