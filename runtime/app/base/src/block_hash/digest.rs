use std::fmt;

const MAX_LEN: usize = 32;

/// The hash of one block: 32 bytes, or 16 with xxhash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Bytes from `len` on are zero.
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl Digest {
    pub(crate) fn new(digest: &[u8]) -> Self {
        let mut bytes = [0; MAX_LEN];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, len: digest.len() as u8 }
    }

    /// The bytes, as KV events contain them with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The number in KV events by default: the low 64 bits of the digest as a big-endian integer
    /// (`maybe_convert_block_hash`).
    #[must_use]
    pub fn low_u64(&self) -> u64 {
        let low = self.as_bytes().last_chunk().expect("a digest has at least 16 bytes");
        u64::from_be_bytes(*low)
    }
}

/// Hexadecimal, as `bytes.hex()` prints it.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.as_bytes()))
    }
}
