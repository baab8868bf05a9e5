//! Why a command did nothing, or did not come to its end.

use vcr_dynamo::DynamoError;
use vcr_output::OutputError;
use vcr_scenario::ScenarioError;

use crate::excerpt::with_line;
use crate::exit::Exit;

/// An error with what to do about it, and the exit code it leads to.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { exit: Exit::BadInput, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, of one of several things.
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
        Self { exit: error.blame.into(), message: with_line(&error), hint: error.hint }
    }
}
