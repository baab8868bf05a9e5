//! The prompts in progress on one engine, and their number of blocks.

use std::cmp::Ordering;
use std::sync::Arc;

use vcr_core::hash::BlockHash;

/// The hashes of a prompt's full blocks. Each hash covers all blocks before it, so two prompts have equal hashes up
/// to some block and none after it.
pub(super) type Chain = Arc<[BlockHash]>;

#[derive(Debug)]
struct Prompt {
    /// The first block. It distinguishes most prompts, so that a search need not read their chains.
    first: Option<BlockHash>,
    chain: Chain,
    request: u64,
}

impl Prompt {
    /// Compares the prompt with a chain that begins with `first`.
    fn order(&self, first: Option<BlockHash>, chain: &[BlockHash]) -> Ordering {
        self.first.cmp(&first).then_with(|| order(&self.chain, chain))
    }
}

/// A set of prompts, ordered by their chains.
///
/// A prompt has its longest common prefix with one of its neighbours in this order. It is therefore compared with
/// two others instead of all, and blocks need no counts.
#[derive(Debug, Default)]
pub(super) struct ActivePrompts {
    prompts: Vec<Prompt>,
    distinct_blocks: u64,
}

impl ActivePrompts {
    /// Number of blocks of all prompts. Equal blocks count once.
    pub(super) fn distinct_blocks(&self) -> u64 {
        self.distinct_blocks
    }

    /// Number of leading blocks of `chain` that the set contains.
    pub(super) fn shared_blocks(&self, chain: &[BlockHash]) -> usize {
        let first = chain.first().copied();
        self.shared_at(self.prompts.partition_point(|other| other.order(first, chain).is_lt()), chain)
    }

    /// Adds the prompt of `request`, which must not be in the set.
    pub(super) fn insert(&mut self, chain: Chain, request: u64) {
        let position = self.position(&chain, request);
        self.distinct_blocks += (chain.len() - self.shared_at(position, &chain)) as u64;
        self.prompts.insert(position, Prompt { first: chain.first().copied(), chain, request });
    }

    /// Removes the prompt of `request`, which must be in the set.
    pub(super) fn remove(&mut self, chain: &[BlockHash], request: u64) {
        let position = self.position(chain, request);
        let Prompt { chain, .. } = self.prompts.remove(position);
        self.distinct_blocks -= (chain.len() - self.shared_at(position, &chain)) as u64;
    }

    fn position(&self, chain: &[BlockHash], request: u64) -> usize {
        let first = chain.first().copied();
        self.prompts.partition_point(|other| other.order(first, chain).then(other.request.cmp(&request)).is_lt())
    }

    /// Maximum number of leading blocks that `chain` shares with a prompt of the set. `position` is its place in the
    /// order.
    fn shared_at(&self, position: usize, chain: &[BlockHash]) -> usize {
        let first = chain.first().copied();
        let before = position.checked_sub(1).map(|before| &self.prompts[before]);
        let neighbours = before.into_iter().chain(self.prompts.get(position)).filter(|other| other.first == first);
        neighbours.map(|other| common_blocks(&other.chain, chain)).max().unwrap_or(0)
    }
}

fn common_blocks(a: &[BlockHash], b: &[BlockHash]) -> usize {
    let most = a.len().min(b.len());
    if most == 0 || a[0] != b[0] {
        return 0;
    }
    // Hashes are equal up to some block and differ after it, so a binary search finds the end.
    let (mut equal, mut end) = (0, most);
    while equal < end {
        let middle = equal + (end - equal) / 2;
        if a[middle] == b[middle] { equal = middle + 1 } else { end = middle }
    }
    equal
}

fn order(a: &[BlockHash], b: &[BlockHash]) -> Ordering {
    let equal = common_blocks(a, b);
    a.get(equal).cmp(&b.get(equal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use vcr_core::hash::ChainHasher;

    fn chain(contents: &[u8]) -> Chain {
        let mut hasher = ChainHasher::new(1, 0);
        contents.iter().filter_map(|&token| hasher.push_token(u32::from(token))).collect()
    }

    proptest! {
        #[test]
        fn blocks_are_those_of_a_set(
            actions in prop::collection::vec((prop::collection::vec(0u8..3, 0..8), any::<bool>(), 0usize..32), 1..80),
        ) {
            let mut active = ActivePrompts::default();
            let mut model: Vec<(Chain, u64)> = Vec::new();
            for (request, (contents, removes, which)) in actions.into_iter().enumerate() {
                if removes && !model.is_empty() {
                    let (chain, request) = model.swap_remove(which % model.len());
                    active.remove(&chain, request);
                } else {
                    let chain = chain(&contents);
                    let blocks: BTreeSet<_> = model.iter().flat_map(|(other, _)| other.iter()).collect();
                    let shared = chain.iter().take_while(|hash| blocks.contains(hash)).count();
                    prop_assert_eq!(active.shared_blocks(&chain), shared);
                    active.insert(chain.clone(), request as u64);
                    model.push((chain, request as u64));
                }
                let blocks: BTreeSet<_> = model.iter().flat_map(|(other, _)| other.iter()).collect();
                prop_assert_eq!(active.distinct_blocks(), blocks.len() as u64);
            }
        }
    }
}
