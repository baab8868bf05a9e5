//! Hashes of prompts whose blocks have ids.

use crate::capture::BlockHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Computes the hashes of a prompt from ids. Each full block, and the rest, has an id that stands for its content.
///
/// Prompts with equal ids from the start have equal hashes, like hashes of equal tokens. The hash of the whole
/// prompt also covers the prompt's length, so that it differs if the last block is cut elsewhere.
pub(crate) fn of_ids(
    ids: impl IntoIterator<Item = u64>,
    prompt_tokens: u32,
    block_size_tokens: u32,
) -> (Vec<BlockHash>, BlockHash) {
    let full = (prompt_tokens / block_size_tokens) as usize;
    let mut blocks = Vec::with_capacity(full.min(1 << 16));
    let mut hash = 0;
    for id in ids {
        hash = xxh3_64_with_seed(&id.to_le_bytes(), hash);
        if blocks.len() < full {
            blocks.push(BlockHash(hash));
        }
    }
    let is_whole = prompt_tokens.is_multiple_of(block_size_tokens) && blocks.len() == full;
    let whole = if is_whole { hash } else { xxh3_64_with_seed(&prompt_tokens.to_le_bytes(), hash) };
    (blocks, BlockHash(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_as_far_as_their_ids_agree() {
        let (a, a_whole) = of_ids([1, 2, 3], 12, 4);
        let (b, b_whole) = of_ids([1, 2, 4], 11, 4);
        assert_eq!((a.len(), b.len()), (3, 2));
        assert_eq!(a[..2], b[..]);
        assert_eq!(a_whole, a[2]);
        assert_ne!(a_whole, b_whole);
        // The same id at another position means another prefix.
        assert_ne!(of_ids([2], 4, 4).0[0], a[1]);
        assert_ne!(of_ids([1, 2, 3], 10, 4).1, of_ids([1, 2, 3], 11, 4).1);
    }
}
