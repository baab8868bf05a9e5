//! Identity of a prompt: one chained hash for each of its full blocks, and one for the whole of it.
//!
//! A hash covers every token before the end of its block, so equal hashes mean
//! equal prefixes, whatever names a frontend chose. Adapters, cache salts and
//! images are part of it.

use std::fmt;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A hash in a capture: 16 hexadecimal digits in a text. A number is accepted
/// as well.
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

/// In one pass: captures hold millions of them.
fn parse(text: &str) -> Option<u64> {
    let digits: &[u8; 16] = text.as_bytes().try_into().ok()?;
    digits.iter().try_fold(0, |hash, digit| Some(hash << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

/// The scheme of the hashes of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HashScheme {
    /// XXH3-64 of a block's tokens as little-endian 32-bit words, with the hash
    /// before it as the seed; the first seed is XXH3-64 of the extra keys.
    #[default]
    #[serde(rename = "xxh3-64")]
    Xxh3,
    /// vllm-vcr's: FNV-1a over the parent hash, the tokens and the extra keys.
    #[serde(rename = "fnv1a-64")]
    Fnv1a,
}

/// Keys that distinguish a prompt from others of the same tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtraKeys<'a> {
    /// Name of the adapter.
    pub lora: Option<&'a str>,
    /// The salt of its tenant.
    pub cache_salt: Option<&'a str>,
    /// Identifiers of its images, audio and video, in order.
    pub images: &'a [&'a str],
}

/// The hashes of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptChain {
    /// One for each full block.
    pub blocks: Vec<BlockHash>,
    /// That of the whole prompt; the last block's where it ends with one.
    pub whole: BlockHash,
}

/// Hashes prompts as one capture has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptHasher {
    /// Hash function and its inputs.
    pub scheme: HashScheme,
    /// Tokens of a block; at least 1.
    pub block_size_tokens: u32,
    /// The parent of the first block of [`HashScheme::Fnv1a`].
    pub none_seed: u64,
}

impl PromptHasher {
    /// The hashes of the prompt `tokens`.
    #[must_use]
    pub fn chain(&self, tokens: &[u32], keys: &ExtraKeys<'_>) -> PromptChain {
        let mut chain = PromptChain::default();
        self.chain_into(tokens, keys, &mut chain);
        chain
    }

    /// The same, in buffers that are used again.
    pub fn chain_into(&self, tokens: &[u32], keys: &ExtraKeys<'_>, chain: &mut PromptChain) {
        chain.blocks.clear();
        let mut bytes = Vec::new();
        let mut hash = match self.scheme {
            HashScheme::Xxh3 => {
                keys.write(true, &mut bytes);
                xxh3_64(&bytes)
            }
            HashScheme::Fnv1a => self.none_seed,
        };
        let mut blocks = tokens.chunks_exact(self.block_size_tokens as usize);
        for (index, block) in blocks.by_ref().enumerate() {
            hash = self.next(hash, block, keys, index == 0, &mut bytes);
            chain.blocks.push(BlockHash(hash));
        }
        let tail = blocks.remainder();
        if !tail.is_empty() || chain.blocks.is_empty() {
            hash = self.next(hash, tail, keys, chain.blocks.is_empty(), &mut bytes);
        }
        chain.whole = BlockHash(hash);
    }

    fn next(&self, parent: u64, tokens: &[u32], keys: &ExtraKeys<'_>, is_first: bool, bytes: &mut Vec<u8>) -> u64 {
        bytes.clear();
        match self.scheme {
            HashScheme::Xxh3 => {
                bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                xxh3_64_with_seed(bytes, parent)
            }
            HashScheme::Fnv1a => {
                bytes.extend(parent.to_le_bytes());
                bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                // Images are not part of it.
                ExtraKeys { images: &[], ..*keys }.write(is_first, bytes);
                fnv1a(bytes)
            }
        }
    }
}

impl ExtraKeys<'_> {
    /// Each key as its length in 8 bytes and its text. The salt belongs to the
    /// first block only.
    fn write(&self, is_first: bool, bytes: &mut Vec<u8>) {
        let salt = self.cache_salt.filter(|_| is_first);
        for key in self.lora.into_iter().chain(salt).chain(self.images.iter().copied()) {
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

    const HASHER: PromptHasher = PromptHasher { scheme: HashScheme::Xxh3, block_size_tokens: 4, none_seed: 0 };

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
            ExtraKeys { images: &["c"], ..ExtraKeys::default() },
        ] {
            assert_ne!(HASHER.chain(&[1], &keys).whole, plain.whole, "{keys:?}");
        }
    }

    /// The vectors of `docs/reference/captures.md`, for other programs that write captures.
    #[test]
    fn hashes_are_those_of_the_documentation() {
        let tokens: Vec<u32> = (1..=9).collect();
        let keys = ExtraKeys { lora: Some("a"), cache_salt: Some("tenant"), images: &["i1"] };
        let text = |scheme, keys: &ExtraKeys<'_>| {
            let chain = PromptHasher { scheme, ..HASHER }.chain(&tokens, keys);
            let hashes = chain.blocks.iter().chain([&chain.whole]).map(BlockHash::to_string);
            hashes.collect::<Vec<_>>().join(" ")
        };
        let page = include_str!("../../../../docs/reference/captures.md");
        for (name, scheme, keys) in [
            ("xxh3-64", HashScheme::Xxh3, &ExtraKeys::default()),
            ("xxh3-64, keys", HashScheme::Xxh3, &keys),
            ("fnv1a-64", HashScheme::Fnv1a, &ExtraKeys::default()),
            ("fnv1a-64, keys", HashScheme::Fnv1a, &keys),
        ] {
            let row = format!("{name}: {}", text(scheme, keys));
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
