//! What is wrong with what was given, and what was passed over.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was given, such as `--extra-engine-args`.
    pub place: String,
    /// The key it concerns; empty if it concerns none.
    pub key: String,
    /// What is wrong, and what to do about it.
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

/// Everything that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct DynamoError(pub Vec<Problem>);

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl DynamoError {
    /// One problem.
    #[must_use]
    pub fn one(place: &str, key: &str, text: impl Into<String>) -> Self {
        Self(vec![Problem { place: place.to_owned(), key: key.to_owned(), text: text.into() }])
    }
}

/// Something that was accepted and does not do what it says, to be counted in a
/// warning. Read strictly, it is a [`Problem`].
pub type Remark = Problem;

/// Problems and remarks while something is read.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) remarks: Vec<Remark>,
}

impl Findings {
    /// What was read, if nothing is wrong with it.
    pub(crate) fn finish<T>(self, strict: bool, read: T) -> Result<(T, Vec<Remark>), DynamoError> {
        let Self { mut problems, mut remarks } = self;
        if strict {
            problems.append(&mut remarks);
        }
        if problems.is_empty() { Ok((read, remarks)) } else { Err(DynamoError(problems)) }
    }
}
