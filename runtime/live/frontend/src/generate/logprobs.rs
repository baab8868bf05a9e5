//! Logprobs with the text of each token.

use vcr_text::Tokenizer;
use vcr_wire::Logprobs;

/// A token that was chosen or among the most likely.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    /// 1 is the most likely.
    pub(crate) rank: u32,
    /// Empty for special tokens, which texts omit.
    pub(crate) text: String,
}

/// The logprobs at one position: the chosen token first, then the most likely ones, without duplicates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Position(pub(crate) Vec<TokenLogprob>);

impl Position {
    /// Converts an engine's logprobs. Returns nothing if they are invalid.
    pub(crate) fn read(logprobs: &Logprobs, tokenizer: &Tokenizer) -> Vec<Self> {
        let Ok(rows) = logprobs.rows(&[]) else { return Vec::new() };
        let width = rows.width.max(1);
        let lines = rows.token_ids.chunks(width).zip(rows.logprobs.chunks(width)).zip(&rows.ranks);
        let position = |((ids, logprobs), own_rank): ((&[u32], &[f32]), &u32)| {
            let mut entries: Vec<TokenLogprob> = Vec::with_capacity(width);
            for (index, (token, logprob)) in ids.iter().zip(logprobs).enumerate() {
                if entries.iter().any(|entry| entry.token == *token) {
                    continue;
                }
                entries.push(TokenLogprob {
                    token: *token,
                    logprob: *logprob,
                    rank: if index == 0 { *own_rank } else { index as u32 },
                    text: if tokenizer.is_special(*token) { String::new() } else { tokenizer.token_text(*token) },
                });
            }
            Self(entries)
        };
        lines.map(position).collect()
    }
}
