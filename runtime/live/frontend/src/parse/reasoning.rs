//! Separates reasoning from the answer. As in vLLM, a delimiter counts only if it is a single special token.

use vcr_text::{Phase, ReasoningForm};

use crate::generate::Span;

pub(super) struct ReasoningParser {
    form: ReasoningForm,
    is_inside: bool,
    /// Text of the format that may follow the last delimiter.
    pending: &'static str,
    /// Text that may belong to a delimiter, and the number of its tokens.
    held: String,
    held_tokens: usize,
    /// The part of a delimiter that has arrived.
    mark: String,
}

impl ReasoningParser {
    /// Creates a parser for a text that starts in this phase.
    pub(super) fn new(form: ReasoningForm, phase: Phase) -> Self {
        let (is_inside, pending) = match phase {
            Phase::Open => (false, ""),
            Phase::Reasoning(rest) => (true, rest),
            Phase::Answer(rest) => (false, rest),
        };
        Self { form, is_inside, pending, held: String::new(), held_tokens: 0, mark: String::new() }
    }

    /// Passes pieces to `out`: whether the piece is reasoning, its text, and its number of tokens.
    pub(super) fn push(&mut self, text: &str, spans: &[Span], mut out: impl FnMut(bool, &str, usize)) {
        let mut rest = text;
        for span in spans {
            let (piece, behind) = rest.split_at(span.bytes.min(rest.len()));
            rest = behind;
            let mark = if self.is_inside { self.form.end_id() } else { self.form.start_id() };
            // A delimiter without text was cut off by a stop string.
            let is_mark = span.token == Some(mark) && span.bytes > 0;
            if !is_mark && self.mark.is_empty() {
                self.take(piece, usize::from(span.token.is_some() && span.is_first), &mut out);
            } else if span.is_last {
                self.cross(&mut out);
            } else {
                self.mark.push_str(piece);
            }
        }
        if !rest.is_empty() {
            self.take(rest, 0, &mut out);
        }
    }

    /// Passes the text that is held back to `out`.
    pub(super) fn finish(self, mut out: impl FnMut(bool, &str, usize)) {
        out(self.is_inside, &self.held, self.held_tokens);
        out(self.is_inside, &self.mark, 0);
    }

    /// Switches at a delimiter, and drops the white space that the format puts around it.
    fn cross(&mut self, out: &mut impl FnMut(bool, &str, usize)) {
        if self.held != self.form.before(self.is_inside) {
            out(self.is_inside, &self.held, self.held_tokens);
        }
        self.held.clear();
        self.held_tokens = 0;
        self.mark.clear();
        self.pending = self.form.after(self.is_inside);
        self.is_inside = !self.is_inside;
    }

    fn take(&mut self, piece: &str, tokens: usize, out: &mut impl FnMut(bool, &str, usize)) {
        self.held.push_str(piece);
        self.held_tokens += tokens;
        if !self.pending.is_empty() {
            if let Some(rest) = self.held.strip_prefix(self.pending) {
                self.held = rest.to_owned();
                if self.held.is_empty() {
                    self.held_tokens = 0;
                }
            } else if self.pending.starts_with(&self.held) {
                return;
            }
            self.pending = "";
        }
        let mark = self.form.before(self.is_inside);
        let kept = (1..=mark.len()).rev().filter(|length| mark.is_char_boundary(*length));
        let kept = kept.map(|length| &mark[..length]).find(|start| self.held.ends_with(start)).map_or(0, str::len);
        let free = self.held.len() - kept;
        if free > 0 {
            out(self.is_inside, &self.held[..free], self.held_tokens);
            self.held.drain(..free);
            self.held_tokens = 0;
        }
    }
}
