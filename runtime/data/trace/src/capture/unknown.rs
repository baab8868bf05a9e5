//! Unknown fields of lines.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Reads all fields except `kind`, which identifies the line.
pub(super) fn unknown_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    struct Fields;
    impl<'de> Visitor<'de> for Fields {
        type Value = Map<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("one JSON object a line")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut fields = Map::new();
            while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                if name == "kind" {
                    map.next_value::<IgnoredAny>()?;
                } else {
                    fields.insert(name.into_owned(), map.next_value()?);
                }
            }
            Ok(fields)
        }
    }
    deserializer.deserialize_map(Fields)
}
