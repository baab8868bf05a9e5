use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use vcr_guest_sdk::Rng;

use crate::grammar::Grammar;
use crate::schema::{Schema, one_or_many};
use crate::settings::{Room, happens};
use crate::style::Style;
use crate::values::draw::{below, pick};
use crate::values::pattern::Pattern;
use crate::values::words::word;
use crate::writer::document;

/// A text made of fixed and free parts: xgrammar's formats of structural tags,
/// as far as this guest follows them.
#[derive(Debug, serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Format {
    ConstString {
        value: String,
    },
    JsonSchema {
        #[serde(rename = "json_schema", deserialize_with = "schema")]
        schema: Box<Schema>,
        #[serde(default)]
        style: Style,
    },
    AnyText,
    Regex {
        #[serde(deserialize_with = "crate::values::pattern::deserialize")]
        pattern: Pattern,
    },
    Grammar {
        #[serde(deserialize_with = "grammar")]
        grammar: Grammar,
    },
    Sequence {
        elements: Vec<Format>,
    },
    Or {
        elements: Vec<Format>,
    },
    Tag(Tag),
    TriggeredTags {
        tags: Vec<Tag>,
        #[serde(default)]
        at_least_one: bool,
        #[serde(default)]
        stop_after_first: bool,
    },
    TagsWithSeparator {
        tags: Vec<Tag>,
        #[serde(default)]
        separator: String,
        #[serde(default)]
        at_least_one: bool,
        #[serde(default)]
        stop_after_first: bool,
    },
    Optional {
        content: Box<Format>,
    },
    Star {
        content: Box<Format>,
    },
    Plus {
        content: Box<Format>,
    },
    Repeat {
        content: Box<Format>,
        min: u32,
        /// Negative: as often as one likes.
        max: i64,
    },
}

#[derive(Debug, serde::Deserialize)]
pub(crate) struct Tag {
    begin: String,
    content: Box<Format>,
    /// Any of these ends it.
    #[serde(deserialize_with = "one_or_many")]
    end: Vec<String>,
}

/// A whole structural tag: a format, or the tags of the older form.
#[derive(serde::Deserialize)]
struct StructuralTag {
    format: Option<Format>,
    structures: Option<Vec<Structure>>,
}

#[derive(serde::Deserialize)]
struct Structure {
    begin: String,
    #[serde(deserialize_with = "schema")]
    schema: Box<Schema>,
    end: String,
}

impl Format {
    /// Reads a structural tag.
    ///
    /// # Errors
    /// When it cannot be read, or has a part that this guest does not know.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        match serde_json::from_str(text)? {
            StructuralTag { format: Some(format), .. } => Ok(format),
            StructuralTag { structures: Some(structures), .. } => {
                let tags = structures.into_iter().map(Tag::from).collect();
                Ok(Self::TriggeredTags { tags, at_least_one: false, stop_after_first: false })
            }
            StructuralTag { .. } => Err(Error::custom("it has neither `format` nor `structures`")),
        }
    }

    /// A random text of this format. Where tags may be left out it has exactly one;
    /// where there must be some and may be several, now and then two.
    ///
    /// # Errors
    /// When nothing can fit it, or nothing that is not too long.
    pub(crate) fn text(&self, rng: &mut Rng, room: Room<'_>) -> Result<String, String> {
        match self {
            Self::ConstString { value } => Ok(value.clone()),
            Self::JsonSchema { schema, style } => style.styled(document(schema, Rng::new(rng.next_u64(), 0), room)?),
            Self::AnyText => Ok((0..2 * room.generosity).map(|_| word(rng)).collect::<Vec<_>>().join(" ")),
            Self::Regex { pattern } => pattern.text(rng, room.generosity),
            Self::Grammar { grammar } => grammar.text(rng, room.generosity),
            Self::Sequence { elements } => elements.iter().map(|element| element.text(rng, room)).collect(),
            Self::Or { elements } => pick(elements, rng).ok_or("an `or` has no elements")?.text(rng, room),
            Self::Tag(tag) => tag.text(rng, room),
            Self::TriggeredTags { tags, at_least_one, stop_after_first } => {
                several(tags, "", *at_least_one && !stop_after_first, rng, room)
            }
            Self::TagsWithSeparator { tags, separator, at_least_one, stop_after_first } => {
                several(tags, separator, *at_least_one && !stop_after_first, rng, room)
            }
            Self::Optional { content } => times(content, 0, 1, rng, room),
            Self::Star { content } => times(content, 0, -1, rng, room),
            Self::Plus { content } => times(content, 1, -1, rng, room),
            Self::Repeat { content, min, max } => times(content, *min, *max, rng, room),
        }
    }
}

/// Most repetitions of a format beyond those that must be.
const REPETITIONS_MAX: u32 = 3;

/// Most calls behind the first one.
const FURTHER_CALLS_MAX: u32 = 15;

/// `content` from `min` to `max` times, one text behind the other.
fn times(content: &Format, min: u32, max: i64, rng: &mut Rng, room: Room<'_>) -> Result<String, String> {
    let most = u32::try_from(max).unwrap_or(u32::MAX);
    let Some(more) = most.checked_sub(min) else {
        return Err(format!("nothing is repeated from {min} to {max} times"));
    };
    let count = min + below(rng, more.min(room.generosity).min(REPETITIONS_MAX) + 1);
    (0..count).map(|_| content.text(rng, room)).collect()
}

/// One of the tags and, where they may repeat, now and then more.
fn several(tags: &[Tag], separator: &str, may_repeat: bool, rng: &mut Rng, room: Room<'_>) -> Result<String, String> {
    let one = |rng: &mut Rng| pick(tags, rng).ok_or("there are no tags")?.text(rng, room);
    let mut text = one(rng)?;
    // One more at most, unless the settings say how likely each is.
    let probability = room.settings.further_calls;
    for _ in 0..probability.map_or(1, |_| FURTHER_CALLS_MAX) {
        if !may_repeat || room.generosity < 2 || !happens(probability.unwrap_or(0.25), rng) {
            break;
        }
        text.push_str(separator);
        text.push_str(&one(rng)?);
    }
    Ok(text)
}

impl Tag {
    fn text(&self, rng: &mut Rng, room: Room<'_>) -> Result<String, String> {
        let content = self.content.text(rng, room)?;
        let end = pick(&self.end, rng).map_or("", String::as_str);
        Ok([&self.begin, content.as_str(), end].concat())
    }
}

impl From<Structure> for Tag {
    fn from(Structure { begin, schema, end }: Structure) -> Self {
        Self { begin, content: Box::new(Format::JsonSchema { schema, style: Style::Json }), end: Vec::from([end]) }
    }
}

fn grammar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Grammar, D::Error> {
    Grammar::parse(&String::deserialize(deserializer)?).map_err(Error::custom)
}

/// Reads a schema, the text of one, or `true`. Where any value would do it is an
/// object, since that is what the parsers of tool calls want.
fn schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Schema>, D::Error> {
    struct Any;

    impl<'de> Visitor<'de> for Any {
        type Value = Schema;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a schema, its text, or `true`")
        }

        fn visit_bool<E: Error>(self, is_any: bool) -> Result<Schema, E> {
            if is_any { Ok(Schema::default()) } else { Err(E::custom("nothing fits the schema `false`")) }
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Schema, E> {
            serde_json::from_str(text).map_err(E::custom)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Schema, A::Error> {
            Schema::deserialize(MapAccessDeserializer::new(map))
        }
    }

    let schema = deserializer.deserialize_any(Any)?;
    Ok(Box::new(if schema.is_any() { Schema::any_object() } else { schema }))
}
