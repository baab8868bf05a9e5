//! Computes vLLM's hashes of the blocks that the core caches, if all their tokens are known.

use std::collections::HashMap;
use std::num::NonZeroU32;

use vcr_base::block_hash::{BlockHasher, Digest, EngineHashes, ExtraKey};
use vcr_core::kv_event::{KvEvent, StoredPlaces};

use super::answers::FIRST_UNKNOWN_TOKEN;
use crate::live::{LiveAdded, LiveItem};

/// Computes the vLLM hashes of one engine's blocks.
pub(super) struct BlockNames {
    hasher: Hasher,
    /// Requests with multimodal items or a salt, by tag.
    marked: HashMap<u64, Marks>,
}

/// The data that vLLM hashes with a request's blocks in addition to the tokens.
#[derive(Default)]
struct Marks {
    items: Vec<LiveItem>,
    cache_salt: Option<String>,
}

enum Hasher {
    /// A block's hash depends on the hash of the block before it, which is also cached.
    Chained { hashes: EngineHashes, block_tokens: u64 },
    /// A block's hash depends on the tokens of the whole sequence, because a group caches only some of the
    /// sequence's blocks, or because the hash covers later tokens.
    OfSequences(Box<Sequences>),
}

struct Sequences {
    hasher: BlockHasher,
    block_tokens: usize,
    lookahead_tokens: usize,
    /// By tag: the known tokens, and the hashes of the blocks whose tokens are all known.
    known: HashMap<u64, (Vec<u32>, Vec<Digest>)>,
    /// The vLLM hashes of cached blocks, by group and the core's hash.
    cached: HashMap<(u32, u64), Digest>,
}

pub(super) struct Named {
    pub(super) blocks: Vec<u64>,
    /// For each block, the later tokens that its hash covers.
    pub(super) behind: Vec<Vec<u32>>,
}

impl BlockNames {
    pub(super) fn chained(hasher: BlockHasher, block_tokens: NonZeroU32) -> Self {
        let hashes = EngineHashes::new(hasher, block_tokens);
        Self { hasher: Hasher::Chained { hashes, block_tokens: block_tokens.get().into() }, marked: HashMap::new() }
    }

    /// Hashes blocks by the tokens of their sequence.
    pub(super) fn of_sequences(hasher: BlockHasher, block_tokens: NonZeroU32, lookahead_tokens: u32) -> Self {
        let sequences = Sequences {
            hasher,
            block_tokens: block_tokens.get() as usize,
            lookahead_tokens: lookahead_tokens as usize,
            known: HashMap::new(),
            cached: HashMap::new(),
        };
        Self { hasher: Hasher::OfSequences(Box::new(sequences)), marked: HashMap::new() }
    }

    pub(super) fn added(&mut self, tag: u64, added: &LiveAdded) {
        let cache_salt = added.cache_salt.clone().filter(|salt| !salt.is_empty());
        if !added.media.is_empty() || cache_salt.is_some() {
            self.marked.insert(tag, Marks { items: added.media.clone(), cache_salt });
        }
    }

    /// Computes the hashes of the event's blocks; None unless all tokens are known.
    pub(super) fn of_event(
        &mut self,
        group: u32,
        event: KvEvent<'_>,
        places: Option<&StoredPlaces<'_>>,
    ) -> Option<Named> {
        let named = |blocks| Named { blocks, behind: Vec::new() };
        match (&mut self.hasher, event) {
            (Hasher::Chained { hashes, block_tokens }, KvEvent::Stored { tag, parent, blocks, tokens }) => {
                if tokens.is_empty() || tokens.iter().any(|&token| token >= FIRST_UNKNOWN_TOKEN) {
                    return None;
                }
                let marks = self.marked.get(&tag);
                // The hash is unknown if a block before this one has unknown tokens.
                let first = u64::from(hashes.place_after(parent).ok()?);
                let keys: Vec<_> = (first..)
                    .take(blocks.len())
                    .map(|place| keys_of(marks, place * *block_tokens, (place + 1) * *block_tokens))
                    .collect();
                let mut digests = Vec::new();
                hashes.stored(parent, blocks, tokens, |index| keys[index].as_slice(), &mut digests).ok()?;
                Some(named(digests.iter().map(Digest::low_u64).collect()))
            }
            (Hasher::Chained { hashes, .. }, KvEvent::Removed(block)) => {
                Some(named(vec![hashes.removed(block).ok()?.low_u64()]))
            }
            (Hasher::OfSequences(sequences), KvEvent::Stored { tag, blocks, .. }) => {
                sequences.stored(group, (tag, self.marked.get(&tag)), blocks, places?)
            }
            (Hasher::OfSequences(sequences), KvEvent::Removed(block)) => {
                Some(named(vec![sequences.cached.get(&(group, block))?.low_u64()]))
            }
            (Hasher::Chained { hashes, .. }, KvEvent::Cleared) => {
                hashes.cleared();
                None
            }
            (Hasher::OfSequences(_), KvEvent::Cleared) => None,
        }
    }
}

impl Sequences {
    fn stored(
        &mut self,
        group: u32,
        (tag, marks): (u64, Option<&Marks>),
        blocks: &[u64],
        places: &StoredPlaces<'_>,
    ) -> Option<Named> {
        let (size, ahead) = (self.block_tokens, self.lookahead_tokens);
        let (tokens, digests) = self.known.entry(tag).or_default();
        // Tokens after the first unknown token cannot be hashed.
        if tokens.last().is_none_or(|&last| last < FIRST_UNKNOWN_TOKEN) {
            let known = places.unseen.iter().take_while(|&&token| token < FIRST_UNKNOWN_TOKEN).count();
            tokens.extend_from_slice(&places.unseen[..places.unseen.len().min(known + 1)]);
        }
        let is_known = |tokens: &[u32]| tokens.last().is_none_or(|&last| last < FIRST_UNKNOWN_TOKEN);
        while (digests.len() + 1) * size + ahead <= tokens.len() {
            let start = digests.len() * size;
            let covered = &tokens[start..start + size + ahead];
            if !is_known(covered) {
                break;
            }
            let (block, behind) = covered.split_at(size);
            let keys = keys_of(marks, start as u64, (start + size + ahead) as u64);
            digests.push(self.hasher.hash_block_ahead(digests.last(), block, &keys, behind));
        }
        let ends = || places.ends.iter().map(|&end| end as usize);
        let own: Vec<Digest> =
            ends().map(|end| digests.get((end / size).checked_sub(1)?).copied()).collect::<Option<_>>()?;
        let behind = ends().map(|end| tokens.get(end..end + ahead).map(<[u32]>::to_vec)).collect::<Option<_>>()?;
        for (&block, &digest) in blocks.iter().zip(&own) {
            self.cached.insert((group, block), digest);
        }
        Some(Named { blocks: own.iter().map(Digest::low_u64).collect(), behind })
    }
}

/// The extra keys of the tokens `start..end`: the multimodal items among them, and the salt if they include the
/// first.
fn keys_of(marks: Option<&Marks>, start: u64, end: u64) -> Vec<ExtraKey<'_>> {
    let Some(Marks { items, cache_salt }) = marks else { return Vec::new() };
    let key = |item| {
        let (identifier, offset, len) = LiveItem::place(item);
        ExtraKey::of_input(identifier, (offset, len), start, end)
    };
    let salt = cache_salt.as_deref().filter(|_| start == 0).map(ExtraKey::CacheSalt);
    items.iter().filter_map(key).chain(salt).collect()
}

/// The salts of a recording, in the order of the first request with each.
#[derive(Debug, Default)]
pub(super) struct Salts {
    texts: Vec<String>,
}

impl Salts {
    /// Returns a number for this adapter and `cache_salt`. An empty text means no salt, as in vLLM.
    pub(super) fn of(&mut self, lora: Option<u32>, text: Option<&str>) -> u64 {
        let adapter = lora.map_or(0, |lora| u64::from(lora) + 1);
        let Some(text) = text.filter(|text| !text.is_empty()) else { return adapter };
        let known = self.texts.iter().position(|known| known == text);
        let number = known.unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        (number as u64 + 1) << 33 | adapter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_and_texts_are_told_apart() {
        let mut salts = Salts::default();
        let of = [
            (None, None),
            (Some(0), None),
            (Some(u32::MAX), None),
            (None, Some("a")),
            (None, Some("b")),
            (Some(0), Some("a")),
        ];
        let salts_of: Vec<u64> = of.iter().map(|&(lora, text)| salts.of(lora, text)).collect();
        for (index, salt) in salts_of.iter().enumerate() {
            assert!(!salts_of[..index].contains(salt), "{salts_of:?}");
        }
        assert_eq!(salts.of(None, Some("a")), salts_of[3]);
        assert_eq!(salts.of(None, Some("")), salts_of[0]);
    }
}
