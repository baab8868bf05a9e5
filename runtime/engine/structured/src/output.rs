use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::TokenRequest;

use crate::values::words::Words;
use crate::vocabulary::Vocabulary;

/// The output of one request.
pub struct Output {
    /// The next tokens of the output.
    tokens: VecDeque<u32>,
    /// Words that follow these tokens, if any.
    words: Option<Words>,
    /// The token that ends the output, if there is one.
    end: Option<u32>,
    min_tokens: u32,
    /// Token that fills the output after the text.
    filler: u32,
    has_begun: bool,
}

impl Output {
    /// An empty output. Spaces may follow JSON, so they fill the output if it may not end yet.
    pub(crate) fn new(request: &TokenRequest<'_>, space: u32) -> Self {
        let end = request.eos_token.or(request.stop_tokens.first().copied());
        let min_tokens = request.min_tokens;
        Self { tokens: VecDeque::new(), words: None, end, min_tokens, filler: space, has_begun: false }
    }

    pub(crate) fn with_words(self, words: Words) -> Self {
        Self { words: Some(words), ..self }
    }

    pub(crate) fn with_json(self, tokens: Vec<u32>) -> Self {
        Self { tokens: tokens.into(), ..self }
    }

    /// Adds a text after which not even a space is allowed, only the end token.
    pub(crate) fn with_text(self, tokens: Vec<u32>) -> Self {
        Self { tokens: tokens.into(), filler: self.end.unwrap_or(self.filler), ..self }
    }

    pub(crate) fn next_token(&mut self, index: u32, vocabulary: &Vocabulary) -> Result<u32, String> {
        if let Some(token) = self.tokens.pop_front() {
            return Ok(token);
        }
        let may_end = index >= self.min_tokens;
        match (&mut self.words, self.end) {
            (Some(words), Some(end)) if words.are_over() && may_end => Ok(end),
            (Some(words), _) => {
                let mut text = String::from(if self.has_begun { " " } else { "" });
                text += words.next_word();
                self.has_begun = true;
                self.tokens.extend(vocabulary.tokens(&text)?);
                // A word has letters, so it has at least one token.
                Ok(self.tokens.pop_front().unwrap_or(self.filler))
            }
            (None, Some(end)) if may_end => Ok(end),
            (None, _) => Ok(self.filler),
        }
    }
}
