use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use crate::entries::Entries;

/// How the values of an object are written: xgrammar's styles of JSON schemas. The other
/// styles are an error.
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
}

impl Style {
    /// A document of JSON in this style. Texts stand as they are, all else as JSON.
    ///
    /// # Errors
    /// When it is no object, although the style has keys, or a text has an end in it.
    pub(crate) fn styled(self, document: String) -> Result<String, String> {
        if self == Self::Json {
            return Ok(document);
        }
        let entries: Entries<Value> = serde_json::from_str(&document)
            .map_err(|_| String::from("only the arguments of an object can be written as XML"))?;
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
            Self::Json => value,
            Self::QwenXml => format!("<parameter={key}>\n{value}\n</parameter>\n"),
            Self::MinimaxXml => format!("<parameter name=\"{key}\">{value}</parameter>\n"),
            Self::GlmXml => format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
        })
    }
}
