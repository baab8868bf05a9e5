//! Pickle protocol 5, as `pickle.dumps` of CPython 3.11 writes it
//! (`Modules/_pickle.c`).

use crate::block_hash::encode::Encode;

const PROTO: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const MARK: u8 = b'(';
const STOP: u8 = b'.';
const NONE: u8 = b'N';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const EMPTY_TUPLE: u8 = b')';
/// Opcodes for tuples of one, two and three values.
const SMALL_TUPLES: [u8; 3] = [0x85, 0x86, 0x87];
const TUPLE: u8 = b't';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';
/// Opcodes with a length field of one, four and eight bytes.
const BYTES_OPS: [u8; 3] = [b'C', b'B', 0x8e];
const TEXT_OPS: [u8; 3] = [0x8c, b'X', 0x8d];

/// Length of an opcode and a length field.
const FRAME_HEADER_LEN: usize = 9;
/// Shorter frames have no header.
const FRAME_LEN_MIN: usize = 4;
/// A frame ends before the first value that begins at or after this length. Strings of at least this length are
/// written between frames.
const FRAME_LEN_TARGET: usize = 64 * 1024;

/// The pickle of one value.
#[derive(Debug, Default)]
pub(crate) struct Pickle {
    out: Vec<u8>,
    /// Offset of the open frame's header.
    frame: Option<usize>,
    /// Number of memoised objects.
    memo_len: u32,
    /// Shared texts that have occurred, with their memo index.
    shared: Vec<(SharedText, u32)>,
}

/// A string that is the same object everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharedText {
    /// A string constant of the program.
    Constant(&'static str),
    /// An empty string or one character.
    Short(Option<char>),
}

impl SharedText {
    fn from_outside(text: &str) -> Option<Self> {
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (first, None) if first.is_none_or(|char| char <= '\u{ff}') => Some(Self::Short(first)),
            _ => None,
        }
    }
}

impl Pickle {
    fn write(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend_from_slice(&[FRAME, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        self.out.extend_from_slice(bytes);
    }

    fn close_frame(&mut self) {
        let Some(start) = self.frame.take() else { return };
        let body = start + FRAME_HEADER_LEN;
        let len = self.out.len() - body;
        if len < FRAME_LEN_MIN {
            self.out.drain(start..body);
        } else {
            self.out[start + 1..body].copy_from_slice(&(len as u64).to_le_bytes());
        }
    }

    /// Begins a value. Only here may a frame end.
    fn begin_value(&mut self) {
        if let Some(start) = self.frame
            && self.out.len() - start - FRAME_HEADER_LEN >= FRAME_LEN_TARGET
        {
            self.close_frame();
        }
    }

    fn memoize(&mut self) -> u32 {
        self.write(&[MEMOIZE]);
        self.memo_len += 1;
        self.memo_len - 1
    }

    fn refer(&mut self, memo_index: u32) {
        self.begin_value();
        if let Ok(byte) = u8::try_from(memo_index) {
            self.write(&[BINGET, byte]);
        } else {
            let [a, b, c, d] = memo_index.to_le_bytes();
            self.write(&[LONG_BINGET, a, b, c, d]);
        }
    }

    /// Writes a new bytes object or string and returns its memo index.
    fn new_object(&mut self, ops: [u8; 3], content: &[u8]) -> u32 {
        self.begin_value();
        let len = content.len() as u64;
        let (op, width) = if u8::try_from(len).is_ok() {
            (ops[0], 1)
        } else if u32::try_from(len).is_ok() {
            (ops[1], 4)
        } else {
            (ops[2], 8)
        };
        let mut head = [op, 0, 0, 0, 0, 0, 0, 0, 0];
        head[1..].copy_from_slice(&len.to_le_bytes());
        let head = &head[..=width];
        if content.len() < FRAME_LEN_TARGET {
            self.write(head);
            self.write(content);
        } else {
            self.close_frame();
            self.out.extend_from_slice(head);
            self.out.extend_from_slice(content);
        }
        self.memoize()
    }

    fn shared_text(&mut self, shared: SharedText, value: &str) {
        match self.shared.iter().find(|(written, _)| *written == shared) {
            Some(&(_, memo_index)) => self.refer(memo_index),
            None => {
                let memo_index = self.new_object(TEXT_OPS, value.as_bytes());
                self.shared.push((shared, memo_index));
            }
        }
    }

    /// Writes an integer of more than 32 bits (with sign) in the fewest bytes of two's complement.
    fn long(&mut self, value: i64) {
        let sign_bits = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
        // One sign bit must remain.
        let len = (64 - sign_bits) as usize / 8 + 1;
        let mut bytes = [LONG1, len as u8, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes[2..].copy_from_slice(&value.to_le_bytes());
        self.write(&bytes[..2 + len]);
    }
}

impl Encode for Pickle {
    fn begin(&mut self) {
        self.out.clear();
        self.out.extend_from_slice(&PROTO);
        self.frame = None;
        self.memo_len = 0;
        self.shared.clear();
    }

    fn finish(&mut self) -> &[u8] {
        self.write(&[STOP]);
        self.close_frame();
        &self.out
    }

    fn none(&mut self) {
        self.begin_value();
        self.write(&[NONE]);
    }

    fn int(&mut self, value: i64) {
        self.begin_value();
        if let Ok(byte) = u8::try_from(value) {
            self.write(&[BININT1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            let [a, b] = short.to_le_bytes();
            self.write(&[BININT2, a, b]);
        } else if let Ok(word) = i32::try_from(value) {
            let [a, b, c, d] = word.to_le_bytes();
            self.write(&[BININT, a, b, c, d]);
        } else {
            self.long(value);
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.new_object(BYTES_OPS, value);
    }

    fn text(&mut self, value: &str) {
        match SharedText::from_outside(value) {
            Some(shared) => self.shared_text(shared, value),
            None => {
                self.new_object(TEXT_OPS, value.as_bytes());
            }
        }
    }

    fn constant(&mut self, value: &'static str) {
        self.shared_text(SharedText::Constant(value), value);
    }

    fn tuple(&mut self, len: usize, items: impl FnOnce(&mut Self)) {
        self.begin_value();
        match len {
            0 => self.write(&[EMPTY_TUPLE]),
            1..=3 => {
                items(self);
                self.write(&[SMALL_TUPLES[len - 1]]);
                self.memoize();
            }
            _ => {
                self.write(&[MARK]);
                items(self);
                self.write(&[TUPLE]);
                self.memoize();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
        let mut pickle = Pickle::default();
        pickle.begin();
        write(&mut pickle);
        pickle.finish().to_vec()
    }

    /// `pickle.dumps("vllm-none-hash", protocol=5)`.
    #[test]
    fn a_string_is_framed_and_memoised() {
        let expected = b"\x80\x05\x95\x12\0\0\0\0\0\0\0\x8c\x0evllm-none-hash\x94.";
        assert_eq!(pickled(|pickle| pickle.text("vllm-none-hash")), expected);
    }

    /// The opcodes of `pickle.dumps(value, protocol=5)`, without the frame header and the final stop.
    #[test]
    fn integers_take_the_shortest_opcode() {
        let cases: [(i64, &[u8]); 14] = [
            (0, b"K\0"),
            (255, b"K\xff"),
            (256, b"M\0\x01"),
            (65535, b"M\xff\xff"),
            (65536, b"J\0\0\x01\0"),
            (i64::from(i32::MAX), b"J\xff\xff\xff\x7f"),
            (-1, b"J\xff\xff\xff\xff"),
            (i64::from(i32::MIN), b"J\0\0\0\x80"),
            (1 << 31, b"\x8a\x05\0\0\0\x80\0"),
            ((1 << 39) - 1, b"\x8a\x05\xff\xff\xff\xff\x7f"),
            (1 << 39, b"\x8a\x06\0\0\0\0\x80\0"),
            (-(1 << 31) - 1, b"\x8a\x05\xff\xff\xff\x7f\xff"),
            (-(1 << 39), b"\x8a\x05\0\0\0\0\x80"),
            (i64::MIN, b"\x8a\x08\0\0\0\0\0\0\0\x80"),
        ];
        for (value, bytes) in cases {
            let pickle = pickled(|pickle| pickle.int(value));
            assert!(pickle.ends_with(&[bytes, b"."].concat()), "{value}: {pickle:x?}");
            let header = if bytes.len() < 3 { 0 } else { FRAME_HEADER_LEN };
            assert_eq!(pickle.len(), PROTO.len() + header + bytes.len() + 1, "{value}");
        }
    }
}
