use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny};
use serde_json::Value;

use crate::entries::Entries;
use crate::values::pattern::Pattern;

/// A JSON schema, as far as this guest follows it. Keywords that would bind
/// what is written and are not known here are an error; those that bind nothing
/// are read over.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Schema {
    #[serde(rename = "type", deserialize_with = "one_or_many")]
    pub(crate) types: Vec<Type>,
    #[serde(rename = "enum")]
    pub(crate) values: Option<Vec<Value>>,
    #[serde(rename = "const", deserialize_with = "even_null")]
    pub(crate) constant: Option<Value>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    #[serde(deserialize_with = "only")]
    all_of: Vec<Schema>,
    #[serde(rename = "$ref")]
    pub(crate) reference: Option<String>,
    #[serde(rename = "$defs", alias = "definitions")]
    pub(crate) definitions: Entries<Schema>,
    /// In the order of the output.
    pub(crate) properties: Entries<Schema>,
    pub(crate) required: Vec<String>,
    pub(crate) items: Option<Box<Schema>>,
    pub(crate) min_items: u32,
    pub(crate) max_items: Option<u32>,
    pub(crate) min_length: u32,
    pub(crate) max_length: Option<u32>,
    #[serde(deserialize_with = "pattern")]
    pub(crate) pattern: Option<Pattern>,
    pub(crate) format: Option<Notation>,
    pub(crate) minimum: Option<f64>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_minimum: Option<f64>,
    pub(crate) exclusive_maximum: Option<f64>,
    /// Only `false` matters: then an object has no keys of ours.
    pub(crate) additional_properties: Option<Value>,
    #[serde(rename = "title")]
    _title: Option<IgnoredAny>,
    #[serde(rename = "description")]
    _description: Option<IgnoredAny>,
    #[serde(rename = "default")]
    _default: Option<IgnoredAny>,
    #[serde(rename = "examples")]
    _examples: Option<IgnoredAny>,
    #[serde(rename = "discriminator")]
    _discriminator: Option<IgnoredAny>,
    #[serde(rename = "$schema")]
    _schema: Option<IgnoredAny>,
    #[serde(rename = "$id")]
    _id: Option<IgnoredAny>,
    #[serde(rename = "$comment")]
    _comment: Option<IgnoredAny>,
    #[serde(rename = "readOnly")]
    _read_only: Option<IgnoredAny>,
    #[serde(rename = "writeOnly")]
    _write_only: Option<IgnoredAny>,
    #[serde(rename = "deprecated")]
    _deprecated: Option<IgnoredAny>,
}

/// How a string is written: the formats of JSON schemas that xgrammar knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Notation {
    Date,
    Time,
    DateTime,
    Duration,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Uri,
    UriReference,
    UriTemplate,
    Uuid,
    JsonPointer,
    RelativeJsonPointer,
}

/// Type of a value, in the order of minimum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Type {
    Integer,
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Schema {
    /// Objects of whatever there is.
    pub(crate) fn any_object() -> Self {
        Self { types: Vec::from([Type::Object]), ..Self::default() }
    }

    /// Whether the keys of an object are ours to choose: where the schema names
    /// any, those are all that is written.
    pub(crate) fn has_free_keys(&self) -> bool {
        let names_none = self.properties.0.is_empty() && self.required.is_empty();
        names_none && self.additional_properties != Some(Value::Bool(false))
    }

    /// Whether every value fits.
    pub(crate) fn is_any(&self) -> bool {
        let says_nothing = self.types.is_empty() && self.properties.0.is_empty() && self.items.is_none();
        let is_free = self.pattern.is_none()
            && self.format.is_none()
            && self.values.is_none()
            && self.constant.is_none()
            && self.reference.is_none();
        says_nothing && is_free && self.alternatives().is_empty()
    }

    /// Allowed types of the values; any where the schema does not say.
    pub(crate) fn types(&self) -> &[Type] {
        match self.types[..] {
            [] if !self.properties.0.is_empty() => &[Type::Object],
            [] if self.items.is_some() => &[Type::Array],
            // Binds strings alone, which a value need not be, but is meant to be.
            [] if self.pattern.is_some() || self.format.is_some() => &[Type::String],
            [] => &[Type::String, Type::Integer, Type::Boolean],
            _ => &self.types,
        }
    }

    /// The schemas that a value must fit one of; none where it has no choice.
    pub(crate) fn alternatives(&self) -> &[Schema] {
        [&self.any_of, &self.one_of].into_iter().find(|some| !some.is_empty()).unwrap_or(&self.all_of)
    }
}

/// Reads schemas that all must fit, of which one can be followed.
fn only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Schema>, D::Error> {
    let schemas = Vec::<Schema>::deserialize(deserializer)?;
    if schemas.len() > 1 {
        return Err(D::Error::custom("`allOf` has several schemas, and only one can be followed"));
    }
    Ok(schemas)
}

/// Reads one or a list of them.
pub(crate) fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Given<T> {
        One(T),
        Many(Vec<T>),
    }

    Ok(match Given::deserialize(deserializer)? {
        Given::One(one) => Vec::from([one]),
        Given::Many(many) => many,
    })
}

fn pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Pattern>, D::Error> {
    crate::values::pattern::deserialize(deserializer).map(Some)
}

/// Reads a value that, where it is null, is still there.
fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
