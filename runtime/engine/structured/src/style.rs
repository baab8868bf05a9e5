use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::node::Node;
use crate::python;

/// How an object's values are written: xgrammar's styles for JSON schemas, and one of our own. Other styles
/// are an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Json,
    /// `<parameter=KEY>`, the value, `</parameter>`.
    QwenXml,
    /// `<parameter name="KEY">`, the value, `</parameter>`.
    MinimaxXml,
    /// `<arg_key>`, the key, `</arg_key>`, `<arg_value>`, the value, `</arg_value>`.
    GlmXml,
    /// Python keyword arguments, `KEY=VALUE, KEY=VALUE`. xgrammar has no such style.
    PythonKeywords,
}

impl Style {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Json,
            "qwen_xml" => Self::QwenXml,
            "minimax_xml" => Self::MinimaxXml,
            "glm_xml" => Self::GlmXml,
            "python_keywords" => Self::PythonKeywords,
            _ => return None,
        })
    }

    /// Formats a document in this style. In XML, strings are written unquoted and everything else as JSON. In a style
    /// with keys, a document that is not an object becomes an empty text, and keys that the style cannot
    /// write are skipped.
    pub(crate) fn styled(self, document: &Node) -> String {
        if self == Self::Json {
            return document.to_string();
        }
        let Node::Object(entries) = document else { return String::new() };
        if self == Self::PythonKeywords {
            let named = entries.iter().filter(|(key, _)| is_name(key));
            return named
                .map(|(key, value)| format!("{key}={}", python::literal(value)))
                .collect::<Vec<_>>()
                .join(", ");
        }
        entries.iter().filter_map(|(key, value)| self.entry(key, value)).collect()
    }

    /// Formats an entry. None if the value contains the text that ends an entry.
    fn entry(self, key: &str, value: &Node) -> Option<String> {
        let value = match value {
            Node::String(text) => text.clone(),
            other => other.to_string(),
        };
        let is_writable = !value.contains("</") && !key.contains(['<', '>', '"', '\n']);
        is_writable.then(|| match self {
            Self::Json | Self::PythonKeywords => value,
            Self::QwenXml => format!("<parameter={key}>\n{value}\n</parameter>\n"),
            Self::MinimaxXml => format!("<parameter name=\"{key}\">{value}</parameter>\n"),
            Self::GlmXml => format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
        })
    }
}

fn is_name(key: &str) -> bool {
    key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}
