//! Reads a JSON object key by key. Each key is taken once, remaining keys are unknown, and every problem names its
//! key.

use serde_json::{Map, Value};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_core::EngineOption;

use crate::problem::{Findings, Problem};

pub(crate) struct Keys<'f> {
    place: &'f str,
    /// Names of the enclosing objects, each followed by a dot.
    prefix: String,
    map: Map<String, Value>,
    known: Vec<&'static str>,
    findings: &'f mut Findings,
}

/// Parses JSON text that must be an object.
pub(crate) fn parse(place: &str, text: &str, findings: &mut Findings) -> Map<String, Value> {
    let (key, text) = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(map)) => return map,
        Ok(other) => (String::new(), format!("expected a JSON object such as {{\"block_size\": 64}}, got {other}")),
        Err(error) => (String::new(), format!("invalid JSON: {error}")),
    };
    findings.problems.push(Problem { place: place.to_owned(), key, text });
    Map::new()
}

impl<'f> Keys<'f> {
    pub(crate) fn new(place: &'f str, prefix: &str, map: Map<String, Value>, findings: &'f mut Findings) -> Self {
        Self { place, prefix: prefix.to_owned(), map, known: Vec::new(), findings }
    }

    fn at(&self, key: &str, text: String) -> Problem {
        Problem { place: self.place.to_owned(), key: format!("{}{key}", self.prefix), text }
    }

    pub(crate) fn problem(&mut self, key: &str, text: impl Into<String>) {
        let problem = self.at(key, text.into());
        self.findings.problems.push(problem);
    }

    pub(crate) fn has_problem(&self, key: &str) -> bool {
        let key = format!("{}{key}", self.prefix);
        self.findings.problems.iter().any(|problem| problem.key == key)
    }

    /// Adds a warning that a key has no effect.
    pub(crate) fn remark(&mut self, key: &str, text: impl Into<String>) {
        let remark = self.at(key, text.into());
        self.findings.remarks.push(remark);
    }

    /// Takes the value of a key; null stays null.
    pub(crate) fn raw(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.map.remove(key)
    }

    /// Takes the value of a key; null counts as absent.
    pub(crate) fn value(&mut self, key: &'static str) -> Option<Value> {
        self.raw(key).filter(|value| !value.is_null())
    }

    fn read<T>(&mut self, key: &'static str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let value = self.value(key)?;
        let read = read(&value);
        if read.is_none() {
            self.problem(key, format!("expected {what}, got {value}"));
        }
        read
    }

    /// Reads a number of at least 1.
    pub(crate) fn count(&mut self, key: &'static str) -> Option<u32> {
        let count = |value: &Value| value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|&n| n > 0);
        self.read(key, "a whole number from 1 to 4294967295", count)
    }

    /// Reads an engine option that is a count within its range.
    pub(crate) fn count_option<C>(&mut self, option: &EngineOption<C>) -> Option<u32> {
        self.read(option.name, &range_text(option), |value| count_in_range(option, value))
    }

    /// Reads an engine option that is a count, or null for no limit.
    pub(crate) fn bound_option(&mut self, option: &EngineOption) -> Option<Option<u32>> {
        let value = self.raw(option.name)?;
        if value.is_null() {
            return Some(None);
        }
        let count = count_in_range(option, &value);
        if count.is_none() {
            self.problem(option.name, format!("expected {}, or null for no bound, got {value}", range_text(option)));
        }
        count.map(Some)
    }

    pub(crate) fn switch_option(&mut self, option: &EngineOption) -> Option<bool> {
        self.boolean(option.name)
    }

    pub(crate) fn whole(&mut self, key: &'static str) -> Option<u64> {
        self.read(key, "a whole number of at least 0", Value::as_u64)
    }

    pub(crate) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&mut self, key: &'static str) -> Option<String> {
        self.read(key, "a text", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn at_least(&mut self, key: &'static str, least: f64) -> Option<f64> {
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite() && *number >= least);
        self.read(key, &format!("a number of at least {least}"), number)
    }

    pub(crate) fn between(&mut self, key: &'static str, least: f64, most: f64) -> Option<f64> {
        let number = |value: &Value| value.as_f64().filter(|number| (least..=most).contains(number));
        self.read(key, &format!("a number from {least} to {most}"), number)
    }

    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.choice_or(key, words, "")
    }

    /// Reads a name from a list. `more` describes other valid values in the error message; the caller has already
    /// tried them.
    pub(crate) fn choice_or<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)], more: &str) -> Option<T> {
        let names: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let chosen =
            |value: &Value| words.iter().find(|(word, _)| value.as_str() == Some(word)).map(|&(_, chosen)| chosen);
        self.read(key, &format!("one of {}{more}", names.join(", ")), chosen)
    }

    /// Takes the name of a guest. Any other value is left to be read.
    pub(crate) fn guest(&mut self, key: &'static str, is_guest: impl Fn(&str) -> bool) -> Option<String> {
        let name = self.map.get(key)?.as_str().filter(|word| is_guest(word))?.to_owned();
        self.value(key);
        Some(name)
    }

    pub(crate) fn object(&mut self, key: &'static str) -> Option<Map<String, Value>> {
        self.read(key, "an object", |value| value.as_object().cloned())
    }

    /// Ignores keys that have no meaning in a simulation, with a warning.
    pub(crate) fn pass_over(&mut self, keys: &[&'static str], why: &str) {
        for &key in keys {
            if self.value(key).is_some() {
                self.remark(key, format!("is ignored: {why}"));
            }
        }
    }

    /// Refuses keys that are not simulated, unless `idle` holds for their values.
    pub(crate) fn refuse(&mut self, keys: &[&'static str], idle: impl Fn(&Value) -> bool, instead: &str) {
        for &key in keys {
            if self.value(key).is_some_and(|value| !idle(&value)) {
                self.problem(key, format!("is not simulated; {instead}"));
            }
        }
    }

    /// Accepts `other` as a second name of a key.
    pub(crate) fn alias(&mut self, key: &'static str, other: &'static str) {
        self.known.push(other);
        let Some(value) = self.map.remove(other) else { return };
        if self.map.insert(key.to_owned(), value).is_some() {
            self.problem(key, format!("is given twice, also as `{other}`; keep one"));
        }
    }

    pub(crate) fn drop_zero(&mut self, key: &'static str) {
        if self.map.get(key).is_some_and(|value| value == 0) {
            self.map.remove(key);
        }
    }

    /// Reads an object that is the value of `key`.
    pub(crate) fn inner(&mut self, key: &str, map: Map<String, Value>) -> Keys<'_> {
        Keys::new(self.place, &format!("{}{key}.", self.prefix), map, self.findings)
    }

    /// Refuses keys that were not read. `elsewhere` returns the right place of a key, if known.
    pub(crate) fn finish(mut self, elsewhere: impl Fn(&str) -> Option<String>) {
        for key in std::mem::take(&mut self.map).into_iter().map(|(key, _)| key) {
            let hint = elsewhere(&key).or_else(|| nearest(&key, self.known.iter().copied()).map(did_you_mean));
            let hint = hint.unwrap_or_else(|| format!("known are {}", listed(&self.known)));
            self.problem(&key, format!("is unknown; {hint}"));
        }
    }
}

fn count_in_range<C>(option: &EngineOption<C>, value: &Value) -> Option<u32> {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count.filter(|count| (option.min..=option.max).contains(count))
}

fn range_text<C>(option: &EngineOption<C>) -> String {
    format!("a whole number from {} to {}", option.min, option.max)
}

fn listed(known: &[&str]) -> String {
    let mut names: Vec<&str> = known.to_vec();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
