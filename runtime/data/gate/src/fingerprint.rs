//! Fingerprints: 64-bit FNV-1a hashes over a fixed layout of bytes.
//!
//! Version 1 of the layout is one ASCII letter for the kind (`t` token ids, `e` stream events, `v` vectors,
//! `s` text, `x` fingerprints of other tools), one byte with the version, the number of items as eight bytes,
//! then the items. Numbers are little-endian:
//!
//! * a token id has four bytes
//! * an event has eight bytes for its time in nanoseconds and four for its tokens
//! * a component of a vector is an IEEE 754 double in eight bytes, with -0 as 0
//! * the items of a text are its bytes of UTF-8
//!
//! Fingerprints are printed as 16 hexadecimal digits.

/// Version of the layout. The version is part of the hashed bytes.
pub const FINGERPRINT_VERSION: u8 = 1;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

struct Fnv(u64);

impl Fnv {
    fn of_kind(kind: u8, items: usize) -> Self {
        let mut hash = Self(OFFSET);
        hash.add(&[kind, FINGERPRINT_VERSION]);
        hash.add(&(items as u64).to_le_bytes());
        hash
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
}

/// The fingerprint of the token ids of an answer.
#[must_use]
pub fn of_token_ids(ids: &[u32]) -> u64 {
    let mut hash = Fnv::of_kind(b't', ids.len());
    ids.iter().for_each(|id| hash.add(&id.to_le_bytes()));
    hash.0
}

/// The fingerprint of stream events: (nanoseconds since the request was sent, number of tokens).
#[must_use]
pub fn of_events(events: impl ExactSizeIterator<Item = (u64, u32)>) -> u64 {
    let mut hash = Fnv::of_kind(b'e', events.len());
    for (at_ns, tokens) in events {
        hash.add(&at_ns.to_le_bytes());
        hash.add(&tokens.to_le_bytes());
    }
    hash.0
}

/// The fingerprint of a vector of numbers.
#[must_use]
pub fn of_vector(vector: &[f64]) -> u64 {
    let mut hash = Fnv::of_kind(b'v', vector.len());
    for value in vector {
        // 0 and -0 are equal.
        let value = if *value == 0.0 { 0.0 } else { *value };
        hash.add(&value.to_bits().to_le_bytes());
    }
    hash.0
}

/// The fingerprint of a text.
#[must_use]
pub fn of_text(text: &str) -> u64 {
    let mut hash = Fnv::of_kind(b's', text.len());
    hash.add(text.as_bytes());
    hash.0
}

/// The fingerprint of a fingerprint that another tool computed.
pub(crate) fn of_explicit(fingerprint: &str) -> u64 {
    let mut hash = Fnv::of_kind(b'x', fingerprint.len());
    hash.add(fingerprint.as_bytes());
    hash.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second implementation of FNV-1a over the bytes of a layout.
    fn plain(bytes: &[u8]) -> u64 {
        let prime = (1_u128 << 40) + 0x1b3;
        bytes
            .iter()
            .fold(OFFSET, |hash, byte| ((u128::from(hash ^ u64::from(*byte)) * prime) & u128::from(u64::MAX)) as u64)
    }

    #[test]
    fn the_layout_is_what_is_documented() {
        // Published value of FNV-1a for the letter a.
        assert_eq!(plain(b"a"), 0xaf63_dc4c_8601_ec8c);
        let tokens = [&b"t\x01"[..], &[2, 0, 0, 0, 0, 0, 0, 0], &[7, 0, 0, 0], &[0, 1, 0, 0]].concat();
        assert_eq!(of_token_ids(&[7, 256]), plain(&tokens));
        let events = [&b"e\x01"[..], &[1, 0, 0, 0, 0, 0, 0, 0], &[5, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 0]].concat();
        assert_eq!(of_events([(5, 2)].into_iter()), plain(&events));
        let one = 1.0_f64.to_bits().to_le_bytes();
        let vector = [&b"v\x01"[..], &[1, 0, 0, 0, 0, 0, 0, 0], &one].concat();
        assert_eq!(of_vector(&[1.0]), plain(&vector));
        assert_eq!(of_text("ab"), plain(b"s\x01\x02\0\0\0\0\0\0\0ab"));
        assert_eq!(of_explicit("ab"), plain(b"x\x01\x02\0\0\0\0\0\0\0ab"));
    }

    #[test]
    fn kinds_and_boundaries_do_not_collide() {
        assert_eq!(of_vector(&[0.0]), of_vector(&[-0.0]));
        assert_ne!(of_token_ids(&[]), of_vector(&[]));
        assert_ne!(of_token_ids(&[1]), of_token_ids(&[1, 0]));
        assert_ne!(of_text("a"), of_explicit("a"));
    }
}
