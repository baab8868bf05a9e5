//! Fields of JSON objects with their lines, for errors that name both.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of an object in order, each with its JSON text.
pub(crate) struct Fields<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Collect).map(Self)
    }
}

/// A file's text with the offsets of its lines.
pub(crate) struct Text<'a> {
    pub(crate) text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Text<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(offset, _)| offset + 1);
        Self { text, starts: std::iter::once(0).chain(breaks).collect() }
    }

    /// The line (from 1) at which a part of this text begins.
    pub(crate) fn line_of(&self, part: &str) -> usize {
        let offset = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.starts.partition_point(|start| *start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_their_repetitions_and_their_lines() {
        let text = "{\n \"a\": 1,\n\n \"b\": [2,\n 3], \"a\": \"x\" }";
        let Fields(fields) = serde_json::from_str(text).expect("an object");
        let lines = Text::new(text);
        let seen: Vec<_> =
            fields.iter().map(|(name, raw)| (name.as_str(), raw.get(), lines.line_of(raw.get()))).collect();
        assert_eq!(seen, [("a", "1", 2), ("b", "[2,\n 3]", 4), ("a", "\"x\"", 5)]);
        assert!(serde_json::from_str::<Fields<'_>>("[]").is_err());
    }
}
