//! The content of KV pages.
//!
//! A slice is one head's K or V in one block of one layer. It is a sequence of little-endian 64-bit words. The
//! first word is computed from the block's content, the region and the head; each further word is larger by
//! [`STEP`]. So a slice that is missing, stale, displaced or from another block differs in every word, and each
//! word can be verified by itself.

/// The difference between consecutive words. It is odd, so that no word of a slice occurs twice.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection in which each input bit affects all output bits (the finalizer of SplitMix64).
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The first word of a slice.
#[must_use]
pub fn first_word(content: u64, region: u32, head: u32) -> u64 {
    mix(content ^ mix(u64::from(region) << 32 | u64::from(head) | 1 << 63))
}

/// The content of a block, computed from the previous block's content and the block's tokens.
#[must_use]
pub fn chain(parent: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(mix(parent ^ STEP), |state, token| mix(state ^ u64::from(*token).wrapping_add(STEP)))
}

/// Writes a slice.
pub fn fill(slice: &mut [u8], first_word: u64) {
    let mut word = first_word;
    let mut words = slice.chunks_exact_mut(8);
    for bytes in &mut words {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = words.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&word.to_le_bytes()[..len]);
}

/// The offset of the first wrong byte in a slice; `None` if all bytes are right.
#[must_use]
pub fn first_wrong(slice: &[u8], first_word: u64) -> Option<usize> {
    let mut word = first_word;
    let mut words = slice.chunks_exact(8);
    let mut difference = 0;
    for bytes in &mut words {
        let mut found = [0; 8];
        found.copy_from_slice(bytes);
        // No branch for each word, so that the compiler can process several at once.
        difference |= u64::from_le_bytes(found) ^ word;
        word = word.wrapping_add(STEP);
    }
    let rest = words.remainder();
    if difference == 0 && *rest == word.to_le_bytes()[..rest.len()] {
        return None;
    }
    let expected = |index: usize| {
        let word = first_word.wrapping_add(STEP.wrapping_mul((index / 8) as u64));
        word.to_le_bytes()[index % 8]
    };
    (0..slice.len()).find(|&index| slice[index] != expected(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        for len in [1, 7, 8, 9, 64, 203] {
            let mut slice = vec![0; len];
            let word = first_word(7, 3, 1);
            fill(&mut slice, word);
            assert_eq!(first_wrong(&slice, word), None);
            for place in 0..len {
                slice[place] ^= 0x10;
                assert_eq!(first_wrong(&slice, word), Some(place));
                slice[place] ^= 0x10;
            }
        }
    }

    /// Zeroes, and pages of another block, layer or head, are wrong from the first bytes on.
    #[test]
    fn contents_differ_by_block_region_and_head() {
        let words = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (0, 0, 0)]
            .map(|(content, region, head)| first_word(content, region, head));
        for (index, word) in words.iter().enumerate() {
            assert!(!words[..index].contains(word));
            assert!(first_wrong(&[0; 64], *word).is_some_and(|place| place < 8));
        }
    }

    #[test]
    fn a_chain_depends_on_all_tokens_before() {
        let one = chain(chain(0, &[1, 2]), &[3]);
        assert_eq!(one, chain(chain(0, &[1, 2]), &[3]));
        for other in [chain(chain(0, &[1, 9]), &[3]), chain(chain(0, &[1]), &[2, 3]), chain(chain(1, &[1, 2]), &[3])] {
            assert_ne!(one, other);
        }
    }
}
