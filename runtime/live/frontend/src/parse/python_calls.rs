//! Calls in a Python list, with keyword arguments: `[f(a=1, b='x'), g()]`.
//!
//! As in vLLM, an answer is either such a list from its first character, or text. The list is parsed as a whole. If
//! it is incomplete or contains anything else, it is text.

use vcr_text::tools::PythonForm;

use super::event::{Begins, CallEvent, begins};
use super::scan::Scanned;

/// The maximum nesting depth of lists.
const MAX_DEPTH: usize = 64;

enum Mode {
    Start,
    Calls,
    /// After the list.
    End,
    /// The answer is not a list, or the list has ended.
    Text,
}

/// Finds calls in a streamed text.
pub(super) struct PythonCalls {
    form: &'static PythonForm,
    mode: Mode,
    buffer: String,
}

impl PythonCalls {
    pub(super) fn new(form: &'static PythonForm) -> Self {
        Self { form, mode: Mode::Start, buffer: String::new() }
    }

    pub(super) fn push(&mut self, text: &str, mut out: impl FnMut(CallEvent<'_>)) {
        self.buffer.push_str(text);
        // Only a closing bracket can end a list.
        if matches!(self.mode, Mode::Calls) && !text.contains(']') {
            return;
        }
        while self.step(&mut out) {}
    }

    pub(super) fn finish(self, mut out: impl FnMut(CallEvent<'_>)) {
        let is_over = matches!(self.mode, Mode::End) && self.buffer.trim().is_empty();
        if !self.buffer.is_empty() && !is_over {
            out(CallEvent::Text(&self.buffer));
        }
    }

    /// Parses one element. Returns false if more text is needed.
    fn step(&mut self, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match self.mode {
            Mode::Text => {
                out(CallEvent::Text(&self.buffer));
                self.buffer.clear();
                false
            }
            Mode::Start => {
                let list = match self.buffer.strip_prefix(self.form.start) {
                    Some(list) => list,
                    None if self.form.start.starts_with(&self.buffer) => return false,
                    None => &self.buffer,
                };
                match first_call(list) {
                    Scanned::Partial => false,
                    Scanned::Invalid => self.advance(0, Mode::Text),
                    Scanned::Whole { .. } => self.advance(0, Mode::Calls),
                }
            }
            Mode::Calls => {
                let list = self.buffer.strip_prefix(self.form.start).unwrap_or(&self.buffer);
                match calls(list) {
                    Scanned::Partial => false,
                    Scanned::Invalid => self.advance(0, Mode::Text),
                    Scanned::Whole { value, bytes } => {
                        for (name, arguments) in value {
                            out(CallEvent::Call(name));
                            out(CallEvent::Arguments(&arguments));
                        }
                        self.advance(self.buffer.len() - list.len() + bytes, Mode::End)
                    }
                }
            }
            Mode::End if self.form.end.is_empty() => {
                let is_blank = self.buffer.trim().is_empty();
                !is_blank && self.advance(0, Mode::Text)
            }
            Mode::End => match begins(&self.buffer, self.form.end) {
                Begins::Whole(behind) => self.advance(self.buffer.len() - behind.len(), Mode::End),
                Begins::Partial => false,
                Begins::Not => self.advance(0, Mode::Text),
            },
        }
    }

    fn advance(&mut self, bytes: usize, mode: Mode) -> bool {
        self.buffer.drain(..bytes);
        self.mode = mode;
        true
    }
}

/// Whether a text starts with a list whose first item is a call.
fn first_call(text: &str) -> Scanned<()> {
    let mut cursor = Cursor { rest: text };
    let begins = cursor.mark("[").and_then(|()| cursor.name().map(|_| ())).and_then(|()| cursor.mark("("));
    scanned(begins, text, &cursor)
}

/// The names and arguments of the calls in a list.
fn calls(text: &str) -> Scanned<Vec<(String, String)>> {
    let mut cursor = Cursor { rest: text };
    let calls = cursor.calls();
    scanned(calls, text, &cursor)
}

fn scanned<T>(found: Result<T, Stop>, text: &str, cursor: &Cursor<'_>) -> Scanned<T> {
    match found {
        Ok(value) => Scanned::Whole { value, bytes: text.len() - cursor.rest.len() },
        Err(Stop::Partial) => Scanned::Partial,
        Err(Stop::Invalid) => Scanned::Invalid,
    }
}

/// The reason why parsing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Partial,
    Invalid,
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn calls(&mut self) -> Result<Vec<(String, String)>, Stop> {
        self.mark("[")?;
        let mut calls = Vec::new();
        loop {
            let name = self.name()?.to_owned();
            self.mark("(")?;
            calls.push((name, self.arguments()?));
            if !self.is_next(',')? {
                self.mark("]")?;
                return Ok(calls);
            }
            self.mark(",")?;
            if self.is_next(']')? {
                self.mark("]")?;
                return Ok(calls);
            }
        }
    }

    /// Parses keyword arguments to JSON, up to the closing bracket. As in vLLM, positional arguments are ignored.
    fn arguments(&mut self) -> Result<String, Stop> {
        let mut entries = Vec::new();
        self.items(')', |cursor| {
            let before = cursor.rest;
            match cursor.name().and_then(|name| cursor.mark("=").map(|()| name)) {
                Ok(name) => entries.push(format!("{}: {}", serde_json::Value::from(name), cursor.literal(0)?)),
                Err(Stop::Partial) => return Err(Stop::Partial),
                Err(Stop::Invalid) => {
                    cursor.rest = before;
                    cursor.literal(0)?;
                }
            }
            Ok(())
        })?;
        Ok(format!("{{{}}}", entries.join(", ")))
    }

    /// Parses items separated by commas, up to `close`.
    fn items(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        loop {
            if self.is_next(close)? {
                self.rest = &self.rest[close.len_utf8()..];
                return Ok(());
            }
            item(self)?;
            if self.is_next(',')? {
                self.mark(",")?;
            } else if !self.is_next(close)? {
                return Err(Stop::Invalid);
            }
        }
    }

    /// Parses a literal to JSON.
    fn literal(&mut self, depth: usize) -> Result<String, Stop> {
        if depth > MAX_DEPTH {
            return Err(Stop::Invalid);
        }
        let mut items = Vec::new();
        match self.next()? {
            quote @ ('\'' | '"') => Ok(serde_json::Value::from(self.text(quote)?).to_string()),
            '[' => {
                self.mark("[")?;
                self.items(']', |cursor| {
                    items.push(cursor.literal(depth + 1)?);
                    Ok(())
                })?;
                Ok(format!("[{}]", items.join(", ")))
            }
            '{' => {
                self.mark("{")?;
                self.items('}', |cursor| {
                    let key = cursor.literal(depth + 1)?;
                    let key = if key.starts_with('"') { key } else { format!("\"{key}\"") };
                    cursor.mark(":")?;
                    items.push(format!("{key}: {}", cursor.literal(depth + 1)?));
                    Ok(())
                })?;
                Ok(format!("{{{}}}", items.join(", ")))
            }
            _ => self.word(),
        }
    }

    /// Parses a number, or a constant of Python or JSON.
    fn word(&mut self) -> Result<String, Stop> {
        let is_part = |character: char| character.is_ascii_alphanumeric() || "_+-.".contains(character);
        let end = self.rest.find(|character| !is_part(character)).ok_or(Stop::Partial)?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Ok("true".to_owned()),
            "False" | "false" => Ok("false".to_owned()),
            "None" | "null" => Ok("null".to_owned()),
            _ if serde_json::from_str::<serde_json::Number>(word).is_ok() => Ok(word.to_owned()),
            // JSON does not allow numbers such as `.5` and `1.`.
            _ if word.contains(|character: char| character.is_ascii_digit()) => {
                let number = word.parse().ok().and_then(serde_json::Number::from_f64);
                number.map(|number| number.to_string()).ok_or(Stop::Invalid)
            }
            _ => Err(Stop::Invalid),
        }
    }

    fn text(&mut self, quote: char) -> Result<String, Stop> {
        let mut text = String::new();
        let mut characters = self.rest[1..].char_indices();
        while let Some((at, character)) = characters.next() {
            if character == quote {
                self.rest = &self.rest[1 + at + 1..];
                return Ok(text);
            }
            if character != '\\' {
                text.push(character);
                continue;
            }
            let (_, escape) = characters.next().ok_or(Stop::Partial)?;
            let digits = match escape {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escape {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '\\' | '\'' | '"' => text.push(escape),
                '\n' => {}
                _ if digits > 0 => {
                    let hex: String = characters.by_ref().take(digits).map(|(_, digit)| digit).collect();
                    let code = u32::from_str_radix(&hex, 16).map_err(|_| Stop::Invalid)?;
                    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                other => text.extend(['\\', other]),
            }
        }
        Err(Stop::Partial)
    }

    /// Parses a name after white space.
    fn name(&mut self) -> Result<&'a str, Stop> {
        let first = self.next()?;
        if !first.is_alphabetic() && first != '_' {
            return Err(Stop::Invalid);
        }
        let is_part = |character: char| character.is_alphanumeric() || character == '_';
        let end = self.rest.find(|character| !is_part(character)).ok_or(Stop::Partial)?;
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(name)
    }

    /// Skips white space. Returns the next character without consuming it.
    fn next(&mut self) -> Result<char, Stop> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next().ok_or(Stop::Partial)
    }

    fn is_next(&mut self, character: char) -> Result<bool, Stop> {
        Ok(self.next()? == character)
    }

    fn mark(&mut self, mark: &str) -> Result<(), Stop> {
        self.next()?;
        self.rest = self.rest.strip_prefix(mark).ok_or(Stop::Invalid)?;
        Ok(())
    }
}
