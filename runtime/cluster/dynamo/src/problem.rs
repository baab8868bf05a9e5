//! Problems of configurations, and warnings about ignored keys.

use std::fmt;

/// A problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Origin of the configuration, such as `--extra-engine-args`.
    pub place: String,
    /// The key; empty if the problem concerns the whole configuration.
    pub key: String,
    /// The problem and its remedy.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if !self.key.is_empty() {
            write!(f, ", `{}`", self.key)?;
        }
        write!(f, ": {}", self.text)
    }
}

/// All problems of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct DynamoError(pub Vec<Problem>);

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl DynamoError {
    /// An error with a single problem.
    #[must_use]
    pub fn one(place: &str, key: &str, text: impl Into<String>) -> Self {
        Self(vec![Problem { place: place.to_owned(), key: key.to_owned(), text: text.into() }])
    }
}

/// A warning about a key that was accepted but has no effect. A strict reader reports it as a [`Problem`].
pub type Remark = Problem;

#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) remarks: Vec<Remark>,
}

impl Findings {
    /// Returns `read` with its remarks, unless there are problems.
    pub(crate) fn finish<T>(self, strict: bool, read: T) -> Result<(T, Vec<Remark>), DynamoError> {
        let Self { mut problems, mut remarks } = self;
        if strict {
            problems.append(&mut remarks);
        }
        if problems.is_empty() { Ok((read, remarks)) } else { Err(DynamoError(problems)) }
    }
}
