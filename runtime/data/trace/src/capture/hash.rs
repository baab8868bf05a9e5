//! Identifies prompts by hashes: one chained hash for each full block, and one for the whole prompt.
//!
//! A hash covers all tokens up to the end of its block, so equal hashes mean equal prefixes, whatever names the
//! frontend uses. A hash also covers the adapter, the cache salt and the images. An image is covered from its
//! position on, or from the start of the prompt.

use std::fmt;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A hash in a capture, written as 16 hexadecimal digits. Readers also accept a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for BlockHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HashVisitor;
        impl Visitor<'_> for HashVisitor {
            type Value = BlockHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("16 hexadecimal digits in a text, or a whole number")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<BlockHash, E> {
                parse(text).map(BlockHash).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_u64<E>(self, number: u64) -> Result<BlockHash, E> {
                Ok(BlockHash(number))
            }
        }
        deserializer.deserialize_any(HashVisitor)
    }
}

/// Parses in one pass, because a capture can contain millions of hashes.
fn parse(text: &str) -> Option<u64> {
    let digits: &[u8; 16] = text.as_bytes().try_into().ok()?;
    digits.iter().try_fold(0, |hash, digit| Some(hash << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

/// The scheme that computes a capture's hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HashScheme {
    /// XXH3-64 of a block's tokens as little-endian 32-bit words. The seed is the previous hash; for the first
    /// block, it is XXH3-64 of the extra keys.
    #[default]
    #[serde(rename = "xxh3-64")]
    Xxh3,
    /// vllm-vcr's scheme: FNV-1a of the parent hash, the tokens and the extra keys.
    #[serde(rename = "fnv1a-64")]
    Fnv1a,
}

/// Keys that keep prompts with equal tokens apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtraKeys<'a> {
    /// Name of the adapter.
    pub lora: Option<&'a str>,
    /// The cache salt of the tenant.
    pub cache_salt: Option<&'a str>,
    /// Images, audio and video, in the order of their positions.
    pub media: &'a [MediaKey<'a>],
}

/// An image, audio or video of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaKey<'a> {
    /// Identifier of the item.
    pub identifier: &'a str,
    /// Position of the item's first placeholder in the prompt.
    pub offset: u64,
}

/// The hashes of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptChain {
    /// The hash of each full block.
    pub blocks: Vec<BlockHash>,
    /// The hash of the whole prompt. Equal to the last block's hash if the prompt ends with a full block.
    pub whole: BlockHash,
}

/// Computes the hashes of prompts for one capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptHasher {
    /// The hash function and what it covers.
    pub scheme: HashScheme,
    /// Number of tokens of a block; at least 1.
    pub block_size_tokens: u32,
    /// The parent hash of the first block, for [`HashScheme::Fnv1a`].
    pub none_seed: u64,
    /// Whether a hash covers an image only from the image's position on, so that prompts share the blocks before
    /// their images. Only for [`HashScheme::Xxh3`].
    pub places_media: bool,
}

impl PromptHasher {
    /// The hasher for captures whose prompts have no images, or images with positions.
    #[must_use]
    pub const fn new(block_size_tokens: u32) -> Self {
        Self { scheme: HashScheme::Xxh3, block_size_tokens, none_seed: 0, places_media: true }
    }

    /// The hashes of the prompt `tokens`.
    #[must_use]
    pub fn chain(&self, tokens: &[u32], keys: &ExtraKeys<'_>) -> PromptChain {
        let mut chain = PromptChain::default();
        self.chain_into(tokens, keys, &mut chain);
        chain
    }

    /// Writes the hashes of the prompt `tokens` to `chain`, whose buffers are reused.
    pub fn chain_into(&self, tokens: &[u32], keys: &ExtraKeys<'_>, chain: &mut PromptChain) {
        chain.blocks.clear();
        let mut bytes = Vec::new();
        let mut hash = match self.scheme {
            HashScheme::Xxh3 => {
                keys.write(true, if self.places_media { &[] } else { keys.media }, &mut bytes);
                xxh3_64(&bytes)
            }
            HashScheme::Fnv1a => self.none_seed,
        };
        let mut placed = if self.places_media { keys.media } else { &[] };
        let block_size = u64::from(self.block_size_tokens);
        let mut blocks = tokens.chunks_exact(self.block_size_tokens as usize);
        for (index, block) in blocks.by_ref().enumerate() {
            let end = (index as u64 + 1) * block_size;
            let inside = placed.iter().take_while(|medium| medium.offset < end).count();
            hash = self.next(hash, block, keys, (index == 0, &placed[..inside]), &mut bytes);
            placed = &placed[inside..];
            chain.blocks.push(BlockHash(hash));
        }
        let tail = blocks.remainder();
        if !tail.is_empty() || chain.blocks.is_empty() {
            hash = self.next(hash, tail, keys, (chain.blocks.is_empty(), placed), &mut bytes);
        }
        chain.whole = BlockHash(hash);
    }

    /// The hash of a block. `is_first` marks the first block; the `media` begin in this block.
    fn next(
        &self,
        parent: u64,
        tokens: &[u32],
        keys: &ExtraKeys<'_>,
        (is_first, media): (bool, &[MediaKey<'_>]),
        bytes: &mut Vec<u8>,
    ) -> u64 {
        bytes.clear();
        match self.scheme {
            HashScheme::Xxh3 => {
                let mut parent = parent;
                if !media.is_empty() {
                    ExtraKeys::default().write(false, media, bytes);
                    parent = xxh3_64_with_seed(bytes, parent);
                    bytes.clear();
                }
                bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                xxh3_64_with_seed(bytes, parent)
            }
            HashScheme::Fnv1a => {
                bytes.extend(parent.to_le_bytes());
                bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                // With FNV, block hashes do not cover images.
                keys.write(is_first, &[], bytes);
                fnv1a(bytes)
            }
        }
    }
}

impl ExtraKeys<'_> {
    /// Writes each key as its length in 8 bytes and its text. The keys of `media` come last. The salt is written
    /// only for the first block.
    fn write(&self, is_first: bool, media: &[MediaKey<'_>], bytes: &mut Vec<u8>) {
        let salt = self.cache_salt.filter(|_| is_first);
        for key in self.lora.into_iter().chain(salt).chain(media.iter().map(|medium| medium.identifier)) {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
        }
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHER: PromptHasher = PromptHasher { places_media: false, ..PromptHasher::new(4) };

    #[test]
    fn prompts_share_hashes_as_far_as_they_agree() {
        let a = HASHER.chain(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &ExtraKeys::default());
        let b = HASHER.chain(&[1, 2, 3, 4, 5, 6, 7, 8, 10], &ExtraKeys::default());
        assert_eq!(a.blocks.len(), 2);
        assert_eq!(a.blocks, b.blocks);
        assert_ne!(a.whole, b.whole);
    }

    #[test]
    fn a_prompt_that_ends_with_a_block_is_known_by_it() {
        let chain = HASHER.chain(&[1, 2, 3, 4], &ExtraKeys::default());
        assert_eq!(chain.whole, chain.blocks[0]);
    }

    #[test]
    fn adapters_salts_and_images_set_prompts_apart() {
        let plain = HASHER.chain(&[1], &ExtraKeys::default());
        for keys in [
            ExtraKeys { lora: Some("a"), ..ExtraKeys::default() },
            ExtraKeys { cache_salt: Some("b"), ..ExtraKeys::default() },
            ExtraKeys { media: &[MediaKey { identifier: "c", offset: 0 }], ..ExtraKeys::default() },
        ] {
            assert_ne!(HASHER.chain(&[1], &keys).whole, plain.whole, "{keys:?}");
        }
    }

    #[test]
    fn prompts_share_what_is_before_their_images() {
        let placed = PromptHasher { places_media: true, ..HASHER };
        let tokens = [7; 14];
        let chain = |hasher: PromptHasher, media: &[(&'static str, u64)]| {
            let media: Vec<_> = media.iter().map(|&(identifier, offset)| MediaKey { identifier, offset }).collect();
            hasher.chain(&tokens, &ExtraKeys { media: &media, ..ExtraKeys::default() })
        };
        let shared = |one: &PromptChain, other: &PromptChain| {
            one.blocks.iter().zip(&other.blocks).take_while(|(one, other)| one == other).count()
        };
        let plain = chain(placed, &[]);
        assert_eq!(plain, chain(HASHER, &[]));
        let cat = chain(placed, &[("cat", 5)]);
        assert_eq!((shared(&plain, &cat), shared(&cat, &chain(placed, &[("dog", 5)]))), (1, 1));
        assert_eq!(shared(&cat, &chain(placed, &[("cat", 5), ("dog", 8)])), 2);
        assert_eq!(shared(&cat, &chain(placed, &[("cat", 5), ("dog", 13)])), 3);
        assert_ne!(cat.whole, chain(placed, &[("cat", 5), ("dog", 13)]).whole, "in the tail");
        assert_ne!(cat.whole, plain.whole);
        // Without positions, every block covers the images, so no block is shared.
        assert_eq!(shared(&chain(HASHER, &[]), &chain(HASHER, &[("cat", 5)])), 0);
    }

    /// The examples of `docs/reference/captures.md`, for other programs that write captures.
    #[test]
    fn hashes_are_those_of_the_documentation() {
        let tokens: Vec<u32> = (1..=9).collect();
        let media = [MediaKey { identifier: "i1", offset: 5 }];
        let keys = ExtraKeys { lora: Some("a"), cache_salt: Some("tenant"), media: &media };
        let text = |hasher: PromptHasher, keys: &ExtraKeys<'_>| {
            let chain = hasher.chain(&tokens, keys);
            let hashes = chain.blocks.iter().chain([&chain.whole]).map(BlockHash::to_string);
            hashes.collect::<Vec<_>>().join(" ")
        };
        let page = include_str!("../../../../../docs/reference/captures.md");
        let fnv1a = PromptHasher { scheme: HashScheme::Fnv1a, ..HASHER };
        let placed = PromptHasher { places_media: true, ..HASHER };
        for (name, hasher, keys) in [
            ("xxh3-64", HASHER, &ExtraKeys::default()),
            ("xxh3-64, keys", HASHER, &keys),
            ("xxh3-64, keys, mm_items", placed, &keys),
            ("fnv1a-64", fnv1a, &ExtraKeys::default()),
            ("fnv1a-64, keys", fnv1a, &keys),
        ] {
            let row = format!("{name}: {}", text(hasher, keys));
            assert!(page.contains(&row), "the page lacks `{row}`");
        }
    }

    #[test]
    fn hashes_are_read_as_digits_and_as_numbers() {
        let hashes: Vec<BlockHash> =
            serde_json::from_str(r#"["00000000000000ff", 18446744073709551615]"#).expect("hashes");
        assert_eq!(hashes, [BlockHash(255), BlockHash(u64::MAX)]);
        assert_eq!(serde_json::to_string(&hashes[0]).expect("text"), "\"00000000000000ff\"");
        for wrong in ["\"ff\"", "\"+0000000000000ff\"", "-1", "1.5", "null"] {
            assert!(serde_json::from_str::<BlockHash>(wrong).is_err(), "{wrong}");
        }
    }
}
