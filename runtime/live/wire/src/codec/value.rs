//! Values without a fixed shape: parameters of connectors, and arguments and results of utility calls.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeMap as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use super::error::DecodeError;
use super::field::Wire;
use super::json::AsJson;
use super::read::{MAX_DEPTH, Reader, whole};
use super::{serde_message, serde_wire};

/// Any integer of MessagePack: from -2^63 to 2^64 - 1.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

impl Serialize for Integer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.as_u64(), self.as_i64()) {
            (Some(value), _) => serializer.serialize_u64(value),
            (_, Some(value)) => serializer.serialize_i64(value),
            _ => unreachable!("it was made from one of the two"),
        }
    }
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Integer;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an integer")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Integer, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<Integer, E> {
                Ok(value.into())
            }
        }
        deserializer.deserialize_u64(Number)
    }
}

/// A MessagePack value of any shape.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The absence of a value.
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
    /// Key-value pairs, in the order of the encoding.
    Map(Vec<(Value, Value)>),
    /// An extension: its type and its bytes.
    Ext(i8, Vec<u8>),
}

impl Value {
    /// Maximum nesting depth of values; vLLM's own values stay below ten.
    pub const MAX_DEPTH: usize = MAX_DEPTH;

    /// A map without pairs.
    #[must_use]
    pub fn empty_map() -> Self {
        Self::Map(Vec::new())
    }

    /// The value of `key`, if this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// Like [`get`](Self::get), but mutable.
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
}

serde_message!(Value: "value");
serde_wire!(Integer);

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return AsJson::new(Raw::of(self).bytes()).serialize(serializer);
        }
        match self {
            Self::Nil => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => value.serialize(serializer),
            Self::F32(value) => serializer.serialize_f32(*value),
            Self::F64(value) => serializer.serialize_f64(*value),
            Self::Str(value) => serializer.serialize_str(value),
            Self::Bin(value) => serializer.serialize_bytes(value),
            Self::Array(items) => items.serialize(serializer),
            Self::Map(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
            Self::Ext(code, bytes) => {
                serializer.serialize_newtype_struct(rmp_serde::MSGPACK_EXT_STRUCT_NAME, &(*code, Bytes::new(bytes)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_f32<E>(self, value: f32) -> Result<Value, E> {
        Ok(Value::F32(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::F64(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(Value::Bin(value.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Map(pairs))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, extension: D) -> Result<Value, D::Error> {
        let (code, bytes) = <(i8, ByteBuf)>::deserialize(extension)?;
        Ok(Value::Ext(code, bytes.into_vec()))
    }
}

impl Wire for Value {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        super::derived::read(reader)
    }

    fn write(&self, out: &mut Vec<u8>) {
        super::derived::write(self, out);
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

/// One value in encoded form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw(Box<[u8]>);

impl Raw {
    /// Encodes `value`.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        let mut out = Vec::new();
        value.encode(&mut out);
        Self(out.into())
    }

    /// Encodes a value of a known type.
    pub(crate) fn of_wire(value: &impl Wire) -> Self {
        let mut out = Vec::new();
        value.write(&mut out);
        Self(out.into())
    }

    /// Decodes the value as this type.
    pub(crate) fn wire<T: Wire>(&self, what: &'static str) -> Result<T, DecodeError> {
        whole(what, &self.0, T::read)
    }

    /// The encoded value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Decodes the value.
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

/// Serialized as the value, so that its encoding becomes the shortest one.
impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::of(&value))
    }
}
