//! Digests as registries write them.

use sha2::{Digest as _, Sha256};

/// `sha256:` and the digest in lower-case hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}
