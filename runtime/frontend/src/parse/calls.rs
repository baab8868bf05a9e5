//! Calls of tools out of a text, as vLLM's parsers of JSON between marks find them.

use vcr_text::tools::CallForm;

use super::scan::{JsonObject, Scanned, header};

/// What was found.
pub(super) enum CallEvent<'a> {
    /// Text that is no part of a call.
    Text(&'a str),
    /// A call of the tool with this name.
    Call(String),
    /// More of its arguments.
    Arguments(&'a str),
}

/// Where the parser is.
enum Mode {
    Text,
    Header,
    Arguments(JsonObject),
    /// Behind the arguments of a call.
    Close,
    /// What looked like a call was none, so nothing is any more.
    Broken,
}

/// Finds calls in a text that arrives in pieces.
pub(super) struct CallParser {
    form: &'static CallForm,
    /// What begins a call, the longest first.
    starts: Vec<String>,
    mode: Mode,
    buffer: String,
}

impl CallParser {
    pub(super) fn new(form: &'static CallForm) -> Self {
        let inner = form.inner.unwrap_or("");
        let mut starts = vec![format!("{}{inner}", form.start)];
        if !form.before_start.is_empty() {
            starts.insert(0, format!("{}{}{inner}", form.before_start, form.start));
        }
        Self { form, starts, mode: Mode::Text, buffer: String::new() }
    }

    /// Hands on what is certain.
    pub(super) fn push(&mut self, text: &str, mut out: impl FnMut(CallEvent<'_>)) {
        self.buffer.push_str(text);
        while self.step(&mut out) {}
    }

    /// Hands on what is left: an unfinished mark is text.
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
        match &mut self.mode {
            Mode::Broken => {
                out(CallEvent::Text(&self.buffer));
                self.buffer.clear();
                false
            }
            Mode::Text => self.text(out),
            Mode::Header => match header(&self.buffer, self.form.argument_keys) {
                Scanned::Partial => false,
                Scanned::Invalid => self.give_up(),
                Scanned::Whole { value, bytes } => {
                    out(CallEvent::Call(value));
                    self.advance(bytes, Mode::Arguments(JsonObject::default()))
                }
            },
            Mode::Arguments(object) => match object.scan(&self.buffer) {
                Scanned::Partial => {
                    out(CallEvent::Arguments(&self.buffer));
                    self.buffer.clear();
                    false
                }
                Scanned::Invalid => self.give_up(),
                Scanned::Whole { value: (), bytes } => {
                    out(CallEvent::Arguments(&self.buffer[..bytes]));
                    self.advance(bytes, Mode::Close)
                }
            },
            Mode::Close => self.close(),
        }
    }

    fn text(&mut self, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        let found = self.starts.iter().filter_map(|start| Some((self.buffer.find(start.as_str())?, start.len())));
        let found = found.min_by_key(|(at, length)| (*at, std::cmp::Reverse(*length)));
        if let Some((at, length)) = found {
            if at > 0 {
                out(CallEvent::Text(&self.buffer[..at]));
            }
            let behind = &self.buffer[at + length..];
            let call = if self.form.inner.is_none() { behind.trim_ascii_start() } else { behind };
            if call.is_empty() && self.form.inner.is_none() {
                // White space is a part of the mark, so that it may go on.
                self.buffer.drain(..at);
                return false;
            }
            return self.advance(self.buffer.len() - call.len(), Mode::Header);
        }
        let held = self.starts.iter().map(|start| beginning(&self.buffer, start)).max().unwrap_or(0);
        let free = self.buffer.len() - held;
        if free > 0 {
            out(CallEvent::Text(&self.buffer[..free]));
            self.buffer.drain(..free);
        }
        false
    }

    fn close(&mut self) -> bool {
        let rest = self.buffer.trim_ascii_start();
        let Some(rest) = rest.strip_prefix('}') else {
            return !rest.is_empty() && self.give_up();
        };
        let at_end = match self.form.inner {
            None => Some(rest.trim_ascii_start()),
            Some(inner) => match rest.strip_prefix(inner) {
                None if inner.starts_with(rest) => return false,
                rest => rest,
            },
        };
        let after = |part: &str| self.buffer.len() - part.len();
        if let Some(end) = at_end {
            if let Some(behind) = end.strip_prefix(self.form.end) {
                return self.advance(after(behind), Mode::Text);
            }
            if self.form.end.starts_with(end) {
                return false;
            }
        }
        let next = rest.trim_ascii_start();
        match self.form.delimiter.and_then(|delimiter| next.strip_prefix(delimiter)) {
            Some(behind) => self.advance(after(behind), Mode::Header),
            None => self.give_up(),
        }
    }

    fn advance(&mut self, bytes: usize, mode: Mode) -> bool {
        self.buffer.drain(..bytes);
        self.mode = mode;
        true
    }

    fn give_up(&mut self) -> bool {
        self.mode = Mode::Broken;
        true
    }
}

/// The length of the longest end of `text` that `mark` begins with.
fn beginning(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    let lengths = (1..=longest).rev().filter(|length| mark.is_char_boundary(*length));
    lengths.into_iter().find(|length| text.ends_with(&mark[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and arguments, and the text around them.
    fn parsed(form: &str, text: &str) -> (Vec<(String, String)>, String) {
        let mut calls: Vec<(String, String)> = Vec::new();
        let mut plain = String::new();
        let mut take = |event: CallEvent<'_>| match event {
            CallEvent::Text(text) => plain.push_str(text),
            CallEvent::Call(name) => calls.push((name, String::new())),
            CallEvent::Arguments(text) => calls.last_mut().expect("a call came first").1.push_str(text),
        };
        let mut parser = CallParser::new(CallForm::named(form).expect("it is a form"));
        for char in text.chars() {
            parser.push(char.encode_utf8(&mut [0; 4]), &mut take);
        }
        parser.finish(&mut take);
        (calls, plain)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn each_form_has_its_marks() {
        let object = |key: &str| format!("{{\"name\": \"f\", \"{key}\": {{\"a\": 1}}}}");
        let one = vec![call("f", "{\"a\": 1}")];
        let hermes = format!("x <tool_call>\n {} \n</tool_call> y", object("arguments"));
        assert_eq!(parsed("hermes", &hermes), (one.clone(), "x  y".to_owned()));
        let qwen = format!("x\n<tool_call>\n{}\n</tool_call>", object("arguments"));
        assert_eq!(parsed("qwen3_json", &qwen), (one.clone(), "x".to_owned()));
        let bare = format!("<tool_call>{}</tool_call>", object("arguments"));
        assert_eq!(parsed("qwen3_json", &bare), (Vec::new(), bare), "its marks stand on lines of their own");
        let internlm = format!("<|action_start|><|plugin|>{}<|action_end|>", object("parameters"));
        assert_eq!(parsed("internlm", &internlm), (one, String::new()));
        let mistral = format!("[TOOL_CALLS] [{}, {}]", object("arguments"), object("arguments"));
        assert_eq!(parsed("mistral", &mistral).0.len(), 2);
        let phi = format!("functools[{},{}]", object("arguments"), object("parameters"));
        assert_eq!(parsed("phi4_mini_json", &phi).0.len(), 2);
    }

    /// As in vLLM: a mark of a call counts once there is something behind it.
    #[test]
    fn a_call_that_is_cut_leaves_the_text_that_was_not_certain() {
        assert_eq!(parsed("hermes", "a <tool_call>\n"), (Vec::new(), "a <tool_call>\n".to_owned()));
        assert_eq!(parsed("hermes", "a <tool_call>\n{\"na"), (Vec::new(), "a {\"na".to_owned()));
        let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool";
        assert_eq!(parsed("hermes", cut), (vec![call("f", "{}")], "}\n</tool".to_owned()));
    }

    #[test]
    fn names_are_unescaped_and_arguments_are_left_as_they_are() {
        let text = r#"<tool_call>{"name": "say_\"hi\"", "arguments": {"a": "\"}", "b": [1,]}}</tool_call>"#;
        assert_eq!(parsed("hermes", text).0, [call("say_\"hi\"", r#"{"a": "\"}", "b": [1,]}"#)]);
    }
}
