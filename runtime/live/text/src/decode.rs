//! Incremental detokenization.

use crate::Tokenizer;

/// After this many tokens without a complete character, the text continues with a replacement character.
const HELD_TOKENS_MAX: usize = 16;

/// The number of prompt tokens kept as context for the first output token.
const CONTEXT_TOKENS: usize = 5;

/// Turns tokens into text as they arrive.
///
/// A piece never ends within a character: the bytes of an incomplete character are held back. All pieces together
/// equal the result of [`Tokenizer::decode`] for all tokens. Tokenizers with byte fallback differ in two cases:
/// after 16 tokens that complete no character, replacement characters are emitted; and a run of bytes that is
/// invalid as a whole may still yield some valid characters.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Bytes of an incomplete character (byte-level tokenizers only).
    bytes: Vec<u8>,
    /// The last tokens (other tokenizers only). The text of the first `emitted` tokens is already released.
    window: Vec<u32>,
    emitted: usize,
}

impl Detokenizer {
    /// Starts a new text.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer: tokenizer.clone(), skip_special, bytes: Vec::new(), window: Vec::new(), emitted: 0 }
    }

    /// Continues a prompt. The prompt matters if the tokenizer drops a leading space.
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

    /// Appends the text still held back after the last token.
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
        // The new tokens become the context for the next ones.
        self.window.drain(..self.emitted);
        self.emitted = self.window.len();
    }
}

/// Whether more bytes can complete the character.
fn is_incomplete(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
