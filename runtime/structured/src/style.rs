use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use crate::entries::Entries;
use crate::python;

/// How the values of an object are written: xgrammar's styles of JSON schemas, and one of our
/// own. The other styles are an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Style {
    /// As JSON.
    #[default]
    Json,
    /// `<parameter=KEY>`, the value, `</parameter>`.
    QwenXml,
    /// `<parameter name="KEY">`, the value, `</parameter>`.
    MinimaxXml,
    /// `<arg_key>`, the key, `</arg_key>`, `<arg_value>`, the value, `</arg_value>`.
    GlmXml,
    /// Keyword arguments of Python, `KEY=VALUE, KEY=VALUE`. xgrammar has no such style.
    PythonKeywords,
}

impl Style {
    /// A document of JSON in this style. In XML texts stand as they are, all else as JSON.
    ///
    /// # Errors
    /// When it is not an object, although the style has keys, or a text has an end in it, or a key
    /// is not a name.
    pub(crate) fn styled(self, document: String) -> Result<String, String> {
        if self == Self::Json {
            return Ok(document);
        }
        let entries: Entries<Value> = serde_json::from_str(&document)
            .map_err(|_| String::from("only the arguments of an object can be written by their keys"))?;
        if self == Self::PythonKeywords {
            let keywords: Result<Vec<_>, _> = entries.0.iter().map(|(key, value)| keyword(key, value)).collect();
            return Ok(keywords?.join(", "));
        }
        let lines: Result<Vec<_>, _> = entries.0.iter().map(|(key, value)| self.entry(key, value)).collect();
        Ok(lines?.concat())
    }

    fn entry(self, key: &str, value: &Value) -> Result<String, String> {
        let value = match value {
            Value::String(text) => text.clone(),
            other => format!("{other}"),
        };
        if value.contains("</") {
            return Err(format!("the argument `{key}` has `</` in it, which ends arguments"));
        }
        Ok(match self {
            Self::Json | Self::PythonKeywords => value,
            Self::QwenXml => format!("<parameter={key}>\n{value}\n</parameter>\n"),
            Self::MinimaxXml => format!("<parameter name=\"{key}\">{value}</parameter>\n"),
            Self::GlmXml => format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
        })
    }
}

fn keyword(key: &str, value: &Value) -> Result<String, String> {
    let is_name = key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    if !is_name {
        return Err(format!("the argument `{key}` is not a valid name in Python"));
    }
    Ok(format!("{key}={}", python::literal(value)))
}
