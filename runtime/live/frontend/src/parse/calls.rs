//! Finds tool calls in a text, as vLLM's parsers do.

use std::sync::Arc;

use vcr_text::tools::CallForm;

use super::event::CallEvent;
use super::json_calls::JsonCalls;
use super::python_calls::PythonCalls;
use super::section_calls::SectionCalls;
use super::types::ArgumentTypes;
use super::xml_calls::XmlCalls;

/// Finds tool calls in a streamed text.
pub(super) enum CallParser {
    Json(JsonCalls),
    Section(SectionCalls),
    Xml(XmlCalls),
    Python(PythonCalls),
}

impl CallParser {
    pub(super) fn new(form: &'static CallForm, types: Arc<ArgumentTypes>) -> Self {
        match form {
            CallForm::Json(form) => Self::Json(JsonCalls::new(form)),
            CallForm::Section(form) => Self::Section(SectionCalls::new(form)),
            CallForm::Xml(form) => Self::Xml(XmlCalls::new(form, types)),
            CallForm::Python(form) => Self::Python(PythonCalls::new(form)),
        }
    }

    /// Passes the parts that are certain to `out`.
    pub(super) fn push(&mut self, text: &str, out: impl FnMut(CallEvent<'_>)) {
        match self {
            Self::Json(calls) => calls.push(text, out),
            Self::Section(calls) => calls.push(text, out),
            Self::Xml(calls) => calls.push(text, out),
            Self::Python(calls) => calls.push(text, out),
        }
    }

    /// Passes the rest to `out`. An incomplete delimiter is text.
    pub(super) fn finish(self, out: impl FnMut(CallEvent<'_>)) {
        match self {
            Self::Json(calls) => calls.finish(out),
            Self::Section(calls) => calls.finish(out),
            Self::Xml(calls) => calls.finish(out),
            Self::Python(calls) => calls.finish(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the calls with names and arguments, and the other text.
    fn parsed(form: &str, text: &str) -> (Vec<(String, String)>, String) {
        let mut calls: Vec<(String, String)> = Vec::new();
        let mut plain = String::new();
        let mut take = |event: CallEvent<'_>| match event {
            CallEvent::Text(text) => plain.push_str(text),
            CallEvent::Call(name) => calls.push((name, String::new())),
            CallEvent::Arguments(text) => calls.last_mut().expect("a call came first").1.push_str(text),
        };
        let weather = r#"{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]},
            "c": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}}"#;
        let types = ArgumentTypes::new(&[serde_json::from_str(weather).expect("a tool")]);
        let mut parser = CallParser::new(CallForm::named(form).expect("it is a form"), Arc::new(types));
        for char in text.chars() {
            parser.push(char.encode_utf8(&mut [0; 4]), &mut take);
        }
        parser.finish(&mut take);
        (calls, plain)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn each_form_has_its_marks() {
        let object = |key: &str| format!("{{\"name\": \"f\", \"{key}\": {{\"a\": 1}}}}");
        let one = vec![call("f", "{\"a\": 1}")];
        let hermes = format!("x <tool_call>\n {} \n</tool_call> y", object("arguments"));
        assert_eq!(parsed("hermes", &hermes), (one.clone(), "x  y".to_owned()));
        let qwen = format!("x\n<tool_call>\n{}\n</tool_call>", object("arguments"));
        assert_eq!(parsed("qwen3_json", &qwen), (one.clone(), "x".to_owned()));
        let bare = format!("<tool_call>{}</tool_call>", object("arguments"));
        assert_eq!(parsed("qwen3_json", &bare), (Vec::new(), bare), "its marks stand on lines of their own");
        let internlm = format!("<|action_start|><|plugin|>{}<|action_end|>", object("parameters"));
        assert_eq!(parsed("internlm", &internlm), (one, String::new()));
        let mistral = format!("[TOOL_CALLS] [{}, {}]", object("arguments"), object("arguments"));
        assert_eq!(parsed("mistral", &mistral).0.len(), 2);
        let phi = format!("functools[{},{}]", object("arguments"), object("parameters"));
        assert_eq!(parsed("phi4_mini_json", &phi).0.len(), 2);
    }

    /// As in vLLM, a call's start delimiter counts only if something follows it.
    #[test]
    fn a_call_that_is_cut_leaves_the_text_that_was_not_certain() {
        assert_eq!(parsed("hermes", "a <tool_call>\n"), (Vec::new(), "a <tool_call>\n".to_owned()));
        assert_eq!(parsed("hermes", "a <tool_call>\n{\"na"), (Vec::new(), "a {\"na".to_owned()));
        let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool";
        assert_eq!(parsed("hermes", cut), (vec![call("f", "{}")], "}\n</tool".to_owned()));
    }

    #[test]
    fn names_are_unescaped_and_arguments_are_left_as_they_are() {
        let text = r#"<tool_call>{"name": "say_\"hi\"", "arguments": {"a": "\"}", "b": [1,]}}</tool_call>"#;
        assert_eq!(parsed("hermes", text).0, [call("say_\"hi\"", r#"{"a": "\"}", "b": [1,]}"#)]);
    }

    /// Llama's calls are JSON objects without delimiters, unless its special token occurs.
    #[test]
    fn an_answer_of_objects_is_one_of_calls() {
        let object = r#"{"name": "f", "parameters": {"a": 1}}"#;
        let one = call("f", "{\"a\": 1}");
        for text in [object.to_owned(), format!("\n {object}\n"), format!("<|python_tag|>{object}")] {
            assert_eq!(parsed("llama3_json", &text), (vec![one.clone()], String::new()), "{text}");
        }
        assert_eq!(parsed("llama3_json", &format!("{object}; {object}")).0.len(), 2);
        let text = format!("See {object}");
        assert_eq!(parsed("llama3_json", &text), (Vec::new(), text));
        assert_eq!(parsed("llama4_json", "{\"a\": 1}"), (Vec::new(), "{\"a\": 1}".to_owned()), "it is not a call");
    }

    #[test]
    fn calls_of_a_section_have_their_names_before_their_arguments() {
        let v3 = |arguments: &str| {
            format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{arguments}\n```<｜tool▁call▁end｜>")
        };
        let text =
            format!("Well.<｜tool▁calls▁begin｜>{}\n{}<｜tool▁calls▁end｜>", v3("{\"a\": 1}"), v3("{\"t\": \"```\"}"));
        let calls = vec![call("f", "{\"a\": 1}"), call("f", "{\"t\": \"```\"}")];
        assert_eq!(parsed("deepseek_v3", &text), (calls, "Well.".to_owned()));
        let text =
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
        assert_eq!(parsed("deepseek_v31", text), (vec![call("f", "{}")], String::new()));
        let text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}\
                    <|tool_call_end|><|tool_calls_section_end|>";
        assert_eq!(parsed("kimi_k2", text), (vec![call("f", "{}")], String::new()));
    }

    #[test]
    fn calls_of_python_have_keyword_arguments() {
        let text = r#"[f(a=1, b='it\'s\n', c={"d": [True, None, -0.5]}), g()]"#;
        let calls = vec![call("f", r#"{"a": 1, "b": "it's\n", "c": {"d": [true, null, -0.5]}}"#), call("g", "{}")];
        assert_eq!(parsed("pythonic", text), (calls.clone(), String::new()));
        assert_eq!(parsed("pythonic", &format!("{text}\n")), (calls.clone(), String::new()));
        assert_eq!(parsed("llama4_pythonic", text), (calls.clone(), String::new()));
        let marked = format!("<|python_start|>{text}<|python_end|>");
        assert_eq!(parsed("llama4_pythonic", &marked), (calls, String::new()));
        for text in [
            "See [f()]",
            "[1] says so.",
            "[f",
            "[f(a=1)",
            "[f(a=b)]",
            "[f(a=1) g()]",
            "[f.g()]",
            "[]",
            "<|python_start|>[f()]<|python_end|>",
        ] {
            assert_eq!(parsed("pythonic", text), (Vec::new(), text.to_owned()), "{text}");
        }
        assert_eq!(parsed("llama4_pythonic", "<|python_st"), (Vec::new(), "<|python_st".to_owned()));
    }

    #[test]
    fn arguments_between_marks_become_json_by_their_types() {
        let one = |arguments: &str| (vec![call("f", arguments)], String::new());
        let text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n\
                    <parameter=c>\n{\"d\": [1]}\n</parameter>\n</function>\n</tool_call>";
        let whole = r#"{"a":1,"b":"2","c":{"d":[1]}}"#;
        for form in ["qwen3_coder", "qwen3_xml", "mimo"] {
            assert_eq!(parsed(form, text), one(whole), "{form}");
        }
        let lines = "<tool_call><function=f><parameter=b>\nx\n<y>\n</parameter><parameter=a>none</parameter></function></tool_call>";
        assert_eq!(parsed("qwen3_coder", lines), one(r#"{"b":"x\n<y>","a":"none"}"#));
        assert_eq!(parsed("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>"), one("{}"));
        let text = "a<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>";
        assert_eq!(parsed("seed_oss", text), (vec![call("f", r#"{"a":1}"#)], "a".to_owned()));
        let invoke = "<invoke name=\"f\">\n<parameter name=\"c\">null</parameter>\n</invoke>\n";
        let text = format!("<minimax:tool_call>\n{invoke}{invoke}</minimax:tool_call>");
        assert_eq!(parsed("minimax_m2", &text).0, [call("f", r#"{"c":null}"#), call("f", r#"{"c":null}"#)]);
        let text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n\
                    <arg_value>x</arg_value>\n</tool_call>";
        assert_eq!(parsed("glm45", text), one(r#"{"a":1,"b":"x"}"#));
        assert_eq!(
            parsed("glm47", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
            one(r#"{"a":1}"#)
        );
        assert_eq!(parsed("qwen3_coder", "<tool_call>{}"), (Vec::new(), "{}".to_owned()), "it is cut");
        let json = "<tool_call>{\"name\": \"f\"}</tool_call>";
        assert_eq!(parsed("glm45", json), (Vec::new(), json["<tool_call>".len()..].to_owned()), "it is not a call");
    }
}
