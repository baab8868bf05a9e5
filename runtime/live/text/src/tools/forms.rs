//! Formats of tool calls, by the names of vLLM's parsers.

#[derive(Debug, PartialEq, Eq)]
pub enum CallForm {
    /// Each call is a JSON object with a name and arguments, between delimiters.
    Json(JsonForm),
    /// The calls form a section. Each has a name and then JSON arguments, between delimiters.
    Section(SectionForm),
    /// The name comes first, then each argument separately, as in XML.
    Xml(XmlForm),
    /// The calls are a Python list.
    Python(PythonForm),
}

/// Delimiters around a call, which is a JSON object with a name and arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct JsonForm {
    /// Starts a call, or a list of calls.
    pub start: &'static str,
    /// Whether an answer that starts with `{` is a call even without `start`.
    pub may_lack_start: bool,
    /// Text right before `start`.
    pub before_start: &'static str,
    /// Ends a call. Empty if the JSON object itself ends it.
    pub end: &'static str,
    /// The white space between the object and both delimiters; none means that any is allowed.
    pub inner: Option<&'static str>,
    /// Separates the calls of a list.
    pub delimiter: Option<&'static str>,
    /// The accepted keys for the arguments. The first is used for writing.
    pub argument_keys: &'static [&'static str],
}

/// Delimiters of a section of calls.
#[derive(Debug, PartialEq, Eq)]
pub struct SectionForm {
    /// Starts the section.
    pub start: &'static str,
    pub end: &'static str,
    /// Starts a call. The name follows directly.
    pub call_start: &'static str,
    /// Separates the name from the arguments.
    pub name_end: &'static str,
    pub call_end: &'static str,
    /// Separates two calls.
    pub separator: &'static str,
    /// Whether the name has a prefix such as `functions.` and a number such as `:0` after it.
    pub is_numbered: bool,
}

/// Delimiters of a call and of its arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct XmlForm {
    /// Starts a call.
    pub start: &'static str,
    pub end: &'static str,
    /// Comes between `start` and the name, with optional white space around it.
    pub before_name: &'static str,
    pub name_end: &'static str,
    /// Starts an argument.
    pub key_start: &'static str,
    pub key_end: &'static str,
    /// Separates key and value, with optional white space around it.
    pub value_start: &'static str,
    pub value_end: &'static str,
    /// Ends the arguments. Empty if `end` itself ends them.
    pub function_end: &'static str,
    /// The name of this style in structural tags.
    pub style: &'static str,
}

/// Delimiters around a Python list of function calls with keyword arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct PythonForm {
    /// Optional text before the calls. It is accepted but never written.
    pub start: &'static str,
    /// Optional text after the calls.
    pub end: &'static str,
}

const HERMES_JSON: JsonForm = JsonForm {
    start: "<tool_call>",
    may_lack_start: false,
    before_start: "",
    end: "</tool_call>",
    inner: None,
    delimiter: None,
    argument_keys: &["arguments"],
};
const HERMES: CallForm = CallForm::Json(HERMES_JSON);
const QWEN3_JSON: CallForm = CallForm::Json(JsonForm { before_start: "\n", inner: Some("\n"), ..HERMES_JSON });
const INTERNLM: CallForm = CallForm::Json(JsonForm {
    start: "<|action_start|><|plugin|>",
    end: "<|action_end|>",
    argument_keys: &["parameters", "arguments"],
    ..HERMES_JSON
});
const MISTRAL: CallForm =
    CallForm::Json(JsonForm { start: "[TOOL_CALLS] [", end: "]", delimiter: Some(","), ..HERMES_JSON });
const PHI4_MINI: CallForm = CallForm::Json(JsonForm {
    start: "functools[",
    end: "]",
    delimiter: Some(","),
    argument_keys: &["arguments", "parameters"],
    ..HERMES_JSON
});
const LLAMA: CallForm = CallForm::Json(JsonForm {
    start: "<|python_tag|>",
    may_lack_start: true,
    end: "",
    delimiter: Some(";"),
    argument_keys: &["parameters", "arguments"],
    ..HERMES_JSON
});
const DEEPSEEK_V31_SECTION: SectionForm = SectionForm {
    start: "<｜tool▁calls▁begin｜>",
    end: "<｜tool▁calls▁end｜>",
    call_start: "<｜tool▁call▁begin｜>",
    name_end: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
    separator: "",
    is_numbered: false,
};
const DEEPSEEK_V31: CallForm = CallForm::Section(DEEPSEEK_V31_SECTION);
const DEEPSEEK_V3: CallForm = CallForm::Section(SectionForm {
    call_start: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    name_end: "\n```json\n",
    call_end: "\n```<｜tool▁call▁end｜>",
    separator: "\n",
    ..DEEPSEEK_V31_SECTION
});
const KIMI_K2: CallForm = CallForm::Section(SectionForm {
    start: "<|tool_calls_section_begin|>",
    end: "<|tool_calls_section_end|>",
    call_start: "<|tool_call_begin|>",
    name_end: "<|tool_call_argument_begin|>",
    call_end: "<|tool_call_end|>",
    separator: "",
    is_numbered: true,
});
const QWEN3_XML_FORM: XmlForm = XmlForm {
    start: "<tool_call>",
    end: "</tool_call>",
    before_name: "<function=",
    name_end: ">",
    key_start: "<parameter=",
    key_end: ">",
    value_start: "",
    value_end: "</parameter>",
    function_end: "</function>",
    style: "qwen_xml",
};
const QWEN3_XML: CallForm = CallForm::Xml(QWEN3_XML_FORM);
const SEED_OSS: CallForm =
    CallForm::Xml(XmlForm { start: "<seed:tool_call>", end: "</seed:tool_call>", ..QWEN3_XML_FORM });
const MINIMAX_M2: CallForm = CallForm::Xml(XmlForm {
    start: "<minimax:tool_call>",
    end: "</minimax:tool_call>",
    before_name: "<invoke name=\"",
    name_end: "\">",
    key_start: "<parameter name=\"",
    key_end: "\">",
    function_end: "</invoke>",
    style: "minimax_xml",
    ..QWEN3_XML_FORM
});
const GLM45: CallForm = CallForm::Xml(XmlForm {
    before_name: "",
    name_end: "\n",
    key_start: "<arg_key>",
    key_end: "</arg_key>",
    value_start: "<arg_value>",
    value_end: "</arg_value>",
    function_end: "",
    style: "glm_xml",
    ..QWEN3_XML_FORM
});

const PYTHONIC: CallForm = CallForm::Python(PythonForm { start: "", end: "" });
const LLAMA4_PYTHONIC: CallForm = CallForm::Python(PythonForm { start: "<|python_start|>", end: "<|python_end|>" });

/// vLLM's tool-call parsers. `pythonic` and `llama4_pythonic` exist only in its Python frontend. Formats that are
/// not simulated are written as `hermes` calls.
const NAMES: [(&str, &CallForm); 25] = [
    ("deepseek_v3", &DEEPSEEK_V3),
    ("deepseek_v31", &DEEPSEEK_V31),
    ("deepseek_v32", &HERMES),
    ("deepseek_v4", &HERMES),
    ("deepseek_v41", &HERMES),
    ("glm45", &GLM45),
    ("glm47", &GLM45),
    ("granite4", &HERMES),
    ("hermes", &HERMES),
    ("internlm", &INTERNLM),
    ("kimi_k2", &KIMI_K2),
    ("llama3_json", &LLAMA),
    ("llama4_json", &LLAMA),
    ("llama4_pythonic", &LLAMA4_PYTHONIC),
    ("mimo", &QWEN3_XML),
    ("minimax_m2", &MINIMAX_M2),
    ("minimax_m3", &HERMES),
    ("mistral", &MISTRAL),
    ("phi4_mini_json", &PHI4_MINI),
    ("pythonic", &PYTHONIC),
    ("qwen3_coder", &QWEN3_XML),
    ("qwen3_json", &QWEN3_JSON),
    ("qwen3_xml", &QWEN3_XML),
    ("seed_oss", &SEED_OSS),
    ("step5", &HERMES),
];

/// Parts of model names, each with its parser. The first match counts, as in vLLM.
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
    /// Looks up the format of one of vLLM's parsers.
    ///
    /// # Errors
    /// When no such parser exists. The error lists the allowed names.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        let names = || format!("expected one of auto, none, {}", NAMES.map(|(name, _)| name).join(", "));
        found.map(|(_, form)| *form).ok_or_else(names)
    }

    /// Returns the parser that vLLM picks for a model name.
    #[must_use]
    pub fn name_for(model: &str) -> Option<&'static str> {
        let model = model.to_lowercase();
        MODELS.iter().find(|(part, _)| model.contains(part)).map(|(_, name)| *name)
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
}
