//! Tools that requests offer, and structural tags for calls to them.

mod forms;

use serde_json::value::RawValue;
use serde_json::{Value, json};

pub use vcr_structured::ArgumentSettings;

pub use forms::{CallForm, JsonForm, PythonForm, SectionForm, XmlForm};

/// A tool that a request offers.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Tool {
    pub name: String,
    /// The JSON schema of the arguments. Without one, any object is allowed.
    #[serde(default)]
    pub parameters: Option<Box<RawValue>>,
}

/// Limit of the size of all tags. Tools beyond it lose their schema, or get no tag at all.
const TAG_BYTES_MAX: usize = 768 << 10;

/// Deeper schemas are ignored.
const NESTING_MAX: usize = 64;

impl Tool {
    /// Returns the schema as given, which keeps the order of its keys.
    fn schema(&self) -> &str {
        let schema = self.parameters.as_deref().map_or("true", RawValue::get);
        if schema == "null" || nesting(schema) > NESTING_MAX { "true" } else { schema }
    }
}

/// Returns the nesting depth of a JSON text.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut is_text, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl CallForm {
    /// Returns the structural tag for a text with one call, or with several calls if `may_repeat`. Unlike in vLLM,
    /// it contains the schemas of all tools, even if they are not `strict`: real models mostly follow schemas
    /// without being forced.
    #[must_use]
    pub fn constraint<'a>(&self, tools: impl Iterator<Item = &'a Tool>, may_repeat: bool) -> String {
        let format = match self {
            Self::Json(form) => form.format(tools, may_repeat),
            Self::Section(form) => form.format(tools, may_repeat),
            Self::Xml(form) => form.format(tools, may_repeat),
            Self::Python(_) => PythonForm::format(tools, may_repeat),
        };
        format!("{{\"type\": \"structural_tag\", \"format\": {format}}}")
    }
}

impl JsonForm {
    fn format<'a>(&self, tools: impl Iterator<Item = &'a Tool>, may_repeat: bool) -> String {
        let inner = self.inner.unwrap_or(if self.delimiter.is_some() { "" } else { "\n" });
        let key = self.argument_keys.first().unwrap_or(&"arguments");
        let start = if self.may_lack_start { "" } else { self.start };
        let tags = tags(tools, "json", |name| {
            (format!("{start}{inner}{{\"name\": {}, \"{key}\": ", Value::from(name)), format!("}}{inner}{}", self.end))
        });
        let trigger = if start.is_empty() { "{\"name\": " } else { start };
        triggered(trigger, &tags, may_repeat && self.delimiter.is_none())
    }
}

impl SectionForm {
    fn format<'a>(&self, tools: impl Iterator<Item = &'a Tool>, may_repeat: bool) -> String {
        let (kind, number) = if self.is_numbered { ("functions.", ":0") } else { ("", "") };
        let tags = tags(tools, "json", |name| {
            (format!("{}{kind}{name}{number}{}", self.call_start, self.name_end), self.call_end.to_owned())
        });
        // One call only: each further call would have the same number.
        section([self.start, self.separator, self.end], &tags, may_repeat && !self.is_numbered)
    }
}

impl PythonForm {
    fn format<'a>(tools: impl Iterator<Item = &'a Tool>, may_repeat: bool) -> String {
        let tags = tags(tools, "python_keywords", |name| (format!("{name}("), ")".to_owned()));
        section(["[", ", ", "]"], &tags, may_repeat)
    }
}

impl XmlForm {
    fn format<'a>(&self, tools: impl Iterator<Item = &'a Tool>, may_repeat: bool) -> String {
        let line = if self.before_name.is_empty() { "" } else { "\n" };
        let after_name = if self.name_end.ends_with('\n') { "" } else { "\n" };
        let function_end =
            if self.function_end.is_empty() { String::new() } else { format!("{}\n", self.function_end) };
        let tags = tags(tools, self.style, |name| {
            let begin = format!("{}{line}{}{name}{}{after_name}", self.start, self.before_name, self.name_end);
            (begin, format!("{function_end}{}", self.end))
        });
        triggered(self.start, &tags, may_repeat)
    }
}

/// Returns a tag for each tool. `around` gives the texts before and after the arguments.
fn tags<'a>(tools: impl Iterator<Item = &'a Tool>, style: &str, around: impl Fn(&str) -> (String, String)) -> String {
    let tag = |tool: &Tool, schema: &str| {
        let (begin, end) = around(&tool.name);
        format!(
            "{{\"begin\": {}, \"content\": {{\"type\": \"json_schema\", \"json_schema\": {schema}, \"style\": \"{style}\"}}, \
             \"end\": {}}}",
            Value::from(begin),
            Value::from(end)
        )
    };
    let mut tags = String::new();
    for tool in tools {
        for schema in [tool.schema(), "true"] {
            let tag = tag(tool, schema);
            if tags.len() + tag.len() <= TAG_BYTES_MAX {
                tags += if tags.is_empty() { "" } else { ", " };
                tags += &tag;
                break;
            }
        }
    }
    tags
}

/// Returns a sequence of a start, tags with a separator, and an end.
fn section([start, separator, end]: [&str; 3], tags: &str, may_repeat: bool) -> String {
    let constant = |text: &str| json!({"type": "const_string", "value": text});
    format!(
        "{{\"type\": \"sequence\", \"elements\": [{}, {{\"type\": \"tags_with_separator\", \"tags\": [{tags}], \
         \"separator\": {}, \"at_least_one\": true, \"stop_after_first\": {}}}, {}]}}",
        constant(start),
        Value::from(separator),
        !may_repeat,
        constant(end),
    )
}

fn triggered(trigger: &str, tags: &str, may_repeat: bool) -> String {
    format!(
        "{{\"type\": \"triggered_tags\", \"triggers\": [{}], \"tags\": [{tags}], \"at_least_one\": true, \
         \"stop_after_first\": {}}}",
        Value::from(trigger),
        !may_repeat
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(json: &str) -> Tool {
        serde_json::from_str(json).expect("a tool")
    }

    fn format_of(form: &str, tools: &[Tool]) -> Value {
        let text = CallForm::named(form).expect("a form").constraint(tools.iter(), true);
        let mut tag: Value = serde_json::from_str(&text).expect("it is JSON");
        tag["format"].take()
    }

    #[test]
    fn a_constraint_has_the_schemas_as_they_were_given() {
        let own = tool(r#"{"name": "a\"b", "parameters": {"z": 1, "a": 2}}"#);
        let free = tool(r#"{"name": "free", "parameters": null}"#);
        let text = CallForm::named("hermes").expect("a form").constraint([&own, &free].into_iter(), true);
        assert!(text.contains(r#""json_schema": {"z": 1, "a": 2}"#), "{text}");
        let format = format_of("hermes", &[own, free.clone()]);
        assert_eq!(format["tags"][0]["begin"], "<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": ");
        assert_eq!(format["tags"][0]["end"], "}\n</tool_call>");
        assert_eq!(format["tags"][1]["content"]["json_schema"], true);
        assert_eq!(format["stop_after_first"], false);
        let list = format_of("mistral", &[free]);
        assert_eq!(list["tags"][0]["begin"], "[TOOL_CALLS] [{\"name\": \"free\", \"arguments\": ");
        assert_eq!(list["stop_after_first"], true);
    }

    #[test]
    fn tools_have_room_for_so_much_schema() {
        let long = format!(r#"{{"name": "long", "parameters": {{"a": "{}"}}}}"#, "x".repeat(TAG_BYTES_MAX / 2));
        let deep = format!(r#"{{"name": "deep", "parameters": {}1{}}}"#, "[".repeat(80), "]".repeat(80));
        let texts = r#"{"name": "texts", "parameters": {"a": "[[\\\"[[{{"}}"#;
        let tags = format_of("hermes", &[tool(&long), tool(&long), tool(&deep), tool(texts)])["tags"].take();
        assert!(tags[0]["content"]["json_schema"].is_object());
        assert_eq!(
            (&tags[1]["content"]["json_schema"], &tags[2]["content"]["json_schema"]),
            (&json!(true), &json!(true))
        );
        assert!(tags[3]["content"]["json_schema"].is_object());
        assert_eq!(nesting(r#"{"a": "[[\\\"[[{{", "b": [[]]}"#), 3);
    }

    #[test]
    fn each_form_has_its_own_tags() {
        let free = [tool(r#"{"name": "free"}"#)];
        let section = format_of("deepseek_v3", &free);
        let begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>free\n```json\n";
        assert_eq!(section["elements"][1]["tags"][0]["begin"], begin);
        assert_eq!(section["elements"][2]["value"], "<｜tool▁calls▁end｜>");
        let xml = format_of("qwen3_coder", &free);
        assert_eq!(xml["tags"][0]["begin"], "<tool_call>\n<function=free>\n");
        assert_eq!(xml["tags"][0]["content"]["style"], "qwen_xml");
        assert_eq!(format_of("glm45", &free)["tags"][0]["begin"], "<tool_call>free\n");
        let python = format_of("pythonic", &free);
        assert_eq!(python["elements"][1]["tags"][0]["begin"], "free(");
        assert_eq!(python["elements"][1]["stop_after_first"], false);
        assert_eq!(format_of("llama3_json", &free)["tags"][0]["begin"], "{\"name\": \"free\", \"parameters\": ");
    }
}
