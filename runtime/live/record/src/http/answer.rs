//! The tokens of a recorded answer: their number, and their times.

use serde_json::Value;
use vcr_trace::capture::{HttpEnd, HttpRecord};

use super::decode::Part;
use super::generation::{Generation, prompt_of};

/// The tokens of a recorded generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerTokens {
    /// Tokens of the prompt, if the answer states them.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Output times, each with the number of tokens so far. Empty if all tokens came at once.
    outputs: Vec<(u64, u32)>,
}

impl AnswerTokens {
    /// Reads the tokens of a complete generation. Returns `None` for other exchanges. `count` counts the tokens of
    /// the text if the answer does not state them.
    #[must_use]
    pub fn of(record: &HttpRecord, count: &dyn Fn(&str) -> u64) -> Option<Self> {
        if record.status.is_none_or(|status| status >= 400) || record.end != HttpEnd::Whole {
            return None;
        }
        let is_stream = record.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let parts: Vec<Part> = record.chunks.iter().map(|(at_ns, bytes)| (*at_ns, bytes.0.clone())).collect();
        let answer = Generation::of(&parts, is_stream);
        let tokens = answer.output_tokens.unwrap_or_else(|| count(&answer.text));
        let output_tokens = u32::try_from(tokens).ok().filter(|tokens| *tokens > 0)?;
        let mut so_far = 0;
        let outputs = answer.tokens_by_output(tokens).into_iter().map(|(at_ns, tokens)| {
            so_far += tokens;
            (at_ns, so_far)
        });
        Some(Self { prompt_tokens: answer.prompt_tokens, output_tokens, outputs: outputs.collect() })
    }

    /// The number of tokens that must be generated before the event at this time is sent. The event belongs to the
    /// nearest output, so the number includes that output's tokens.
    #[must_use]
    pub fn due(&self, at_ns: u64) -> u32 {
        if self.outputs.is_empty() {
            return self.output_tokens;
        }
        let next = self.outputs.partition_point(|(came_ns, _)| *came_ns <= at_ns);
        let (before_ns, before) = next.checked_sub(1).map_or((0, 0), |index| self.outputs[index]);
        match self.outputs.get(next) {
            Some((next_ns, tokens)) if next_ns - at_ns < at_ns - before_ns => *tokens,
            _ => before,
        }
    }
}

/// Reads an answer while it arrives.
#[derive(Debug, Default)]
pub struct AnswerReader(Generation);

impl AnswerReader {
    /// Reads the data of an event. Returns whether the event contains text.
    pub fn event(&mut self, data: &[u8]) -> bool {
        let before = self.0.text.len();
        if let Ok(value) = serde_json::from_slice(data) {
            self.0.take(&value, Some(0));
        }
        self.0.text.len() > before
    }

    /// Reads an answer that is not a stream.
    pub fn whole(&mut self, body: &[u8]) {
        if let Ok(value) = serde_json::from_slice(body) {
            self.0.take(&value, None);
        }
    }

    /// Tokens of the answer, if stated so far.
    #[must_use]
    pub fn output_tokens(&self) -> Option<u64> {
        self.0.output_tokens
    }

    /// Cached tokens of the prompt, if the answer contains usage.
    #[must_use]
    pub fn cached_tokens(&self) -> Option<u64> {
        self.0.prompt_tokens.map(|_| self.0.cached_tokens)
    }

    /// The error message, if the answer contains one.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.0.error.as_deref()
    }
}

/// Encodes the prompt of a request, then cuts or pads it to `length`. Prompts with a common beginning get common
/// first tokens.
#[must_use]
pub fn prompt_tokens(body: &[u8], length: Option<u64>, encode: &dyn Fn(&str) -> Vec<u32>) -> Vec<u32> {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> =
        body.get("prompt").and_then(Value::as_array).and_then(|ids| ids.iter().map(id).collect());
    let mut tokens = ids.unwrap_or_else(|| encode(&prompt_of(&body).0));
    if let Some(length) = length.and_then(|length| usize::try_from(length).ok()) {
        // The tokens that a chat template adds are unknown.
        tokens.resize(length, 0);
    }
    if tokens.is_empty() {
        tokens.push(0);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcr_trace::capture::HttpBytes;

    fn record(kind: &str, parts: &[(u64, &str)]) -> HttpRecord {
        HttpRecord {
            status: Some(200),
            headers: vec![("content-type".to_owned(), kind.to_owned())],
            chunks: parts.iter().map(|(at_ns, text)| (*at_ns, HttpBytes(text.as_bytes().to_vec()))).collect(),
            ..HttpRecord::default()
        }
    }

    #[test]
    fn parts_wait_for_their_tokens() {
        let event = |delta: &str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
        let (role, text) = (event(r#"{"role":"assistant"}"#), event(r#"{"content":"a"}"#));
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":4}}\n\n";
        let parts = [(95, role.as_str()), (100, &text), (120, &text), (121, usage)];
        let tokens = AnswerTokens::of(&record("text/event-stream", &parts), &|_| 0).expect("a generation");
        assert_eq!((tokens.prompt_tokens, tokens.output_tokens), (Some(5), 4));
        let due = [0, 40, 95, 100, 105, 115, 120, 121].map(|at_ns| tokens.due(at_ns));
        assert_eq!(due, [0, 0, 2, 2, 2, 4, 4, 4]);
        let whole = record("application/json", &[(9, r#"{"choices":[{"message":{"content":"a b c"}}]}"#)]);
        let count = |text: &str| text.split_whitespace().count() as u64;
        let tokens = AnswerTokens::of(&whole, &count).expect("a generation");
        assert_eq!((tokens.prompt_tokens, tokens.output_tokens, tokens.due(0)), (None, 3, 3));
        assert_eq!(AnswerTokens::of(&record("application/json", &[(1, r#"{"data":[]}"#)]), &count), None);
        let failed = HttpRecord { status: Some(500), ..whole };
        assert_eq!(AnswerTokens::of(&failed, &count), None);
    }

    #[test]
    fn prompts_have_their_length() {
        let encode = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let chat = br#"{"messages":[{"content":"ab"}]}"#;
        assert_eq!(prompt_tokens(chat, Some(5), &encode), [97, 98, 10, 0, 0]);
        assert_eq!(prompt_tokens(chat, Some(1), &encode), [97]);
        assert_eq!(prompt_tokens(br#"{"prompt":[7,8]}"#, None, &encode), [7, 8]);
        assert_eq!(prompt_tokens(b"no JSON", None, &encode), [0]);
    }
}
