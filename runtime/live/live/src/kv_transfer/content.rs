//! The content of a prompt's blocks, which a prefill and a decode engine derive independently.

use vcr_transfer::pattern::{chain, mix};

/// The contents of all blocks of a prompt; the last block may be partly filled. `salt` and `marks` distinguish
/// prompts with equal tokens by adapter, tenant, and images from their position on.
pub(crate) fn block_contents(tokens: &[u32], block_tokens: u32, salt: u64, marks: &[(u32, u64)]) -> Vec<u64> {
    let mut state = mix(salt);
    let mut marks = marks.iter().peekable();
    let mut end = 0;
    let of_block = |tokens: &[u32]| {
        end += tokens.len();
        while let Some((_, content)) = marks.next_if(|(place, _)| (*place as usize) < end) {
            state = mix(state ^ content);
        }
        state = chain(state, tokens);
        state
    };
    tokens.chunks(block_tokens.max(1) as usize).map(of_block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_equal_as_long_as_all_before_them_is() {
        let tokens: Vec<u32> = (0..40).collect();
        let plain = block_contents(&tokens, 16, 0, &[]);
        assert_eq!(plain.len(), 3);
        assert_eq!(block_contents(&tokens[..32], 16, 0, &[]), plain[..2]);
        let equal = |other: &[u64]| plain.iter().zip(other).take_while(|(one, other)| one == other).count();
        assert_eq!(equal(&block_contents(&tokens, 16, 7, &[])), 0);
        assert_eq!(equal(&block_contents(&tokens, 16, 0, &[(16, 5)])), 1);
        assert_eq!(equal(&block_contents(&tokens, 16, 0, &[(39, 5)])), 2);
        assert_eq!(equal(&block_contents(&tokens[..39], 16, 0, &[])), 2);
    }
}
