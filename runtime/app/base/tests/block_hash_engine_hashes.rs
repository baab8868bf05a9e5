//! Properties of an engine's block digests under random stores and removals.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;
use vcr_base::block_hash::{
    BlockHasher, Digest, EngineHashes, EngineHashesError, ExtraKey, HashAlgorithm, HashRules, Seed,
};

const BLOCK_SIZE_TOKENS: u32 = 4;
const SALT: [ExtraKey<'_>; 1] = [ExtraKey::CacheSalt("s1")];

fn hasher() -> BlockHasher {
    BlockHasher::new(HashAlgorithm::Sha256, HashRules::V0_31, Seed::PythonHashSeed("0"))
}

fn engine_hashes() -> EngineHashes {
    EngineHashes::new(hasher(), NonZeroU32::new(BLOCK_SIZE_TOKENS).expect("not zero"))
}

/// A prompt: variants share the first two blocks, except that a salt separates them.
#[derive(Clone, Copy, Debug)]
struct Chain {
    salted: bool,
    branch: u64,
}

impl Chain {
    const LEN: usize = 5;

    /// The engine's id of the block at `index`: unique to its prefix.
    fn id(self, index: usize) -> u64 {
        let branch = if index < 2 { 0 } else { self.branch };
        1000 * u64::from(self.salted) + 100 * branch + index as u64
    }

    fn tokens(self, index: usize) -> [u32; BLOCK_SIZE_TOKENS as usize] {
        [self.id(index) as u32 % 1000; BLOCK_SIZE_TOKENS as usize]
    }

    fn extra(self, index: usize) -> &'static [ExtraKey<'static>] {
        if self.salted && index == 0 { &SALT } else { &[] }
    }

    /// Computes the digests without [`EngineHashes`].
    fn digests(self) -> Vec<Digest> {
        let mut hasher = hasher();
        let mut digests: Vec<Digest> = Vec::new();
        for index in 0..Self::LEN {
            let digest = hasher.hash_block(digests.last(), &self.tokens(index), self.extra(index));
            digests.push(digest);
        }
        digests
    }
}

#[derive(Clone, Debug)]
enum Action {
    Store { chain: Chain, from: usize, len: usize },
    Remove { chain: Chain, index: usize },
    Clear,
}

fn arb_action() -> impl Strategy<Value = Action> {
    let chain = || (any::<bool>(), 0..2u64).prop_map(|(salted, branch)| Chain { salted, branch });
    prop_oneof![
        8 => (chain(), 0..Chain::LEN, 0..=Chain::LEN)
            .prop_map(|(chain, from, len)| Action::Store { chain, from, len: len.min(Chain::LEN - from) }),
        12 => (chain(), 0..Chain::LEN).prop_map(|(chain, index)| Action::Remove { chain, index }),
        1 => Just(Action::Clear),
    ]
}

fn store(
    hashes: &mut EngineHashes,
    chain: Chain,
    from: usize,
    len: usize,
    out: &mut Vec<Digest>,
) -> Result<Option<Digest>, EngineHashesError> {
    let parent = from.checked_sub(1).map(|index| chain.id(index));
    let blocks: Vec<u64> = (from..from + len).map(|index| chain.id(index)).collect();
    let tokens: Vec<u32> = (from..from + len).flat_map(|index| chain.tokens(index)).collect();
    hashes.stored(parent, &blocks, &tokens, |index| chain.extra(from + index), out)
}

proptest! {
    /// Duplicate blocks of an engine must neither hide a remaining block from a router nor keep a removed one.
    #[test]
    fn a_block_is_known_until_all_its_copies_are_removed(actions in proptest::collection::vec(arb_action(), 1..80)) {
        let mut hashes = engine_hashes();
        let mut copies: BTreeMap<u64, u32> = BTreeMap::new();
        for action in actions {
            match action {
                Action::Store { chain, from, len } => {
                    let mut out = Vec::new();
                    let stored = store(&mut hashes, chain, from, len, &mut out);
                    let digests = chain.digests();
                    let parent = from.checked_sub(1);
                    match parent.map(|index| chain.id(index)).filter(|id| !copies.contains_key(id)) {
                        Some(parent) => {
                            prop_assert_eq!(stored, Err(EngineHashesError::UnknownParent { parent }));
                            prop_assert!(out.is_empty());
                        }
                        None => {
                            prop_assert_eq!(stored, Ok(parent.map(|index| digests[index])));
                            prop_assert_eq!(&out, &digests[from..from + len]);
                            (from..from + len).for_each(|index| *copies.entry(chain.id(index)).or_default() += 1);
                        }
                    }
                }
                Action::Remove { chain, index } => {
                    let block = chain.id(index);
                    let expected = match copies.get_mut(&block) {
                        None => Err(EngineHashesError::UnknownBlock { block }),
                        Some(count) => {
                            *count -= 1;
                            Ok(chain.digests()[index])
                        }
                    };
                    copies.retain(|_, count| *count > 0);
                    prop_assert_eq!(hashes.removed(block), expected);
                }
                Action::Clear => {
                    hashes.cleared();
                    copies.clear();
                }
            }
        }
    }
}

#[test]
fn tokens_must_fill_the_blocks_exactly() {
    let mut hashes = engine_hashes();
    let mut out = Vec::new();
    for tokens in [0, 7, 9, 12] {
        let error = hashes.stored(None, &[1, 2], &vec![5; tokens], |_| &[], &mut out).unwrap_err();
        assert_eq!(error, EngineHashesError::TokenCount { blocks: 2, block_size_tokens: 4, tokens });
        assert_eq!(error.to_string(), format!("2 blocks of 4 tokens were stored with {tokens} tokens"));
    }
    assert!(out.is_empty());
    assert_eq!(hashes.removed(1), Err(EngineHashesError::UnknownBlock { block: 1 }));
}
