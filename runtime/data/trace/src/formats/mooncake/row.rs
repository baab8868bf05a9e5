//! The fields of a row, and one row decoded.

use super::text;
use crate::millis::Millis;
use crate::{MediaItem, RowProblem};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    RequestId,
    SessionId,
    InputLength,
    OutputLength,
    OutputTokenIds,
    HashIds,
    Timestamp,
    Delay,
    Priority,
    StrictPriority,
    PolicyClass,
    MmItems,
    // Prompts as texts.
    TextInput,
    Messages,
    Tools,
    Payload,
    /// Fields of a request's body that have no effect on a replay.
    Extra,
    // Only agentic rows have these fields.
    PlayId,
    NotBefore,
    Dependencies,
    WaitFor,
    Branches,
    ToolWait,
    /// Fields that have no effect on a replay.
    Model,
    RequestKind,
    PrefixReset,
    ToolEvents,
    RecordedApiTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Plain,
    Agentic,
}

impl Dialect {
    fn fields(self) -> &'static [(Field, &'static str, &'static str)] {
        match self {
            Dialect::Plain => &FIELDS[..Field::PlayId as usize],
            Dialect::Agentic => &FIELDS,
        }
    }

    pub(super) fn field(self, name: &str) -> Option<Field> {
        self.fields().iter().find(|(_, own, alias)| *own == name || *alias == name).map(|entry| entry.0)
    }
}

const FIELDS: [(Field, &str, &str); 28] = [
    (Field::RequestId, "request_id", "request_id"),
    (Field::SessionId, "session_id", "session_id"),
    (Field::InputLength, "input_length", "input_tokens"),
    (Field::OutputLength, "output_length", "output_tokens"),
    (Field::OutputTokenIds, "output_token_ids", "output_token_ids"),
    (Field::HashIds, "hash_ids", "hash_ids"),
    (Field::Timestamp, "timestamp", "created_time"),
    (Field::Delay, "delay", "delay_ms"),
    (Field::Priority, "priority", "priority"),
    (Field::StrictPriority, "strict_priority", "strict_priority"),
    (Field::PolicyClass, "policy_class", "policy_class"),
    (Field::MmItems, "mm_items", "mm_items"),
    (Field::TextInput, "text_input", "text_input"),
    (Field::Messages, "messages", "messages"),
    (Field::Tools, "tools", "tools"),
    (Field::Payload, "payload", "payload"),
    (Field::Extra, "extra", "extra"),
    (Field::PlayId, "play_id", "play_id"),
    (Field::NotBefore, "not_before_ms", "not_before_ms"),
    (Field::Dependencies, "dependencies", "dependencies"),
    (Field::WaitFor, "wait_for", "wait_for"),
    (Field::Branches, "branches", "branches"),
    (Field::ToolWait, "tool_wait_ms", "tool_wait_ms"),
    (Field::Model, "model", "model"),
    (Field::RequestKind, "request_kind", "request_kind"),
    (Field::PrefixReset, "prefix_reset", "prefix_reset"),
    (Field::ToolEvents, "tool_events", "tool_events"),
    (Field::RecordedApiTime, "recorded_api_time_ms", "recorded_api_time_ms"),
];

impl Field {
    pub(super) fn name(self) -> &'static str {
        FIELDS[self as usize].1
    }

    pub(super) fn alias(self) -> &'static str {
        FIELDS[self as usize].2
    }

    pub(super) fn bit(self) -> u32 {
        1 << self as u32
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct DependencyRow {
    pub(super) request_id: Box<str>,
    pub(super) trigger: DecodedTrigger,
    #[serde(default)]
    pub(super) delay_ms: Option<Millis>,
    /// The purpose of the dependency, which has no effect.
    #[serde(default, rename = "relation")]
    _relation: Option<IgnoredAny>,
    #[serde(flatten)]
    pub(super) others: BTreeMap<String, IgnoredAny>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DecodedTrigger {
    Dispatch,
    Completion,
}

/// A decoded row. A field with `null` counts as absent.
#[derive(Debug, Default)]
pub(super) struct DecodedRow {
    pub(super) request_id: Option<Box<str>>,
    pub(super) session_id: Option<Box<str>>,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) output_token_ids: Vec<u32>,
    pub(super) hash_ids: Vec<u64>,
    pub(super) timestamp: Option<Millis>,
    pub(super) delay: Option<Millis>,
    pub(super) priority: i32,
    pub(super) strict_priority: u32,
    pub(super) policy_class: Option<Box<str>>,
    pub(super) items: Vec<MediaItem>,
    pub(super) text_input: Option<String>,
    pub(super) messages: Option<Vec<Value>>,
    pub(super) tools: Option<Value>,
    pub(super) payload: Option<Value>,
    pub(super) play_id: Option<Box<str>>,
    pub(super) not_before: Option<Millis>,
    pub(super) dependencies: Vec<DependencyRow>,
    pub(super) wait_for: Vec<Box<str>>,
    pub(super) branches: Vec<Box<str>>,
    pub(super) tool_wait: Option<Millis>,
    pub(super) recorded_api_time: Option<Millis>,
    pub(super) unknown_fields: Vec<Box<str>>,
    /// The fields that have a value, one bit each.
    pub(super) present: u32,
    /// The fields that occurred, with a value or with null, one bit each.
    pub(super) named: u32,
    /// The field that is being decoded, for errors.
    pub(super) current: Option<Field>,
    /// A problem that does not fit into serde's error type.
    pub(super) problem: Option<RowProblem>,
}

impl DecodedRow {
    /// Records that a field has a value. Returns false if the field has occurred before.
    pub(super) fn name(&mut self, field: Field) -> bool {
        let is_first = self.named & field.bit() == 0;
        self.named |= field.bit();
        self.present |= field.bit();
        is_first
    }

    pub(super) fn has(&self, field: Field) -> bool {
        self.present & field.bit() != 0
    }

    pub(super) fn has_text(&self) -> bool {
        [Field::TextInput, Field::Messages, Field::Payload].iter().any(|field| self.has(*field))
    }

    /// The prompt of a row with a text, and the maximum number of output tokens.
    pub(super) fn take_text(&mut self) -> Option<(String, Option<u32>)> {
        if let Some(text) = self.text_input.take() {
            return Some((text, None));
        }
        if let Some(messages) = self.messages.take() {
            return Some((text::of_messages(&messages, self.tools.as_ref()), None));
        }
        text::of_payload(&self.payload.take()?)
    }

    pub(super) fn clear(&mut self) {
        let mut output_token_ids = std::mem::take(&mut self.output_token_ids);
        let mut hash_ids = std::mem::take(&mut self.hash_ids);
        output_token_ids.clear();
        hash_ids.clear();
        *self = DecodedRow { output_token_ids, hash_ids, ..DecodedRow::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_table_is_in_declaration_order() {
        for (index, (field, _, _)) in FIELDS.iter().enumerate() {
            assert_eq!(*field as usize, index);
        }
    }
}
