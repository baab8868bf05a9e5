//! KV of a prompt that another engine hands on, by group.

use super::KvGroups;

impl KvGroups {
    /// Tokens whose KV over all layers has as many bytes as what moves of a prompt of which `cached` tokens are here: of
    /// each group its missing tokens from the first block on that the next token needs. Blocks of all groups have the
    /// same bytes, so tokens of larger blocks have fewer.
    pub(crate) fn moved_tokens(&self, cached: u32, prompt: u32) -> u32 {
        let (mut moved, mut whole) = (0, 0);
        for group in &self.groups {
            let first = cached.max(group.skipped_blocks(prompt).saturating_mul(group.block_size));
            let weight = u64::from((self.aligned_tokens / group.block_size).max(1));
            moved += u64::from(prompt.saturating_sub(first)) * weight;
            whole += weight;
        }
        u32::try_from(moved.div_ceil(whole.max(1))).unwrap_or(u32::MAX)
    }
}
