//! Prompts.

use std::ops::Range;

use crate::encoder::item::PromptItem;
use crate::kv::hash::{BlockHash, ChainHasher, HashedBlocks};
use crate::seed::{mix, output_token};

/// A prompt as the engine needs it: its length, the hashes of its blocks
/// and, for KV events, its tokens.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) len_tokens: u32,
    /// Empty unless tokens are kept.
    pub(crate) tokens: Vec<u32>,
    /// If tokens are kept, empty until the scheduler first reaches the request.
    pub(crate) block_hashes: Vec<BlockHash>,
    pub(crate) hasher: ChainHasher,
    pub(crate) blocks: HashedBlocks,
    /// Multimodal items, ordered by position.
    pub(crate) items: Vec<PromptItem>,
    pub(crate) keeps_tokens: bool,
    /// Whether `block_hashes` has all full blocks.
    pub(crate) is_hashed: bool,
}

/// Makes the contents of items differ from the contents of text runs.
const ITEM_CONTENT: u64 = 0x6974_656d;

impl Prompt {
    /// The bit that marks tokens drawn for a run. When a prompt is sent to a model with a vocabulary, each
    /// such token is replaced by a token of that model.
    pub const DRAWN_TOKENS: u32 = 1 << 31;

    /// An empty prompt that accepts tokens and runs, and keeps only their hashes.
    #[must_use]
    pub fn new(blocks: impl Into<HashedBlocks>, salt: u64) -> Self {
        let blocks = blocks.into();
        Self {
            len_tokens: 0,
            tokens: Vec::new(),
            block_hashes: Vec::new(),
            hasher: ChainHasher::new(blocks, salt),
            blocks,
            items: Vec::new(),
            keeps_tokens: false,
            is_hashed: true,
        }
    }

    /// Reserves capacity for `len_tokens` more tokens.
    pub fn reserve(&mut self, len_tokens: u32) {
        if self.keeps_tokens {
            self.tokens.reserve_exact(len_tokens as usize);
        } else {
            self.block_hashes.reserve_exact(self.hasher.blocks_within(len_tokens));
        }
    }

    /// A prompt that keeps its tokens and the tokens of its outputs. Blocks are hashed when the scheduler
    /// reaches the request, so that a waiting request costs only its tokens.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` tokens.
    #[must_use]
    pub fn of_tokens(tokens: Vec<u32>, blocks: impl Into<HashedBlocks>, salt: u64) -> Self {
        let len_tokens = u32::try_from(tokens.len()).expect("a prompt has fewer than 2^32 tokens");
        Self { len_tokens, tokens, keeps_tokens: true, is_hashed: false, ..Self::new(blocks, salt) }
    }

    /// Like [`Prompt::of_tokens`], with marks for differences that tokens do not show. Each mark is a position and the
    /// content that begins there, in ascending order; see [`ChainHasher::push_mark`]. The blocks are hashed at
    /// once.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` tokens.
    #[must_use]
    pub fn of_marked_tokens(
        tokens: Vec<u32>,
        blocks: impl Into<HashedBlocks>,
        salt: u64,
        marks: &[(u32, u64)],
    ) -> Self {
        let mut hashed = Self::new(blocks, salt);
        hashed.push_marked_tokens(&tokens, marks);
        Self { tokens, keeps_tokens: true, ..hashed }
    }

    /// Like [`Prompt::of_tokens`], with multimodal items, ordered by position. The blocks are hashed at once.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` tokens.
    #[must_use]
    pub fn of_tokens_with_items(
        tokens: Vec<u32>,
        blocks: impl Into<HashedBlocks>,
        salt: u64,
        items: Vec<PromptItem>,
    ) -> Self {
        let mut hashed = Self::new(blocks, salt);
        hashed.push_tokens_with_items(&tokens, items);
        Self { tokens, keeps_tokens: true, ..hashed }
    }

    /// Appends tokens with marks, whose positions count from the first of these tokens; see
    /// [`Prompt::of_marked_tokens`].
    pub fn push_marked_tokens(&mut self, tokens: &[u32], marks: &[(u32, u64)]) {
        let mut rest = tokens;
        for (place, content) in marks {
            let pushed = tokens.len() - rest.len();
            let (before, after) = rest.split_at((*place as usize).saturating_sub(pushed).min(rest.len()));
            self.push_tokens(before.iter().copied());
            self.hasher.push_mark(*content);
            rest = after;
        }
        self.push_tokens(rest.iter().copied());
    }

    /// Appends tokens.
    pub fn push_tokens(&mut self, tokens: impl IntoIterator<Item = u32>) {
        for token in tokens {
            self.len_tokens += 1;
            if self.keeps_tokens {
                self.tokens.push(token);
            } else {
                self.block_hashes.extend(self.hasher.push_token(token));
            }
        }
    }

    /// Appends a run of shared content; see [`ChainHasher::push_run`]. If tokens are kept, the tokens of the run
    /// are drawn from its content and the prompt's salt, so that prompts with the same content have the same tokens;
    /// see [`Prompt::DRAWN_TOKENS`].
    pub fn push_run(&mut self, content: u64, offset_tokens: u32, len_tokens: u32) {
        self.len_tokens += len_tokens;
        if self.keeps_tokens {
            debug_assert!(!self.is_hashed, "the hasher stands for the salt only before it has hashed");
            let seed = mix(content ^ self.hasher.state());
            let drawn = |index| output_token(seed, index) | Self::DRAWN_TOKENS;
            self.tokens.extend((offset_tokens..offset_tokens + len_tokens).map(drawn));
            return;
        }
        self.hasher.push_run(content, offset_tokens, len_tokens, &mut self.block_hashes);
    }

    /// The tokens that the hashes of the blocks cover.
    #[must_use]
    pub fn hashed_blocks(&self) -> HashedBlocks {
        self.blocks
    }

    /// Appends a multimodal item of `len_tokens` placeholder tokens, all of which embeddings replace. Blocks with part
    /// of the item are shared only with prompts that have the same item at the same position.
    pub fn push_item(&mut self, identity: u64, len_tokens: u32) {
        self.items.push(PromptItem::new(identity, self.len_tokens, len_tokens));
        self.push_run(mix(identity ^ ITEM_CONTENT), 0, len_tokens);
    }

    /// Sets the item that the encoder reads before the decoder reads this prompt. Replaces an earlier item.
    pub fn set_encoder_input(&mut self, identity: u64, num_embeds: u32) {
        self.items = vec![PromptItem::new(identity, 0, num_embeds).without_place()];
    }

    /// Like [`Prompt::push_item`], for an item whose embeddings replace only the placeholders of `runs`.
    pub fn push_item_of_runs(&mut self, identity: u64, len_tokens: u32, runs: impl IntoIterator<Item = Range<u32>>) {
        let item = PromptItem::new(identity, self.len_tokens, len_tokens).with_embed_runs(runs);
        self.items.push(item);
        self.push_run(mix(identity ^ ITEM_CONTENT), 0, len_tokens);
    }

    /// Appends tokens that include the placeholders of multimodal items, ordered by position.
    pub fn push_tokens_with_items(&mut self, tokens: &[u32], items: Vec<PromptItem>) {
        let before = self.len_tokens;
        let marks: Vec<(u32, u64)> =
            items.iter().map(|item| (item.offset_tokens().saturating_sub(before), item.identity())).collect();
        self.push_marked_tokens(tokens, &marks);
        self.items.extend(items);
    }

    /// Sets the multimodal items, ordered by position. Marks among the tokens must already distinguish the items'
    /// blocks.
    #[must_use]
    pub fn with_items(self, items: Vec<PromptItem>) -> Self {
        Self { items, ..self }
    }

    /// The multimodal items, ordered by position.
    #[must_use]
    pub fn items(&self) -> &[PromptItem] {
        &self.items
    }

    /// The tokens. Empty if they are not kept.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens.
    #[must_use]
    pub fn len_tokens(&self) -> u32 {
        self.len_tokens
    }

    /// A hash of all tokens, including those after the last full block. While tokens are kept, it is the hash of an
    /// empty prompt.
    #[must_use]
    pub fn content_hash(&self) -> u64 {
        self.hasher.state()
    }

    /// Hashes of the full blocks, in order. Empty while tokens are kept and not hashed.
    #[must_use]
    pub fn block_hashes(&self) -> &[BlockHash] {
        &self.block_hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In real time, requests must share exactly the blocks that they share in virtual time.
    #[test]
    fn runs_have_equal_tokens_where_they_are_the_same_content() {
        let prompt = |salt: u64, runs: &[(u64, u32, u32)]| {
            let mut prompt = Prompt::of_tokens(Vec::new(), 4, salt);
            runs.iter().for_each(|(content, offset, len)| prompt.push_run(*content, *offset, *len));
            prompt
        };
        let whole = prompt(0, &[(7, 0, 40), (8, 0, 4)]);
        assert_eq!(
            (whole.tokens(), whole.len_tokens()),
            (prompt(0, &[(7, 0, 10), (7, 10, 30), (8, 0, 4)]).tokens(), 44)
        );
        assert!(whole.tokens().iter().all(|token| token & Prompt::DRAWN_TOKENS != 0));
        for other in [prompt(1, &[(7, 0, 44)]), prompt(0, &[(9, 0, 44)]), prompt(0, &[(7, 1, 44)])] {
            let equal = whole.tokens().iter().zip(other.tokens()).filter(|(one, other)| one == other).count();
            assert!(equal < 2, "{equal} of 44 tokens are equal");
        }
    }

    /// Engines with and without KV events must share the same blocks.
    #[test]
    fn marked_tokens_have_the_same_blocks_whether_they_are_kept_or_not() {
        let tokens: Vec<u32> = (0..40).collect();
        for marks in [&[][..], &[(20, 7)], &[(0, 7), (16, 8), (39, 9)], &[(3, 7), (3, 8), (99, 9)]] {
            let kept = Prompt::of_marked_tokens(tokens.clone(), 4, 1, marks);
            let mut hashed = Prompt::new(4, 1);
            hashed.push_marked_tokens(&tokens, marks);
            assert_eq!(kept.block_hashes(), hashed.block_hashes(), "{marks:?}");
            assert_eq!((kept.len_tokens(), kept.tokens.len(), hashed.block_hashes().len()), (40, 40, 10));
            assert_eq!(kept.content_hash(), hashed.content_hash());
            let mut plain = Prompt::new(4, 1);
            plain.push_tokens(tokens.iter().copied());
            let equal = plain.block_hashes().iter().zip(hashed.block_hashes()).take_while(|(one, other)| one == other);
            let first = marks.first().map_or(40, |(place, _)| *place as usize);
            assert_eq!(equal.count(), first / 4, "{marks:?}");
        }
    }
}
