//! Digests as registries write them.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// `sha256:` and the digest in lower-case hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
