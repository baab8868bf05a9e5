//! The syntax of rules: a kind, and keys with values.

use std::fmt;

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid client fault `{text}`: {reason}")]
pub struct ClientFaultError {
    text: String,
    reason: String,
}

/// Keys of every kind.
const COMMON_KEYS: &[&str] =
    &["rate", "nth", "call", "count", "at", "from", "until", "path", "header", "api-key", "model"];

/// The keys and values of a rule, taken one by one.
pub(super) struct Keys<'a> {
    text: &'a str,
    pub(super) kind: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Keys<'a> {
    pub(super) fn split(text: &'a str, kinds: &[(&str, &[&str])]) -> Result<Self, ClientFaultError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut keys = Self { text, kind: kind.trim(), pairs: Vec::new() };
        let Some((_, own)) = kinds.iter().find(|(name, _)| *name == keys.kind) else {
            let names: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
            return Err(keys.error(format!("expected one of {} before the colon", names.join(", "))));
        };
        for pair in rest.split(',').filter(|pair| !pair.trim().is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(keys.error(format!("expected KEY=VALUE, got `{}`", pair.trim())));
            };
            let key = key.trim();
            if !own.contains(&key) && !COMMON_KEYS.contains(&key) {
                let all: Vec<_> = own.iter().chain(COMMON_KEYS).copied().collect();
                return Err(keys.error(format!("`{}` has no `{key}`; it has {}", keys.kind, all.join(", "))));
            }
            if keys.text(key).is_some() {
                return Err(keys.error(format!("`{key}` is given twice")));
            }
            keys.pairs.push((key, value.trim()));
        }
        Ok(keys)
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> ClientFaultError {
        ClientFaultError { text: self.text.to_owned(), reason: reason.into() }
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value)
    }

    pub(super) fn get<T, E: fmt::Display>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ClientFaultError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        read(value).map(Some).map_err(|error| self.error(format!("`{key}={value}`: {error}")))
    }

    pub(super) fn needed<T>(&self, key: &str, value: Option<T>) -> Result<T, ClientFaultError> {
        value.ok_or_else(|| self.error(format!("`{}` needs `{key}`", self.kind)))
    }

    pub(super) fn positive(&self, key: &str) -> Result<Option<u64>, ClientFaultError> {
        match self.get(key, str::parse::<u64>)? {
            Some(0) => Err(self.error(format!("`{key}` must be at least 1"))),
            value => Ok(value),
        }
    }
}
