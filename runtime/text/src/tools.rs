//! Tools that requests offer, and the forms in which models write calls of them.

use std::fmt::Write as _;

use serde_json::value::RawValue;

/// A tool that a request offers.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; none means an object of any kind.
    #[serde(default)]
    pub parameters: Option<Box<RawValue>>,
}

/// What stands around a call, which is a JSON object of the tool's name and its
/// arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct CallForm {
    /// Begins a call, or a list of calls.
    pub start: &'static str,
    /// What belongs to the start right before it.
    pub before_start: &'static str,
    /// Ends it.
    pub end: &'static str,
    /// The white space between the object and both marks; any where none is given.
    pub inner: Option<&'static str>,
    /// Between calls of a list.
    pub delimiter: Option<&'static str>,
    /// The keys that arguments may have; the first is written.
    pub argument_keys: &'static [&'static str],
}

const HERMES: CallForm = CallForm {
    start: "<tool_call>",
    before_start: "",
    end: "</tool_call>",
    inner: None,
    delimiter: None,
    argument_keys: &["arguments"],
};
const QWEN3_JSON: CallForm = CallForm { before_start: "\n", inner: Some("\n"), ..HERMES };
const INTERNLM: CallForm = CallForm {
    start: "<|action_start|><|plugin|>",
    end: "<|action_end|>",
    argument_keys: &["parameters", "arguments"],
    ..HERMES
};
const MISTRAL: CallForm = CallForm { start: "[TOOL_CALLS] [", end: "]", delimiter: Some(","), ..HERMES };
const PHI4_MINI: CallForm = CallForm {
    start: "functools[",
    end: "]",
    delimiter: Some(","),
    argument_keys: &["arguments", "parameters"],
    ..HERMES
};

/// vLLM's tool-call parsers. Calls of models that do not write JSON between marks are
/// simulated in the form of `hermes`.
const NAMES: [(&str, &CallForm); 23] = [
    ("deepseek_v3", &HERMES),
    ("deepseek_v31", &HERMES),
    ("deepseek_v32", &HERMES),
    ("deepseek_v4", &HERMES),
    ("deepseek_v41", &HERMES),
    ("glm45", &HERMES),
    ("glm47", &HERMES),
    ("granite4", &HERMES),
    ("hermes", &HERMES),
    ("internlm", &INTERNLM),
    ("kimi_k2", &HERMES),
    ("llama3_json", &HERMES),
    ("llama4_json", &HERMES),
    ("mimo", &HERMES),
    ("minimax_m2", &HERMES),
    ("minimax_m3", &HERMES),
    ("mistral", &MISTRAL),
    ("phi4_mini_json", &PHI4_MINI),
    ("qwen3_coder", &HERMES),
    ("qwen3_json", &QWEN3_JSON),
    ("qwen3_xml", &HERMES),
    ("seed_oss", &HERMES),
    ("step5", &HERMES),
];

/// Parts of models' names and their parsers; the first that fits counts, as in vLLM.
const MODELS: [(&str, &str); 34] = [
    ("mistral-", "mistral"),
    ("mixtral-", "mistral"),
    ("mimo-v2", "mimo"),
    ("qwen3-coder", "qwen3_coder"),
    ("qwen3.5", "qwen3_coder"),
    ("qwq", "qwen3_json"),
    ("qwen2.5", "qwen3_json"),
    ("qwen3", "qwen3_json"),
    ("hermes", "hermes"),
    ("internlm2", "internlm"),
    ("llama-4", "llama4_json"),
    ("llama-3.2", "llama3_json"),
    ("llama-3.1", "llama3_json"),
    ("deepseek-r1", "deepseek_v3"),
    ("deepseek-v4.1", "deepseek_v41"),
    ("deepseek-v4", "deepseek_v4"),
    ("deepseek_v4", "deepseek_v4"),
    ("deepseek-v3.2", "deepseek_v32"),
    ("deepseek-v3.1", "deepseek_v31"),
    ("deepseek-v3", "deepseek_v3"),
    ("glm-5", "glm47"),
    ("glm-4.7", "glm47"),
    ("glm-4.6", "glm45"),
    ("glm-4.5", "glm45"),
    ("granite-4", "granite4"),
    ("kimi-k2", "kimi_k2"),
    ("minimax-m3", "minimax_m3"),
    ("mm-m3", "minimax_m3"),
    ("minimax", "minimax_m2"),
    ("mm-m2", "minimax_m2"),
    ("step-5", "step5"),
    ("step5", "step5"),
    ("seed-oss", "seed_oss"),
    ("seedoss", "seed_oss"),
];

impl CallForm {
    /// The form of one of vLLM's parsers.
    ///
    /// # Errors
    /// When there is no such parser, with the names that there are.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        let names = || format!("expected one of auto, none, {}", NAMES.map(|(name, _)| name).join(", "));
        found.map(|(_, form)| *form).ok_or_else(names)
    }

    /// The name of the parser that vLLM picks for a model by its name.
    #[must_use]
    pub fn name_for(model: &str) -> Option<&'static str> {
        let model = model.to_lowercase();
        MODELS.iter().find(|(part, _)| model.contains(part)).map(|(_, name)| *name)
    }

    /// The structural tag of a text that calls one of the tools, or of several calls
    /// where `may_repeat`. Unlike vLLM's it has the schemas of all tools, whether or
    /// not they are `strict`: models follow them without being made to.
    #[must_use]
    pub fn constraint<'a>(&self, tools: impl Iterator<Item = &'a Tool>, may_repeat: bool) -> String {
        let inner = self.inner.unwrap_or(if self.delimiter.is_some() { "" } else { "\n" });
        let key = self.argument_keys.first().unwrap_or(&"arguments");
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut tags = String::new();
        for tool in tools {
            let begin = format!("{}{inner}{{\"name\": {}, \"{key}\": ", self.start, quoted(&tool.name));
            let end = format!("}}{inner}{}", self.end);
            let schema = tool.parameters.as_deref().map_or("true", RawValue::get);
            let schema = if schema == "null" { "true" } else { schema };
            let comma = if tags.is_empty() { "" } else { ", " };
            // A text can be written to without an error.
            _ = write!(
                tags,
                "{comma}{{\"begin\": {}, \"content\": {{\"type\": \"json_schema\", \"json_schema\": {schema}}}, \
                 \"end\": {}}}",
                quoted(&begin),
                quoted(&end)
            );
        }
        format!(
            "{{\"type\": \"structural_tag\", \"format\": {{\"type\": \"triggered_tags\", \"triggers\": [{}], \
             \"tags\": [{tags}], \"at_least_one\": true, \"stop_after_first\": {}}}}}",
            quoted(self.start),
            !may_repeat || self.delimiter.is_some()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_have_the_names_of_vllm() {
        assert_eq!(CallForm::named("hermes"), Ok(&HERMES));
        let error = CallForm::named("x").expect_err("there is none");
        assert!(error.starts_with("expected one of auto, none, deepseek_v3,"), "{error}");
        assert_eq!(CallForm::name_for("Qwen/Qwen3-0.6B"), Some("qwen3_json"));
        assert_eq!(CallForm::name_for("sim"), None);
        for (_, name) in MODELS {
            assert!(CallForm::named(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_constraint_has_the_schemas_as_they_were_given() {
        let tool: Tool = serde_json::from_str(r#"{"name": "a\"b", "parameters": {"z": 1, "a": 2}}"#).expect("a tool");
        let free: Tool = serde_json::from_str(r#"{"name": "free", "parameters": null}"#).expect("a tool");
        let text = HERMES.constraint([&tool, &free].into_iter(), true);
        assert!(text.contains(r#""json_schema": {"z": 1, "a": 2}"#), "{text}");
        let tag: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        let format = &tag["format"];
        assert_eq!(format["tags"][0]["begin"], "<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": ");
        assert_eq!(format["tags"][0]["end"], "}\n</tool_call>");
        assert_eq!(format["tags"][1]["content"]["json_schema"], true);
        assert_eq!(format["stop_after_first"], false);
        let list = MISTRAL.constraint([&free].into_iter(), true);
        assert!(list.contains(r#""begin": "[TOOL_CALLS] [{\"name\": \"free\", \"arguments\": ""#), "{list}");
        assert!(list.contains(r#""stop_after_first": true"#), "{list}");
    }
}
