//! Calls whose arguments stand one by one between marks, as Qwen3-Coder, Seed, MiniMax and
//! GLM write them.

use std::sync::Arc;

use vcr_text::tools::XmlForm;

use super::event::{Begins, CallEvent, begins, text_before};
use super::types::ArgumentTypes;

/// Where the parser is.
enum Mode {
    Text,
    /// Behind a call: white space before the next one is no text.
    Between,
    /// Behind the start of a call.
    Name,
    /// Within a call of this tool, behind so many arguments.
    Arguments {
        tool: String,
        seen: usize,
    },
    /// Behind the arguments.
    Close,
    /// What looked like a call was none, so nothing is any more.
    Broken,
}

/// Finds calls in a text that arrives in pieces. Arguments come whole, as JSON.
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

    /// Takes one thing off the buffer; false where more text must come first.
    fn step(&mut self, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match std::mem::replace(&mut self.mode, Mode::Broken) {
            Mode::Broken => {
                out(CallEvent::Text(&self.buffer));
                self.buffer.clear();
                false
            }
            Mode::Text => {
                let is_call = text_before(&mut self.buffer, self.form.start, out);
                self.mode = if is_call { Mode::Name } else { Mode::Text };
                is_call
            }
            Mode::Between => self.between(),
            Mode::Name => self.name(out),
            Mode::Arguments { tool, seen } => self.argument(tool, seen, out),
            Mode::Close => self.close(),
        }
    }

    fn between(&mut self) -> bool {
        match begins(&self.buffer, self.form.start) {
            Begins::Whole(behind) => self.advance(self.buffer.len() - behind.len(), Mode::Name),
            Begins::Partial => self.wait(Mode::Between),
            Begins::Not => self.advance(0, Mode::Text),
        }
    }

    fn name(&mut self, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        let text = match begins(&self.buffer, self.form.before_name) {
            Begins::Whole(text) => text.trim_ascii_start(),
            Begins::Partial => return self.wait(Mode::Name),
            Begins::Not => return true,
        };
        // Where nothing ends a name but white space, the first mark does, too.
        let is_bare = self.form.name_end.trim_ascii().is_empty();
        let end = if is_bare { text.find(['\n', '<']) } else { text.find(self.form.name_end) };
        let Some(end) = end else { return self.wait(Mode::Name) };
        let tool = text[..end].trim().to_owned();
        let behind = if is_bare { end } else { end + self.form.name_end.len() };
        out(CallEvent::Call(tool.clone()));
        let taken = self.buffer.len() - text.len() + behind;
        self.advance(taken, Mode::Arguments { tool, seen: 0 })
    }

    fn argument(&mut self, tool: String, seen: usize, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        let form = self.form;
        let (last, next) = match form.function_end {
            "" => (form.end, Mode::Between),
            function_end => (function_end, Mode::Close),
        };
        let text = match (begins(&self.buffer, last), begins(&self.buffer, form.key_start)) {
            (Begins::Whole(behind), _) => {
                out(CallEvent::Arguments(if seen == 0 { "{}" } else { "}" }));
                return self.advance(self.buffer.len() - behind.len(), next);
            }
            (_, Begins::Whole(text)) => text,
            (Begins::Not, Begins::Not) => return true,
            _ => return self.wait(Mode::Arguments { tool, seen }),
        };
        let Some((key, value, behind)) = entry(form, text) else {
            return self.wait(Mode::Arguments { tool, seen });
        };
        let value = self.types.json(&tool, key, value);
        let before = if seen == 0 { "{" } else { "," };
        out(CallEvent::Arguments(&format!("{before}{}:{value}", serde_json::Value::from(key))));
        self.advance(self.buffer.len() - behind.len(), Mode::Arguments { tool, seen: seen + 1 })
    }

    fn close(&mut self) -> bool {
        match (begins(&self.buffer, self.form.end), begins(&self.buffer, self.form.before_name)) {
            (Begins::Whole(behind), _) => self.advance(self.buffer.len() - behind.len(), Mode::Between),
            // A further call between the same marks.
            (_, Begins::Whole(_)) => self.advance(0, Mode::Name),
            (Begins::Not, Begins::Not) => true,
            _ => self.wait(Mode::Close),
        }
    }

    fn wait(&mut self, mode: Mode) -> bool {
        self.mode = mode;
        false
    }

    fn advance(&mut self, bytes: usize, mode: Mode) -> bool {
        self.buffer.drain(..bytes);
        self.mode = mode;
        true
    }
}

/// A whole argument: its key, its value and the text behind it.
fn entry<'a>(form: &XmlForm, text: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
    let (key, rest) = text.split_once(form.key_end)?;
    let rest =
        if form.value_start.is_empty() { rest } else { rest.trim_ascii_start().strip_prefix(form.value_start)? };
    let (value, behind) = rest.split_once(form.value_end)?;
    let value = value.strip_prefix('\n').unwrap_or(value);
    Some((key.trim(), value.strip_suffix('\n').unwrap_or(value), behind))
}
