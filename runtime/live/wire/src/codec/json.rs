//! MessagePack as JSON. Only this module converts values that JSON does not have.

use std::borrow::Cow;
use std::cell::RefCell;

use rmp::Marker;
use serde::ser::{Error, SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use super::error::{DecodeError, Problem};
use super::read::{MAX_DEPTH, Reader, is_ext, is_str};

/// One MessagePack value, serialised as JSON without building a tree of values.
///
/// Bytes and extensions become hexadecimal digits. Numbers that JSON does not have become null. A key that is no
/// text is converted to a text; lists and maps cannot be keys.
#[derive(Clone, Copy, Debug)]
pub struct AsJson<'a>(&'a [u8]);

impl<'a> AsJson<'a> {
    /// The value encoded in `bytes`. Invalid bytes cause an error during serialisation.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl Serialize for AsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reader = RefCell::new(Reader::new(self.0));
        let value = Next { reader: &reader, depth: 0 }.serialize(serializer)?;
        match reader.borrow().remaining() {
            0 => Ok(value),
            bytes => Err(S::Error::custom(reader.borrow().error(Problem::Trailing { bytes }).of("value"))),
        }
    }
}

/// The next value of the reader. Serialising it advances the reader.
struct Next<'r, 'a> {
    reader: &'r RefCell<Reader<'a>>,
    depth: usize,
}

impl<'a> Next<'_, 'a> {
    fn read<T, E: Error>(&self, read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>) -> Result<T, E> {
        read(&mut self.reader.borrow_mut()).map_err(|error| E::custom(error.of("value")))
    }

    fn marker<E: Error>(&self) -> Result<Marker, E> {
        self.read(|reader| {
            if self.depth > MAX_DEPTH {
                return Err(reader.error(Problem::TooDeep));
            }
            reader.peek().ok_or_else(|| reader.error(Problem::Truncated { expected: "a value" }))
        })
    }

    /// The value as the key of a map.
    fn key<E: Error>(&self) -> Result<Cow<'a, str>, E> {
        Ok(match self.marker()? {
            marker if is_str(marker) => self.read(Reader::str)?.into(),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => hex::encode(self.read(Reader::bin)?).into(),
            Marker::Null => {
                self.reader.borrow_mut().take_nil();
                "null".into()
            }
            Marker::True | Marker::False => self.read(Reader::bool)?.to_string().into(),
            Marker::F32 | Marker::F64 => self.read(Reader::f64)?.to_string().into(),
            _ => self.read(Reader::integer)?.to_string().into(),
        })
    }
}

impl Serialize for Next<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let inner = Self { reader: self.reader, depth: self.depth + 1 };
        match self.marker()? {
            Marker::Null => {
                self.reader.borrow_mut().take_nil();
                serializer.serialize_unit()
            }
            Marker::True | Marker::False => serializer.serialize_bool(self.read(Reader::bool)?),
            Marker::F32 => serializer.serialize_f32(self.read(Reader::f32_exact)?),
            Marker::F64 => serializer.serialize_f64(self.read(Reader::f64)?),
            marker if is_str(marker) => serializer.serialize_str(self.read(Reader::str)?),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                serializer.serialize_str(&hex::encode(self.read(Reader::bin)?))
            }
            marker if is_ext(marker) => serializer.serialize_str(&hex::encode(self.read(Reader::ext)?.1)),
            // Lengths are not given to serialisers, because serialisers would reserve memory for that many items.
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let len = self.read(Reader::array)?;
                let mut items = serializer.serialize_seq(None)?;
                for _ in 0..len {
                    items.serialize_element(&inner)?;
                }
                items.end()
            }
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                let len = self.read(Reader::map)?;
                let mut pairs = serializer.serialize_map(None)?;
                for _ in 0..len {
                    pairs.serialize_key(&inner.key::<S::Error>()?)?;
                    pairs.serialize_value(&inner)?;
                }
                pairs.end()
            }
            _ => {
                let number = self.read(Reader::integer)?;
                match u64::try_from(number) {
                    Ok(number) => serializer.serialize_u64(number),
                    Err(_) => serializer.serialize_i64(number.try_into().unwrap_or(i64::MIN)),
                }
            }
        }
    }
}
