//! Errors of scenarios, and their origins.

use std::fmt;

use rhai::{Dynamic, EvalAltResult, LexError, ParseError, ParseErrorType, Position};
use vcr_base::output::OutputError;
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::SimError;
use vcr_core::RejectReason;

use crate::script::functions::{FUNCTIONS, kind_of};
use crate::script::limits::{
    MAX_ARRAY_ELEMENTS, MAX_CALL_LEVELS, MAX_FUNCTIONS, MAX_MAP_ENTRIES, MAX_STRING_BYTES, MEMORY_HINT,
};
/// The origin of an error. It determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The script, or a file that it names.
    Input,
    /// A parameter's value that the script cannot accept, whatever the other parameters are.
    Argument,
    /// A guest or an engine, during a run.
    Fault,
}

impl Blame {
    /// The origin of a failed run, and a hint if there is one.
    #[must_use]
    pub fn of(error: &SimError) -> (Self, Option<&'static str>) {
        match error {
            SimError::Config(_) | SimError::TimeStandsStill { .. } => (Self::Input, None),
            SimError::Limit { .. } => (Self::Input, Some(MEMORY_HINT)),
            SimError::NothingFits { reason: RejectReason::ExceedsPrefillBudget, .. } => {
                (Self::Input, Some("raise `prefill_tokens_per_tick`, or shorten the prompts"))
            }
            SimError::NothingFits { reason: RejectReason::AdaptersOff, .. } => {
                (Self::Input, Some("set the engine's `max_loras`"))
            }
            SimError::NothingFits { .. } => {
                (Self::Input, Some("raise `num_gpu_blocks` or `max_model_len`, or shorten the requests"))
            }
            SimError::Latency { .. }
            | SimError::Policy { .. }
            | SimError::Route { .. }
            | SimError::Failures { .. }
            | SimError::Tokens { .. }
            | SimError::Scale { .. }
            | SimError::Stuck { .. } => (Self::Fault, None),
        }
    }
}

/// A failed scenario.
#[derive(Clone, Debug)]
pub struct ScenarioError {
    pub blame: Blame,
    pub file: String,
    /// Line and column (from 1) in the script, if known.
    pub at: Option<(usize, usize)>,
    /// The error messages, one per line.
    pub message: String,
    pub hint: Option<String>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ScenarioError {}

/// An error of a vocabulary function, which passes through the script engine.
#[derive(Clone, Debug)]
pub(crate) struct Thrown {
    pub(crate) blame: Blame,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl From<&OutputError> for Thrown {
    fn from(error: &OutputError) -> Self {
        Self { hint: error.hint().map(str::to_owned), ..Self::input(error.to_string()) }
    }
}

impl Thrown {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { blame: Blame::Input, message: message.into(), hint: None }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self { blame: Blame::Argument, ..Self::input(message) }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Converts the error to one of the script as a whole.
    pub(crate) fn of_script(self, file: &str) -> ScenarioError {
        let Self { blame, message, hint } = self;
        ScenarioError { blame, file: file.to_owned(), at: None, message, hint }
    }

    pub(crate) fn at(self, position: Position) -> Box<EvalAltResult> {
        Box::new(EvalAltResult::ErrorRuntime(Dynamic::from(self), position))
    }
}

pub(crate) type Scripted<T> = Result<T, Box<EvalAltResult>>;

pub(crate) fn is_stopped(error: &EvalAltResult) -> bool {
    matches!(innermost(error), EvalAltResult::ErrorTerminated(..))
}

/// Converts an error of the script engine to one for the script's author.
pub(crate) fn from_script(file: &str, error: &EvalAltResult) -> ScenarioError {
    let inner = innermost(error);
    let position = if inner.position().is_none() { error.position() } else { inner.position() };
    let at = position.line().map(|line| (line, position.position().unwrap_or(1)));
    let scenario = |blame, message, hint| ScenarioError { blame, file: file.to_owned(), at, message, hint };
    match inner {
        EvalAltResult::ErrorRuntime(value, _) | EvalAltResult::ErrorTerminated(value, _) => {
            match value.clone().try_cast::<Thrown>() {
                Some(thrown) => scenario(thrown.blame, thrown.message, thrown.hint),
                None => scenario(Blame::Input, format!("the script threw: {value}"), None),
            }
        }
        EvalAltResult::ErrorStackOverflow(_) => scenario(
            Blame::Input,
            format!("the script nests calls deeper than {} levels", MAX_CALL_LEVELS),
            Some("look for a function that calls itself without end".to_owned()),
        ),
        EvalAltResult::ErrorDataTooLarge(what, _) => scenario(
            Blame::Input,
            format!("value too large: expected {}, including nested values", most_of(what)),
            Some("make runs in several steps, and keep numbers of them, not lists".to_owned()),
        ),
        EvalAltResult::ErrorFunctionNotFound(signature, _) => unknown_function(signature, &scenario),
        EvalAltResult::ErrorDotExpr(text, _) => unknown_property(text, &scenario),
        other => scenario(Blame::Input, without_type_paths(&text_without_position(other)), None),
    }
}

/// Converts a syntax error to one for the script's author.
pub(crate) fn from_parser(file: &str, source: &str, error: &ParseError) -> ScenarioError {
    let position = error.position();
    let at = position.line().map(|line| (line, position.position().unwrap_or(1)));
    let hint = at.and_then(|at| opened_block(source, at)).map(|(line, column)| {
        format!("a map is written #{{ name: value }}; the `{{` at {line}:{column} begins a block of statements")
    });
    let message = match error.err_type() {
        ParseErrorType::BadInput(LexError::UnexpectedInput(input)) => {
            format!("unexpected character `{}`", input.escape_debug())
        }
        ParseErrorType::TooManyFunctions => {
            format!("the script has more than {MAX_FUNCTIONS} functions, closures included")
        }
        other => other.to_string(),
    };
    ScenarioError { blame: Blame::Input, file: file.to_owned(), at, message, hint }
}

/// The last `{` before a position at which a value is expected, because the author probably meant a map. Line and
/// column from 1.
fn opened_block(source: &str, (error_line, error_column): (usize, usize)) -> Option<(usize, usize)> {
    let mut found = None;
    let mut before = '\n';
    for (line, text) in (1..=error_line).zip(source.lines()) {
        for (column, c) in (1..).zip(text.chars()) {
            if (line, column) >= (error_line, error_column) {
                return found;
            }
            if c == '{' && "(,[:=".contains(before) {
                found = Some((line, column));
            }
            if !c.is_whitespace() {
                before = c;
            }
        }
    }
    found
}

/// The limit that a value exceeds. `what` is the script engine's name for the size.
fn most_of(what: &str) -> String {
    if what.contains("string") {
        format!("at most {MAX_STRING_BYTES} bytes of text")
    } else if what.contains("map") {
        format!("at most {MAX_MAP_ENTRIES} entries of maps")
    } else {
        format!("at most {MAX_ARRAY_ELEMENTS} elements of arrays")
    }
}

fn unknown_function(
    signature: &str,
    scenario: &dyn Fn(Blame, String, Option<String>) -> ScenarioError,
) -> ScenarioError {
    let (name, arguments) = signature.split_once([' ', '(']).unwrap_or((signature, ""));
    let first = arguments.trim_start_matches('(').split([',', ')']).next().unwrap_or_default();
    match FUNCTIONS.iter().find(|(known, _)| *known == name) {
        Some((_, usage)) => scenario(
            Blame::Input,
            format!("`{name}` was called with arguments it does not take: {}", without_type_paths(signature)),
            Some(format!("call it as `{usage}`")),
        ),
        None if first.contains("RequestRows") => scenario(
            Blame::Input,
            format!("there is no function `{name}` of {}", kind_of(first)),
            Some("they have `len()`, indices and `for`; `requests(result, \"ttft_ms\")` is an array".to_owned()),
        ),
        None => {
            let names = || FUNCTIONS.iter().map(|(known, _)| *known);
            let near = nearest(name, names()).or_else(|| names().find(|known| share_a_word(name, known)));
            let near = near.map(|near| format!("{} ", did_you_mean(near))).unwrap_or_default();
            let hint = format!("{near}docs/reference/scenarios/language.md lists all functions");
            scenario(Blame::Input, format!("unknown function `{name}`"), Some(hint))
        }
    }
}

/// The error of a property that a value lacks. `text` has the property and the type of the value in quotes.
fn unknown_property(text: &str, scenario: &dyn Fn(Blame, String, Option<String>) -> ScenarioError) -> ScenarioError {
    let parts: Vec<&str> = text.split('\'').collect();
    let [what, property, _, of, ..] = parts[..] else { return scenario(Blame::Input, text.to_owned(), None) };
    let kind = if of.contains("::") { kind_of(of).to_owned() } else { format!("a value of type `{of}`") };
    let settable = if what.starts_with("No writable") { " to set" } else { "" };
    let is_result = of.contains("RunResult");
    let hint = is_result.then(|| "read metrics with `value(result, \"ttft\", \"p99\")`".to_owned());
    scenario(Blame::Input, format!("there is no property `{property}`{settable} of {kind}"), hint)
}

/// Replaces the paths of Rust types, by which the script engine names values of the vocabulary.
fn without_type_paths(text: &str) -> String {
    let is_of_path = |c: char| c.is_alphanumeric() || "_:<>".contains(c);
    let (mut replaced, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(is_of_path) {
        let (before, from) = rest.split_at(start);
        let (word, after) = from.split_at(from.find(|c| !is_of_path(c)).unwrap_or(from.len()));
        replaced.push_str(before);
        replaced.push_str(if word.contains("::") { kind_of(word) } else { word });
        rest = after;
    }
    replaced + rest
}

/// Whether two names have a word in common; plurals count.
fn share_a_word(one: &str, other: &str) -> bool {
    let words = |name: &str| name.split('_').map(|word| word.trim_end_matches('s').to_owned()).collect::<Vec<_>>();
    let others = words(other);
    words(one).iter().any(|word| word.len() > 2 && others.contains(word))
}

fn innermost(error: &EvalAltResult) -> &EvalAltResult {
    match error {
        EvalAltResult::ErrorInFunctionCall(_, _, inner, _) | EvalAltResult::ErrorInModule(_, inner, _) => {
            innermost(inner)
        }
        other => other,
    }
}

/// The text of an error without its position, which is reported separately.
fn text_without_position(error: &EvalAltResult) -> String {
    let text = error.to_string();
    let suffix = format!(" ({})", error.position());
    text.strip_suffix(&suffix).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_options_that_the_engine_has() {
        let hint = |reason| Blame::of(&SimError::NothingFits { requests: 1, reason }).1.expect("a hint");
        assert!(hint(RejectReason::ExceedsKvPool).contains("`num_gpu_blocks`"));
        let of_ticks = hint(RejectReason::ExceedsPrefillBudget);
        assert!(of_ticks.contains("`prefill_tokens_per_tick`") && !of_ticks.contains("`num_gpu_blocks`"));
    }

    #[test]
    fn unknown_functions_have_the_nearest_one_and_the_place_of_all() {
        let hint = |name: &str| {
            let error =
                |blame, message: String, hint| ScenarioError { blame, file: String::new(), at: None, message, hint };
            unknown_function(&format!("{name} (i64)"), &error).hint.expect("a hint")
        };
        let list = "docs/reference/scenarios/language.md lists all functions";
        assert_eq!(hint("poison"), format!("did you mean `poisson`? {list}"));
        assert_eq!(hint("workloads"), format!("did you mean `workload_file`? {list}"));
        assert_eq!(hint("nothing_like_it"), list);
    }

    #[test]
    fn errors_name_values_in_the_words_of_scripts() {
        let error =
            |blame, message: String, hint| ScenarioError { blame, file: String::new(), at: None, message, hint };
        let rows = "filter (vcr_scenario::vocabulary::result::RequestRows, Fn)";
        assert_eq!(unknown_function(rows, &error).message, "there is no function `filter` of the requests of a run");
        let run = "run (vcr_scenario::vocabulary::engine::EngineSpec, alloc::sync::Arc<vcr_cluster::Histogram>, i64)";
        let called = "`run` was called with arguments it does not take: run (an engine, a histogram, i64)";
        assert_eq!(unknown_function(run, &error).message, called);
        let getter = |of: &str| format!("Unknown property 'metrics' - a getter is not registered for type '{of}'");
        let found = unknown_property(&getter("vcr_scenario::vocabulary::run::RunResult"), &error);
        assert_eq!(found.message, "there is no property `metrics` of the result of a run");
        assert!(found.hint.is_some_and(|hint| hint.contains("`value(result,")));
        let found = unknown_property(&getter("i64"), &error);
        assert_eq!(found.message, "there is no property `metrics` of a value of type `i64`");
        let setter = "No writable property 'a' - a setter is not registered for type 'x::PoolSpec' to handle 'i64'";
        assert_eq!(unknown_property(setter, &error).message, "there is no property `a` to set of a pool");
    }

    #[test]
    fn a_brace_where_a_value_is_expected_is_taken_for_a_map() {
        assert_eq!(opened_block("run({ a: 1 })", (1, 8)), Some((1, 5)));
        assert_eq!(opened_block("let x =\n  { a: 1 };", (2, 6)), Some((2, 3)));
        assert_eq!(opened_block("run(#{ a: 1 } b)", (1, 15)), None);
        assert_eq!(opened_block("if x { y z }", (1, 10)), None);
        assert_eq!(opened_block("run({ a: 1 })", (1, 3)), None, "it stands behind the error");
    }
}
