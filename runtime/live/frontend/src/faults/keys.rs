//! The syntax of rules: a kind, and keys with values.

use std::fmt;

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid client fault `{text}`: {reason}")]
pub struct ClientFaultError {
    text: String,
    reason: String,
}

impl ClientFaultError {
    pub(super) fn new(text: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { text: text.into(), reason: reason.into() }
    }
}

/// Keys of every kind.
const COMMON_KEYS: &[&str] = &[
    "rate", "nth", "call", "cycle", "count", "per", "at", "from", "until", "period", "path", "header", "api-key",
    "tenant", "model",
];

/// The keys and values of a rule, taken one by one.
pub(super) struct Keys {
    text: String,
    kind: String,
    pairs: Vec<(String, String)>,
}

impl Keys {
    /// Those of a text such as `status:code=429,rate=0.1`.
    pub(super) fn split(text: &str, kinds: &[(&str, &[&str])]) -> Result<Self, ClientFaultError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut keys = Self { text: text.to_owned(), kind: kind.trim().to_owned(), pairs: Vec::new() };
        keys.check_kind(kinds)?;
        for pair in rest.split(',').filter(|pair| !pair.trim().is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(keys.error(format!("expected KEY=VALUE, got `{}`", pair.trim())));
            };
            keys.add(key, value, kinds)?;
        }
        Ok(keys)
    }

    /// Those of a map, whose values may contain any character.
    pub(super) fn of_pairs<'a>(
        kind: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
        kinds: &[(&str, &[&str])],
    ) -> Result<Self, ClientFaultError> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let shown: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = if shown.is_empty() { kind.to_owned() } else { format!("{kind}:{}", shown.join(",")) };
        let mut keys = Self { text, kind: kind.trim().to_owned(), pairs: Vec::new() };
        keys.check_kind(kinds)?;
        for (key, value) in pairs {
            keys.add(key, value, kinds)?;
        }
        Ok(keys)
    }

    fn check_kind(&self, kinds: &[(&str, &[&str])]) -> Result<(), ClientFaultError> {
        if kinds.iter().any(|(name, _)| *name == self.kind) {
            return Ok(());
        }
        let names: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
        Err(self.error(format!("expected one of {} before the colon", names.join(", "))))
    }

    fn add(&mut self, key: &str, value: &str, kinds: &[(&str, &[&str])]) -> Result<(), ClientFaultError> {
        let key = key.trim();
        let own = kinds.iter().find(|(name, _)| *name == self.kind).map_or(&[][..], |(_, own)| own);
        if !own.contains(&key) && !COMMON_KEYS.contains(&key) {
            let all: Vec<_> = own.iter().chain(COMMON_KEYS).copied().collect();
            return Err(self.error(format!("`{}` has no `{key}`; it has {}", self.kind, all.join(", "))));
        }
        if self.text(key).is_some() {
            return Err(self.error(format!("`{key}` is given twice")));
        }
        self.pairs.push((key.to_owned(), value.trim().to_owned()));
        Ok(())
    }

    /// The rule, as users write it.
    pub(super) fn rule(&self) -> &str {
        &self.text
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> ClientFaultError {
        ClientFaultError::new(&*self.text, reason)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
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
            Some(0) => Err(self.error(format!("invalid `{key}`: expected at least 1"))),
            value => Ok(value),
        }
    }
}
