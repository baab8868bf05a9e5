//! Canonical CBOR (RFC 8949, section 4.2.1): definite lengths, shortest heads, no references. Equal to
//! `cbor2.dumps(value, canonical=True)`.

use crate::block_hash::encode::Encode;

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

#[derive(Debug, Default)]
pub(crate) struct Cbor {
    out: Vec<u8>,
}

impl Cbor {
    fn head(&mut self, major: u8, argument: u64) {
        let head = |low: u8| major << 5 | low;
        if argument < 24 {
            self.out.push(head(argument as u8));
        } else if let Ok(byte) = u8::try_from(argument) {
            self.out.extend_from_slice(&[head(24), byte]);
        } else if let Ok(short) = u16::try_from(argument) {
            self.out.push(head(25));
            self.out.extend_from_slice(&short.to_be_bytes());
        } else if let Ok(word) = u32::try_from(argument) {
            self.out.push(head(26));
            self.out.extend_from_slice(&word.to_be_bytes());
        } else {
            self.out.push(head(27));
            self.out.extend_from_slice(&argument.to_be_bytes());
        }
    }
}

impl Encode for Cbor {
    fn begin(&mut self) {
        self.out.clear();
    }

    fn finish(&mut self) -> &[u8] {
        &self.out
    }

    fn none(&mut self) {
        self.out.push(NULL);
    }

    fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.head(UNSIGNED, value),
            // CBOR encodes a negative number n as -1 - n.
            Err(_) => self.head(NEGATIVE, !value as u64),
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.head(BYTES, value.len() as u64);
        self.out.extend_from_slice(value);
    }

    fn text(&mut self, value: &str) {
        self.head(TEXT, value.len() as u64);
        self.out.extend_from_slice(value.as_bytes());
    }

    fn constant(&mut self, value: &'static str) {
        self.text(value);
    }

    fn tuple(&mut self, len: usize, items: impl FnOnce(&mut Self)) {
        self.head(ARRAY, len as u64);
        items(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cbor2.dumps(value, canonical=True).hex()`.
    #[test]
    fn integers_have_the_shortest_head() {
        let cases: [(i64, &[u8]); 12] = [
            (0, &[0x00]),
            (23, &[0x17]),
            (24, &[0x18, 0x18]),
            (255, &[0x18, 0xff]),
            (256, &[0x19, 0x01, 0x00]),
            (65535, &[0x19, 0xff, 0xff]),
            (65536, &[0x1a, 0x00, 0x01, 0x00, 0x00]),
            (1 << 32, &[0x1b, 0, 0, 0, 1, 0, 0, 0, 0]),
            (-1, &[0x20]),
            (-24, &[0x37]),
            (-25, &[0x38, 0x18]),
            (-257, &[0x39, 0x01, 0x00]),
        ];
        let mut cbor = Cbor::default();
        for (value, bytes) in cases {
            cbor.begin();
            cbor.int(value);
            assert_eq!(cbor.finish(), bytes, "{value}");
        }
    }
}
