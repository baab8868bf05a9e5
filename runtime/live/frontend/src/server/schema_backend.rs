//! Refuses JSON schemas that vLLM's structured-output backends refuse before a request starts.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::frontend_kind::FrontendKind;

/// The backend that decides which JSON schemas are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchemaBackend {
    /// xgrammar, or llguidance for schemas that xgrammar does not support. This is `auto` in the Python frontend.
    #[default]
    Auto,
    /// Only xgrammar, as in the Rust frontend.
    Xgrammar,
    /// Only llguidance.
    Guidance,
    /// A backend whose refusals are unknown.
    Other,
}

impl SchemaBackend {
    /// Looks up a frontend's backend by its name in `--structured-outputs-config`.
    ///
    /// # Errors
    /// When no such backend exists. The error lists the allowed names.
    pub fn of(frontend: FrontendKind, name: Option<&str>) -> Result<Self, String> {
        match (name, frontend) {
            (None, FrontendKind::Rust) | (Some("xgrammar"), _) => Ok(Self::Xgrammar),
            (None, FrontendKind::Python) | (Some("auto"), FrontendKind::Python) => Ok(Self::Auto),
            (Some("auto"), FrontendKind::Rust) => Err("the backend `auto` is that of --frontend python".to_owned()),
            (Some("guidance"), _) => Ok(Self::Guidance),
            (Some("outlines" | "lm-format-enforcer"), _) => Ok(Self::Other),
            (Some(name), _) => Err(format!(
                "unknown backend `{name}`: expected auto, xgrammar, guidance, outlines or lm-format-enforcer"
            )),
        }
    }

    /// The reason why a schema is refused, with the error text of `frontend`. None if it is accepted.
    #[must_use]
    pub fn refusal(self, schema: &Value, frontend: FrontendKind) -> Option<String> {
        let parsed = schema.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let schema = parsed.as_ref().unwrap_or(schema);
        let of_guidance = || Guidance::new(schema).refusal().map(|reason| format!("Grammar error: {reason}"));
        match self {
            Self::Auto if !exceeds_xgrammar(schema) => None,
            // vLLM uses another backend for schemas with `patternProperties`.
            Self::Auto if any_object(schema, &|object| object.contains_key("patternProperties")) => None,
            Self::Auto | Self::Guidance => of_guidance(),
            Self::Xgrammar => exceeds_xgrammar(schema).then(|| {
                let reason = "The provided JSON schema contains features not supported by xgrammar.";
                match frontend {
                    FrontendKind::Python => reason.to_owned(),
                    FrontendKind::Rust => format!("invalid structured outputs params: {reason}"),
                }
            }),
            Self::Other => None,
        }
    }
}

/// String formats that xgrammar supports.
const XGRAMMAR_FORMATS: &[&str] = &[
    "email",
    "date",
    "time",
    "date-time",
    "duration",
    "ipv4",
    "ipv6",
    "hostname",
    "uuid",
    "uri",
    "uri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
];

/// Whether vLLM considers a schema unsupported by xgrammar (`has_xgrammar_unsupported_json_features`). As in vLLM,
/// property names are checked like keywords.
fn exceeds_xgrammar(schema: &Value) -> bool {
    any_object(schema, &object_exceeds_xgrammar)
}

/// Whether a test holds for an object or any nested object. As in vLLM, lists within lists are skipped.
fn any_object(value: &Value, test: &impl Fn(&Map<String, Value>) -> bool) -> bool {
    let Some(object) = value.as_object() else { return false };
    test(object)
        || object.values().any(|value| match value {
            Value::Array(items) => items.iter().any(|item| any_object(item, test)),
            value => any_object(value, test),
        })
}

fn object_exceeds_xgrammar(object: &Map<String, Value>) -> bool {
    let has = |key: &str| object.contains_key(key);
    let is = |name: &str| match object.get("type") {
        Some(Value::String(own)) => own == name,
        Some(Value::Array(names)) => names.iter().any(|own| own == name),
        _ => false,
    };
    let has_long_pattern = |object: &Map<String, Value>| {
        let has = |key: &str| object.contains_key(key);
        (has("pattern") || has("format")) && (has("minLength") || has("maxLength"))
    };
    let of_numbers = (is("integer") || is("number")) && has("multipleOf");
    let of_lists = is("array") && ["uniqueItems", "contains", "minContains", "maxContains"].into_iter().any(has);
    let has_other_format = |format: &Value| !format.as_str().is_some_and(|format| XGRAMMAR_FORMATS.contains(&format));
    let of_texts = is("string") && (object.get("format").is_some_and(has_other_format) || has_long_pattern(object));
    let of_names = object.get("propertyNames").is_some_and(|names| {
        names.as_object().is_some_and(has_long_pattern)
            || has("patternProperties")
            || has("properties")
            || object.get("unevaluatedProperties").is_some_and(|others| *others != Value::Bool(true))
    });
    let patterns = object.get("patternProperties").and_then(Value::as_object);
    let of_patterns = patterns.is_some_and(|patterns| has("properties") || patterns.len() > 1);
    let of_all = object.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    of_numbers || of_lists || of_texts || (is("object") && (of_names || of_patterns)) || of_all
}

/// String formats that llguidance supports.
const GUIDANCE_FORMATS: &[&str] =
    &["email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "unknown"];

/// Keywords that llguidance does not support, by the JSON Schema draft that introduced them. In earlier drafts they
/// have no meaning.
const GUIDANCE_LACKS: &[(u32, &[&str])] = &[
    (4, &["dependencies", "not", "uniqueItems"]),
    (6, &["contains", "propertyNames"]),
    (7, &["else", "if", "then"]),
    (
        2019,
        &[
            "$recursiveAnchor",
            "$recursiveRef",
            "dependentRequired",
            "dependentSchemas",
            "maxContains",
            "minContains",
            "unevaluatedItems",
            "unevaluatedProperties",
        ],
    ),
    (2020, &["$dynamicAnchor", "$dynamicRef"]),
];

/// The maximum depth of nested schemas and references.
const GUIDANCE_DEPTH: usize = 256;

/// Reads the parts of a schema that llguidance reads.
struct Guidance<'a> {
    root: &'a Value,
    draft: u32,
    /// The references that were already followed.
    followed: BTreeSet<&'a str>,
}

impl<'a> Guidance<'a> {
    fn new(root: &'a Value) -> Self {
        let stated = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let drafts = [("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)];
        let draft = drafts.into_iter().find(|(name, _)| stated.contains(name)).map_or(2020, |(_, draft)| draft);
        Self { root, draft, followed: BTreeSet::new() }
    }

    fn refusal(mut self) -> Option<String> {
        self.read(self.root, GUIDANCE_DEPTH).err()
    }

    fn read(&mut self, schema: &'a Value, depth: usize) -> Result<(), String> {
        let (Some(object), Some(depth)) = (schema.as_object(), depth.checked_sub(1)) else { return Ok(()) };
        let known = GUIDANCE_LACKS.iter().filter(|(since, _)| *since <= self.draft);
        let mut unsupported: Vec<&str> = known.flat_map(|(_, keys)| keys.iter().copied()).collect();
        unsupported.retain(|key| object.contains_key(*key));
        if !unsupported.is_empty() {
            unsupported.sort_unstable();
            return Err(format!("Unimplemented keys: {unsupported:?}"));
        }
        let may_be = |name: &str| match object.get("type") {
            Some(Value::String(own)) => own == name,
            Some(Value::Array(names)) => names.iter().any(|own| own == name),
            _ => true,
        };
        if may_be("string")
            && let Some(format) = object.get("format").and_then(Value::as_str)
            && !GUIDANCE_FORMATS.contains(&format)
        {
            return Err(format!("Unknown format: {format}"));
        }
        if let Some(reference) = object.get("$ref").and_then(Value::as_str)
            && self.followed.insert(reference)
            && let Some(target) = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer))
        {
            self.read(target, depth)?;
        }
        let kinds = [("object", &["properties", "additionalProperties"][..]), ("array", &["prefixItems", "items"])];
        let of_kind = kinds.into_iter().filter(|(kind, _)| may_be(kind)).flat_map(|(_, keys)| keys);
        for key in of_kind.chain(&["anyOf", "oneOf", "allOf"]) {
            match object.get(*key) {
                Some(Value::Array(parts)) => parts.iter().try_for_each(|part| self.read(part, depth))?,
                Some(Value::Object(parts)) if *key == "properties" => {
                    parts.values().try_for_each(|part| self.read(part, depth))?;
                }
                Some(part) => self.read(part, depth)?,
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// Schemas of libraries, with the responses of vLLM's frontends: `tests/frontends/schemas`.
    #[test]
    fn recorded_schemas_are_refused_as_by_each_frontend_of_vllm() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/frontends/schemas/schemas.jsonl");
        let text = fs::read_to_string(path).expect("the schemas are there");
        let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let mut refused = [0, 0];
        for entry in entries.iter().filter(|entry| entry["name"].is_string()) {
            let (name, schema) = (&entry["name"], &entry["schema"]);
            let python = SchemaBackend::Auto.refusal(schema, FrontendKind::Python);
            assert_eq!(python.as_deref(), entry.get("reason").and_then(Value::as_str), "{name}");
            let rust = SchemaBackend::Xgrammar.refusal(schema, FrontendKind::Rust);
            assert_eq!(rust.is_none(), entry["rust"].as_bool().expect("a recorded answer"), "{name}");
            refused = [refused[0] + usize::from(python.is_some()), refused[1] + usize::from(rust.is_some())];
        }
        assert_eq!(refused, [35, 46]);
    }

    #[test]
    fn schemas_in_texts_and_behind_references_are_read() {
        let refusal = |schema: Value| SchemaBackend::Auto.refusal(&schema, FrontendKind::Python);
        let unique = "Grammar error: Unimplemented keys: [\"uniqueItems\"]";
        let list = json!({"type": "array", "uniqueItems": true});
        assert_eq!(refusal(Value::String(list.to_string())).as_deref(), Some(unique));
        let behind = json!({"$ref": "#/$defs/list", "$defs": {"list": list}});
        assert_eq!(refusal(behind).as_deref(), Some(unique));
        // Unreachable parts are not read, and a self-reference is followed once.
        assert_eq!(refusal(json!({"type": "null", "$defs": {"list": list}})), None);
        let endless = json!({"allOf": [{"$ref": "#"}, {"type": "array", "contains": {}}]});
        assert_eq!(refusal(endless).as_deref(), Some("Grammar error: Unimplemented keys: [\"contains\"]"));
    }

    #[test]
    fn backends_are_known_by_their_names() {
        let of = |name| SchemaBackend::of(FrontendKind::Python, name);
        assert_eq!(of(None), Ok(SchemaBackend::Auto));
        assert_eq!(SchemaBackend::of(FrontendKind::Rust, None), Ok(SchemaBackend::Xgrammar));
        assert!(SchemaBackend::of(FrontendKind::Rust, Some("auto")).is_err());
        assert!(of(Some("yacc")).expect_err("there is none").contains("unknown backend `yacc`"));
        let dates = json!({"type": "string", "format": "iri"});
        let message = "The provided JSON schema contains features not supported by xgrammar.";
        assert_eq!(SchemaBackend::Xgrammar.refusal(&dates, FrontendKind::Python).as_deref(), Some(message));
        assert_eq!(SchemaBackend::Guidance.refusal(&json!({"type": "string"}), FrontendKind::Python), None);
        assert_eq!(SchemaBackend::Other.refusal(&dates, FrontendKind::Python), None);
    }
}
