use sha2::{Digest as _, Sha256};

/// SHA-256 of a component, in lower-case hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
