//! Reads the option maps of scenario functions.
//!
//! A function declares an option by taking it; any other option is unknown. All problems of a map are reported
//! together, each with the line and column of its key.

use std::sync::Arc;

use rhai::{Array, Dynamic, ImmutableString, Map, NativeCallContext, Position};
use vcr_base::random::Distribution;
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{Histogram, Lengths};

use crate::script::error::{Scripted, Thrown};
use vcr_base::units::{self as units, UnitError};

/// A distribution as scripts make it, either of durations in milliseconds or of counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptDistribution {
    pub(crate) distribution: Distribution,
    pub(crate) is_time: bool,
}

/// Maximum parameter of a distribution of counts. Larger values are probably mistyped, and would fill the memory.
const MAX_COUNT: f64 = 1e7;
const MAX_MS: f64 = 1e12;

/// Maximum length of the name of a run, pool or workload.
const MAX_NAME_CHARS: usize = 128;

struct Problem {
    /// The option with the problem; empty for the call as a whole.
    option: String,
    position: Position,
    message: String,
    hint: Option<String>,
}

pub(crate) struct Options<'s> {
    function: &'static str,
    source: &'s str,
    call: Position,
    map: Map,
    known: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl<'s> Options<'s> {
    pub(crate) fn new(function: &'static str, source: &'s str, context: &NativeCallContext<'_>, map: Map) -> Self {
        Self { function, source, call: context.call_position(), map, known: Vec::new(), problems: Vec::new() }
    }

    /// Position of the call, for problems that are found after reading the options.
    pub(crate) fn call_position(&self) -> Position {
        self.call
    }

    /// Takes the value of an option, if it is given.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Dynamic> {
        self.known.push(name);
        self.map.remove(name)
    }

    /// Takes the value of an option if it is given and `wanted` holds for it.
    pub(crate) fn take_if(&mut self, name: &str, wanted: impl Fn(&Dynamic) -> bool) -> Option<Dynamic> {
        if self.map.get(name).is_some_and(wanted) { self.map.remove(name) } else { None }
    }

    /// The value of an option if it has this type. The option is not taken.
    pub(crate) fn peek<T: Clone + Send + Sync + 'static>(&self, name: &str) -> Option<T> {
        self.map.get(name)?.clone().try_cast::<T>()
    }

    /// Whether an option is given and not yet taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(crate) fn problem(&mut self, name: &str, message: impl Into<String>) {
        let (option, position) = (name.to_owned(), self.position_of(name));
        self.problems.push(Problem { option, position, message: message.into(), hint: None });
    }

    /// Adds a problem if an option that is not allowed is given.
    pub(crate) fn refuse(&mut self, name: &str, message: &str) {
        if self.map.contains_key(name) {
            self.problem(name, message);
            self.map.remove(name);
        }
    }

    /// Accepts a former name of an option.
    pub(crate) fn accept_former_name(&mut self, former: &str, present: &str) {
        if !self.map.contains_key(present)
            && let Some(value) = self.map.remove(former)
        {
            self.map.insert(present.into(), value);
        }
    }

    /// Fails if an option is unknown or has a problem.
    pub(crate) fn finish(mut self) -> Scripted<()> {
        self.note_unknown();
        self.problems.sort_by_key(|problem| (problem.position.line(), problem.position.position()));
        let Some(first) = self.problems.first() else { return Ok(()) };
        let position = first.position;
        let hint = first.hint.clone();
        let mut message = first.message.clone();
        for problem in &self.problems[1..] {
            message.push_str("\n  ");
            if let Some(line) = problem.position.line() {
                message.push_str(&format!("{line}:{}: ", problem.position.position().unwrap_or(1)));
            }
            message.push_str(&problem.message);
            if let Some(hint) = &problem.hint {
                message.push_str(&format!(" ({hint})"));
            }
        }
        Err(Thrown { blame: crate::Blame::Input, message, hint }.at(position))
    }

    /// Adds a problem for each option that was not taken.
    fn note_unknown(&mut self) {
        let left: Vec<String> = self.map.keys().map(ToString::to_string).collect();
        for name in left {
            let position = self.position_of(&name);
            let hint = match nearest(&name, self.known.iter().copied()) {
                Some(known) => did_you_mean(known),
                None => format!("`{}` takes {}", self.function, self.known.join(", ")),
            };
            let message = format!("`{}` has no option `{name}`", self.function);
            self.problems.push(Problem { option: name, position, message, hint: Some(hint) });
        }
    }

    /// Reads an option that is a map with its own options. `example` is shown in errors.
    pub(crate) fn nested<T>(
        &mut self,
        name: &'static str,
        example: &str,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        let value = self.take(name)?;
        let map = self.check(name, value.clone().try_cast::<Map>(), &format!("a map such as {example}"), &value)?;
        let call = self.position_of(name);
        let mut inner =
            Self { function: name, source: self.source, call, map, known: Vec::new(), problems: Vec::new() };
        let made = read(&mut inner);
        inner.note_unknown();
        self.problems.append(&mut inner.problems);
        Some(made)
    }

    /// Adds a problem of a value that another call made, at the position of that call.
    pub(crate) fn problem_at(&mut self, position: Position, message: impl Into<String>) {
        self.problems.push(Problem { option: String::new(), position, message: message.into(), hint: None });
    }

    /// Reads an option that is an array of maps with their own options. `example` is shown in errors.
    pub(crate) fn each<T>(
        &mut self,
        name: &'static str,
        example: &str,
        read: impl Fn(usize, &mut Self) -> T,
    ) -> Option<Vec<T>> {
        let value = self.take(name)?;
        let maps = value
            .clone()
            .try_cast::<Array>()
            .and_then(|array| array.into_iter().map(|element| element.try_cast::<Map>()).collect::<Option<Vec<Map>>>());
        let maps = self.check(name, maps, &format!("an array of {example}"), &value)?;
        let call = self.position_of(name);
        let mut made = Vec::with_capacity(maps.len());
        for (index, map) in maps.into_iter().enumerate() {
            let mut inner =
                Self { function: name, source: self.source, call, map, known: Vec::new(), problems: Vec::new() };
            made.push(read(index, &mut inner));
            inner.note_unknown();
            self.problems.append(&mut inner.problems);
        }
        Some(made)
    }

    pub(crate) fn required<T: Default>(&mut self, name: &'static str, value: Option<T>) -> T {
        // A problem was already added for an invalid value.
        let complained = self.problems.iter().any(|problem| problem.option == name);
        if value.is_none() && !complained {
            self.problem(name, format!("`{}` needs the option `{name}`", self.function));
        }
        value.unwrap_or_default()
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        let value = self.take(name)?;
        self.check(name, value.as_bool().ok(), "true or false", &value)
    }

    pub(crate) fn string(&mut self, name: &'static str) -> Option<String> {
        let value = self.take(name)?;
        self.check(name, as_text(&value), "a text", &value)
    }

    /// Reads a name that reports and tables can show.
    pub(crate) fn name(&mut self, name: &'static str) -> Option<String> {
        let text = self.string(name)?;
        if text.is_empty() || text.chars().count() > MAX_NAME_CHARS || text.contains(char::is_control) {
            let wanted = format!("1 to {MAX_NAME_CHARS} characters without control characters");
            self.problem(name, format!("invalid `{name}` {text:?}: expected {wanted}"));
            return None;
        }
        Some(text)
    }

    /// Reads a text or a non-empty array of texts.
    pub(crate) fn strings(&mut self, name: &'static str) -> Option<Vec<String>> {
        let value = self.take(name)?;
        let texts = match value.clone().try_cast::<Array>() {
            Some(items) => items.iter().map(as_text).collect::<Option<Vec<String>>>(),
            None => as_text(&value).map(|text| vec![text]),
        };
        self.check(name, texts.filter(|texts| !texts.is_empty()), "a text, or an array of texts", &value)
    }

    pub(crate) fn array(&mut self, name: &'static str) -> Option<Array> {
        let value = self.take(name)?;
        let array = value.clone().try_cast::<Array>();
        self.check(name, array, "an array", &value)
    }

    pub(crate) fn u64(&mut self, name: &'static str) -> Option<u64> {
        let value = self.take(name)?;
        let number = value.as_int().ok().and_then(|number| u64::try_from(number).ok());
        self.check(name, number, "a whole number of at least 0", &value)
    }

    pub(crate) fn u32(&mut self, name: &'static str) -> Option<u32> {
        let value = self.take(name)?;
        let number = value.as_int().ok().and_then(|number| u32::try_from(number).ok());
        self.check(name, number, "a whole number of at least 0 and below 2^32", &value)
    }

    pub(crate) fn i32(&mut self, name: &'static str) -> Option<i32> {
        let value = self.take(name)?;
        let number = value.as_int().ok().and_then(|number| i32::try_from(number).ok());
        self.check(name, number, "a whole number", &value)
    }

    pub(crate) fn f64(&mut self, name: &'static str) -> Option<f64> {
        let value = self.take(name)?;
        self.check(name, as_number(&value), "a number", &value)
    }

    pub(crate) fn duration_ns(&mut self, name: &'static str) -> Option<u64> {
        self.with_unit(name, "a duration such as \"250ms\"", units::duration_ns)
    }

    pub(crate) fn duration_ps(&mut self, name: &'static str) -> Option<u64> {
        self.with_unit(name, "a duration such as \"2.5us\"", units::duration_ps)
    }

    pub(crate) fn bytes(&mut self, name: &'static str) -> Option<u64> {
        let value = self.take(name)?;
        if let Ok(bytes) = value.as_int() {
            return self.check(name, u64::try_from(bytes).ok(), "a size of at least 0 bytes", &value);
        }
        self.parse_unit(name, &value, "a size such as \"128KiB\", or a number of bytes", units::bytes)
    }

    pub(crate) fn bandwidth(&mut self, name: &'static str) -> Option<u64> {
        self.with_unit(name, "a bandwidth such as \"64GB/s\"", units::bandwidth_bytes_per_s)
    }

    pub(crate) fn rate_per_s(&mut self, name: &'static str) -> Option<f64> {
        let value = self.take(name)?;
        if let Some(number) = as_number(&value) {
            return Some(number);
        }
        self.parse_unit(name, &value, "a rate such as \"20/s\", or a number per second", units::rate_per_s)
    }

    /// Reads a distribution of counts. A number is a constant distribution.
    pub(crate) fn counts(&mut self, name: &'static str) -> Option<Distribution> {
        let value = self.take(name)?;
        if let Some(number) = as_number(&value) {
            return self.valid(name, Distribution::Constant { value: number }, MAX_COUNT);
        }
        let scripted = value.clone().try_cast::<ScriptDistribution>().filter(|scripted| !scripted.is_time);
        let wanted = "a number, or a distribution such as normal(512, 128)";
        let scripted = self.check(name, scripted, wanted, &value)?;
        self.valid(name, scripted.distribution, MAX_COUNT)
    }

    /// Reads token lengths: a histogram, or a distribution as in [`Options::counts`].
    pub(crate) fn lengths(&mut self, name: &'static str) -> Option<Lengths> {
        match self.take_if(name, |value| value.is::<Arc<Histogram>>()).and_then(|value| value.try_cast()) {
            Some(histogram) => {
                self.known.push(name);
                Some(Lengths::Counted(histogram))
            }
            None => self.counts(name).map(Lengths::Drawn),
        }
    }

    /// Reads a distribution of durations in milliseconds. A duration is a constant distribution.
    pub(crate) fn durations_ms(&mut self, name: &'static str) -> Option<Distribution> {
        let value = self.take(name)?;
        let wanted = "a duration such as \"250ms\", or a distribution such as normal(\"250ms\", \"50ms\")";
        if as_text(&value).is_some() {
            let ns = self.parse_unit(name, &value, wanted, units::duration_ns)?;
            return Some(Distribution::Constant { value: ns as f64 / 1e6 });
        }
        let scripted = value.clone().try_cast::<ScriptDistribution>().filter(|scripted| scripted.is_time);
        let scripted = self.check(name, scripted, wanted, &value)?;
        self.valid(name, scripted.distribution, MAX_MS)
    }

    /// Reads a value that another function of the vocabulary made.
    pub(crate) fn made<T: Clone + Send + Sync + 'static>(&mut self, name: &'static str, by: &str) -> Option<T> {
        let value = self.take(name)?;
        self.check(name, value.clone().try_cast::<T>(), by, &value)
    }

    /// Reads a name from a list.
    pub(crate) fn choice<T: Copy>(&mut self, name: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.string(name)?;
        if let Some((_, value)) = choices.iter().find(|(choice, _)| *choice == text) {
            return Some(*value);
        }
        let names: Vec<String> = choices.iter().map(|(choice, _)| format!("\"{choice}\"")).collect();
        let mut message = format!("invalid `{name}`: expected one of {}, got \"{text}\"", names.join(", "));
        if let Some(known) = nearest(&text, choices.iter().map(|(choice, _)| *choice)) {
            message.push_str(&format!("; {}", did_you_mean(known)));
        }
        self.problem(name, message);
        None
    }

    fn valid(&mut self, name: &'static str, distribution: Distribution, most: f64) -> Option<Distribution> {
        let problems = distribution.problems(most);
        if problems.is_empty() {
            return Some(distribution);
        }
        for problem in problems {
            self.problem(name, format!("`{name}`: {problem}"));
        }
        None
    }

    fn with_unit(
        &mut self,
        name: &'static str,
        wanted: &str,
        parse: impl Fn(&str) -> Result<u64, UnitError>,
    ) -> Option<u64> {
        let value = self.take(name)?;
        self.parse_unit(name, &value, wanted, parse)
    }

    fn parse_unit<T>(
        &mut self,
        name: &'static str,
        value: &Dynamic,
        wanted: &str,
        parse: impl Fn(&str) -> Result<T, UnitError>,
    ) -> Option<T> {
        let text = self.check(name, as_text(value), wanted, value)?;
        match parse(&text) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.problem(name, format!("invalid `{name}`: expected {wanted}: {error}"));
                None
            }
        }
    }

    fn check<T>(&mut self, name: &'static str, value: Option<T>, wanted: &str, given: &Dynamic) -> Option<T> {
        if value.is_none() {
            self.problem(name, format!("invalid `{name}`: expected {wanted}, got {}", describe(given)));
        }
        value
    }

    /// Position of an option in the script: the first place after the call where its name is a map key, or else the
    /// position of the call.
    fn position_of(&self, name: &str) -> Position {
        let line = self.call.line().unwrap_or(1);
        let mut depth_seen = false;
        for (index, text) in self.source.lines().enumerate().skip(line - 1) {
            let from = if index + 1 == line { self.call.position().unwrap_or(1).saturating_sub(1) } else { 0 };
            let text: Vec<char> = text.chars().collect();
            if let Some(column) = key_column(&text, from, name) {
                return Position::new((index + 1) as u16, (column + 1) as u16);
            }
            // The call ends at its closing brace; later keys belong to other calls.
            let rest: String = text.iter().skip(from).collect();
            depth_seen |= rest.contains("#{");
            if depth_seen && rest.contains("})") {
                break;
            }
        }
        self.call
    }
}

/// Column (from 0) of the first place at or after `from` where `name` is a map key.
fn key_column(text: &[char], from: usize, name: &str) -> Option<usize> {
    let name: Vec<char> = name.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    (from..text.len().saturating_sub(name.len())).find(|&at| {
        let starts = at == 0 || !is_word(text[at - 1]);
        let rest = &text[at..];
        let after = rest[name.len()..].iter().find(|c| !c.is_whitespace() && **c != '"');
        starts && rest.starts_with(&name) && after == Some(&':')
    })
}

pub(crate) fn as_text(value: &Dynamic) -> Option<String> {
    value.clone().try_cast::<ImmutableString>().map(|text| text.to_string())
}

pub(crate) fn as_number(value: &Dynamic) -> Option<f64> {
    value.as_float().ok().or_else(|| value.as_int().ok().map(|number| number as f64))
}

/// The phrase by which errors name a value.
pub(crate) fn describe(value: &Dynamic) -> String {
    if let Some(text) = as_text(value) {
        return format!("the text \"{text}\"");
    }
    match value.type_name() {
        "i64" | "f64" => format!("the number {value}"),
        "bool" => format!("{value}"),
        "()" => "nothing".to_owned(),
        "map" => "a map".to_owned(),
        "array" => "an array".to_owned(),
        other => crate::script::functions::kind_of(other).to_owned(),
    }
}
