//! A cursor over the MessagePack of one frame.
//!
//! The reader never trusts a length. The memory that it reserves for a container is limited by the remaining bytes
//! of the frame and by a constant; a larger container grows while its items are read.

use rmp::Marker;
use rmp::decode::bytes::BytesReadError;
use rmp::decode::{self, Bytes, NumValueReadError};

use super::error::{DecodeError, Problem, Step};

/// Memory that may be reserved for a container before its items are read, if the rest of the frame is shorter than
/// this.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// Maximum nesting depth of values.
pub(super) const MAX_DEPTH: usize = 64;

#[derive(Clone)]
pub(crate) struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

/// Reads the whole `frame` as one `message`.
pub(crate) fn whole<'a, T>(
    message: &'static str,
    frame: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut reader = Reader::new(frame);
    let value = read(&mut reader).map_err(|error| error.of(message))?;
    match reader.remaining() {
        0 => Ok(value),
        bytes => Err(reader.error(Problem::Trailing { bytes }).of(message)),
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    pub(crate) fn error(&self, problem: Problem) -> DecodeError {
        DecodeError::new(problem, self.at)
    }

    pub(crate) fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.data[start..self.at]
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.data[self.at..]
    }

    /// The number of items `T` to reserve memory for, in a container of `len` items. Each item takes at least a
    /// byte of the frame, but may take hundreds of bytes of memory. So the rest of the frame limits the reserved
    /// bytes, not only the number of items.
    pub(crate) fn capacity<T>(&self, len: usize) -> usize {
        let bytes = self.remaining().max(RESERVED_BYTES_MAX);
        len.min(self.remaining()).min(bytes / size_of::<T>().max(1))
    }

    /// The kind of the next value.
    pub(crate) fn peek(&self) -> Option<Marker> {
        self.data.get(self.at).map(|byte| Marker::from_u8(*byte))
    }

    /// Reads one value of MessagePack, or the head of one, with the crate rmp. Not inlined, so that the inlined
    /// readers of one-byte heads and token ids, which do not need it, stay short.
    #[inline(never)]
    fn primitive<T, E>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&mut Bytes<'a>) -> Result<T, E>,
    ) -> Result<T, DecodeError>
    where
        NumValueReadError<BytesReadError>: From<E>,
    {
        let start = self.at;
        let mut bytes = Bytes::new(&self.data[start..]);
        let value = read(&mut bytes);
        self.at += bytes.position() as usize;
        value.map_err(|error| match error.into() {
            NumValueReadError::TypeMismatch(marker) => unexpected(expected, marker, start),
            _ => self.error(Problem::Truncated { expected }),
        })
    }

    /// Skips a head of one byte, which contains the length.
    fn short(&mut self, len: u8) -> usize {
        self.at += 1;
        usize::from(len)
    }

    fn bytes(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], DecodeError> {
        if len > self.remaining() {
            return Err(self.error(Problem::Truncated { expected }));
        }
        self.at += len;
        Ok(&self.data[self.at - len..self.at])
    }

    pub(crate) fn take_nil(&mut self) -> bool {
        let is_nil = self.peek() == Some(Marker::Null);
        self.at += usize::from(is_nil);
        is_nil
    }

    pub(crate) fn bool(&mut self) -> Result<bool, DecodeError> {
        self.primitive("a boolean", decode::read_bool)
    }

    /// Reads any integer. Not inlined, to keep [`Self::u32`] short.
    #[inline(never)]
    pub(crate) fn integer(&mut self) -> Result<i128, DecodeError> {
        self.primitive("an integer", decode::read_int)
    }

    /// Reads an integer that `T` can hold.
    pub(crate) fn narrow<T: TryFrom<i128>>(&mut self, expected: &'static str) -> Result<T, DecodeError> {
        let at = self.at;
        let found = self.integer()?;
        T::try_from(found).map_err(|_| DecodeError::new(Problem::OutOfRange { expected, found }, at))
    }

    /// Reads a token id or another small number; the common encodings come first.
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        match (self.peek(), &self.data[self.at..]) {
            (Some(Marker::U32), [_, a, b, c, d, ..]) => {
                self.at += 5;
                Ok(u32::from_be_bytes([*a, *b, *c, *d]))
            }
            (Some(Marker::U16), [_, a, b, ..]) => {
                self.at += 3;
                Ok(u32::from(u16::from_be_bytes([*a, *b])))
            }
            _ => self.narrow("an integer from 0 to 4294967295"),
        }
    }

    /// Reads a number. Frontends also write whole floats as integers.
    pub(crate) fn f64(&mut self) -> Result<f64, DecodeError> {
        let expected = "a number";
        match self.peek() {
            Some(Marker::F64) => self.primitive(expected, decode::read_f64),
            Some(Marker::F32) => self.primitive(expected, decode::read_f32).map(f64::from),
            _ => self.primitive(expected, decode::read_int::<i128, _>).map(|value| value as f64),
        }
    }

    pub(crate) fn f32_exact(&mut self) -> Result<f32, DecodeError> {
        self.primitive("a 32-bit float", decode::read_f32)
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, DecodeError> {
        let expected = "a text";
        let len = match self.peek() {
            Some(Marker::FixStr(len)) => self.short(len),
            _ => self.primitive(expected, decode::read_str_len)? as usize,
        };
        let bytes = self.bytes(len, expected)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::new(Problem::NotUtf8, self.at - len))
    }

    pub(crate) fn bin(&mut self) -> Result<&'a [u8], DecodeError> {
        let expected = "bytes";
        let len = self.primitive(expected, decode::read_bin_len)?;
        self.bytes(len as usize, expected)
    }

    /// Reads the type and the bytes of an extension value.
    pub(crate) fn ext(&mut self) -> Result<(i8, &'a [u8]), DecodeError> {
        let expected = "an extension value";
        let head = self.primitive(expected, decode::read_ext_meta)?;
        Ok((head.typeid, self.bytes(head.size as usize, expected)?))
    }

    /// Reads the length of an array, whose items follow.
    pub(crate) fn array(&mut self) -> Result<usize, DecodeError> {
        match self.peek() {
            Some(Marker::FixArray(len)) => Ok(self.short(len)),
            _ => self.primitive("an array", decode::read_array_len).map(|len| len as usize),
        }
    }

    /// Reads the number of pairs of a map, which follow.
    pub(crate) fn map(&mut self) -> Result<usize, DecodeError> {
        match self.peek() {
            Some(Marker::FixMap(len)) => Ok(self.short(len)),
            _ => self.primitive("a map", decode::read_map_len).map(|len| len as usize),
        }
    }

    /// Reads the key of a field; `None` if it is no text.
    pub(crate) fn key(&mut self) -> Result<Option<&'a str>, DecodeError> {
        match self.peek() {
            Some(marker) if is_str(marker) => self.str().map(Some),
            _ => self.skip().map(|()| None),
        }
    }

    /// Skips any value, without recursion into nested values.
    pub(crate) fn skip(&mut self) -> Result<(), DecodeError> {
        let expected = "a value";
        let mut pending: u64 = 1;
        while pending > 0 {
            pending -= 1;
            match self.peek() {
                Some(Marker::FixArray(_) | Marker::Array16 | Marker::Array32) => pending += self.array()? as u64,
                Some(Marker::FixMap(_) | Marker::Map16 | Marker::Map32) => pending += 2 * self.map()? as u64,
                Some(marker) if is_str(marker) => _ = self.str()?,
                Some(Marker::Bin8 | Marker::Bin16 | Marker::Bin32) => _ = self.bin()?,
                Some(Marker::Null | Marker::True | Marker::False) => self.at += 1,
                Some(Marker::F32 | Marker::F64) => _ = self.f64()?,
                Some(Marker::Reserved) => return Err(unexpected(expected, Marker::Reserved, self.at)),
                Some(marker) if is_ext(marker) => _ = self.ext()?,
                Some(_) => _ = self.integer()?,
                None => return Err(self.error(Problem::Truncated { expected })),
            }
        }
        Ok(())
    }

    /// Reads a list, each item with `item`.
    pub(crate) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let len = self.array()?;
        let mut items = Vec::with_capacity(self.capacity::<T>(len));
        for index in 0..len {
            items.push(item(self).map_err(|error| error.within(Step::Item(index)))?);
        }
        Ok(items)
    }
}

#[cold]
fn unexpected(expected: &'static str, marker: Marker, at: usize) -> DecodeError {
    DecodeError::new(Problem::Unexpected { expected, found: name(marker) }, at)
}

/// The name of the type of values with this marker, for errors.
pub(crate) fn name(marker: Marker) -> &'static str {
    match marker {
        Marker::Null => "nil",
        Marker::True | Marker::False => "a boolean",
        Marker::F32 | Marker::F64 => "a float",
        marker if is_str(marker) => "a text",
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => "bytes",
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => "an array",
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => "a map",
        Marker::Reserved => "the byte c1, which MessagePack does not use",
        marker if is_ext(marker) => "an extension value",
        _ => "an integer",
    }
}

pub(crate) fn is_str(marker: Marker) -> bool {
    matches!(marker, Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32)
}

pub(crate) fn is_ext(marker: Marker) -> bool {
    use Marker::{Ext8, Ext16, Ext32, FixExt1, FixExt2, FixExt4, FixExt8, FixExt16};
    matches!(marker, FixExt1 | FixExt2 | FixExt4 | FixExt8 | FixExt16 | Ext8 | Ext16 | Ext32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element as large as an output of a step.
    type Large = [u64; 64];

    #[test]
    fn a_false_length_reserves_little_and_a_true_one_is_read_whole() {
        for frame_bytes in [1_000_000, 30_000_000] {
            let frame = vec![0xc0; frame_bytes];
            let reader = Reader::new(&frame);
            let reserved = reader.capacity::<Large>(u32::MAX as usize) * size_of::<Large>();
            assert!(reserved <= frame_bytes.max(RESERVED_BYTES_MAX), "{reserved} bytes for {frame_bytes}");
            // Tokens take up to five bytes, so memory for this many is reserved at once.
            assert_eq!(reader.capacity::<u32>(frame_bytes / 5), frame_bytes / 5);
            assert_eq!((reader.capacity::<Large>(100), reader.capacity::<()>(10)), (100, 10));
        }

        let len = 100_000_u32;
        let frame: Vec<u8> = [&[0xdd][..], &len.to_be_bytes(), &vec![7; len as usize]].concat();
        let items = Reader::new(&frame).list(Reader::u32).expect("they are all there");
        assert_eq!((items.len(), items.iter().all(|item| *item == 7)), (len as usize, true));
    }
}
