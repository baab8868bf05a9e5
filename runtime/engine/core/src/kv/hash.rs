//! Block identity: a fast chained hash.
//!
//! A block's hash covers every token before its end, so equal hashes mean equal prefixes. The hash state is
//! updated along the sequence for each token and each run of content. To extend a sequence, only this state is
//! needed. Hashes on the wire are computed elsewhere, from tokens.
//!
//! The blocks of a run are cached and evicted together, so they have consecutive hashes: each hash is the previous
//! one plus a step. The first hash depends on the run and on the position in it at which the block ends. The lower half
//! of the step is 1, so a table indexed by the lower half stores these blocks next to each other.

use crate::seed::mix;

/// Identity of a full KV block and everything before it; never zero.
pub type BlockHash = u64;

/// The tokens that the hash of a block covers: all up to the end of the block, and the following tokens on which a
/// drafter's KV of the block depends. The hash is known once all these tokens are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedBlocks {
    /// Number of tokens per block.
    pub size_tokens: u32,
    /// Number of tokens after the block that its hash covers.
    pub lookahead_tokens: u32,
}

impl From<u32> for HashedBlocks {
    fn from(size_tokens: u32) -> Self {
        Self { size_tokens, lookahead_tokens: 0 }
    }
}

/// Running hash of one token sequence, cut into blocks.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    /// State of everything before the run.
    state: u64,
    /// Number of tokens missing until the next block's hash is known.
    missing_tokens: u32,
    block_size_tokens: u32,
    run: Option<Run>,
}

/// The run of content that a sequence ends with.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The content, mixed.
    content: u64,
    /// Digest of the content, the run's offset in it, and everything before.
    digest: u64,
    end_tokens: u32,
    /// State for the hash of the next block, once one block of the run is complete.
    next: Option<u64>,
}

impl ChainHasher {
    /// Starts a sequence. Sequences with different salts never share blocks. The salt is an adapter or a tenant's
    /// cache salt; 0 for none.
    #[must_use]
    pub fn new(blocks: impl Into<HashedBlocks>, salt: u64) -> Self {
        let HashedBlocks { size_tokens, lookahead_tokens } = blocks.into();
        Self {
            state: mix(salt ^ 0x7663_725f_626c_6f63),
            missing_tokens: size_tokens.saturating_add(lookahead_tokens),
            block_size_tokens: size_tokens,
            run: None,
        }
    }

    /// Number of blocks that the next `len_tokens` tokens complete.
    pub(crate) fn blocks_within(&self, len_tokens: u32) -> usize {
        let beyond = len_tokens.checked_sub(self.missing_tokens);
        beyond.map_or(0, |tokens| (tokens / self.block_size_tokens) as usize + 1)
    }

    /// Appends one token. Returns the hash of the block that it completes, if any.
    #[inline]
    pub fn push_token(&mut self, token: u32) -> Option<BlockHash> {
        self.state = fold_token(self.state(), token);
        self.run = None;
        self.missing_tokens -= 1;
        if self.missing_tokens > 0 {
            return None;
        }
        self.missing_tokens = self.block_size_tokens;
        self.state = end_block(self.state);
        Some(identity(self.state))
    }

    /// Makes all following blocks depend on `content` that tokens do not represent, such as an image.
    /// Placeholder tokens are the same for all images.
    pub fn push_mark(&mut self, content: u64) {
        self.state = mark(self.state(), content);
        self.run = None;
    }

    /// The current state, which can be continued with [`fold_token`] and [`end_block`].
    #[inline]
    pub(crate) fn state(&self) -> u64 {
        self.run.map_or(self.state, |run| fold(run.digest, u64::from(run.end_tokens)))
    }

    /// Appends `len_tokens` tokens of the content `content`, starting `offset_tokens` tokens into it. Adds the hashes
    /// of the blocks that they complete to `completed`.
    ///
    /// The content stands for its tokens: two sequences match where they have the same content at the same offset.
    pub fn push_run(&mut self, content: u64, offset_tokens: u32, len_tokens: u32, completed: &mut Vec<BlockHash>) {
        if len_tokens == 0 {
            return;
        }
        let content = mix(content);
        let mut run = match self.run {
            Some(run) if run.content == content && run.end_tokens == offset_tokens => run,
            _ => {
                self.state = self.state();
                let digest = fold(self.state, content ^ u64::from(offset_tokens).wrapping_mul(OFFSET_MULTIPLIER));
                Run { content, digest, end_tokens: offset_tokens, next: None }
            }
        };
        let block_size = self.block_size_tokens;
        let missing = self.missing_tokens;
        run.end_tokens = offset_tokens + len_tokens;
        if len_tokens < missing {
            self.missing_tokens -= len_tokens;
        } else {
            let rest = len_tokens - missing;
            let first = run.next.unwrap_or_else(|| {
                run.digest.wrapping_add(u64::from(offset_tokens + missing).wrapping_mul(OFFSET_MULTIPLIER))
            });
            let blocks = u64::from(rest / block_size + 1);
            completed.extend((0..blocks).map(|index| in_run(first, index)));
            run.next = Some(first.wrapping_add(blocks.wrapping_mul(RUN_STEP)));
            self.missing_tokens = block_size - rest % block_size;
        }
        self.run = Some(run);
    }
}

/// The state after one more token.
///
/// There are millions of tokens, and each one depends on the previous one. So a token costs one step of a
/// polynomial, and only a full block is mixed.
#[inline]
pub(crate) fn fold_token(state: u64, token: u32) -> u64 {
    state.wrapping_mul(MULTIPLIER).wrapping_add(u64::from(token) | 1 << 32)
}

/// The state after a mark; see [`ChainHasher::push_mark`].
pub(crate) fn mark(state: u64, content: u64) -> u64 {
    fold(state, content)
}

#[inline]
pub(crate) fn end_block(state: u64) -> u64 {
    mix(state)
}

/// The hash of a block that is not part of a run, given the state after its last token.
#[inline]
pub(crate) fn identity(state: u64) -> BlockHash {
    state.max(1)
}

/// The hash of a block of a run, `index` blocks after the block with the hash `first`. Never zero.
#[inline]
fn in_run(first: u64, index: u64) -> BlockHash {
    first.wrapping_add(index.wrapping_mul(RUN_STEP)) | 1 << 63
}

/// The upper half is odd as well, so that its bits change from block to block.
const RUN_STEP: u64 = 0x9e37_79b9_0000_0001;
const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
const OFFSET_MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;

/// One round of a folded 64 x 64 -> 128 bit multiplication.
#[inline]
fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word.wrapping_mul(0xa076_1d64_78bd_642f)) * u128::from(MULTIPLIER);
    (product as u64) ^ ((product >> 64) as u64) ^ state.rotate_left(23)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(parts: &[(u64, u32)], block_size_tokens: u32) -> Vec<BlockHash> {
        let mut hasher = ChainHasher::new(block_size_tokens, 0);
        let mut out = Vec::new();
        for &(content, len) in parts {
            hasher.push_run(content, 0, len, &mut out);
        }
        out
    }

    #[test]
    fn a_shared_prefix_gives_shared_leading_hashes_only() {
        let a = hashes(&[(1, 48), (2, 32)], 16);
        let b = hashes(&[(1, 48), (3, 32)], 16);
        assert_eq!(a.len(), 5);
        assert_eq!(a[..3], b[..3]);
        assert_ne!(a[3], b[3]);
        assert_ne!(a[4], b[4]);
    }

    #[test]
    fn the_same_content_at_another_depth_does_not_match() {
        let once = hashes(&[(1, 16)], 16);
        let twice = hashes(&[(1, 16), (1, 16)], 16);
        assert_eq!(once[0], twice[0]);
        assert_ne!(twice[0], twice[1]);
    }

    #[test]
    fn a_mark_separates_blocks_from_its_place_on() {
        let hashes = |mark: Option<(usize, u64)>| {
            let mut hasher = ChainHasher::new(2, 0);
            let mut out = Vec::new();
            for place in 0..8 {
                if let Some((_, content)) = mark.filter(|(at, _)| *at == place) {
                    hasher.push_mark(content);
                }
                out.extend(hasher.push_token(7));
            }
            out
        };
        let (plain, cat, dog) = (hashes(None), hashes(Some((3, 1))), hashes(Some((3, 2))));
        assert_eq!((plain[0], plain[0]), (cat[0], dog[0]));
        for block in 1..4 {
            assert!(plain[block] != cat[block] && cat[block] != dog[block], "block {block}");
        }
        assert_eq!(hashes(Some((3, 1))), cat);
        assert_eq!(hashes(Some((2, 1)))[0], plain[0], "a mark at the start of a block leaves the one before alone");
    }

    /// With tokens, runs and marks, a block's hash depends on the tokens after it and is known once they
    /// are known.
    #[test]
    fn identities_may_cover_tokens_behind_their_blocks() {
        let ahead = HashedBlocks { size_tokens: 4, lookahead_tokens: 2 };
        let of_tokens = |tokens: &[u32]| {
            let mut hasher = ChainHasher::new(ahead, 0);
            tokens.iter().filter_map(|&token| hasher.push_token(token)).collect::<Vec<_>>()
        };
        let known: Vec<usize> = (0..12).map(|len| of_tokens(&vec![7; len]).len()).collect();
        assert_eq!(known, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        let (one, other) = (of_tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), of_tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 8]));
        assert!(one[0] == other[0] && one[1] != other[1]);
        assert_ne!(of_tokens(&[1, 2, 3, 4, 5, 6])[0], of_tokens(&[1, 2, 3, 4, 5, 7])[0]);
        for len in 0..40 {
            let (mut hasher, mut whole) = (ChainHasher::new(ahead, 0), Vec::new());
            assert_eq!(hasher.blocks_within(len), (len as usize).saturating_sub(2) / 4);
            hasher.push_run(3, 0, len, &mut whole);
            assert_eq!(whole.len(), (len as usize).saturating_sub(2) / 4);
            let (mut hasher, mut pieces) = (ChainHasher::new(ahead, 0), Vec::new());
            for (offset, end) in [(0, len / 3), (len / 3, len / 2), (len / 2, len)] {
                hasher.push_run(3, offset, end - offset, &mut pieces);
            }
            assert_eq!(pieces, whole);
        }
    }

    #[test]
    fn the_salt_separates_sequences() {
        let mut plain = ChainHasher::new(2, 0);
        let mut salted = ChainHasher::new(2, 9);
        plain.push_token(5);
        salted.push_token(5);
        assert_ne!(plain.push_token(6), salted.push_token(6));
    }

    #[test]
    fn a_run_may_come_in_pieces() {
        let whole = hashes(&[(1, 24), (2, 160)], 16);
        let mut hasher = ChainHasher::new(16, 0);
        let mut pieces = Vec::new();
        hasher.push_run(1, 0, 24, &mut pieces);
        for (offset, len) in [(0, 8), (8, 16), (24, 64), (88, 0), (88, 31), (119, 1), (120, 16), (136, 24)] {
            hasher.push_run(2, offset, len, &mut pieces);
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn blocks_of_a_run_have_places_in_a_row() {
        let places: Vec<u32> = hashes(&[(1, 40), (2, 100)], 16).iter().map(|&hash| hash as u32).collect();
        assert_eq!(places[1], places[0].wrapping_add(1));
        assert!(places[2..].windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{places:?}");
        assert_ne!(places[2], places[1].wrapping_add(1));
        // The same content at another position has another hash.
        assert_ne!(hashes(&[(3, 16), (2, 16)], 16)[1] as u32, places[2]);
    }

    #[test]
    fn many_runs_do_not_collide() {
        let mut seen: Vec<BlockHash> = Vec::new();
        for content in 0..1_000 {
            let mut hasher = ChainHasher::new(16, 0);
            for (content, len) in [(content % 7, 24), (content, 900), (content % 5, 100)] {
                hasher.push_run(content, 0, len, &mut seen);
            }
        }
        seen.sort_unstable();
        let blocks = seen.len();
        seen.dedup();
        // The 7 blocks of the first content are shared.
        assert_eq!(seen.len(), blocks - (1_000 - 7));
    }

    #[test]
    fn what_follows_a_run_depends_on_its_length() {
        let follow = |len: u32| {
            let (mut hasher, mut blocks) = (ChainHasher::new(4, 0), Vec::new());
            hasher.push_run(3, 0, len, &mut blocks);
            (hasher.state(), hasher.push_token(7))
        };
        assert_ne!(follow(4), follow(8));
        assert_eq!(follow(8), follow(8));
    }

    #[test]
    fn single_tokens_do_not_collide_over_a_million_blocks() {
        let mut hasher = ChainHasher::new(1, 0);
        let mut seen: Vec<u64> = (0..1_000_000).filter_map(|t| hasher.push_token(t)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1_000_000);
    }
}
