//! Reads options from YAML files. The command line decides which options exist.

use std::collections::BTreeMap;

use yaml_serde::Value;

/// A value in an options file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Null, as if the option were missing.
    Unset,
    /// `true` or `false`.
    Bool(bool),
    /// A string, or a number as text.
    Text(String),
    /// A list of values.
    List(Vec<Setting>),
    /// A map, as JSON text.
    Map(String),
    /// A value with a tag, or a map that cannot be written as JSON.
    Other,
}

impl Setting {
    /// The value as one word of a command line; a map is written as JSON. None if the value is not exactly one
    /// word.
    #[must_use]
    pub fn word(&self) -> Option<String> {
        match self {
            Self::Bool(value) => Some(value.to_string()),
            Self::Text(text) | Self::Map(text) => Some(text.clone()),
            Self::Unset | Self::List(_) | Self::Other => None,
        }
    }
}

impl From<Value> for Setting {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Unset,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => Self::Text(number.to_string()),
            Value::String(text) => Self::Text(text),
            Value::Sequence(values) => Self::List(values.into_iter().map(Self::from).collect()),
            Value::Mapping(map) => serde_json::to_string(&map).map_or(Self::Other, Self::Map),
            Value::Tagged(_) => Self::Other,
        }
    }
}

/// Parses the text of a file. An empty file has no options.
pub fn parse(text: &str) -> Result<BTreeMap<String, Setting>, String> {
    match yaml_serde::from_str::<Option<BTreeMap<String, Value>>>(text) {
        Ok(values) => Ok(values.unwrap_or_default().into_iter().map(|(name, value)| (name, value.into())).collect()),
        Err(error) => Err(format!("expected a map of options: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_words() {
        let file = "a: x\nb: 1.50\nc: true\nd: [1, [2], null]\ne: {f: 1}\ng:\nh: !tag 1\ni: 0x10\n";
        let settings = parse(file).expect("it is a map");
        let words: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.word())).collect();
        let word = |text: &str| Some(text.to_owned());
        assert_eq!(
            words,
            [
                ("a", word("x")),
                ("b", word("1.5")),
                ("c", word("true")),
                ("d", None),
                ("e", word(r#"{"f":1}"#)),
                ("g", None),
                ("h", None),
                ("i", word("16")),
            ]
        );
        let one = |text: &str| Setting::Text(text.to_owned());
        assert_eq!(settings["d"], Setting::List(vec![one("1"), Setting::List(vec![one("2")]), Setting::Unset]));
        assert_eq!((&settings["h"], &settings["g"]), (&Setting::Other, &Setting::Unset));
    }

    #[test]
    fn only_a_map_has_options() {
        assert!(parse("").expect("it has none").is_empty());
        assert!(parse("# nothing\n").expect("it has none").is_empty());
        for text in ["- a", "a", "a: [", "? [a]\n: b"] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with("expected a map of options: "), "{error}");
        }
    }
}
