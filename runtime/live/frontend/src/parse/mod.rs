//! Splits an answer's text into reasoning, text and tool calls. The ids of calls derive from a seed. This module
//! knows nothing about requests.

mod calls;
mod event;
mod json_calls;
mod python_calls;
mod reasoning;
mod scan;
mod section_calls;
mod types;
mod xml_calls;

use std::sync::Arc;

use vcr_core::seed::mix;
use vcr_text::tools::CallForm;
use vcr_text::{ReasoningForm, Tokenizer};

use crate::generate::Span;
use calls::CallParser;
use event::CallEvent;
use reasoning::ReasoningParser;

pub(crate) use types::ArgumentTypes;

/// A part of an answer, or an addition to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Additional reasoning.
    Reasoning(String),
    /// Additional text.
    Text(String),
    /// A call of the tool `name`.
    Call { index: usize, id: String, name: String },
    /// Additional arguments of a call.
    Arguments { index: usize, text: String },
}

/// The parser of one answer.
pub(crate) struct Parser {
    reasoning: Option<ReasoningParser>,
    calls: Option<CallParser>,
    calls_max: usize,
    calls_seen: usize,
    id_seed: u64,
    reasoning_tokens: usize,
}

impl Parser {
    /// Creates a parser for the answer to `prompt`. If `calls` is given, it finds tool calls in that format, using
    /// the tools' argument types, and returns the first `calls_max`.
    pub(crate) fn new(
        reasoning: Option<&ReasoningForm>,
        calls: Option<(&'static CallForm, Arc<ArgumentTypes>)>,
        calls_max: usize,
        id_seed: u64,
        (tokenizer, prompt): (&Tokenizer, &[u32]),
    ) -> Self {
        let reasoning = reasoning.map(|form| ReasoningParser::new(form.clone(), form.phase(tokenizer, prompt)));
        let calls = calls.map(|(form, types)| CallParser::new(form, types));
        Self { reasoning, calls, calls_max, calls_seen: 0, id_seed, reasoning_tokens: 0 }
    }

    /// Reasoning tokens so far.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Parses more text. The spans cover the text in order.
    pub(crate) fn push(&mut self, text: &str, spans: &[Span]) -> Vec<Part> {
        let mut parts = Vec::new();
        match self.reasoning.take() {
            None => self.push_answer(text, &mut parts),
            Some(mut reasoning) => {
                reasoning.push(text, spans, |is_reasoning, text, tokens| {
                    self.take(is_reasoning, text, tokens, &mut parts);
                });
                self.reasoning = Some(reasoning);
            }
        }
        parts
    }

    /// Ends the answer. Returns the parts that were held back.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        if let Some(reasoning) = self.reasoning.take() {
            reasoning.finish(|is_reasoning, text, tokens| self.take(is_reasoning, text, tokens, &mut parts));
        }
        if let Some(calls) = self.calls.take() {
            calls.finish(|event| self.add(event, &mut parts));
        }
        parts
    }

    fn take(&mut self, is_reasoning: bool, text: &str, tokens: usize, parts: &mut Vec<Part>) {
        if !is_reasoning {
            return self.push_answer(text, parts);
        }
        self.reasoning_tokens += tokens;
        if let Some(Part::Reasoning(last)) = parts.last_mut() {
            last.push_str(text);
        } else if !text.is_empty() {
            parts.push(Part::Reasoning(text.to_owned()));
        }
    }

    fn push_answer(&mut self, text: &str, parts: &mut Vec<Part>) {
        match self.calls.take() {
            None => add_text(text, parts),
            Some(mut calls) => {
                calls.push(text, |event| self.add(event, parts));
                self.calls = Some(calls);
            }
        }
    }

    fn add(&mut self, event: CallEvent<'_>, parts: &mut Vec<Part>) {
        match event {
            CallEvent::Text(text) => add_text(text, parts),
            CallEvent::Call(name) => {
                let index = self.calls_seen;
                self.calls_seen += 1;
                if index < self.calls_max {
                    parts.push(Part::Call { index, id: call_id(self.id_seed, index), name });
                }
            }
            CallEvent::Arguments(text) => {
                let index = self.calls_seen - 1;
                if index < self.calls_max {
                    parts.push(Part::Arguments { index, text: text.to_owned() });
                }
            }
        }
    }
}

fn add_text(text: &str, parts: &mut Vec<Part>) {
    if let Some(Part::Text(last)) = parts.last_mut() {
        last.push_str(text);
    } else if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

/// Creates an id in vLLM's format: `call_` and 24 hexadecimal digits.
fn call_id(seed: u64, index: usize) -> String {
    let first = mix(seed ^ index as u64);
    format!("call_{first:016x}{:08x}", mix(first) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser(reasoning: Option<&str>, calls: bool, calls_max: usize, prompt: &str) -> (Parser, Tokenizer) {
        let tokenizer = Tokenizer::builtin();
        let form = reasoning.map(|name| ReasoningForm::named(name, &tokenizer).expect("it has the marks"));
        let calls = calls.then(|| (CallForm::named("hermes").expect("it is a form"), Arc::default()));
        let prompt = tokenizer.encode(prompt, false).expect("it has tokens");
        (Parser::new(form.as_ref(), calls, calls_max, 7, (&tokenizer, &prompt)), tokenizer)
    }

    /// The merged parts of a text that arrives `count` tokens at a time.
    fn parts(parser: (Parser, Tokenizer), text: &str, count: usize) -> (Vec<Part>, usize) {
        let (mut parser, tokenizer) = parser;
        let tokens = tokenizer.encode(text, false).expect("it has tokens");
        let mut all: Vec<Part> = Vec::new();
        for tokens in tokens.chunks(count) {
            let bytes = |token: &u32| tokenizer.token_bytes(*token).len();
            let span = |token: &u32| Span { token: Some(*token), bytes: bytes(token), is_first: true, is_last: true };
            let spans: Vec<Span> = tokens.iter().map(span).collect();
            all.extend(parser.push(&tokenizer.decode(tokens, false), &spans));
        }
        all.extend(parser.finish());
        let mut joined: Vec<Part> = Vec::new();
        for part in all {
            match (joined.last_mut(), part) {
                (Some(Part::Text(text)), Part::Text(more)) | (Some(Part::Reasoning(text)), Part::Reasoning(more)) => {
                    text.push_str(&more);
                }
                (Some(Part::Arguments { index, text }), Part::Arguments { index: other, text: more })
                    if *index == other =>
                {
                    text.push_str(&more);
                }
                (_, part) => joined.push(part),
            }
        }
        (joined, parser.reasoning_tokens())
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn reasoning(text: &str) -> Part {
        Part::Reasoning(text.to_owned())
    }

    fn call(index: usize, name: &str, arguments: &str) -> [Part; 2] {
        let id = call_id(7, index);
        [Part::Call { index, id, name: name.to_owned() }, Part::Arguments { index, text: arguments.to_owned() }]
    }

    #[test]
    fn reasoning_text_and_calls_are_told_apart_however_they_arrive() {
        let answer = "<think>\nLet me see.\n</think>\n\nI ask.\n<tool_call>\n{\"name\": \"a\", \"arguments\": \
                      {\"x\": \"}</tool_call>\"}}\n</tool_call><tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>";
        let [first, its] = call(0, "a", "{\"x\": \"}</tool_call>\"}");
        let [second, others] = call(1, "b", "{}");
        let expected = vec![reasoning("Let me see."), text("I ask.\n"), first, its, second, others];
        for count in 1..9 {
            let (parts, tokens) = parts(parser(Some("qwen3"), true, 9, "hi"), answer, count);
            assert_eq!(parts, expected, "{count} tokens at a time");
            let alone = Tokenizer::builtin().encode("Let me see.", false).expect("it has tokens").len();
            assert_eq!(tokens, alone, "marks and line breaks around reasoning are not tokens of it");
        }
    }

    /// Stop strings hold text back, so a token's text may arrive in two parts.
    #[test]
    fn a_mark_may_come_in_parts() {
        let (mut parser, _) = parser(Some("deepseek_v3"), false, 0, "");
        let part = |token, bytes, is_first, is_last| Span { token: Some(token), bytes, is_first, is_last };
        let mut all = parser.push("<thi", &[part(266, 4, true, false)]);
        all.extend(parser.push("nk>a", &[part(266, 3, false, true), part(97, 1, true, true)]));
        assert_eq!(all, [reasoning("a")]);
        assert_eq!(parser.push("</t", &[part(267, 3, true, false)]), []);
        assert_eq!(parser.finish(), [reasoning("</t")], "a text may be cut there");
    }

    #[test]
    fn a_prompt_may_have_begun_or_ended_the_reasoning() {
        let of = |prompt: &str| parts(parser(Some("qwen3"), false, 0, prompt), "yes\n</think>\n\nno", 1).0;
        assert_eq!(of("<think>\n"), [reasoning("yes"), text("no")]);
        assert_eq!(of("<think></think>"), [text("yes\n</think>\n\nno")]);
    }

    #[test]
    fn calls_beyond_the_most_are_left_out() {
        let answer = "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>".repeat(2);
        assert_eq!(parts(parser(None, true, 1, ""), &answer, 1).0, call(0, "a", "{}"));
        assert_eq!(parts(parser(None, false, 9, ""), &answer, 1).0, [text(&answer)]);
    }

    #[test]
    fn what_is_no_call_is_text() {
        let of = |answer: &str| parts(parser(None, true, 9, ""), answer, 1).0;
        assert_eq!(of("a <tool"), [text("a <tool")]);
        assert_eq!(of("<tool_call>hello</tool_call> you"), [text("hello</tool_call> you")]);
        let [start, arguments] = call(0, "a", "{\"x\": [1");
        assert_eq!(
            of("<tool_call>{\"name\":\"a\",\"arguments\":{\"x\": [1"),
            [start, arguments],
            "an answer may be cut"
        );
    }
}
