//! Which parts of a request are ignored, and which of several recordings it gets.

use regex::Regex;
use serde::Deserialize;

use crate::http::{JsonPath, RedactRules};

/// Fields at the top of a body that do not matter unless requested: they name users and runs.
pub(super) const IGNORED: &[&str] =
    &["user", "metadata", "seed", "request_id", "safety_identifier", "prompt_cache_key"];

/// How requests are compared with recordings: the file of `--match`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchRules {
    /// Ignored paths in JSON bodies, in addition to the usual ones.
    pub ignore: Vec<JsonPath>,
    /// Usual ones that do matter.
    pub compare: Vec<UsualField>,
    /// Parts of texts in JSON bodies that do not matter.
    pub ignore_text: Vec<TextPattern>,
    /// Names of query parameters that do not matter.
    pub ignore_query: Vec<String>,
    /// Names of headers that matter.
    pub headers: Vec<String>,
    /// Which of several recordings of one request answers.
    pub order: Order,
    /// Seed of a random order.
    pub seed: u64,
    /// Values that the recording replaced.
    #[serde(skip)]
    pub redact: RedactRules,
}

/// Which of several recordings of one request answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The next; the last one answers all later requests, too.
    #[default]
    Recorded,
    /// The next with the same sampling parameters, else the next one with any parameters.
    Parameters,
    /// One drawn by lot.
    Random,
}

/// A field that usually does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct UsualField(String);

impl TryFrom<String> for UsualField {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match IGNORED.contains(&name.as_str()) {
            true => Ok(Self(name)),
            false => Err(format!("`{name}` is compared anyway: expected one of {}", IGNORED.join(", "))),
        }
    }
}

/// A regular expression.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct TextPattern(Regex);

impl TryFrom<String> for TextPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // The message of the parser draws the place on lines of its own.
        let invalid = |error: regex::Error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Regex::new(&text).map(Self).map_err(invalid)
    }
}

impl TextPattern {
    pub(super) fn remove(&self, text: &mut String) {
        if self.0.is_match(text) {
            *text = self.0.replace_all(text, "").into_owned();
        }
    }
}

impl MatchRules {
    /// Whether a field at the top of a body does not matter.
    pub(super) fn ignores(&self, name: &str) -> bool {
        IGNORED.contains(&name) && !self.compare.iter().any(|field| field.0 == name)
    }
}
