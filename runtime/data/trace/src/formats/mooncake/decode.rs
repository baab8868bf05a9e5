//! Decodes a JSON row into reused buffers.
//!
//! The visitor is written by hand instead of derived, because it fills the same lists row after row, knows the
//! current field when an error occurs, refuses a field that is given under both of its names, and collects unknown
//! names.

use super::row::{DecodedRow, Dialect, Field};
use super::scan;
use crate::RowProblem;
use crate::assemble::FieldProblem;
use crate::lines::describe;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

impl DecodedRow {
    /// Replaces the row's content with a JSON object.
    pub(super) fn decode(&mut self, json: &[u8], dialect: Dialect) -> Result<(), FieldProblem> {
        self.clear();
        if scan::row(self, json, dialect) {
            return Ok(());
        }
        self.decode_slowly(json, dialect)
    }

    /// Does the same as [`decode`](Self::decode) without the fast path. The fast path leaves unusual rows, and
    /// therefore all errors, to this complete JSON parser.
    pub(super) fn decode_slowly(&mut self, json: &[u8], dialect: Dialect) -> Result<(), FieldProblem> {
        self.clear();
        let mut decoder = serde_json::Deserializer::from_slice(json);
        let result = RowSeed { row: self, dialect }.deserialize(&mut decoder);
        result.and_then(|()| decoder.end()).map_err(|error| {
            let problem = self.problem.take();
            (self.current.map(Field::name), problem.unwrap_or_else(|| RowProblem::Malformed(describe(&error))))
        })
    }

    fn decode_field<'de, M: MapAccess<'de>>(&mut self, field: Field, map: &mut M) -> Result<(), M::Error> {
        let given = match field {
            Field::RequestId => set(&mut self.request_id, map.next_value()?),
            Field::SessionId => set(&mut self.session_id, map.next_value()?),
            Field::PolicyClass => set(&mut self.policy_class, map.next_value()?),
            Field::Timestamp => set(&mut self.timestamp, map.next_value()?),
            Field::Delay => set(&mut self.delay, map.next_value()?),
            Field::InputLength => assign(&mut self.input_tokens, map.next_value()?),
            Field::OutputLength => assign(&mut self.output_tokens, map.next_value()?),
            Field::Priority => assign(&mut self.priority, map.next_value()?),
            Field::StrictPriority => assign(&mut self.strict_priority, map.next_value()?),
            Field::MmItems => assign(&mut self.items, map.next_value()?),
            Field::PlayId => set(&mut self.play_id, map.next_value()?),
            Field::NotBefore => set(&mut self.not_before, map.next_value()?),
            Field::ToolWait => set(&mut self.tool_wait, map.next_value()?),
            Field::Dependencies => assign(&mut self.dependencies, map.next_value()?),
            Field::WaitFor => assign(&mut self.wait_for, map.next_value()?),
            Field::Branches => assign(&mut self.branches, map.next_value()?),
            Field::RecordedApiTime => set(&mut self.recorded_api_time, map.next_value()?),
            Field::TextInput => set(&mut self.text_input, map.next_value()?),
            Field::Messages => set(&mut self.messages, map.next_value()?),
            Field::Tools => set(&mut self.tools, map.next_value()?),
            Field::Payload => set(&mut self.payload, map.next_value()?),
            Field::Model | Field::RequestKind | Field::PrefixReset | Field::ToolEvents | Field::Extra => {
                assign(&mut IgnoredAny, map.next_value()?)
            }
            Field::OutputTokenIds => map.next_value_seed(Fill(&mut self.output_token_ids))?,
            Field::HashIds => map.next_value_seed(Fill(&mut self.hash_ids))?,
        };
        if given {
            self.present |= field.bit();
        }
        Ok(())
    }
}

fn set<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    *slot = value;
    slot.is_some()
}

fn assign<T>(slot: &mut T, value: Option<T>) -> bool {
    value.map(|value| *slot = value).is_some()
}

struct RowSeed<'a> {
    row: &'a mut DecodedRow,
    dialect: Dialect,
}

impl<'de> DeserializeSeed<'de> for RowSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one JSON object a line")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let RowSeed { row, dialect } = self;
        while let Some(key) = map.next_key_seed(dialect)? {
            match key {
                Key::Known(field) => {
                    row.current = Some(field);
                    if row.named & field.bit() != 0 {
                        let alias = field.alias();
                        row.problem = Some(RowProblem::Duplicate { alias });
                        return Err(de::Error::custom("duplicate field"));
                    }
                    row.named |= field.bit();
                    row.decode_field(field, &mut map)?;
                }
                Key::Unknown(name) => {
                    map.next_value::<IgnoredAny>()?;
                    // A name counts once per row, because warnings count rows.
                    if !row.unknown_fields.contains(&name) {
                        row.unknown_fields.push(name);
                    }
                }
            }
            row.current = None;
        }
        Ok(())
    }
}

pub(super) enum Key {
    Known(Field),
    Unknown(Box<str>),
}

impl<'de> DeserializeSeed<'de> for Dialect {
    type Value = Key;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Dialect {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
        Ok(self.field(text).map_or_else(|| Key::Unknown(text.into()), Key::Known))
    }
}

/// Decodes a list into an existing vector. `null` leaves the vector empty and means that there is no value.
struct Fill<'a, T>(&'a mut Vec<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Fill<'_, T> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fill<'_, T> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of non-negative integers")
    }

    fn visit_unit<E: de::Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<bool, S::Error> {
        while let Some(item) = items.next_element()? {
            self.0.push(item);
        }
        Ok(true)
    }
}
