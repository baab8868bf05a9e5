//! Calls that are JSON objects between delimiters.

use vcr_text::tools::JsonForm;

use super::event::{CallEvent, beginning};
use super::scan::{JsonObject, Scanned, header};

enum Mode {
    Text,
    Header,
    Arguments(JsonObject),
    /// After the arguments of a call.
    Close,
    /// After an invalid call. The rest is text.
    Broken,
}

/// Finds calls in a streamed text.
pub(super) struct JsonCalls {
    form: &'static JsonForm,
    /// The start delimiters of a call, longest first.
    starts: Vec<String>,
    mode: Mode,
    buffer: String,
    /// Whether no text has arrived yet.
    is_at_start: bool,
}

impl JsonCalls {
    pub(super) fn new(form: &'static JsonForm) -> Self {
        let inner = form.inner.unwrap_or("");
        let mut starts = vec![format!("{}{inner}", form.start)];
        if !form.before_start.is_empty() {
            starts.insert(0, format!("{}{}{inner}", form.before_start, form.start));
        }
        Self { form, starts, mode: Mode::Text, buffer: String::new(), is_at_start: true }
    }

    /// Passes the parts that are certain to `out`.
    pub(super) fn push(&mut self, text: &str, mut out: impl FnMut(CallEvent<'_>)) {
        self.buffer.push_str(text);
        while self.step(&mut out) {}
    }

    /// Passes the rest to `out`. An incomplete delimiter is text.
    pub(super) fn finish(self, mut out: impl FnMut(CallEvent<'_>)) {
        let is_closed = self.form.end.is_empty() && matches!(self.mode, Mode::Close) && self.buffer.trim() == "}";
        if !self.buffer.is_empty() && !is_closed {
            out(CallEvent::Text(&self.buffer));
        }
    }

    /// Parses one element of the buffer. Returns false if more text is needed.
    fn step(&mut self, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        if self.form.may_lack_start && matches!(self.mode, Mode::Header) {
            let call = self.buffer.trim_ascii_start().len();
            self.buffer.drain(..self.buffer.len() - call);
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
        if self.form.may_lack_start && self.is_at_start {
            let text = self.buffer.trim_ascii_start();
            match text.as_bytes().first() {
                None => return false,
                Some(b'{') => return self.advance(self.buffer.len() - text.len(), Mode::Header),
                Some(_) => self.is_at_start = false,
            }
        }
        let found = self.starts.iter().filter_map(|start| Some((self.buffer.find(start.as_str())?, start.len())));
        let found = found.min_by_key(|(at, length)| (*at, std::cmp::Reverse(*length)));
        if let Some((at, length)) = found {
            if at > 0 {
                out(CallEvent::Text(&self.buffer[..at]));
            }
            let behind = &self.buffer[at + length..];
            let call = if self.form.inner.is_none() { behind.trim_ascii_start() } else { behind };
            if call.is_empty() && self.form.inner.is_none() {
                // White space is part of the delimiter, so the delimiter may continue.
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
        if self.form.end.is_empty() && rest.trim_ascii_start().is_empty() {
            // Another call may follow.
            return false;
        }
        if let Some(end) = at_end.filter(|_| !self.form.end.is_empty()) {
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
