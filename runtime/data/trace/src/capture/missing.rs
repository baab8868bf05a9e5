//! Finds the name of a missing field, which serde_json's errors contain only as text.

use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// The path of the field that is missing for a `T`. None if the line has another problem.
pub(super) fn missing_field<'de, T: Deserialize<'de>>(row: &[u8]) -> Option<String> {
    let value = serde_json::from_slice(row).ok()?;
    let error = serde_path_to_error::deserialize::<_, T>(Line(value)).err()?;
    let Problem::Missing(field) = *error.inner() else { return None };
    let path = error.path().to_string();
    Some(if path == "." { field.to_owned() } else { format!("{path}.{field}") })
}

/// A value that is decoded with [`Problem`] as the error.
struct Line(Value);

#[derive(Debug)]
enum Problem {
    Missing(&'static str),
    Other,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(field) => write!(f, "missing field `{field}`"),
            Self::Other => f.write_str("not a line of a capture"),
        }
    }
}

impl std::error::Error for Problem {}

impl Error for Problem {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self::Other
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

impl IntoDeserializer<'_, Problem> for Line {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Line {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.0 {
            Value::Array(values) => visitor.visit_seq(SeqDeserializer::new(values.into_iter().map(Line))),
            Value::Object(fields) => {
                visitor.visit_map(MapDeserializer::new(fields.into_iter().map(|(key, value)| (key, Line(value)))))
            }
            plain => plain.deserialize_any(visitor).map_err(|_| Problem::Other),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        self.0.deserialize_enum(name, variants, visitor).map_err(|_| Problem::Other)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
