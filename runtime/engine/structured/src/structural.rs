use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_guest_sdk::Rng;

use crate::grammar::Grammar;
use crate::node::Node;
use crate::schema::Schemas;
use crate::settings::{Room, happens};
use crate::style::Style;
use crate::values::draw::{below, pick};
use crate::values::pattern::Pattern;
use crate::values::words::word;
use crate::writer::document;

/// Limits, so that a request cannot block an engine: bytes of a text, and
/// parts visited while generating it.
const TEXT_BYTES_MAX: usize = 1 << 16;
const STEPS_MAX: u32 = 20_000;

/// A text of fixed and free parts: xgrammar's formats of structural tags, as far as this guest
/// supports them.
#[derive(Debug)]
pub(crate) enum Format {
    ConstString(String),
    /// JSON that follows a schema as far as possible, such as the arguments of a tool.
    JsonSchema(Schemas, Style),
    AnyText,
    Regex(Pattern),
    Grammar(Grammar),
    Sequence(Vec<Format>),
    Or(Vec<Format>),
    Tag(Tag),
    /// One of the tags, or several with a separator.
    Tags {
        tags: Vec<Tag>,
        separator: String,
        may_repeat: bool,
    },
    Repeat {
        content: Box<Format>,
        min: u32,
        /// Maximum number of repetitions. Negative means no limit.
        max: i64,
    },
}

#[derive(Debug)]
pub(crate) struct Tag {
    begin: String,
    content: Box<Format>,
    end: Vec<String>,
}

#[derive(Default)]
struct Text {
    written: String,
    steps: u32,
}

impl Format {
    /// Parses a structural tag: a format, or tags in the older form.
    ///
    /// # Errors
    /// If the tag cannot be parsed, or a part of it is unknown.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let tag: Node = serde_json::from_str(text).map_err(|error| format!("{error}"))?;
        match (tag.get("format"), tag.get("structures")) {
            (Some(format), _) => Self::read(format),
            (None, Some(structures)) => {
                let tags = list(structures, "structures")?.iter().map(|structure| {
                    let content = Self::schema(field(structure, "schema")?, Style::Json)?;
                    Tag::read_with(structure, content)
                });
                Ok(Self::Tags { tags: tags.collect::<Result<_, _>>()?, separator: String::new(), may_repeat: false })
            }
            (None, None) => Err("it has neither `format` nor `structures`".into()),
        }
    }

    fn read(node: &Node) -> Result<Self, String> {
        let content = || Self::read(field(node, "content")?).map(Box::new);
        let formats = |key| list(field(node, key)?, key)?.iter().map(Self::read).collect::<Result<Vec<_>, _>>();
        Ok(match text(field(node, "type")?, "type")? {
            "const_string" => Self::ConstString(text(field(node, "value")?, "value")?.into()),
            "json_schema" => {
                let style = node.get("style").map_or(Ok("json"), |style| text(style, "style"))?;
                let style =
                    Style::named(style).ok_or_else(|| format!("its `style` is `{style}`, which is not known"))?;
                Self::schema(field(node, "json_schema")?, style)?
            }
            "any_text" => Self::AnyText,
            "regex" => Self::Regex(Pattern::parse(text(field(node, "pattern")?, "pattern")?)?),
            "grammar" => Self::Grammar(Grammar::parse(text(field(node, "grammar")?, "grammar")?)?),
            "sequence" => Self::Sequence(formats("elements")?),
            "or" => match formats("elements")? {
                elements if elements.is_empty() => return Err("an `or` has no elements".into()),
                elements => Self::Or(elements),
            },
            "tag" => Self::Tag(Tag::read(node)?),
            "triggered_tags" | "tags_with_separator" => Self::tags(node)?,
            "optional" => Self::Repeat { content: content()?, min: 0, max: 1 },
            "star" => Self::Repeat { content: content()?, min: 0, max: -1 },
            "plus" => Self::Repeat { content: content()?, min: 1, max: -1 },
            "repeat" => {
                let number = |key| field(node, key)?.as_f64().ok_or_else(|| format!("its `{key}` is not a number"));
                let min = field(node, "min")?.as_u32().ok_or("its `min` is not a count")?;
                Self::Repeat { content: content()?, min, max: number("max")? as i64 }
            }
            other => return Err(format!("its `type` is `{other}`, which is not known")),
        })
    }

    fn tags(node: &Node) -> Result<Self, String> {
        let tags = list(field(node, "tags")?, "tags")?.iter().map(Tag::read).collect::<Result<Vec<_>, _>>()?;
        if tags.is_empty() {
            return Err("there are no tags".into());
        }
        let is_set = |key| matches!(node.get(key), Some(Node::Bool(true)));
        let separator = node.get("separator").and_then(Node::as_str).unwrap_or_default().into();
        Ok(Self::Tags { tags, separator, may_repeat: is_set("at_least_one") && !is_set("stop_after_first") })
    }

    /// Parses a schema, a string with one, or `true`. If any value is allowed, the value will be an object, because
    /// parsers of tool calls expect one.
    fn schema(node: &Node, style: Style) -> Result<Self, String> {
        let read;
        let node = match node {
            Node::String(text) => {
                read = serde_json::from_str(text).map_err(|error| format!("a schema cannot be read: {error}"))?;
                &read
            }
            node => node,
        };
        let schemas = Schemas::lenient(node);
        Ok(Self::JsonSchema(if schemas.is_any() { Schemas::any_object() } else { schemas }, style))
    }

    /// A random text with this format. If tags are optional, it has exactly one. If at least one is required and
    /// several are allowed, it sometimes has two.
    pub(crate) fn text(&self, rng: &mut Rng, room: Room<'_>) -> Result<String, String> {
        let mut text = Text::default();
        self.write(&mut text, rng, room)?;
        Ok(text.written)
    }

    fn write(&self, text: &mut Text, rng: &mut Rng, room: Room<'_>) -> Result<(), String> {
        text.steps += 1;
        if text.written.len() > TEXT_BYTES_MAX || text.steps > STEPS_MAX {
            return Err(format!(
                "the structural tag makes more than {TEXT_BYTES_MAX} bytes, or takes more than {STEPS_MAX} steps"
            ));
        }
        match self {
            Self::ConstString(value) => text.written += value,
            Self::JsonSchema(schemas, style) => {
                let seed = rng.next_u64();
                let made = |room| document(schemas, Rng::new(seed, 0), room);
                let least = |_| made(Room { generosity: 0, ..room });
                text.steps += SCHEMA_STEPS;
                text.written += &style.styled(&made(room).or_else(least).unwrap_or(Node::Object(Vec::new())));
            }
            Self::AnyText => {
                text.written += &(0..2 * room.generosity).map(|_| word(rng)).collect::<Vec<_>>().join(" ");
            }
            Self::Regex(pattern) => text.written += &pattern.text(rng, room.generosity, &mut text.steps)?,
            Self::Grammar(grammar) => {
                text.steps += GRAMMAR_STEPS;
                text.written += &grammar.text(rng, room.generosity)?;
            }
            Self::Sequence(elements) => elements.iter().try_for_each(|element| element.write(text, rng, room))?,
            Self::Or(elements) => pick(elements, rng).map_or(Ok(()), |element| element.write(text, rng, room))?,
            Self::Tag(tag) => tag.write(text, rng, room)?,
            Self::Tags { tags, separator, may_repeat } => several(tags, separator, *may_repeat, text, rng, room)?,
            Self::Repeat { content, min, max } => times(content, (*min, *max), text, rng, room)?,
        }
        Ok(())
    }
}

/// Limits on the steps of one schema and of one grammar. A text may contain several of them.
const SCHEMA_STEPS: u32 = 1_200;
const GRAMMAR_STEPS: u32 = 2_000;

/// Maximum number of optional repetitions of a format.
const REPETITIONS_MAX: u32 = 3;

/// Maximum number of calls after the first one.
const FURTHER_CALLS_MAX: u32 = 15;

/// Writes `content` between `min` and `max` times.
fn times(
    content: &Format,
    (min, max): (u32, i64),
    text: &mut Text,
    rng: &mut Rng,
    room: Room<'_>,
) -> Result<(), String> {
    let most = u32::try_from(max).unwrap_or(u32::MAX);
    let Some(more) = most.checked_sub(min) else {
        return Err(format!("nothing is repeated from {min} to {max} times"));
    };
    let count = min.saturating_add(below(rng, more.min(room.generosity).min(REPETITIONS_MAX) + 1));
    (0..count).try_for_each(|_| content.write(text, rng, room))
}

/// Writes one of the tags and, if tags may repeat, sometimes more.
fn several(
    tags: &[Tag],
    separator: &str,
    may_repeat: bool,
    text: &mut Text,
    rng: &mut Rng,
    room: Room<'_>,
) -> Result<(), String> {
    let one = |text: &mut Text, rng: &mut Rng| pick(tags, rng).ok_or("there are no tags")?.write(text, rng, room);
    one(text, rng)?;
    // At most one more tag, unless the settings state the probability of each further one.
    let probability = room.settings.further_calls;
    for _ in 0..probability.map_or(1, |_| FURTHER_CALLS_MAX) {
        if !may_repeat || room.generosity < 2 || !happens(probability.unwrap_or(0.25), rng) {
            break;
        }
        text.written.push_str(separator);
        one(text, rng)?;
    }
    Ok(())
}

impl Tag {
    fn read(node: &Node) -> Result<Self, String> {
        let content = Format::read(field(node, "content")?)?;
        Self::read_with(node, content)
    }

    fn read_with(node: &Node, content: Format) -> Result<Self, String> {
        let end = match field(node, "end")? {
            Node::Array(ends) => ends.iter().map(|end| text(end, "end").map(String::from)).collect::<Result<_, _>>()?,
            end => Vec::from([text(end, "end")?.into()]),
        };
        Ok(Self { begin: text(field(node, "begin")?, "begin")?.into(), content: Box::new(content), end })
    }

    fn write(&self, text: &mut Text, rng: &mut Rng, room: Room<'_>) -> Result<(), String> {
        text.written += &self.begin;
        self.content.write(text, rng, room)?;
        text.written += pick(&self.end, rng).map_or("", String::as_str);
        Ok(())
    }
}

fn field<'a>(node: &'a Node, key: &str) -> Result<&'a Node, String> {
    node.get(key).ok_or_else(|| format!("a part of it has no `{key}`"))
}

fn text<'a>(node: &'a Node, key: &str) -> Result<&'a str, String> {
    node.as_str().ok_or_else(|| format!("its `{key}` is not a text"))
}

fn list<'a>(node: &'a Node, key: &str) -> Result<&'a [Node], String> {
    node.as_array().ok_or_else(|| format!("its `{key}` is not a list"))
}
