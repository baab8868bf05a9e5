//! JSON schemas, parsed once and used for many texts.
//!
//! Unknown keywords have no effect, as JSON Schema defines. In strict mode, a schema that vLLM's backends refuse is an
//! error. In lenient mode, no schema is an error.

pub(crate) mod check;
mod read;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::node::Node;
use crate::values::numbers::Range;
use crate::values::pattern::Pattern;

/// Index of a schema among all schemas of a document.
pub(crate) type Place = u32;

/// Index of the schema that every value fits.
pub(crate) const ANY: Place = 0;

/// Index of the schema that no value fits.
pub(crate) const NOTHING: Place = 1;

/// Maximum number of schemas and patterns in a document, so that a request can neither use up the fuel of a call nor
/// block an engine. Patterns take longer to parse.
const SCHEMAS_MAX: usize = 20_000;
const PATTERNS_MAX: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Schemas {
    all: Vec<Schema>,
    pub(crate) root: Place,
}

#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// Allowed types in the schema's order. Empty if all types are allowed.
    pub(crate) types: Vec<Type>,
    pub(crate) values: Option<Vec<Node>>,
    pub(crate) reference: Option<Place>,
    pub(crate) all_of: Vec<Place>,
    pub(crate) any_of: Vec<Place>,
    pub(crate) one_of: Vec<Place>,
    /// The schemas in `any_of` and in `one_of` with the shortest values.
    pub(crate) least: [Option<Place>; 2],
    pub(crate) not: Option<Place>,
    pub(crate) condition: Option<Box<Condition>>,
    pub(crate) number: Option<Box<Range>>,
    pub(crate) string: Option<Box<StringRule>>,
    pub(crate) array: Option<Box<ArrayRule>>,
    pub(crate) object: Option<Box<ObjectRule>>,
}

#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) given: Place,
    pub(crate) then: Place,
    pub(crate) otherwise: Place,
}

#[derive(Debug, Default)]
pub(crate) struct StringRule {
    pub(crate) shortest: u32,
    pub(crate) longest: Option<u32>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) format: Option<Notation>,
}

#[derive(Debug, Default)]
pub(crate) struct ArrayRule {
    /// Schemas of the first items, one each.
    pub(crate) first: Vec<Place>,
    /// Schema of all other items.
    pub(crate) items: Option<Place>,
    pub(crate) fewest: u32,
    pub(crate) most: Option<u32>,
    pub(crate) is_unique: bool,
    pub(crate) contains: Option<Contains>,
}

/// A schema that a number of items must fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contains {
    pub(crate) place: Place,
    pub(crate) fewest: u32,
    pub(crate) most: u32,
}

#[derive(Debug, Default)]
pub(crate) struct ObjectRule {
    /// Properties in the order of the output. Keys that only appear in `required` come last.
    pub(crate) properties: Vec<Property>,
    /// Schema for the values of all other keys.
    pub(crate) further: Option<Place>,
    /// Schema for the values of keys that no other schema of the object describes.
    pub(crate) unevaluated: Option<Place>,
    /// Schemas for the values of keys that match a pattern.
    pub(crate) patterns: Vec<(Pattern, Place)>,
    pub(crate) names: Option<Place>,
    pub(crate) fewest: u32,
    pub(crate) most: Option<u32>,
    /// Keys, each with a schema that the object must fit if it has the key.
    pub(crate) dependent: Vec<(String, Place)>,
}

#[derive(Debug)]
pub(crate) struct Property {
    pub(crate) name: String,
    /// None if the key only appears in `required`.
    pub(crate) place: Option<Place>,
    pub(crate) is_required: bool,
}

/// Formats of strings: those that xgrammar knows, and additions of pydantic and
/// OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    Date,
    Time,
    DateTime,
    Duration,
    Email,
    Hostname,
    Ipv4,
    Ipv4Network,
    Ipv6,
    Ipv6Network,
    Uri,
    Uuid,
    JsonPointer,
    RelativeJsonPointer,
    Json,
    Base64,
}

impl Notation {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "date" => Self::Date,
            "time" => Self::Time,
            "date-time" => Self::DateTime,
            "duration" => Self::Duration,
            "email" | "idn-email" => Self::Email,
            "hostname" | "idn-hostname" => Self::Hostname,
            "ipv4" | "ipvanyaddress" => Self::Ipv4,
            "ipv4network" | "ipv4interface" | "ipvanynetwork" | "ipvanyinterface" | "cidrv4" => Self::Ipv4Network,
            "ipv6" => Self::Ipv6,
            "ipv6network" | "ipv6interface" | "cidrv6" => Self::Ipv6Network,
            "uri" | "uri-reference" | "uri-template" | "iri" | "iri-reference" | "url" => Self::Uri,
            "uuid" | "guid" | "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => Self::Uuid,
            "json-pointer" => Self::JsonPointer,
            "relative-json-pointer" => Self::RelativeJsonPointer,
            "json-string" => Self::Json,
            "byte" | "base64" => Self::Base64,
            _ => return None,
        })
    }
}

/// Type of a value, ordered by the minimum length of its JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Type {
    Integer,
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "integer" => Self::Integer,
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }
}

impl Schemas {
    pub(crate) fn any_object() -> Self {
        let object = Schema { types: Vec::from([Type::Object]), ..Schema::default() };
        Self { all: Vec::from([Schema::default(), nothing(), object]), root: 2 }
    }

    pub(crate) fn get(&self, place: Place) -> &Schema {
        &self.all[place as usize]
    }

    /// Whether every value fits the root.
    pub(crate) fn is_any(&self) -> bool {
        self.get(self.root).is_any()
    }
}

impl Schema {
    fn is_any(&self) -> bool {
        let is_free = self.types.is_empty() && self.values.is_none() && self.reference.is_none();
        let has_parts = !self.all_of.is_empty() || !self.alternatives().is_empty();
        let has_tests = self.not.is_some() || self.condition.is_some();
        let has_rules = self.number.is_some() || self.string.is_some() || self.array.is_some() || self.object.is_some();
        is_free && !has_parts && !has_tests && !has_rules
    }

    /// The schemas of which a value must fit one. Empty if there is no such choice.
    pub(crate) fn alternatives(&self) -> &[Place] {
        if self.any_of.is_empty() { &self.one_of } else { &self.any_of }
    }

    /// Whether a generated value must still be checked against the schema.
    pub(crate) fn has_tests(&self) -> bool {
        let has_hard_parts = self.not.is_some()
            || self.condition.is_some()
            || self.one_of.len() > 1
            || (!self.any_of.is_empty() && !self.one_of.is_empty());
        has_hard_parts
            || self.array.as_ref().is_some_and(|rule| rule.is_unique || rule.contains.is_some())
            || self.object.as_ref().is_some_and(|rule| {
                rule.names.is_some() || !rule.dependent.is_empty() || rule.fewest > 0 || rule.most.is_some()
            })
    }

    /// The type of the shortest value.
    fn least_type(&self) -> Type {
        if self.values.is_some() {
            return Type::Null;
        }
        if self.reference.is_some() || !self.all_of.is_empty() || !self.alternatives().is_empty() {
            return Type::Object;
        }
        let meant = self.meant_type().unwrap_or(Type::Integer);
        self.types.iter().min().copied().unwrap_or(meant)
    }

    /// The type to which the schema's keywords apply. Without a `type`, values of other types fit as well, but values
    /// of this type are generated.
    pub(crate) fn meant_type(&self) -> Option<Type> {
        if self.object.is_some() {
            return Some(Type::Object);
        }
        if self.array.is_some() {
            return Some(Type::Array);
        }
        if self.string.is_some() {
            return Some(Type::String);
        }
        self.number.as_ref().map(|_| Type::Number)
    }
}

fn nothing() -> Schema {
    Schema { values: Some(Vec::new()), ..Schema::default() }
}

fn too_many() -> String {
    format!("it has more than {SCHEMAS_MAX} schemas, or more than {PATTERNS_MAX} patterns")
}
