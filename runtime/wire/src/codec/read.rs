//! A cursor over the MessagePack of one frame.
//!
//! It never trusts a length: memory reserved for a container is bounded by the
//! bytes that follow in the frame and by a constant; a longer one grows as its
//! items are read.

use rmp::Marker;

use super::error::{DecodeError, Problem, Step};

/// Memory that is reserved for a container before its items are read, where the
/// frame itself is no longer.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// A cursor over one frame.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

/// Reads the whole of `frame` as one `message`.
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

    /// An error at the cursor.
    pub(crate) fn error(&self, problem: Problem) -> DecodeError {
        DecodeError::new(problem, self.at)
    }

    pub(crate) fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// The bytes from `start` to the cursor.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.data[start..self.at]
    }

    /// Items `T` of a container of `len` to reserve memory for. Each takes at least
    /// a byte of the frame, but perhaps hundreds of memory: the rest of the frame
    /// bounds their bytes, not only their number.
    pub(crate) fn capacity<T>(&self, len: usize) -> usize {
        let bytes = self.remaining().max(RESERVED_BYTES_MAX);
        len.min(self.remaining()).min(bytes / size_of::<T>().max(1))
    }

    /// The kind of the next value.
    pub(crate) fn peek(&self) -> Option<Marker> {
        self.data.get(self.at).map(|byte| Marker::from_u8(*byte))
    }

    fn marker(&mut self, expected: &'static str) -> Result<Marker, DecodeError> {
        let marker = self.peek().ok_or_else(|| self.error(Problem::Truncated { expected }))?;
        self.at += 1;
        Ok(marker)
    }

    /// The cursor is behind `marker`, which is not what was `expected`.
    #[cold]
    fn unexpected(&self, expected: &'static str, marker: Marker) -> DecodeError {
        DecodeError::new(Problem::Unexpected { expected, found: name(marker) }, self.at - 1)
    }

    fn bytes(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], DecodeError> {
        if len > self.remaining() {
            return Err(self.error(Problem::Truncated { expected }));
        }
        self.at += len;
        Ok(&self.data[self.at - len..self.at])
    }

    fn fixed<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], DecodeError> {
        let bytes = self.bytes(N, expected)?;
        Ok(bytes.try_into().expect("the slice has this length"))
    }

    fn len8(&mut self, expected: &'static str) -> Result<usize, DecodeError> {
        Ok(usize::from(self.fixed::<1>(expected)?[0]))
    }

    fn len16(&mut self, expected: &'static str) -> Result<usize, DecodeError> {
        Ok(usize::from(u16::from_be_bytes(self.fixed(expected)?)))
    }

    fn len32(&mut self, expected: &'static str) -> Result<usize, DecodeError> {
        Ok(u32::from_be_bytes(self.fixed(expected)?) as usize)
    }

    /// Passes over a nil, if that is what follows.
    pub(crate) fn take_nil(&mut self) -> bool {
        let is_nil = self.peek() == Some(Marker::Null);
        self.at += usize::from(is_nil);
        is_nil
    }

    pub(crate) fn bool(&mut self) -> Result<bool, DecodeError> {
        const EXPECTED: &str = "a boolean";
        match self.marker(EXPECTED)? {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            other => Err(self.unexpected(EXPECTED, other)),
        }
    }

    /// Any integer of MessagePack.
    pub(crate) fn integer(&mut self) -> Result<i128, DecodeError> {
        let expected = "an integer";
        let marker = self.marker(expected)?;
        match self.integer_after(marker, expected)? {
            Some(value) => Ok(value),
            None => Err(self.unexpected(expected, marker)),
        }
    }

    fn integer_after(&mut self, marker: Marker, expected: &'static str) -> Result<Option<i128>, DecodeError> {
        Ok(Some(match marker {
            Marker::FixPos(value) => i128::from(value),
            Marker::FixNeg(value) => i128::from(value),
            Marker::U8 => i128::from(self.fixed::<1>(expected)?[0]),
            Marker::U16 => i128::from(u16::from_be_bytes(self.fixed(expected)?)),
            Marker::U32 => i128::from(u32::from_be_bytes(self.fixed(expected)?)),
            Marker::U64 => i128::from(u64::from_be_bytes(self.fixed(expected)?)),
            Marker::I8 => i128::from(i8::from_be_bytes(self.fixed(expected)?)),
            Marker::I16 => i128::from(i16::from_be_bytes(self.fixed(expected)?)),
            Marker::I32 => i128::from(i32::from_be_bytes(self.fixed(expected)?)),
            Marker::I64 => i128::from(i64::from_be_bytes(self.fixed(expected)?)),
            _ => return Ok(None),
        }))
    }

    /// An integer that `T` can hold.
    pub(crate) fn narrow<T: TryFrom<i128>>(&mut self, expected: &'static str) -> Result<T, DecodeError> {
        let at = self.at;
        let found = self.integer()?;
        T::try_from(found).map_err(|_| DecodeError::new(Problem::OutOfRange { expected, found }, at))
    }

    /// A token id or another small number; the common kinds come first.
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

    /// A number; frontends write whole floats as integers, too.
    pub(crate) fn f64(&mut self) -> Result<f64, DecodeError> {
        let expected = "a number";
        match self.marker(expected)? {
            Marker::F64 => Ok(f64::from_be_bytes(self.fixed(expected)?)),
            Marker::F32 => Ok(f64::from(f32::from_be_bytes(self.fixed(expected)?))),
            other => match self.integer_after(other, expected)? {
                Some(value) => Ok(value as f64),
                None => Err(self.unexpected(expected, other)),
            },
        }
    }

    pub(crate) fn f32_exact(&mut self) -> Result<f32, DecodeError> {
        let expected = "a 32-bit float";
        match self.marker(expected)? {
            Marker::F32 => Ok(f32::from_be_bytes(self.fixed(expected)?)),
            other => Err(self.unexpected(expected, other)),
        }
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, DecodeError> {
        let expected = "a text";
        let len = match self.marker(expected)? {
            Marker::FixStr(len) => usize::from(len),
            Marker::Str8 => self.len8(expected)?,
            Marker::Str16 => self.len16(expected)?,
            Marker::Str32 => self.len32(expected)?,
            other => return Err(self.unexpected(expected, other)),
        };
        let bytes = self.bytes(len, expected)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::new(Problem::NotUtf8, self.at - len))
    }

    pub(crate) fn bin(&mut self) -> Result<&'a [u8], DecodeError> {
        let expected = "bytes";
        let len = match self.marker(expected)? {
            Marker::Bin8 => self.len8(expected)?,
            Marker::Bin16 => self.len16(expected)?,
            Marker::Bin32 => self.len32(expected)?,
            other => return Err(self.unexpected(expected, other)),
        };
        self.bytes(len, expected)
    }

    /// The type and the bytes of an extension value.
    pub(crate) fn ext(&mut self) -> Result<(i8, &'a [u8]), DecodeError> {
        let expected = "an extension value";
        let len = match self.marker(expected)? {
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            Marker::Ext8 => self.len8(expected)?,
            Marker::Ext16 => self.len16(expected)?,
            Marker::Ext32 => self.len32(expected)?,
            other => return Err(self.unexpected(expected, other)),
        };
        let code = i8::from_be_bytes(self.fixed(expected)?);
        Ok((code, self.bytes(len, expected)?))
    }

    /// The length of an array; its items follow.
    pub(crate) fn array(&mut self) -> Result<usize, DecodeError> {
        let expected = "an array";
        match self.marker(expected)? {
            Marker::FixArray(len) => Ok(usize::from(len)),
            Marker::Array16 => self.len16(expected),
            Marker::Array32 => self.len32(expected),
            other => Err(self.unexpected(expected, other)),
        }
    }

    /// The number of pairs of a map; they follow.
    pub(crate) fn map(&mut self) -> Result<usize, DecodeError> {
        let expected = "a map";
        match self.marker(expected)? {
            Marker::FixMap(len) => Ok(usize::from(len)),
            Marker::Map16 => self.len16(expected),
            Marker::Map32 => self.len32(expected),
            other => Err(self.unexpected(expected, other)),
        }
    }

    /// The key of a field; `None` for one that is no text and so no field.
    pub(crate) fn key(&mut self) -> Result<Option<&'a str>, DecodeError> {
        match self.peek() {
            Some(marker) if is_str(marker) => self.str().map(Some),
            _ => self.skip().map(|()| None),
        }
    }

    /// Passes over one value, whatever it is. Takes no stack for nested ones.
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
                Some(Marker::Reserved) => {
                    self.at += 1;
                    return Err(self.unexpected(expected, Marker::Reserved));
                }
                Some(marker) if is_ext(marker) => _ = self.ext()?,
                Some(_) => _ = self.integer()?,
                None => return Err(self.error(Problem::Truncated { expected })),
            }
        }
        Ok(())
    }

    /// The items of a list, each read by `item`.
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

fn name(marker: Marker) -> &'static str {
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

/// Whether a text begins with this marker.
pub(crate) fn is_str(marker: Marker) -> bool {
    matches!(marker, Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32)
}

/// Whether an extension value begins with this marker.
pub(crate) fn is_ext(marker: Marker) -> bool {
    use Marker::{Ext8, Ext16, Ext32, FixExt1, FixExt2, FixExt4, FixExt8, FixExt16};
    matches!(marker, FixExt1 | FixExt2 | FixExt4 | FixExt8 | FixExt16 | Ext8 | Ext16 | Ext32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large element, as an output of a step is one.
    type Large = [u64; 64];

    #[test]
    fn a_false_length_reserves_little_and_a_true_one_is_read_whole() {
        for frame_bytes in [1_000_000, 30_000_000] {
            let frame = vec![0xc0; frame_bytes];
            let reader = Reader::new(&frame);
            let reserved = reader.capacity::<Large>(u32::MAX as usize) * size_of::<Large>();
            assert!(reserved <= frame_bytes.max(RESERVED_BYTES_MAX), "{reserved} bytes for {frame_bytes}");
            // Tokens take up to five bytes, so that of them all are reserved at once.
            assert_eq!(reader.capacity::<u32>(frame_bytes / 5), frame_bytes / 5);
            assert_eq!((reader.capacity::<Large>(100), reader.capacity::<()>(10)), (100, 10));
        }

        let len = 100_000_u32;
        let frame: Vec<u8> = [&[0xdd][..], &len.to_be_bytes(), &vec![7; len as usize]].concat();
        let items = Reader::new(&frame).list(Reader::u32).expect("they are all there");
        assert_eq!((items.len(), items.iter().all(|item| *item == 7)), (len as usize, true));
    }
}
