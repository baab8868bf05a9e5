//! Translates configuration files of llm-d-inference-sim.

mod table;

use std::path::Path;

use serde_json::{Map, Value};
use vcr_base::units;

pub use table::{Rule, SECTIONS, SETTINGS};

/// The translation of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// Command-line options. Flags have no value.
    pub options: Vec<(&'static str, Option<String>)>,
    /// Settings that have no effect here, with the reason.
    pub ignored: Vec<String>,
    /// Settings that are not supported, with the reason.
    pub missing: Vec<String>,
}

/// The failure types that are used if none is named.
const ALL_FAILURES: &[&str] =
    &["rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found"];

/// The paths of requests that generate text. llm-d-inference-sim fails no others.
const GENERATING: &str = "/v1/chat/completions|/v1/completions|/v1/messages|/v1/responses";

/// Options for images. They need `--omni`.
const IMAGES: &[&str] = &["--image-emission-rate", "--time-to-generate-image", "--time-to-generate-image-std-dev"];

/// Parses a YAML file and translates it.
pub fn parse(text: &str) -> Result<Translation, String> {
    let file: Value = yaml_serde::from_str(text).map_err(|error| error.to_string())?;
    translate(&file)
}

/// Translates the settings of a file.
///
/// # Errors
/// The first setting that is unknown or has an invalid value.
pub fn translate(file: &Value) -> Result<Translation, String> {
    let Value::Object(top) = file else {
        return Err("invalid configuration: expected settings by name".to_owned());
    };
    let mut all = Map::new();
    for (name, value) in top {
        match value {
            Value::Object(section) if SECTIONS.contains(&name.as_str()) => {
                all.extend(section.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            _ => drop(all.insert(name.clone(), value.clone())),
        }
    }
    let mut translation = Translation::default();
    for (name, value) in &all {
        let Some((_, rule)) = SETTINGS.iter().find(|(known, _)| known == name) else {
            return Err(format!("invalid setting `{name}`: llm-d-inference-sim has no such setting"));
        };
        if !value.is_null() {
            translation.add(name, *rule, value, &all)?;
        }
    }
    // In llm-d-inference-sim, each latency calculator has its own option for this deviation. Here they share one
    // option, so only the last one that is used is kept.
    let is_spread = |option: &str| option == "--kv-cache-transfer-time-std-dev";
    let is_used = |value: &Option<String>| value.as_deref() != Some("0ns");
    let used = translation.options.iter().rposition(|(option, value)| is_spread(option) && is_used(value));
    let mut place = 0;
    translation.options.retain(|(option, _)| {
        place += 1;
        !is_spread(option) || used == Some(place - 1)
    });
    translation.remove_overruled();
    Ok(translation)
}

impl Translation {
    fn add(&mut self, name: &str, rule: Rule, value: &Value, all: &Map<String, Value>) -> Result<(), String> {
        let invalid = |wanted: &str| format!("invalid setting `{name}`: expected {wanted}, got {value}");
        match rule {
            Rule::Same(option) => {
                let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                for value in values {
                    self.option(option, plain(value).ok_or_else(|| invalid("a text or a number"))?);
                }
            }
            Rule::Duration(option) => {
                let ns = duration_ns(value).ok_or_else(|| invalid("a duration such as 100ms"))?;
                self.option(option, format!("{ns}ns"));
            }
            Rule::Megabytes(option) => {
                let megabytes = value.as_u64().ok_or_else(|| invalid("a number of megabytes"))?;
                self.option(option, format!("{megabytes}MiB"));
            }
            Rule::Share(option) => {
                let percent = value.as_f64().filter(|percent| (0.0..=100.0).contains(percent));
                self.option(option, (percent.ok_or_else(|| invalid("0 to 100"))? / 100.0).to_string());
            }
            Rule::Flag(option) => {
                if value.as_bool().ok_or_else(|| invalid("true or false"))? {
                    self.options.push((option, None));
                }
            }
            Rule::Json(option) => self.option(option, value.to_string()),
            Rule::Percent(option) => self.failures(option, value, all.get("failure-types"))?,
            Rule::Ignored(why) => self.ignored.push(format!("{name}: {why}")),
            Rule::Special => self.special(name, value, all)?,
        }
        Ok(())
    }

    /// Removes options that llm-d-inference-sim overrides with other options. Here they would be errors.
    fn remove_overruled(&mut self) {
        let has = |translation: &Self, name: &str| translation.options.iter().any(|(option, _)| *option == name);
        if !has(self, "--omni") {
            self.options.retain(|(option, _)| !IMAGES.contains(option));
        }
        if has(self, "--ssl-certfile") {
            self.options.retain(|(option, _)| *option != "--self-signed-certs");
        }
    }

    fn option(&mut self, option: &'static str, value: String) {
        self.options.push((option, Some(value)));
    }

    /// In llm-d-inference-sim, each failure draws one of the types. Here each type has its own rule. A rule only
    /// sees calls that no earlier rule has failed, so later rules need a higher rate for an equal share.
    fn failures(&mut self, option: &'static str, rate: &Value, types: Option<&Value>) -> Result<(), String> {
        let invalid = || format!("invalid setting `failure-injection-rate`: expected 0 to 100, got {rate}");
        let percent = rate.as_f64().filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(invalid)?;
        let named: Vec<&str> =
            types.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let types = if named.is_empty() { ALL_FAILURES } else { &named };
        if let Some(unknown) = types.iter().find(|kind| !ALL_FAILURES.contains(kind)) {
            return Err(format!("invalid failure type `{unknown}`: expected one of {}", ALL_FAILURES.join(", ")));
        }
        let each = percent / 100.0 / types.len() as f64;
        for (index, kind) in types.iter().enumerate().filter(|_| percent > 0.0) {
            let rate = (each / (1.0 - each * index as f64)).min(1.0);
            self.option(option, format!("{kind}:rate={rate},path={GENERATING}"));
        }
        Ok(())
    }

    fn special(&mut self, name: &str, value: &Value, all: &Map<String, Value>) -> Result<(), String> {
        match (name, value) {
            ("model", Value::String(model)) => {
                // In llm-d-inference-sim the model is only a name, without a folder.
                if !all.contains_key("served-model-name") {
                    self.option("--served-model-name", model.clone());
                }
            }
            ("mode", Value::String(mode)) if mode == "echo" => self.option("--tokens", "echo".to_owned()),
            ("mode", Value::String(mode)) if mode == "random" => {}
            ("latency-calculator", Value::String(name)) if matches!(name.as_str(), "" | "constant" | "per-token") => {
                if name == "per-token" && is_set(all, "time-to-first-token") {
                    self.missing.push("latency-calculator: with time-to-first-token, that comes first here".to_owned());
                }
            }
            ("enable-kvcache", Value::Bool(is_on)) => {
                if *is_on {
                    self.options.push(("--enable-kv-cache-events", None));
                }
            }
            ("failure-types", Value::Array(_)) => {}
            ("dataset-path", Value::String(path)) => self.data_set(path, all),
            // The URL is used only if there is no path.
            ("dataset-url", Value::String(url)) => {
                if text(all, "dataset-path").is_none() {
                    self.data_set(url, all);
                }
            }
            ("data-parallel-size", Value::Number(size)) => {
                self.option("--data-parallel-size", size.to_string());
                // In llm-d-inference-sim, each rank has its own port.
                if size.as_u64().is_some_and(|size| size > 1) {
                    self.options.push(("--data-parallel-multi-port-external-lb", None));
                }
            }
            _ => return Err(format!("invalid setting `{name}`: {value} is not one of its values")),
        }
        Ok(())
    }
}

impl Translation {
    /// Uses the data set at a path, or else at the configured URL.
    fn data_set(&mut self, source: &str, all: &Map<String, Value>) {
        let is_echo = text(all, "mode") == Some("echo");
        let url = text(all, "dataset-url").filter(|_| !Path::new(source).exists());
        if !source.is_empty() && !is_echo {
            self.option("--tokens", url.unwrap_or(source).to_owned());
        }
    }
}

/// The value of a setting, if it is a non-empty text.
fn text<'a>(all: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    all.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn is_set(all: &Map<String, Value>, name: &str) -> bool {
    all.get(name).and_then(duration_ns).is_some_and(|ns| ns > 0)
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_on) => Some(is_on.to_string()),
        // An adapter can be an object instead of a string.
        Value::Object(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Parses a duration in Go's format, such as `1m30s`, or a number of milliseconds.
fn duration_ns(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64()?.checked_mul(1_000_000),
        Value::String(text) => {
            let mut total_ns = 0_u64;
            let mut rest = text.trim();
            if let Ok(milliseconds) = rest.parse::<u64>() {
                return milliseconds.checked_mul(1_000_000);
            }
            while !rest.is_empty() {
                let number = rest.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))?;
                let unit = rest[number..].find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len() - number);
                let (part, behind) = rest.split_at(number + unit);
                total_ns = total_ns.checked_add(units::duration_ns(&part.replace('µ', "u")).ok()?)?;
                rest = behind;
            }
            (!text.trim().is_empty()).then_some(total_ns)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_become_arguments() {
        let file = json!({
            "port": 8001, "model": "a/b", "lora-modules": ["{\"name\":\"l\"}"], "max-num-seqs": 5,
            "latencies": {"time-to-first-token": "1m30.5s", "inter-token-latency": 3},
            "kvcache": {"enable-kvcache": true, "kv-cache-size": 64},
            "mode": "echo", "enable-request-id-headers": true, "max-request-body-size-mb": 4,
            "event-batch-size": 16, "omni": true, "data-parallel-size": 2, "image-emission-rate": 25,
            "mm-encoder-only": true, "self-signed-certs": true,
        });
        let translation = translate(&file).expect("it is valid");
        let words = |(option, value): &(&str, Option<String>)| format!("{option} {}", value.as_deref().unwrap_or(""));
        let text = translation.options.iter().map(words).collect::<Vec<_>>().join(" ");
        for wanted in [
            "--port 8001",
            "--served-model-name a/b",
            "--lora-modules {\"name\":\"l\"}",
            "--time-to-first-token 90500000000ns",
            "--inter-token-latency 3000000ns",
            "--enable-kv-cache-events",
            "--num-gpu-blocks 64",
            "--tokens echo",
            "--enable-request-id-headers",
            "--max-request-body-size 4MiB",
            "--data-parallel-size 2",
            "--data-parallel-multi-port-external-lb",
            "--omni",
            "--image-emission-rate 0.25",
            "--mm-encoder-only",
            "--self-signed-certs",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
        assert_eq!(translation.ignored, ["event-batch-size: events are sent once a step, as in vLLM"]);
        assert!(translation.missing.is_empty(), "{:?}", translation.missing);
    }

    #[test]
    fn settings_that_others_overrule_have_no_option() {
        let options = |file: Value| {
            let options = translate(&file).expect("it is valid").options;
            options.into_iter().map(|(option, _)| option).collect::<Vec<_>>()
        };
        let images = json!({"omni": false, "image-emission-rate": 50, "time-to-generate-image": "1s"});
        assert!(options(images).is_empty());
        let certificates = json!({"self-signed-certs": true, "ssl-certfile": "a", "ssl-keyfile": "b"});
        assert_eq!(options(certificates), ["--ssl-certfile", "--ssl-keyfile"]);
    }

    #[test]
    fn data_sets_are_files_or_else_urls() {
        let tokens = |file: Value| {
            let options = translate(&file).expect("it is valid").options;
            options.into_iter().map(|(option, value)| format!("{option} {}", value.unwrap_or_default())).collect()
        };
        let (here, url) = (concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "https://example.org/a.sqlite3");
        let all = |path: &str, mode: &str| -> Vec<String> {
            tokens(json!({"dataset-path": path, "dataset-url": url, "mode": mode}))
        };
        assert_eq!(all(here, "random"), [format!("--tokens {here}")]);
        assert_eq!(all("no/such.sqlite3", "random"), [format!("--tokens {url}")]);
        assert_eq!(all("", "random"), [format!("--tokens {url}")]);
        assert_eq!(all(here, "echo"), ["--tokens echo"]);
        let named = tokens(json!({"dataset-path": "no/such.sqlite3", "dataset-table-name": "t"}));
        assert_eq!(named, ["--tokens no/such.sqlite3"]);
    }

    #[test]
    fn the_spread_of_transfers_is_set_once() {
        let spread = |file: Value| {
            let options = translate(&file).expect("it is valid").options;
            options.into_iter().filter_map(|(option, value)| option.contains("std-dev").then_some(value?)).collect()
        };
        let names = ["kv-cache-transfer-latency-std-dev", "kv-cache-transfer-time-std-dev"];
        let both = |one: &str, other: &str| -> Vec<String> { spread(json!({names[0]: one, names[1]: other})) };
        assert_eq!(both("2ms", "0ms"), ["2000000ns"]);
        assert_eq!(both("0ms", "3ms"), ["3000000ns"]);
        assert!(both("0ms", "0ms").is_empty());
    }

    #[test]
    fn failures_have_the_same_share_each() {
        let file = json!({"failure-injection-rate": 100, "failure-types": ["rate_limit", "server_error"]});
        let options = translate(&file).expect("it is valid").options;
        let values: Vec<_> = options.iter().filter_map(|(_, value)| value.as_deref()).collect();
        let rules = ["rate_limit:rate=0.5", "server_error:rate=1"].map(|rule| format!("{rule},path={GENERATING}"));
        assert_eq!(values, rules);
        for value in values {
            value.parse::<crate::faults::ClientFault>().expect("it is a client fault");
        }
        assert!(translate(&json!({"failure-injection-rate": 0})).expect("it is valid").options.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (file, wanted) in [
            (json!([]), "expected settings by name"),
            (json!({"prot": 1}), "invalid setting `prot`"),
            (json!({"time-to-first-token": "fast"}), "invalid setting `time-to-first-token`: expected a duration"),
            (json!({"mode": "loud"}), "invalid setting `mode`"),
            (json!({"failure-injection-rate": 101}), "expected 0 to 100"),
            (json!({"failure-injection-rate": 1, "failure-types": ["x"]}), "invalid failure type `x`"),
        ] {
            let error = translate(&file).expect_err(wanted);
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn each_setting_is_in_the_table_once() {
        let names: std::collections::BTreeSet<_> = SETTINGS.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), SETTINGS.len());
    }

    /// The page is written by hand. This test keeps it complete.
    #[test]
    fn the_page_has_each_setting() {
        let page = include_str!("../../../../../docs/reference/serve/llm-d.md");
        let on_one_line = |item: &str| item.split_whitespace().collect::<Vec<_>>().join(" ");
        let items: Vec<String> = page.split("\n* ").skip(1).map(on_one_line).collect();
        for (name, rule) in SETTINGS {
            let wanted = match rule {
                Rule::Same(text) | Rule::Duration(text) | Rule::Flag(text) | Rule::Json(text) => text,
                Rule::Percent(text) | Rule::Share(text) | Rule::Megabytes(text) | Rule::Ignored(text) => text,
                Rule::Special => "",
            };
            let names = [format!("`{name}`"), format!("`--{name}`")];
            let has_it = |item: &String| names.iter().any(|name| item.contains(name)) && item.contains(wanted);
            assert!(items.iter().any(has_it), "no item of the page has {name} with `{wanted}`");
        }
    }
}
