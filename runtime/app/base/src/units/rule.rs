//! Rules in the syntax `KIND:KEY=VALUE,...`, such as `error:rate=0.1,after=5`, for faults of engines and of clients.

use std::fmt;

use crate::units::{duration_ns, ratio};

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} `{text}`: {reason}")]
pub struct RuleError {
    what: &'static str,
    text: String,
    reason: String,
}

/// The kinds and keys of rules.
#[derive(Debug)]
pub struct Syntax {
    /// What a rule is called, such as `fault`.
    pub what: &'static str,
    /// The kinds, each with its own keys.
    pub kinds: &'static [(&'static str, &'static [&'static str])],
    /// Keys that every kind has.
    pub common_keys: &'static [&'static str],
    /// The key that a first value without a key belongs to, in kinds with that key.
    pub unnamed_key: &'static str,
}

impl Syntax {
    /// The error for an invalid text.
    pub fn error(&self, text: impl Into<String>, reason: impl Into<String>) -> RuleError {
        RuleError { what: self.what, text: text.into(), reason: reason.into() }
    }

    /// Parses a text such as `status:code=429,rate=0.1`.
    ///
    /// # Errors
    /// An unknown kind or key, a repeated key, or a part that is not `KEY=VALUE`.
    pub fn split(&'static self, text: &str) -> Result<Keys, RuleError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut keys = Keys::new(self, text.to_owned(), kind)?;
        for pair in rest.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (key, value) = match pair.split_once('=') {
                Some(pair) => pair,
                None if keys.own_keys().contains(&self.unnamed_key) && keys.pairs.is_empty() => {
                    (self.unnamed_key, pair)
                }
                None => return Err(keys.error(format!("expected KEY=VALUE, got `{}`", pair.trim()))),
            };
            keys.add(key, value)?;
        }
        Ok(keys)
    }

    /// Makes a rule from key-value pairs. Values may contain any character.
    ///
    /// # Errors
    /// The errors of [`Self::split`].
    pub fn of_pairs<'a>(
        &'static self,
        kind: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Keys, RuleError> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let shown: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = if shown.is_empty() { kind.to_owned() } else { format!("{kind}:{}", shown.join(",")) };
        let mut keys = Keys::new(self, text, kind)?;
        pairs.into_iter().try_for_each(|(key, value)| keys.add(key, value))?;
        Ok(keys)
    }
}

/// The kind, keys and values of a rule.
#[derive(Debug)]
pub struct Keys {
    syntax: &'static Syntax,
    text: String,
    kind: String,
    pairs: Vec<(String, String)>,
}

impl Keys {
    fn new(syntax: &'static Syntax, text: String, kind: &str) -> Result<Self, RuleError> {
        let keys = Self { syntax, text, kind: kind.trim().to_owned(), pairs: Vec::new() };
        if syntax.kinds.iter().any(|(name, _)| *name == keys.kind) {
            return Ok(keys);
        }
        let names: Vec<_> = syntax.kinds.iter().map(|(name, _)| *name).collect();
        Err(keys.error(format!("unknown {} `{}`: expected one of {}", syntax.what, keys.kind, names.join(", "))))
    }

    fn own_keys(&self) -> &'static [&'static str] {
        self.syntax.kinds.iter().find(|(name, _)| *name == self.kind).map_or(&[], |(_, own)| own)
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), RuleError> {
        let key = key.trim();
        let (own, common) = (self.own_keys(), self.syntax.common_keys);
        if !own.contains(&key) && !common.contains(&key) {
            let all: Vec<_> = own.iter().chain(common).copied().collect();
            return Err(self.error(format!("`{}` has no `{key}`; it has {}", self.kind, all.join(", "))));
        }
        if self.text(key).is_some() {
            return Err(self.error(format!("`{key}` is given twice")));
        }
        self.pairs.push((key.to_owned(), value.trim().to_owned()));
        Ok(())
    }

    /// The rule, as the user wrote it.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.text
    }

    /// The kind of the rule.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// An error about this rule.
    pub fn error(&self, reason: impl Into<String>) -> RuleError {
        self.syntax.error(&*self.text, reason)
    }

    /// The value of a key.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
    }

    /// The parsed value of a key.
    ///
    /// # Errors
    /// The error of `read`, with the key and its value.
    pub fn get<T, E: fmt::Display>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, RuleError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        read(value).map(Some).map_err(|error| self.error(format!("`{key}={value}`: {error}")))
    }

    /// Returns `value`, which the kind requires.
    ///
    /// # Errors
    /// When `value` is none.
    pub fn needed<T>(&self, key: &str, value: Option<T>) -> Result<T, RuleError> {
        value.ok_or_else(|| self.error(format!("`{}` needs `{key}`", self.kind)))
    }

    /// Parses a whole number of at least 1.
    ///
    /// # Errors
    /// When the value is anything else.
    pub fn positive(&self, key: &str) -> Result<Option<u64>, RuleError> {
        match self.get(key, str::parse::<u64>)? {
            Some(0) => Err(self.error(format!("invalid `{key}`: expected at least 1"))),
            value => Ok(value),
        }
    }

    /// Parses the keys `rate`, `nth`, `count`, `at`, `from` and `until`.
    ///
    /// # Errors
    /// When one of them is invalid, or both `at` and `from` are given.
    pub fn occasions(&self) -> Result<Occasions, RuleError> {
        let at_ns = self.get("at", duration_ns)?;
        let from_ns = self.get("from", duration_ns)?;
        let until_ns = self.get("until", duration_ns)?;
        if at_ns.is_some() && from_ns.is_some() {
            return Err(self.error("`at` means once, `from` means from then on; give one of them"));
        }
        Ok(Occasions {
            rate: self.get("rate", probability)?.unwrap_or(1.0),
            nth: self.positive("nth")?.unwrap_or(1),
            count: self.positive("count")?.unwrap_or(if at_ns.is_some() { 1 } else { u64::MAX }),
            window_ns: (at_ns.or(from_ns).unwrap_or(0), until_ns.unwrap_or(u64::MAX)),
        })
    }
}

/// When a rule applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occasions {
    /// Probability at each occasion.
    pub rate: f64,
    /// Only every n-th occasion counts.
    pub nth: u64,
    /// Maximum number of applications.
    pub count: u64,
    /// Start and end of the window in nanoseconds.
    pub window_ns: (u64, u64),
}

fn probability(text: &str) -> Result<f64, String> {
    let rate = ratio(text).map_err(|error| error.to_string())?;
    if (0.0..=1.0).contains(&rate) { Ok(rate) } else { Err("expected 0 to 1".to_owned()) }
}
