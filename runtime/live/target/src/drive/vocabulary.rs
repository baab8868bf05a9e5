//! Maps drawn tokens to a model's vocabulary.

use vcr_cluster::{DRAWN_TOKENS, TokenRange};

/// No vocabulary is this large. Larger ids mark drawn tokens.
const NO_VOCABULARY: u32 = 1 << 20;
/// In most vocabularies, ids below this are special tokens and single bytes.
const FIRST_TOKEN: u32 = 256;
/// Every current model has at least this vocabulary.
const COMMON_VOCABULARY: u32 = 32_000;

/// The range of token ids that prompts use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vocabulary {
    first: u32,
    count: u32,
}

impl Vocabulary {
    pub(crate) fn new(size: Option<u32>) -> Self {
        let end = size.map_or(COMMON_VOCABULARY, |size| size.min(COMMON_VOCABULARY)).max(1);
        let first = if end > 2 * FIRST_TOKEN { FIRST_TOKEN } else { 0 };
        Self { first, count: end - first }
    }

    pub(crate) fn range(self) -> TokenRange {
        TokenRange { first: self.first, count: self.count }
    }

    /// Replaces drawn tokens with tokens of the vocabulary. Tokens of answers are kept.
    pub(crate) fn place(self, prompt: &mut [u32]) {
        for token in prompt.iter_mut().filter(|token| **token >= NO_VOCABULARY) {
            *token = self.first + (*token & !DRAWN_TOKENS) % self.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_tokens_get_a_place_and_others_keep_theirs() {
        for size in [None, Some(1), Some(300), Some(5000), Some(152_000)] {
            let vocabulary = Vocabulary::new(size);
            let mut prompt = vec![DRAWN_TOKENS | 7, 140_000, DRAWN_TOKENS | u32::MAX, DRAWN_TOKENS | 7];
            vocabulary.place(&mut prompt);
            assert_eq!(prompt[1], 140_000, "the token of an answer");
            assert_eq!(prompt[0], prompt[3]);
            assert!(prompt[0] < size.unwrap_or(32_000) && prompt[2] < size.unwrap_or(32_000), "{size:?} {prompt:?}");
        }
    }
}
