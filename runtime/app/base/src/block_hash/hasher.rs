//! Computes block hashes.

use crate::block_hash::cbor::Cbor;
use crate::block_hash::encode::{encode_block, encode_text};
use crate::block_hash::pickle::Pickle;
use crate::block_hash::{Digest, ExtraKey, HashAlgorithm, HashRules};

/// vLLM's `DEFAULT_NONE_HASH_SEED`.
const DEFAULT_SEED: &str = "vllm-none-hash";

/// Seed of the hash that stands for the parent of a first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed<'a> {
    /// Value of the environment variable `PYTHONHASHSEED`; it may be empty.
    PythonHashSeed(&'a str),
    /// `PYTHONHASHSEED` is not set.
    Unset {
        /// Used in place of the random bytes that vLLM draws at startup, if it draws any
        /// ([`BlockHasher::draws_seed`]).
        random: [u8; 32],
    },
}

/// Hashes blocks like a vLLM engine.
///
/// Allocates nothing once its buffer has the size of an encoded block.
#[derive(Debug)]
pub struct BlockHasher {
    algorithm: HashAlgorithm,
    rules: HashRules,
    none_hash: Digest,
    buffer: Buffer,
}

#[derive(Debug)]
enum Buffer {
    Pickle(Pickle),
    Cbor(Cbor),
}

impl Buffer {
    fn text(&mut self, text: &str) -> &[u8] {
        match self {
            Self::Pickle(out) => encode_text(out, text),
            Self::Cbor(out) => encode_text(out, text),
        }
    }
}

impl BlockHasher {
    /// Makes the hasher of an engine with these settings.
    #[must_use]
    pub fn new(algorithm: HashAlgorithm, rules: HashRules, seed: Seed<'_>) -> Self {
        let mut buffer =
            if algorithm.reads_cbor() { Buffer::Cbor(Cbor::default()) } else { Buffer::Pickle(Pickle::default()) };
        let none_hash = none_hash(algorithm, rules, seed, &mut buffer);
        Self { algorithm, rules, none_hash, buffer }
    }

    /// Whether an engine without `PYTHONHASHSEED` draws random bytes, so that no other process can compute its
    /// hashes.
    #[must_use]
    pub fn draws_seed(algorithm: HashAlgorithm, rules: HashRules) -> bool {
        !rules.has_fixed_seed() || !algorithm.is_cryptographic()
    }

    /// vLLM's `NONE_HASH`, which stands for the parent of a first block.
    #[must_use]
    pub fn none_hash(&self) -> &Digest {
        &self.none_hash
    }

    /// Hashes the block with `tokens` that follows `parent`.
    ///
    /// # Panics
    ///
    /// If `extra` is not in the order of [`ExtraKey`].
    #[must_use]
    pub fn hash_block(&mut self, parent: Option<&Digest>, tokens: &[u32], extra: &[ExtraKey<'_>]) -> Digest {
        self.hash_block_ahead(parent, tokens, extra, &[])
    }

    /// Hashes the block with `tokens` that follows `parent`, including the lookahead tokens `ahead` after the block
    /// (`num_hash_lookahead_tokens`, since 0.33). `extra` has the keys of all these tokens.
    ///
    /// # Panics
    ///
    /// If `extra` is not in the order of [`ExtraKey`].
    #[must_use]
    pub fn hash_block_ahead(
        &mut self,
        parent: Option<&Digest>,
        tokens: &[u32],
        extra: &[ExtraKey<'_>],
        ahead: &[u32],
    ) -> Digest {
        assert!(extra.is_sorted_by_key(ExtraKey::rank), "extra keys out of order: {extra:?}");
        let parent = parent.unwrap_or(&self.none_hash);
        let bytes = match &mut self.buffer {
            Buffer::Pickle(out) => encode_block(out, self.rules, parent, tokens, extra, ahead),
            Buffer::Cbor(out) => encode_block(out, self.rules, parent, tokens, extra, ahead),
        };
        self.algorithm.digest(bytes)
    }
}

/// Computes vLLM's `init_none_hash`.
fn none_hash(algorithm: HashAlgorithm, rules: HashRules, seed: Seed<'_>, buffer: &mut Buffer) -> Digest {
    let mut hash_of = |text: &str| algorithm.digest(buffer.text(text));
    match seed {
        Seed::PythonHashSeed(seed) => hash_of(seed),
        Seed::Unset { .. } if !BlockHasher::draws_seed(algorithm, rules) => hash_of(DEFAULT_SEED),
        Seed::Unset { random } if rules.has_fixed_seed() => hash_of(&hex::encode(random)),
        // Up to 0.28 the random bytes are the hash itself, even if the algorithm's hashes are shorter.
        Seed::Unset { random } => Digest::new(&random),
    }
}
