//! Why a command did nothing, or did not complete.

use vcr_base::output::OutputError;
use vcr_dynamo::DynamoError;
use vcr_scenario::ScenarioError;

use crate::exit::{Exit, print_error};
use crate::terminal::excerpt::{of_source, with_line};

/// An error with its remedy, and its exit code.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The exit code of the command.
    pub exit: Exit,
    /// The error with its place, as commands print it.
    pub message: String,
    /// The next step.
    pub hint: Option<String>,
    /// Place in a script, if it is about one.
    pub place: Option<Place>,
}

/// A place in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The script's name.
    pub file: String,
    /// Line and column, from 1, where known.
    pub at: Option<(usize, usize)>,
}

impl Refusal {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { exit: Exit::BadInput, message: message.into(), hint: None, place: None }
    }

    /// The error of a script whose text is `source`.
    pub(crate) fn of_script(error: ScenarioError, source: &str) -> Self {
        let excerpt = error.at.and_then(|(line, column)| of_source(source, line, column));
        let message = match excerpt {
            Some(excerpt) => format!("{error}\n{excerpt}"),
            None => error.to_string(),
        };
        Self { message, ..Self::from(error) }
    }

    /// Prints it. Returns the exit code.
    pub(crate) fn print(self) -> Exit {
        print_error(&self.message, self.hint.as_deref());
        self.exit
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// This refusal with `what` before its message, to name which of several things is refused.
    pub(crate) fn of(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl From<DynamoError> for Refusal {
    fn from(error: DynamoError) -> Self {
        Self::input(error.to_string())
    }
}

impl From<OutputError> for Refusal {
    fn from(error: OutputError) -> Self {
        let refusal = Self::input(error.to_string());
        match error.hint() {
            Some(hint) => refusal.hint(hint),
            None => refusal,
        }
    }
}

impl From<ScenarioError> for Refusal {
    fn from(error: ScenarioError) -> Self {
        let message = with_line(&error);
        let place = Some(Place { file: error.file, at: error.at });
        Self { exit: error.blame.into(), message, hint: error.hint, place }
    }
}
