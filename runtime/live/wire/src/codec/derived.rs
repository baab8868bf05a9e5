//! Types that serde describes and that rmp-serde reads and writes.

use std::cell::Cell;
use std::fmt;

use rmp_serde::decode::Error;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize, forward_to_deserialize_any};
use serde_path_to_error::Segment;

use super::error::{DecodeError, Problem, Step};
use super::read::{MAX_DEPTH, Reader, name};

/// Maximum length of a serde error, in characters: it may quote a text of the message.
const ERROR_CHARS_MAX: usize = 300;

/// Implements `Wire` for types in the form that serde describes.
macro_rules! serde_wire {
    ($($name:ty),*) => {$(
        impl $crate::codec::field::Wire for $name {
            fn read(
                reader: &mut $crate::codec::read::Reader<'_>,
            ) -> Result<Self, $crate::codec::error::DecodeError> {
                $crate::codec::derived::read(reader)
            }

            fn write(&self, out: &mut Vec<u8>) {
                $crate::codec::derived::write(self, out);
            }
        }
    )*};
}

/// Declares types that serde describes and that are whole messages.
macro_rules! serde_message {
    ($($name:ident: $message:literal),*) => {$(
        impl $name {
            #[doc = concat!("Decodes one ", $message, ".")]
            pub fn decode(frame: &[u8]) -> Result<Self, $crate::DecodeError> {
                $crate::codec::read::whole($message, frame, $crate::codec::derived::read)
            }

            #[doc = concat!("Appends the ", $message, " to `out`.")]
            pub fn encode(&self, out: &mut Vec<u8>) {
                $crate::codec::derived::write(self, out);
            }
        }
    )*};
}

/// Serializes structures as positional arrays of their fields, in this order.
macro_rules! as_array {
    ($($name:ident($($field:ident),*);)*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                ($(&self.$field,)*).serialize(serializer)
            }
        }
    )*};
}

pub(crate) use {as_array, serde_message, serde_wire};

pub(crate) fn read<T: DeserializeOwned>(reader: &mut Reader<'_>) -> Result<T, DecodeError> {
    let (start, rest) = (reader.offset(), reader.rest());
    let value = reader.skip().and_then(|()| {
        let fields = Cell::default();
        let mut decoder = decoder(reader.since(start));
        T::deserialize(Open { decoder: &mut decoder, fields: &fields })
            .map_err(|error| DecodeError::new(problem(error), start))
    });
    value.map_err(|error| place::<T>(rest, start).unwrap_or(error))
}

/// Appends a value to `out`, structures as maps.
pub(crate) fn write(value: &impl Serialize, out: &mut Vec<u8>) {
    value.serialize(&mut rmp_serde::Serializer::new(out).with_struct_map()).expect("a vector takes all");
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

type Decoder<'a> = rmp_serde::Deserializer<rmp_serde::decode::ReadRefReader<'a, [u8]>>;

fn decoder(bytes: &[u8]) -> Decoder<'_> {
    let mut decoder = Decoder::from_read_ref(bytes);
    decoder.set_max_depth(MAX_DEPTH + 1);
    decoder
}

/// The error of `bytes`, which do not begin with a `T`, with the path to it. The bytes are read a second time,
/// because tracking the path needs memory for each key.
#[cold]
fn place<T: DeserializeOwned>(bytes: &[u8], start: usize) -> Option<DecodeError> {
    let fields = Cell::default();
    let mut decoder = decoder(bytes);
    let error = serde_path_to_error::deserialize::<_, T>(Open { decoder: &mut decoder, fields: &fields }).err()?;
    let step = |(depth, segment): (usize, &Segment)| match segment {
        Segment::Seq { index } => Some(match fields.get().get(*index) {
            Some(name) if depth == 0 => Step::Element(*index, name),
            _ => Step::Item(*index),
        }),
        Segment::Map { key } => Some(Step::Key(key.clone().into())),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    let mut path: Vec<Step> = error.path().iter().enumerate().filter_map(step).collect();
    let mut reader = Reader::new(bytes);
    _ = go_to(&mut reader, &path);
    path.reverse();
    Some(DecodeError { path, ..DecodeError::new(problem(error.into_inner()), start + reader.offset()) })
}

/// Moves the reader to the value at the end of `path`, or as far along the path as possible.
fn go_to(reader: &mut Reader<'_>, path: &[Step]) -> Result<(), DecodeError> {
    for step in path {
        match step {
            Step::Element(index, _) | Step::Item(index) => {
                reader.array()?;
                for _ in 0..*index {
                    reader.skip()?;
                }
            }
            Step::Key(key) => {
                for _ in 0..reader.map()? {
                    if reader.key()? == Some(key) {
                        break;
                    }
                    reader.skip()?;
                }
            }
        }
    }
    Ok(())
}

fn problem(error: Error) -> Problem {
    match error {
        Error::InvalidMarkerRead(_) | Error::InvalidDataRead(_) => Problem::Truncated { expected: "a value" },
        Error::TypeMismatch(rmp::Marker::Reserved) => {
            Problem::Unexpected { expected: "a value", found: name(rmp::Marker::Reserved) }
        }
        Error::TypeMismatch(marker) => Problem::Unexpected { expected: "a number or a boolean", found: name(marker) },
        Error::Utf8Error(_) => Problem::NotUtf8,
        Error::DepthLimitExceeded => Problem::TooDeep,
        other => Problem::Invalid(other.to_string().chars().take(ERROR_CHARS_MAX).collect()),
    }
}

/// A decoder of one value. If the value is a positional array, unknown elements at its end are skipped.
struct Open<'r, 'a> {
    decoder: &'r mut Decoder<'a>,
    /// Set to the field names of the structure.
    fields: &'r Cell<&'static [&'static str]>,
}

impl<'de> Deserializer<'de> for Open<'_, 'de> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.decoder.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.decoder.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.fields.set(fields);
        self.decoder.deserialize_struct(name, fields, ToTheEnd(visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// Reads an array to its end, and skips unknown elements.
struct ToTheEnd<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for ToTheEnd<V> {
    type Value = V::Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(out)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<V::Value, A::Error> {
        let value = self.0.visit_seq(&mut elements)?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(value)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(fields)
    }
}
