//! Calls in a section, with the name before the arguments, as DeepSeek's and Kimi's models write them.

use vcr_text::tools::SectionForm;

use super::event::{Begins, CallEvent, beginning, begins, text_before};
use super::scan::{JsonObject, Scanned};

enum Mode {
    Text,
    /// Before a call, or before the end of the section.
    Section,
    Name,
    Arguments(JsonObject),
    /// After the arguments of a call.
    Close,
    /// After an invalid call. The rest is text.
    Broken,
}

/// Finds calls in a streamed text.
pub(super) struct SectionCalls {
    form: &'static SectionForm,
    mode: Mode,
    buffer: String,
}

impl SectionCalls {
    pub(super) fn new(form: &'static SectionForm) -> Self {
        Self { form, mode: Mode::Text, buffer: String::new() }
    }

    pub(super) fn push(&mut self, text: &str, mut out: impl FnMut(CallEvent<'_>)) {
        self.buffer.push_str(text);
        while self.step(&mut out) {}
    }

    /// As in vLLM, an incomplete delimiter in the section is dropped, but an incomplete name is text.
    pub(super) fn finish(self, mut out: impl FnMut(CallEvent<'_>)) {
        let end = match self.mode {
            Mode::Text | Mode::Broken => self.buffer.len(),
            Mode::Name => self.buffer.len() - beginning(&self.buffer, self.form.name_end),
            _ => 0,
        };
        if end > 0 {
            out(CallEvent::Text(&self.buffer[..end]));
        }
    }

    /// Parses one element of the buffer. Returns false if more text is needed.
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
            Mode::Text => {
                let is_section = text_before(&mut self.buffer, self.form.start, out);
                if is_section {
                    self.mode = Mode::Section;
                }
                is_section
            }
            Mode::Section => self.section(),
            Mode::Name => {
                let Some(end) = self.buffer.find(self.form.name_end) else { return false };
                out(CallEvent::Call(self.name(&self.buffer[..end])));
                self.advance(end + self.form.name_end.len(), Mode::Arguments(JsonObject::default()))
            }
            Mode::Arguments(object) => match object.scan(&self.buffer) {
                Scanned::Partial => {
                    out(CallEvent::Arguments(&self.buffer));
                    self.buffer.clear();
                    false
                }
                Scanned::Invalid => self.turn(Mode::Broken),
                Scanned::Whole { value: (), bytes } => {
                    out(CallEvent::Arguments(&self.buffer[..bytes]));
                    self.advance(bytes, Mode::Close)
                }
            },
            Mode::Close => match begins(&self.buffer, self.form.call_end.trim_ascii_start()) {
                Begins::Whole(behind) => self.advance(self.buffer.len() - behind.len(), Mode::Section),
                Begins::Partial => false,
                Begins::Not => self.turn(Mode::Broken),
            },
        }
    }

    fn section(&mut self) -> bool {
        let (call, end) = (begins(&self.buffer, self.form.call_start), begins(&self.buffer, self.form.end));
        match (call, end) {
            (Begins::Whole(behind), _) => self.advance(self.buffer.len() - behind.len(), Mode::Name),
            (_, Begins::Whole(behind)) => self.advance(self.buffer.len() - behind.len(), Mode::Text),
            (Begins::Not, Begins::Not) => self.turn(Mode::Broken),
            _ => false,
        }
    }

    /// Extracts the tool's name from the name of a call.
    fn name(&self, name: &str) -> String {
        let name = name.trim();
        if !self.form.is_numbered {
            return name.to_owned();
        }
        let own = name.split_once('.').map_or(name, |(_, own)| own);
        own.rsplit_once(':').map_or(own, |(own, _)| own).to_owned()
    }

    fn advance(&mut self, bytes: usize, mode: Mode) -> bool {
        self.buffer.drain(..bytes);
        self.turn(mode)
    }

    fn turn(&mut self, mode: Mode) -> bool {
        self.mode = mode;
        true
    }
}
