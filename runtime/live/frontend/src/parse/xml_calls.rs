//! Calls with separate arguments between delimiters, as Qwen3-Coder, Seed, MiniMax and GLM write them.

use std::sync::Arc;

use vcr_text::tools::XmlForm;

use super::event::{Begins, CallEvent, begins, text_before};
use super::types::ArgumentTypes;

enum Mode {
    Text,
    /// After the start of a call. One pair of delimiters may contain several calls.
    Call,
    /// After a call. White space before the next call is not text.
    Between,
    /// After an invalid call. The rest is text.
    Broken,
}

/// Finds calls in a streamed text. As in vLLM, a call is returned only when it is complete. An incomplete call is
/// text.
pub(super) struct XmlCalls {
    form: &'static XmlForm,
    types: Arc<ArgumentTypes>,
    mode: Mode,
    buffer: String,
}

impl XmlCalls {
    pub(super) fn new(form: &'static XmlForm, types: Arc<ArgumentTypes>) -> Self {
        Self { form, types, mode: Mode::Text, buffer: String::new() }
    }

    pub(super) fn push(&mut self, text: &str, mut out: impl FnMut(CallEvent<'_>)) {
        self.buffer.push_str(text);
        while self.step(&mut out) {}
    }

    pub(super) fn finish(self, mut out: impl FnMut(CallEvent<'_>)) {
        if !self.buffer.is_empty() {
            out(CallEvent::Text(&self.buffer));
        }
    }

    /// Parses one element of the buffer. Returns false if more text is needed.
    fn step(&mut self, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match self.mode {
            Mode::Broken => {
                out(CallEvent::Text(&self.buffer));
                self.buffer.clear();
                false
            }
            Mode::Text => {
                let is_call = text_before(&mut self.buffer, self.form.start, out);
                if is_call {
                    self.mode = Mode::Call;
                }
                is_call
            }
            Mode::Call => {
                let Some(end) = self.buffer.find(self.form.end) else { return false };
                let Some(calls) = calls(self.form, &self.types, &self.buffer[..end]) else {
                    self.mode = Mode::Broken;
                    return true;
                };
                for (tool, arguments) in calls {
                    out(CallEvent::Call(tool));
                    out(CallEvent::Arguments(&arguments));
                }
                self.advance(end + self.form.end.len(), Mode::Between)
            }
            Mode::Between => match begins(&self.buffer, self.form.start) {
                Begins::Whole(behind) => self.advance(self.buffer.len() - behind.len(), Mode::Call),
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

/// The names and arguments between the delimiters of a call. None if there is no valid call.
fn calls(form: &XmlForm, types: &ArgumentTypes, text: &str) -> Option<Vec<(String, String)>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (tool, behind) = name(form, rest)?;
        let (arguments, behind) = arguments(form, types, tool, behind)?;
        calls.push((tool.to_owned(), arguments));
        rest = behind.trim_ascii_start();
    }
    (!calls.is_empty()).then_some(calls)
}

/// The name of a tool, and the text after it.
fn name<'a>(form: &XmlForm, text: &'a str) -> Option<(&'a str, &'a str)> {
    let text = text.strip_prefix(form.before_name)?;
    // If only white space ends a name, the first delimiter ends it, too.
    let (name, behind) = if form.name_end.trim_ascii().is_empty() {
        text.split_at(text.find(['\n', '<']).unwrap_or(text.len()))
    } else {
        text.split_once(form.name_end)?
    };
    let name = name.trim();
    (!name.is_empty() && !name.contains(['{', '"'])).then_some((name, behind))
}

/// The arguments of a call as JSON, and the text after them.
fn arguments<'a>(form: &XmlForm, types: &ArgumentTypes, tool: &str, text: &'a str) -> Option<(String, &'a str)> {
    let mut entries = Vec::new();
    let mut rest = text.trim_ascii_start();
    while let Some(behind) = rest.strip_prefix(form.key_start) {
        let (key, value, behind) = entry(form, behind)?;
        entries.push(format!("{}:{}", serde_json::Value::from(key), types.json(tool, key, value)));
        rest = behind.trim_ascii_start();
    }
    Some((format!("{{{}}}", entries.join(",")), rest.strip_prefix(form.function_end)?))
}

/// A complete argument: its key, its value and the text after it.
fn entry<'a>(form: &XmlForm, text: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
    let (key, rest) = text.split_once(form.key_end)?;
    let rest =
        if form.value_start.is_empty() { rest } else { rest.trim_ascii_start().strip_prefix(form.value_start)? };
    let (value, behind) = rest.split_once(form.value_end)?;
    let value = value.strip_prefix('\n').unwrap_or(value);
    Some((key.trim(), value.strip_suffix('\n').unwrap_or(value), behind))
}
