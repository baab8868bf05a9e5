//! What goes wrong with a scenario, and whose fault it is.

use std::fmt;

use rhai::{Dynamic, EvalAltResult, Position};
use vcr_cluster::SimError;

/// Whose fault an error is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The script, a file it names, or an argument.
    Input,
    /// A guest or an engine, while running.
    Fault,
}

impl Blame {
    /// Whose fault the end of a run is, and what to do about it, if that can be said.
    #[must_use]
    pub fn of(error: &SimError) -> (Self, Option<&'static str>) {
        match error {
            SimError::Config(_) | SimError::TimeStandsStill { .. } => (Self::Input, None),
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
    /// Whose fault it is.
    pub blame: Blame,
    /// The script's name.
    pub file: String,
    /// Line and column (from 1) in the script, where known.
    pub at: Option<(usize, usize)>,
    /// What failed; one problem a line.
    pub message: String,
    /// What to do.
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

/// What a vocabulary function throws through the script engine.
#[derive(Clone, Debug)]
pub(crate) struct Thrown {
    pub(crate) blame: Blame,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Thrown {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { blame: Blame::Input, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn at(self, position: Position) -> Box<EvalAltResult> {
        Box::new(EvalAltResult::ErrorRuntime(Dynamic::from(self), position))
    }
}

/// What vocabulary functions return.
pub(crate) type Scripted<T> = Result<T, Box<EvalAltResult>>;

/// The error of a script as its author should read it.
pub(crate) fn from_script(file: &str, error: &EvalAltResult) -> ScenarioError {
    let inner = innermost(error);
    let position = if inner.position().is_none() { error.position() } else { inner.position() };
    let at = position.line().map(|line| (line, position.position().unwrap_or(1)));
    let scenario = |blame, message, hint| ScenarioError { blame, file: file.to_owned(), at, message, hint };
    match inner {
        EvalAltResult::ErrorRuntime(value, _) => match value.clone().try_cast::<Thrown>() {
            Some(thrown) => scenario(thrown.blame, thrown.message, thrown.hint),
            None => scenario(Blame::Input, format!("the script threw: {value}"), None),
        },
        EvalAltResult::ErrorTooManyOperations(_) => scenario(
            Blame::Input,
            format!("the script did not end within {} operations", crate::MAX_SCRIPT_OPERATIONS),
            Some("look for a loop that never ends; runs themselves do not count".to_owned()),
        ),
        EvalAltResult::ErrorStackOverflow(_) => scenario(
            Blame::Input,
            format!("the script nests calls deeper than {} levels", crate::vocabulary::MAX_CALL_LEVELS),
            Some("look for a function that calls itself without end".to_owned()),
        ),
        EvalAltResult::ErrorFunctionNotFound(signature, _) => unknown_function(signature, &scenario),
        other => scenario(Blame::Input, text_without_position(other), None),
    }
}

fn unknown_function(
    signature: &str,
    scenario: &dyn Fn(Blame, String, Option<String>) -> ScenarioError,
) -> ScenarioError {
    let name = signature.split([' ', '(']).next().unwrap_or(signature);
    match crate::vocabulary::FUNCTIONS.iter().find(|(known, _)| *known == name) {
        Some((_, usage)) => scenario(
            Blame::Input,
            format!("`{name}` was called with arguments it does not take: {signature}"),
            Some(format!("call it as `{usage}`")),
        ),
        None => {
            let names = crate::vocabulary::FUNCTIONS.iter().map(|(known, _)| *known);
            let known: Vec<&str> = names.clone().collect();
            let hint =
                nearest(name, names).map_or_else(|| format!("a scenario can call {}", known.join(", ")), did_you_mean);
            scenario(Blame::Input, format!("there is no function `{name}`"), Some(hint))
        }
    }
}

fn innermost(error: &EvalAltResult) -> &EvalAltResult {
    match error {
        EvalAltResult::ErrorInFunctionCall(_, _, inner, _) | EvalAltResult::ErrorInModule(_, inner, _) => {
            innermost(inner)
        }
        other => other,
    }
}

/// The text of an error without its position, which is told apart.
fn text_without_position(error: &EvalAltResult) -> String {
    let text = error.to_string();
    let suffix = format!(" ({})", error.position());
    text.strip_suffix(&suffix).unwrap_or(&text).to_owned()
}

/// The valid name closest to a mistyped one, if any is close.
pub(crate) fn nearest<'a>(name: &str, valid: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Among equally close names the one of equal length: letters get swapped
    // more often than lost.
    let length = |text: &str| text.chars().count();
    let scored = valid.map(|candidate| {
        (strsim::damerau_levenshtein(name, candidate), length(name).abs_diff(length(candidate)), candidate)
    });
    let (distance, _, best) = scored.min()?;
    (distance <= 2 || distance * 3 <= name.chars().count()).then_some(best)
}

pub(crate) fn did_you_mean(name: &str) -> String {
    format!("did you mean `{name}`?")
}
