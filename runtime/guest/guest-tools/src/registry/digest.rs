use sha2::{Digest as _, Sha256};

/// SHA-256 as registries write it: `sha256:` and lower-case hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}
