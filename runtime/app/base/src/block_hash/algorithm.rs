use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use crate::block_hash::Digest;

/// Hash algorithm of block hashes: `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256 of the pickle.
    #[default]
    Sha256,
    /// SHA-256 of the canonical CBOR.
    Sha256Cbor,
    /// XXH3, 128 bits, of the pickle.
    Xxhash,
    /// XXH3, 128 bits, of the canonical CBOR.
    XxhashCbor,
}

/// An algorithm name that vLLM does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid hash algorithm `{name}`: expected sha256, sha256_cbor, xxhash or xxhash_cbor")]
pub struct UnknownAlgorithm {
    /// The unknown name.
    pub name: String,
}

impl HashAlgorithm {
    const ALL: [Self; 4] = [Self::Sha256, Self::Sha256Cbor, Self::Xxhash, Self::XxhashCbor];

    /// Name of the algorithm in vLLM.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
        }
    }

    pub(crate) fn is_cryptographic(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha256Cbor)
    }

    pub(crate) fn reads_cbor(self) -> bool {
        matches!(self, Self::Sha256Cbor | Self::XxhashCbor)
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Digest {
        if self.is_cryptographic() {
            Digest::new(&Sha256::digest(bytes))
        } else {
            // Python's `xxh3_128_digest` returns big-endian bytes.
            Digest::new(&xxh3_128(bytes).to_be_bytes())
        }
    }
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let known = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        known.ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}
