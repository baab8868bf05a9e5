//! The content of prompts in a table: ids of blocks, or tokens.

use std::num::NonZeroU32;

use crate::capture::{ExtraKeys, PromptHasher, RequestRecord};

use crate::import::chain;
use crate::import::error::Problem;

/// Block size if the size is unknown: vLLM's default.
const USUAL_BLOCK_TOKENS: u32 = 16;
const MAX_BLOCK_TOKENS: u32 = 4096;

#[derive(Debug)]
pub(super) enum PromptBlocks {
    /// The row has no content.
    Unknown,
    /// An id for each block. The id of a partial last block may be missing.
    Ids(Vec<u64>),
    /// All tokens of the prompt.
    Tokens(Vec<u32>),
}

impl PromptBlocks {
    pub(super) fn hash(self, record: &mut RequestRecord, block_size_tokens: u32) {
        match self {
            Self::Unknown => {}
            Self::Ids(ids) => {
                let (blocks, _) = chain::of_ids(ids, record.prompt_tokens, block_size_tokens);
                record.block_hashes = blocks;
            }
            Self::Tokens(tokens) => {
                let hasher = PromptHasher::new(block_size_tokens);
                let hashes = hasher.chain(&tokens, &ExtraKeys::default());
                record.block_hashes = hashes.blocks;
                record.prompt_hash = Some(hashes.whole);
            }
        }
    }
}

/// The number of tokens of an id: the given number, or the power of two that fits the prompts' lengths and ids.
#[derive(Debug)]
pub(super) struct BlockSizes {
    given: Option<u32>,
    /// Block sizes that fit all rows so far, ascending.
    possible: Vec<u32>,
    has_ids: bool,
    has_tokens: bool,
    rows: u32,
}

/// If this many rows at the start have no content, the table has none.
const ROWS_WITHOUT_CONTENT: u32 = 1000;

impl BlockSizes {
    pub(super) fn new(given: Option<NonZeroU32>) -> Self {
        let powers = std::iter::successors(Some(1u32), |size| Some(size * 2));
        let possible = powers.take_while(|size| *size <= MAX_BLOCK_TOKENS).collect();
        Self { given: given.map(NonZeroU32::get), possible, has_ids: false, has_tokens: false, rows: 0 }
    }

    /// Excludes the sizes that do not fit a row.
    ///
    /// # Errors
    /// If no size fits the row's ids, or if the row's number of tokens is not the stated length.
    pub(super) fn see(&mut self, blocks: &PromptBlocks, prompt_tokens: u32) -> Result<(), Problem> {
        self.rows = self.rows.saturating_add(1);
        match blocks {
            PromptBlocks::Unknown => Ok(()),
            PromptBlocks::Tokens(tokens) if tokens.len() == prompt_tokens as usize => {
                self.has_tokens = true;
                Ok(())
            }
            PromptBlocks::Tokens(tokens) => {
                let text = format!("{} token ids for {prompt_tokens} prompt tokens: expected as many", tokens.len());
                Err(Problem::new("prompt_token_ids", text))
            }
            PromptBlocks::Ids(ids) => {
                self.has_ids = true;
                let fits = |size: u32| {
                    let full = prompt_tokens / size;
                    (u64::from(full)..=u64::from(prompt_tokens.div_ceil(size))).contains(&(ids.len() as u64))
                };
                match self.given {
                    Some(size) if fits(size) => Ok(()),
                    None if self.possible.iter().any(|size| fits(*size)) => {
                        self.possible.retain(|size| fits(*size));
                        Ok(())
                    }
                    size => {
                        let tokens = size.map_or("any number of".to_owned(), |size| size.to_string());
                        let text = format!(
                            "{} ids for {prompt_tokens} prompt tokens do not fit blocks of {tokens} tokens: \
                             expected an id for each block of the prompt; set --block-size",
                            ids.len()
                        );
                        Err(Problem::new("hash_ids", text))
                    }
                }
            }
        }
    }

    /// Whether no further row can change the result of [`chosen`](Self::chosen).
    pub(super) fn is_clear(&self) -> bool {
        match (self.given, self.has_ids, self.has_tokens) {
            (Some(_), ..) | (None, false, true) => true,
            (None, true, _) => self.possible.len() == 1,
            (None, false, false) => self.rows >= ROWS_WITHOUT_CONTENT,
        }
    }

    /// The block size; None if no row has content.
    pub(super) fn chosen(&self) -> Option<u32> {
        if !self.has_ids && !self.has_tokens {
            return None;
        }
        let usual = if !self.has_ids || self.possible.contains(&USUAL_BLOCK_TOKENS) {
            USUAL_BLOCK_TOKENS
        } else {
            self.possible.last().copied().unwrap_or(USUAL_BLOCK_TOKENS)
        };
        Some(self.given.unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: u64) -> PromptBlocks {
        PromptBlocks::Ids((0..count).collect())
    }

    #[test]
    fn the_block_size_follows_from_lengths() {
        let mut sizes = BlockSizes::new(None);
        assert_eq!((sizes.is_clear(), sizes.chosen()), (false, None));
        sizes.see(&ids(1), 100).expect("one block of 128 or more, or one full block of 64");
        assert!(!sizes.is_clear());
        sizes.see(&ids(5), 300).expect("five blocks of 64");
        assert_eq!((sizes.is_clear(), sizes.chosen()), (true, Some(64)));
        let error = sizes.see(&ids(50), 300).expect_err("no longer");
        assert!(error.text.contains("50 ids for 300 prompt tokens"), "{}", error.text);
    }

    #[test]
    fn a_given_size_is_checked_and_tokens_are_counted() {
        let mut sizes = BlockSizes::new(NonZeroU32::new(16));
        sizes.see(&ids(6), 100).expect("six full blocks");
        sizes.see(&ids(7), 100).expect("and the rest");
        sizes.see(&ids(8), 100).expect_err("one too many");
        sizes.see(&PromptBlocks::Tokens(vec![1, 2]), 3).expect_err("one is missing");
        assert_eq!(sizes.chosen(), Some(16));
    }
}
