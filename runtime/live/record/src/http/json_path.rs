//! Paths into JSON values, such as `messages.*.content`.

use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

/// A path: keys and indices separated by dots. `*` matches any key or index.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct JsonPath {
    text: String,
    steps: Vec<String>,
}

/// An invalid path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid path `{0}`: expected keys and indices such as messages.*.content")]
pub struct JsonPathError(String);

impl FromStr for JsonPath {
    type Err = JsonPathError;

    /// Also accepts the forms `$.messages[*].content` and `/messages/0/content`.
    fn from_str(text: &str) -> Result<Self, JsonPathError> {
        if let Some(pointer) = text.trim().strip_prefix('/') {
            let steps = pointer.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
            return Ok(Self { text: text.trim().to_owned(), steps });
        }
        let plain = text.trim().trim_start_matches('$').replace('[', ".").replace(']', "");
        let steps: Vec<String> = plain.trim_start_matches('.').split('.').map(str::to_owned).collect();
        if steps.iter().any(String::is_empty) {
            return Err(JsonPathError(text.to_owned()));
        }
        Ok(Self { text: steps.join("."), steps })
    }
}

impl TryFrom<String> for JsonPath {
    type Error = JsonPathError;

    fn try_from(text: String) -> Result<Self, JsonPathError> {
        text.parse()
    }
}

impl std::fmt::Display for JsonPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl JsonPath {
    /// Changes every value at this path. Returns whether any value exists there.
    pub(crate) fn change(&self, value: &mut Value, change: &impl Fn(&mut Value)) -> bool {
        change_at(&self.steps, value, change)
    }

    pub(crate) fn remove(&self, value: &mut Value) {
        let Some((last, parents)) = self.steps.split_last() else { return };
        let remove = |parent: &mut Value| match parent {
            Value::Object(fields) if last == "*" => fields.clear(),
            Value::Object(fields) => drop(fields.remove(last)),
            Value::Array(items) if last == "*" => items.clear(),
            // Removing an item would shift the items after it.
            Value::Array(items) => {
                if let Some(item) = last.parse().ok().and_then(|index: usize| items.get_mut(index)) {
                    *item = Value::Null;
                }
            }
            _ => {}
        };
        change_at(parents, value, &remove);
    }
}

fn change_at(steps: &[String], value: &mut Value, change: &impl Fn(&mut Value)) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        change(value);
        return true;
    };
    let mut is_found = false;
    match value {
        Value::Object(fields) if step == "*" => {
            fields.values_mut().for_each(|value| is_found |= change_at(rest, value, change));
        }
        Value::Object(fields) => {
            is_found = fields.get_mut(step).is_some_and(|value| change_at(rest, value, change));
        }
        Value::Array(items) if step == "*" => {
            items.iter_mut().for_each(|value| is_found |= change_at(rest, value, change));
        }
        Value::Array(items) => {
            let item = step.parse().ok().and_then(|index: usize| items.get_mut(index));
            is_found = item.is_some_and(|value| change_at(rest, value, change));
        }
        _ => {}
    }
    is_found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_at_paths_are_changed_and_removed() {
        let value = json!({"a": [{"b": 1, "c": 2}, {"b": 3}], "d": 4});
        let path = |text: &str| text.parse::<JsonPath>().expect(text);
        for text in ["a.*.b", "$.a[*].b", "/a/*/b"] {
            let mut changed = value.clone();
            assert!(path(text).change(&mut changed, &|value| *value = json!("x")));
            assert_eq!(changed, json!({"a": [{"b": "x", "c": 2}, {"b": "x"}], "d": 4}));
            let mut removed = value.clone();
            path(text).remove(&mut removed);
            assert_eq!(removed, json!({"a": [{"c": 2}, {}], "d": 4}));
        }
        let mut slashed = json!({"x/y": {"~": 1}});
        assert!(path("/x~1y/~0").change(&mut slashed, &|value| *value = json!(2)));
        assert_eq!(slashed, json!({"x/y": {"~": 2}}));
        assert_eq!(path("/x~1y/~0").to_string().parse(), Ok(path("/x~1y/~0")), "as in a capture");
        let mut other = value.clone();
        assert!(!path("a.9.b").change(&mut other, &|_| panic!("nothing is there")));
        path("d.e").remove(&mut other);
        path("a.0").remove(&mut other);
        assert_eq!(other, json!({"a": [null, {"b": 3}], "d": 4}));
        for text in ["", "a..b", "."] {
            assert!(text.parse::<JsonPath>().is_err(), "{text}");
        }
    }
}
