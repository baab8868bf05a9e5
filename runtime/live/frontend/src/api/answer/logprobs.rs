//! Formats logprobs for each endpoint.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::dialects::ChatLogprob;
use crate::generate::{Position, TokenLogprob, wide};

/// Logprobs of a text completion.
#[derive(Clone, Debug, Default, Serialize)]
pub(in crate::api) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

fn name(entry: &TokenLogprob, as_id: bool) -> String {
    if as_id { format!("token_id:{}", entry.token) } else { entry.text.clone() }
}

impl CompletionLogprobs {
    /// Adds positions. `offset` is the number of characters before them. Returns the offset after them.
    pub(in crate::api) fn extend(&mut self, positions: &[Position], mut offset: usize, as_id: bool) -> usize {
        for Position(entries) in positions {
            let Some(own) = entries.first() else { continue };
            self.tokens.push(name(own, as_id));
            self.token_logprobs.push(Some(own.logprob));
            let top = entries.iter().map(|entry| (name(entry, as_id), json!(wide(entry.logprob))));
            self.top_logprobs.push(Some(top.collect()));
            self.text_offset.push(offset);
            offset += name(own, as_id).chars().count();
        }
        offset
    }

    /// Adds the first token of a prompt, which has no logprob. Returns the offset after it.
    pub(in crate::api) fn push_first(&mut self, token: u32, text: String, as_id: bool) -> usize {
        let text = if as_id { format!("token_id:{token}") } else { text };
        let offset = text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(0);
        offset
    }
}

/// Logprobs of a chat: each token, and the `top` most likely tokens.
pub(in crate::api) fn chat_logprobs(positions: &[Position], top: usize, as_id: bool) -> Vec<ChatLogprob> {
    // As in vLLM, the bytes are those of the decoded token, so incomplete characters are replacement characters.
    let one = |entry: &TokenLogprob| {
        let token = name(entry, as_id);
        ChatLogprob { bytes: token.as_bytes().to_vec(), logprob: wide(entry.logprob), token, top_logprobs: None }
    };
    let position = |Position(entries): &Position| {
        let top_logprobs = Some(entries.iter().take(top).map(one).collect());
        Some(ChatLogprob { top_logprobs, ..one(entries.first()?) })
    };
    positions.iter().filter_map(position).collect()
}

/// Logprobs with token ids instead of texts.
pub(in crate::api) fn token_logprobs(positions: &[Position]) -> Vec<Value> {
    let one =
        |entry: &TokenLogprob| json!({"token_id": entry.token, "logprob": wide(entry.logprob), "rank": entry.rank});
    let position = |Position(entries): &Position| {
        let mut value = one(entries.first()?);
        value["top_logprobs"] = entries.iter().map(one).collect();
        Some(value)
    };
    positions.iter().filter_map(position).collect()
}

/// Logprobs of a prompt: null for the first token, then maps by token id.
pub(in crate::api) fn prompt_logprobs(positions: &[Position], as_id: bool) -> Vec<Option<BTreeMap<String, Value>>> {
    let entry = |entry: &TokenLogprob| {
        let value = json!({"logprob": wide(entry.logprob), "rank": entry.rank, "decoded_token": name(entry, as_id)});
        (entry.token.to_string(), value)
    };
    let rows = positions.iter().map(|Position(entries)| Some(entries.iter().map(entry).collect()));
    std::iter::once(None).chain(rows).collect()
}
