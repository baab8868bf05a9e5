//! Sampling parameters that affect the answer.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

/// The parameters that affect which tokens are generated, with vLLM's defaults. Other parameters only affect what
/// the frontend receives.
const DECIDING: [(&str, &str); 18] = [
    ("allowed_token_ids", "null"),
    ("bad_words", "null"),
    ("frequency_penalty", "0"),
    ("ignore_eos", "false"),
    ("logit_bias", "null"),
    ("max_tokens", "16"),
    ("min_p", "0"),
    ("min_tokens", "0"),
    ("presence_penalty", "0"),
    ("repetition_penalty", "1"),
    ("seed", "null"),
    ("stop", "null"),
    ("stop_token_ids", "null"),
    ("structured_outputs", "null"),
    ("temperature", "1"),
    ("thinking_token_budget", "null"),
    ("top_k", "0"),
    ("top_p", "1"),
];

/// The key of records without parameters: these are unknown.
pub(crate) const UNKNOWN: u64 = 0;

/// A key that is equal for parameters with equal effects. A record without parameters is unknown, because importers
/// omit their tool's defaults.
pub(crate) fn key(params: &Map<String, Value>) -> u64 {
    if params.is_empty() {
        return UNKNOWN;
    }
    let mut text = String::new();
    for (name, value) in deciding(params) {
        text.push_str(name);
        text.push('=');
        text.push_str(&value);
        text.push('\n');
    }
    xxh3_64(text.as_bytes()).max(UNKNOWN + 1)
}

/// Describes the parameters that differ: name, requested value and recorded value.
pub(crate) fn differences(asked: &Map<String, Value>, recorded: &Map<String, Value>) -> Vec<String> {
    let (asked, recorded) = (deciding(asked), deciding(recorded));
    let value = |of: &BTreeMap<&'static str, String>, name: &str, default: &str| -> String {
        of.get(name).map_or(default, String::as_str).chars().take(60).collect()
    };
    let differing = DECIDING.iter().filter(|(name, _)| asked.get(name) != recorded.get(name));
    let worded = differing.map(|(name, default)| {
        format!("{name} {}, not {}", value(&recorded, name, default), value(&asked, name, default))
    });
    worded.collect()
}

/// The parameters that differ from their defaults, in canonical form.
fn deciding(params: &Map<String, Value>) -> BTreeMap<&'static str, String> {
    let given = DECIDING.iter().filter_map(|(name, default)| {
        let value = canonical(params.get(*name)?);
        let is_default =
            value == *default || (*name == "top_k" && value == "-1") || (*default == "null" && value == "[]");
        (!is_default).then_some((*name, value))
    });
    given.collect()
}

/// Frontends store some numbers in 32 bits, and may write integers as floats.
fn canonical(value: &Value) -> String {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{}", number as i64),
        Some(number) => (number as f32).to_string(),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn only_what_decides_the_answer_counts() {
        let of = |value: Value| key(&map(value));
        let same = of(json!({"temperature": 0.7, "max_tokens": 50}));
        for other in [
            json!({"max_tokens": 50, "temperature": f64::from(0.7_f32)}),
            json!({"temperature": 0.7, "max_tokens": 50, "top_p": 1.0, "top_k": -1, "seed": null, "stop": []}),
            json!({"temperature": 0.7, "max_tokens": 50, "output_kind": 1, "logprobs": 3, "n": 2}),
        ] {
            assert_eq!(of(other.clone()), same, "{other}");
        }
        for other in [
            json!({"temperature": 0.7, "max_tokens": 5}),
            json!({"temperature": 0.7, "max_tokens": null}),
            json!({"temperature": 0.7, "max_tokens": 50, "seed": 1}),
            json!({"temperature": 0.0, "max_tokens": 50}),
            json!({"temperature": 0.7, "max_tokens": 50, "stop": ["\n"]}),
        ] {
            assert_ne!(of(other.clone()), same, "{other}");
        }
        assert_eq!(of(json!({})), UNKNOWN);
        assert_eq!(of(json!({"max_tokens": 16})), of(json!({"logprobs": 3})), "defaults, both");
    }

    #[test]
    fn differences_are_named() {
        let asked = map(json!({"temperature": 0.5, "max_tokens": 50, "seed": 7}));
        let recorded = map(json!({"temperature": 0.5, "max_tokens": 5}));
        assert_eq!(differences(&asked, &recorded), ["max_tokens 5, not 50", "seed null, not 7"]);
    }
}
