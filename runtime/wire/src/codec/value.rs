//! Values without a fixed shape: parameters of connectors, arguments and
//! results of utility calls.

use std::fmt;

use super::error::{DecodeError, Problem, Step};
use super::field::Wire;
use super::read::{Reader, is_ext, is_str, whole};
use super::write;

/// Any integer of MessagePack: from -2^63 to 2^64 - 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Integer(i128);

impl Integer {
    /// The number, if it is not negative.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        self.0.try_into().ok()
    }

    /// The number, if it is below 2^63.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        self.0.try_into().ok()
    }
}

impl From<u64> for Integer {
    fn from(value: u64) -> Self {
        Self(value.into())
    }
}

impl From<i64> for Integer {
    fn from(value: i64) -> Self {
        Self(value.into())
    }
}

impl fmt::Debug for Integer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl Wire for Integer {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.integer().map(Self)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match (u64::try_from(self.0), i64::try_from(self.0)) {
            (Ok(value), _) => write::uint(out, value),
            (_, Ok(value)) => write::int(out, value),
            _ => unreachable!("it was made from one of the two"),
        }
    }
}

/// A MessagePack value of any shape.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(Integer),
    /// A float of 32 bits.
    F32(f32),
    /// A float of 64 bits.
    F64(f64),
    /// A text.
    Str(String),
    /// Bytes.
    Bin(Vec<u8>),
    /// A list.
    Array(Vec<Value>),
    /// Pairs, in the order of the wire.
    Map(Vec<(Value, Value)>),
    /// An extension: its code and its bytes.
    Ext(i8, Vec<u8>),
}

impl Value {
    /// Values may be nested this deep; vLLM's own stay below ten.
    pub const MAX_DEPTH: usize = 64;

    /// Decodes one value.
    ///
    /// # Errors
    ///
    /// When the bytes are not one value, or one nested too deeply.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        whole("value", frame, Self::read)
    }

    /// Appends the value to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    /// The value of `key`, if this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// As [`get`](Self::get), to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        let pairs = self.as_map_mut()?;
        pairs.iter_mut().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// The pairs, if this is a map.
    pub fn as_map_mut(&mut self) -> Option<&mut Vec<(Value, Value)>> {
        if let Value::Map(pairs) = self { Some(pairs) } else { None }
    }

    /// The text, if this is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Str(text) = self { Some(text) } else { None }
    }

    /// The boolean, if this is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(*value) } else { None }
    }

    /// The number, if this is an integer that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Int(value) = self { value.as_u64() } else { None }
    }

    /// The items, if this is a list.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Value]> {
        if let Value::Array(items) = self { Some(items) } else { None }
    }

    fn read_nested(reader: &mut Reader<'_>, depth: usize) -> Result<Self, DecodeError> {
        use rmp::Marker;
        let Some(marker) = reader.peek() else {
            return Err(reader.error(Problem::Truncated { expected: "a value" }));
        };
        if depth > Self::MAX_DEPTH {
            return Err(reader.error(Problem::TooDeep));
        }
        Ok(match marker {
            Marker::Null => {
                reader.take_nil();
                Self::Nil
            }
            Marker::True | Marker::False => Self::Bool(reader.bool()?),
            Marker::F32 => Self::F32(reader.f32_exact()?),
            Marker::F64 => Self::F64(reader.f64()?),
            marker if is_str(marker) => Self::Str(reader.str()?.to_owned()),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Self::Bin(reader.bin()?.to_vec()),
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let mut items = Vec::new();
                for index in 0..reader.array()? {
                    let item = Self::read_nested(reader, depth + 1);
                    items.push(item.map_err(|error| error.within(Step::Item(index)))?);
                }
                Self::Array(items)
            }
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                let mut pairs = Vec::new();
                for index in 0..reader.map()? {
                    let mut one = || Self::read_nested(reader, depth + 1);
                    let pair = one().and_then(|key| Ok((key, one()?)));
                    pairs.push(pair.map_err(|error| error.within(Step::Item(index)))?);
                }
                Self::Map(pairs)
            }
            marker if is_ext(marker) => {
                let (code, bytes) = reader.ext()?;
                Self::Ext(code, bytes.to_vec())
            }
            _ => Self::Int(Integer::read(reader)?),
        })
    }
}

impl Wire for Value {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::read_nested(reader, 0)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => write::nil(out),
            Self::Bool(value) => write::bool(out, *value),
            Self::Int(value) => value.write(out),
            Self::F32(value) => write::f32(out, *value),
            Self::F64(value) => write::f64(out, *value),
            Self::Str(value) => write::str(out, value),
            Self::Bin(value) => write::bin(out, value),
            Self::Array(items) => items.write(out),
            Self::Map(pairs) => {
                write::map(out, pairs.len());
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
            }
            Self::Ext(code, bytes) => write::ext(out, *code, bytes),
        }
    }

    fn read_or(reader: &mut Reader<'_>, _: Self) -> Result<Self, DecodeError> {
        Self::read(reader)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Int(value.into())
    }
}

/// One value that is carried along as its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw(Box<[u8]>);

impl Raw {
    /// The bytes `value` has on the wire.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        let mut out = Vec::new();
        value.encode(&mut out);
        Self(out.into())
    }

    /// The bytes of a value that has a type.
    pub(crate) fn of_wire(value: &impl Wire) -> Self {
        let mut out = Vec::new();
        value.write(&mut out);
        Self(out.into())
    }

    /// The value of this type.
    pub(crate) fn wire<T: Wire>(&self, what: &'static str) -> Result<T, DecodeError> {
        whole(what, &self.0, T::read)
    }

    /// The MessagePack of the value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The value that the bytes stand for.
    ///
    /// # Errors
    ///
    /// When it is nested too deeply.
    pub fn value(&self) -> Result<Value, DecodeError> {
        Value::decode(&self.0)
    }
}

impl Wire for Raw {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let start = reader.offset();
        reader.skip()?;
        Ok(Self(reader.since(start).into()))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}
