//! The differences between two JSON values.

use serde::Serialize;
use serde_json::Value;

const DIFFERENCES_MAX: usize = 20;
/// The maximum length of a reported text, in characters.
const TEXT_CHARS_MAX: usize = 120;
/// Number of equal characters that are shown before the first difference of two texts.
const COMMON_CHARS_MAX: usize = 30;

/// A difference between two JSON values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The JSON pointer to the value.
    pub path: String,
    /// The recorded value, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// The requested value, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Value>,
}

pub(super) fn differences(recorded: &Value, asked: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(recorded), Some(asked), &mut found);
    found
}

fn compare(path: &str, recorded: Option<&Value>, asked: Option<&Value>, found: &mut Vec<Difference>) {
    if recorded == asked || found.len() >= DIFFERENCES_MAX {
        return;
    }
    match (recorded, asked) {
        (Some(Value::Object(recorded)), Some(Value::Object(asked))) => {
            let added = asked.keys().filter(|name| !recorded.contains_key(*name));
            for name in recorded.keys().chain(added) {
                let step = name.replace('~', "~0").replace('/', "~1");
                compare(&format!("{path}/{step}"), recorded.get(name), asked.get(name), found);
            }
        }
        (Some(Value::Array(recorded)), Some(Value::Array(asked))) => {
            for index in 0..recorded.len().max(asked.len()) {
                compare(&format!("{path}/{index}"), recorded.get(index), asked.get(index), found);
            }
        }
        (Some(Value::Number(recorded)), Some(Value::Number(asked))) if recorded.as_f64() == asked.as_f64() => {}
        (Some(Value::String(recorded)), Some(Value::String(asked))) => {
            let [recorded, asked] = apart(recorded, asked);
            found.push(Difference { path: path.to_owned(), recorded: Some(recorded), asked: Some(asked) });
        }
        _ => {
            let (recorded, asked) = (recorded.map(shortened), asked.map(shortened));
            found.push(Difference { path: path.to_owned(), recorded, asked });
        }
    }
}

/// Cuts both texts to start shortly before their first difference.
fn apart(recorded: &str, asked: &str) -> [Value; 2] {
    let common = recorded.chars().zip(asked.chars()).take_while(|(one, other)| one == other).count();
    [recorded, asked].map(|text| match common.saturating_sub(COMMON_CHARS_MAX) {
        0 => shortened(&Value::from(text)),
        left_out => shortened(&Value::from(format!("…{}", text.chars().skip(left_out).collect::<String>()))),
    })
}

fn shortened(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
        _ => return value.clone(),
    };
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => Value::String(format!("{}…", &text[..end])),
        None => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_have_their_places() {
        let recorded = json!({"a": 1, "m": [{"c": "x"}, {"c": "y"}], "only": true, "s/t": 1});
        let asked = json!({"a": 1.0, "m": [{"c": "z"}], "new": null, "s/t": 2});
        let found: Vec<_> =
            differences(&recorded, &asked).into_iter().map(|at| (at.path, at.recorded, at.asked)).collect();
        let expected = [
            ("/m/0/c", Some(json!("x")), Some(json!("z"))),
            ("/m/1", Some(json!({"c": "y"})), None),
            ("/only", Some(json!(true)), None),
            ("/s~1t", Some(json!(1)), Some(json!(2))),
            ("/new", None, Some(json!(null))),
        ];
        assert_eq!(found, expected.map(|(path, recorded, asked)| (path.to_owned(), recorded, asked)));
        assert!(differences(&recorded, &recorded).is_empty());
    }

    #[test]
    fn reports_are_short() {
        let found = differences(&json!(vec![0; 100]), &json!(vec![1; 100]));
        assert_eq!(found.len(), DIFFERENCES_MAX);
        let found = differences(&json!("ä".repeat(500)), &json!(1));
        assert_eq!(found[0].recorded, Some(json!(format!("{}…", "ä".repeat(TEXT_CHARS_MAX)))));
        let found = differences(&json!(format!("{}one", "ä".repeat(500))), &json!(format!("{}two", "ä".repeat(500))));
        let (start, end) = (format!("…{}", "ä".repeat(COMMON_CHARS_MAX)), &found[0]);
        assert_eq!(
            (&end.recorded, &end.asked),
            (&Some(json!(format!("{start}one"))), &Some(json!(format!("{start}two"))))
        );
    }
}
