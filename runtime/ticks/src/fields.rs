//! Fields of JSON objects with their lines, for errors that name both.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of an object in order, each with its text.
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

/// The line of a file's text, from 1, on which a part of that text begins.
pub(crate) fn line_of(text: &str, part: &str) -> usize {
    let offset = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len());
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_their_repetitions_and_their_lines() {
        let text = "{\n \"a\": 1,\n\n \"b\": [2,\n 3], \"a\": \"x\" }";
        let Fields(fields) = serde_json::from_str(text).expect("an object");
        let seen: Vec<_> =
            fields.iter().map(|(name, raw)| (name.as_str(), raw.get(), line_of(text, raw.get()))).collect();
        assert_eq!(seen, [("a", "1", 2), ("b", "[2,\n 3]", 4), ("a", "\"x\"", 5)]);
        assert!(serde_json::from_str::<Fields<'_>>("[]").is_err());
    }
}
