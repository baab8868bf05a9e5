//! Text from tokens that arrive one by one.

use crate::Tokenizer;

/// Tokens that may wait for the rest of a character before the text continues without it.
const HELD_TOKENS_MAX: usize = 16;

/// Tokens of a prompt that the text of its output may depend on.
const CONTEXT_TOKENS: usize = 5;

/// Turns tokens into text as they arrive.
///
/// A piece never ends within a character: bytes of an incomplete one are held back. All pieces
/// together equal the result of [`Tokenizer::decode`] for all tokens. Two exceptions apply to
/// tokenizers with byte fallback instead of byte-level pieces: after 16 tokens that do not complete
/// a character, replacement characters are emitted, and a run of bytes that is invalid as a whole
/// may be valid in part here.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Bytes of an incomplete character (tokenizers of bytes).
    bytes: Vec<u8>,
    /// The end of the tokens (other tokenizers): up to `emitted` their text is out.
    window: Vec<u32>,
    emitted: usize,
}

impl Detokenizer {
    /// A text without anything before it.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer: tokenizer.clone(), skip_special, bytes: Vec::new(), window: Vec::new(), emitted: 0 }
    }

    /// The continuation of a prompt. It matters where a tokenizer drops the space
    /// that a text begins with.
    #[must_use]
    pub fn after(tokenizer: &Tokenizer, skip_special: bool, prompt: &[u32]) -> Self {
        let mut text = Self::new(tokenizer, skip_special);
        if !tokenizer.is_byte_level() {
            text.window.extend_from_slice(&prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..]);
            text.emitted = text.window.len();
        }
        text
    }

    /// Appends the text that is complete with this token to `out`.
    pub fn push(&mut self, token: u32, out: &mut String) {
        if self.skip_special && self.tokenizer.is_special(token) {
            return;
        }
        if self.tokenizer.is_byte_level() {
            self.bytes.extend_from_slice(self.tokenizer.token_bytes(token));
            self.take_characters(out);
        } else {
            self.window.push(token);
            self.take_window(self.window.len() - self.emitted > HELD_TOKENS_MAX, out);
        }
    }

    /// Appends the text held back at the end of the tokens.
    pub fn finish(&mut self, out: &mut String) {
        if !self.bytes.is_empty() {
            out.push_str(&String::from_utf8_lossy(&self.bytes));
            self.bytes.clear();
        }
        if self.emitted < self.window.len() {
            self.take_window(true, out);
        }
    }

    /// Moves complete characters out; invalid bytes become replacement characters
    /// as in [`String::from_utf8_lossy`].
    fn take_characters(&mut self, out: &mut String) {
        let mut taken = 0;
        for chunk in self.bytes.utf8_chunks() {
            let end = taken + chunk.valid().len() + chunk.invalid().len();
            out.push_str(chunk.valid());
            taken += chunk.valid().len();
            let is_incomplete = end == self.bytes.len() && is_incomplete(chunk.invalid());
            if !chunk.invalid().is_empty() && !is_incomplete {
                out.push(char::REPLACEMENT_CHARACTER);
                taken = end;
            }
        }
        self.bytes.drain(..taken);
    }

    fn take_window(&mut self, is_forced: bool, out: &mut String) {
        let before = self.tokenizer.decode(&self.window[..self.emitted], self.skip_special);
        let whole = self.tokenizer.decode(&self.window, self.skip_special);
        if whole.ends_with(char::REPLACEMENT_CHARACTER) && !is_forced {
            return;
        }
        out.push_str(whole.get(before.len()..).unwrap_or_default());
        // The new text is the context of the next.
        self.window.drain(..self.emitted);
        self.emitted = self.window.len();
    }
}

/// Whether more bytes can make a character of it.
fn is_incomplete(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
