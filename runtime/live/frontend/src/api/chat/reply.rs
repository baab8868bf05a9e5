//! Builds chat messages from the parsed parts of answers.

use crate::dialects::{Delta, Message};
use crate::generate::Span;
use crate::parse::{Parser, Part};

/// A complete answer as a message.
#[derive(Debug)]
pub(in crate::api) struct Reply {
    pub(in crate::api) message: Message,
    pub(in crate::api) reasoning_tokens: usize,
}

impl Reply {
    pub(in crate::api) fn read(role: &str, mut parser: Parser, text: &str, spans: &[Span]) -> Self {
        let mut parts = parser.push(text, spans);
        parts.extend(parser.finish());
        let message = Message::new(role, parts);
        Self { message, reasoning_tokens: parser.reasoning_tokens() }
    }

    pub(in crate::api) fn has_calls(&self) -> bool {
        !self.message.tool_calls.is_empty()
    }

    /// Whether the answer's tokens may be returned. Tokens of hidden reasoning must stay hidden.
    pub(in crate::api) fn shows_tokens(&self, include_reasoning: bool) -> bool {
        include_reasoning || self.message.reasoning.is_none()
    }
}

/// Parses an answer while it is streamed.
pub(in crate::api) struct Progress {
    parser: Parser,
    include_reasoning: bool,
    /// Whether an update of the engine becomes one chunk, instead of one chunk per part.
    is_combined: bool,
    is_in_reasoning: bool,
    has_calls: bool,
}

/// The changes of the message after an update of the engine.
pub(in crate::api) struct Update {
    pub(in crate::api) deltas: Vec<Delta>,
    /// Whether the update's tokens may be returned.
    pub(in crate::api) shows_tokens: bool,
}

impl Progress {
    pub(in crate::api) fn new(parser: Parser, include_reasoning: bool, is_combined: bool) -> Self {
        Self { parser, include_reasoning, is_combined, is_in_reasoning: false, has_calls: false }
    }

    pub(in crate::api) fn reasoning_tokens(&self) -> usize {
        self.parser.reasoning_tokens()
    }

    /// Whether the text so far ends within reasoning.
    pub(in crate::api) fn is_in_reasoning(&self) -> bool {
        self.is_in_reasoning
    }

    pub(in crate::api) fn has_calls(&self) -> bool {
        self.has_calls
    }

    pub(in crate::api) fn push(&mut self, text: &str, spans: &[Span]) -> Update {
        let was_in_reasoning = self.is_in_reasoning;
        let parts = self.parser.push(text, spans);
        let has_reasoning = parts.iter().any(|part| matches!(part, Part::Reasoning(_)));
        let shows_tokens = self.include_reasoning || !(was_in_reasoning || has_reasoning);
        Update { deltas: self.deltas(parts), shows_tokens }
    }

    /// Parses the end of the text.
    pub(in crate::api) fn finish(&mut self) -> Vec<Delta> {
        let parts = self.parser.finish();
        self.deltas(parts)
    }

    fn deltas(&mut self, parts: Vec<Part>) -> Vec<Delta> {
        let mut deltas: Vec<Delta> = Vec::new();
        for part in parts {
            self.is_in_reasoning = matches!(part, Part::Reasoning(_));
            self.has_calls |= matches!(part, Part::Call { .. });
            if self.is_in_reasoning && !self.include_reasoning {
                continue;
            }
            if !self.is_combined || deltas.is_empty() {
                deltas.push(Delta::default());
            }
            if let Some(delta) = deltas.last_mut() {
                delta.add(part);
            }
        }
        deltas.retain(|delta| !delta.is_empty());
        deltas
    }
}
