//! Rules for comparing requests and for choosing among equal recordings.

use regex::Regex;
use serde::Deserialize;

use crate::http::{JsonPath, RedactRules};

/// Top-level body fields that are ignored by default, because they name users or runs.
pub(super) const IGNORED: &[&str] =
    &["user", "metadata", "seed", "request_id", "safety_identifier", "prompt_cache_key"];

/// Rules for comparing requests with recordings: the contents of the `--match` file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchRules {
    /// Paths in JSON bodies to ignore in addition to the defaults.
    pub ignore: Vec<JsonPath>,
    /// Fields to compare although they are ignored by default.
    pub compare: Vec<UsualField>,
    /// Patterns to remove from texts in JSON bodies.
    pub ignore_text: Vec<TextPattern>,
    /// Query parameters to ignore.
    pub ignore_query: Vec<String>,
    /// Headers to compare.
    pub headers: Vec<String>,
    /// The order in which recordings of equal requests are chosen.
    pub order: Order,
    /// Seed of the random order.
    pub seed: u64,
    /// The rules by which the recorder redacted secrets.
    #[serde(skip)]
    pub redact: RedactRules,
}

/// The order in which recordings of equal requests are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Play the recordings in order, then repeat the last.
    #[default]
    Recorded,
    /// Play the next recording with the same sampling parameters, or else the next with any parameters.
    Parameters,
    /// Play a random recording.
    Random,
}

/// A field that is ignored by default.
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
        // The parser's message spans several lines.
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
    /// Whether a top-level body field is ignored.
    pub(super) fn ignores(&self, name: &str) -> bool {
        IGNORED.contains(&name) && !self.compare.iter().any(|field| field.0 == name)
    }
}
