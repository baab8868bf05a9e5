//! Computes the hash of a block from its content.

use crate::block_hash::cbor::Cbor;
use crate::block_hash::encode::{encode_block, encode_text};
use crate::block_hash::pickle::Pickle;
use crate::block_hash::{Digest, ExtraKey, HashAlgorithm, HashRules};

/// `DEFAULT_NONE_HASH_SEED`.
const DEFAULT_SEED: &str = "vllm-none-hash";

/// The seed of the hash before the first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed<'a> {
    /// The environment variable `PYTHONHASHSEED`. Set to nothing it is set.
    PythonHashSeed(&'a str),
    /// The variable is not set.
    Unset {
        /// Represents the bytes that vLLM draws at its start, if it does
        /// ([`BlockHasher::draws_seed`]).
        random: [u8; 32],
    },
}

/// Hashes blocks as one vLLM engine does.
///
/// Allocates nothing for a block once its buffer has grown to the size of one.
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
    /// A hasher as an engine of `rules` has it.
    #[must_use]
    pub fn new(algorithm: HashAlgorithm, rules: HashRules, seed: Seed<'_>) -> Self {
        let mut buffer =
            if algorithm.reads_cbor() { Buffer::Cbor(Cbor::default()) } else { Buffer::Pickle(Pickle::default()) };
        let none_hash = none_hash(algorithm, rules, seed, &mut buffer);
        Self { algorithm, rules, none_hash, buffer }
    }

    /// Whether an engine without `PYTHONHASHSEED` starts from random bytes, so that no other process has its
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

    /// The hash of the block of `tokens` that follows `parent`.
    ///
    /// # Panics
    ///
    /// If `extra` is not in the order of [`ExtraKey`].
    #[must_use]
    pub fn hash_block(&mut self, parent: Option<&Digest>, tokens: &[u32], extra: &[ExtraKey<'_>]) -> Digest {
        self.hash_block_ahead(parent, tokens, extra, &[])
    }

    /// The hash of the block of `tokens` that follows `parent`, which covers the tokens `ahead` behind it, too
    /// (`num_hash_lookahead_tokens`, since 0.33); `extra` are the keys of all these tokens.
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

/// `init_none_hash`.
fn none_hash(algorithm: HashAlgorithm, rules: HashRules, seed: Seed<'_>, buffer: &mut Buffer) -> Digest {
    let mut hash_of = |text: &str| algorithm.digest(buffer.text(text));
    match seed {
        Seed::PythonHashSeed(seed) => hash_of(seed),
        Seed::Unset { .. } if !BlockHasher::draws_seed(algorithm, rules) => hash_of(DEFAULT_SEED),
        Seed::Unset { random } if rules.has_fixed_seed() => hash_of(&hex::encode(random)),
        // To 0.28 the bytes themselves are the hash, whatever the algorithm's length.
        Seed::Unset { random } => Digest::new(&random),
    }
}
