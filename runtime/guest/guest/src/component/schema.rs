//! The JSON schema of a guest's config, from a custom section of the component.

#[cfg(feature = "schema")]
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// Custom section with the JSON schema of the config; `vcr guest build` copies it from `config.schema.json`.
pub(crate) const SCHEMA_SECTION: &str = "vcr:config-schema";

const SCHEMA_BYTES_MAX: usize = 256 << 10;

/// Largest number of problems that an error lists.
#[cfg(feature = "schema")]
const PROBLEMS_MAX: usize = 5;

/// A schema that checks configs. Without the feature `schema`, only guests check their configs.
pub(crate) struct ConfigSchema {
    text: String,
    #[cfg(feature = "schema")]
    validator: Validator,
}

impl ConfigSchema {
    /// Parses a schema. References to other documents are not resolved.
    pub(crate) fn new(text: String) -> Result<Self, String> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(format!("it has {} bytes: expected at most {SCHEMA_BYTES_MAX}", text.len()));
        }
        #[cfg_attr(not(feature = "schema"), expect(unused_variables, reason = "only read here"))]
        let schema: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(Self {
            // The default pattern engine can take exponential time.
            #[cfg(feature = "schema")]
            validator: jsonschema::options()
                .with_pattern_options(PatternOptions::regex())
                .build(&schema)
                .map_err(|error| error.to_string())?,
            text,
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The problems of a config, each with the path of its value; none if the config is valid.
    #[cfg(feature = "schema")]
    pub(crate) fn problems(&self, config_json: &str) -> Option<String> {
        // If the text is not JSON, the guest reports the error.
        let config: Value = serde_json::from_str(config_json).ok()?;
        let problems = self.validator.iter_errors(&config).take(PROBLEMS_MAX).map(|problem| {
            let path = problem.instance_path().to_string();
            let place = if path.is_empty() { "the config".to_owned() } else { format!("the config at `{path}`") };
            format!("{place}: {problem}")
        });
        let problems: Vec<String> = problems.collect();
        (!problems.is_empty()).then(|| problems.join("\n"))
    }

    /// Always none without the feature `schema`.
    #[cfg(not(feature = "schema"))]
    #[expect(clippy::unused_self, reason = "the other form needs it")]
    pub(crate) fn problems(&self, _config_json: &str) -> Option<String> {
        None
    }
}

#[cfg(all(test, feature = "schema"))]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false, "properties": {
        "gpu": {"type": "object", "properties": {"watts": {"type": "number", "minimum": 0}}},
        "names": {"type": "array", "items": {"type": "string", "pattern": "^(a+)+$"}}}}"#;

    #[test]
    fn problems_have_the_path_of_the_value() {
        let schema = ConfigSchema::new(SCHEMA.to_owned()).expect("it is a schema");
        assert_eq!(schema.problems(r#"{"gpu": {"watts": 700}, "names": ["aaa"]}"#), None);
        let watts = schema.problems(r#"{"gpu": {"watts": -1}}"#).expect("it is negative");
        assert_eq!(watts, "the config at `/gpu/watts`: -1 is less than the minimum of 0");
        let several = schema.problems(r#"{"names": ["a", 5], "colour": 1}"#).expect("both are wrong");
        assert!(several.contains("the config at `/names/1`: 5 is not of type \"string\""), "{several}");
        assert!(several.contains("colour"), "{several}");
        // A backtracking engine would never finish this pattern.
        let long = format!(r#"{{"names": ["{}b"]}}"#, "a".repeat(50_000));
        assert!(schema.problems(&long).is_some_and(|problem| problem.starts_with("the config at `/names/0`")));
    }

    #[test]
    fn a_bad_schema_is_refused() {
        for bad in ["{", r#"{"type": "colour"}"#, r#"{"$ref": "https://example.com/other.json"}"#] {
            assert!(ConfigSchema::new(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
