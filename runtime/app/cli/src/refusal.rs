use vcr_base::output::OutputError;
use vcr_dynamo::DynamoError;
use vcr_scenario::ScenarioError;

use crate::exit::{Exit, print_error};
use crate::terminal::excerpt::{of_source, with_line};

/// An error with a hint and an exit code.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The exit code of the command.
    pub exit: Exit,
    /// The message with its place, as commands print it.
    pub message: String,
    /// The next step for the user.
    pub hint: Option<String>,
    /// The place in a script, if the error is about one.
    pub place: Option<Place>,
}

/// A place in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the script.
    pub file: String,
    /// Line and column, from 1, if known.
    pub at: Option<(usize, usize)>,
}

impl Refusal {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { exit: Exit::BadInput, message: message.into(), hint: None, place: None }
    }

    /// Makes the error of a script, whose text is `source`.
    pub(crate) fn of_script(error: ScenarioError, source: &str) -> Self {
        let excerpt = error.at.and_then(|(line, column)| of_source(source, line, column));
        let message = match excerpt {
            Some(excerpt) => format!("{error}\n{excerpt}"),
            None => error.to_string(),
        };
        Self { message, ..Self::from(error) }
    }

    /// Prints the error and returns the exit code.
    pub(crate) fn print(self) -> Exit {
        print_error(&self.message, self.hint.as_deref());
        self.exit
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts `what` before the message, to name the refused item.
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
