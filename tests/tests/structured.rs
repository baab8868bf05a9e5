//! Schemas that zod, pydantic and tools of MCP servers emit, with the answers of vLLM and its libraries.
//! `tests/frontends/schemas/generate.sh` writes them.

use jsonschema::{Draft, Validator};
use serde_json::{Value, json};
use vcr_structured::{JsonTokens, Rng, Structure, TokenRequest};
use vcr_tests::root;

/// The token that ends a text. All other tokens are bytes.
const END: u32 = 256;

/// Unsupported schemas: those that no value satisfies, those with Unicode classes, and those with empty lists of
/// schemas, which JSON Schema forbids.
const UNFIT: &[&str] = &[
    "zod4 2020-12: emoji",
    "zod4 2020-12: never",
    "zod4 2020-12: tuple empty",
    "zod4 openapi: null",
    "zod4 openapi: tuple empty",
    "zod3 draft-7: tuple empty",
    "zod4 draft-7: tuple empty",
    "zod3 draft-7: emoji",
];

struct Entry {
    name: String,
    schema: Value,
    /// The schema as written, so that its keys keep their order.
    text: String,
    is_taken: bool,
}

fn entries() -> Vec<Entry> {
    let path = root().join("tests/frontends/schemas/schemas.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    let named = lines.filter(|line| line["name"].is_string());
    let entry = |line: Value| Entry {
        name: line["name"].as_str().expect("a name").to_owned(),
        text: line["schema"].to_string(),
        is_taken: ["vllm", "xgrammar", "llguidance"].iter().any(|by| line[*by] == true),
        schema: line["schema"].clone(),
    };
    named.map(entry).collect()
}

fn source() -> JsonTokens {
    JsonTokens::of_pieces((0..=u8::MAX).map(|byte| (vec![byte], u32::from(byte))).collect()).expect("it has all bytes")
}

fn text(source: &JsonTokens, structure: &Structure, seed: u64, max_tokens: u32) -> String {
    let request = TokenRequest { seed, max_tokens, eos_token: Some(END), ..TokenRequest::default() };
    let mut output = source.follow_structure(structure, &request, &Default::default()).expect("it is followed");
    let tokens = (0..max_tokens).map(|index| source.continued(&mut output, index).expect("it goes on"));
    let bytes = tokens.take_while(|token| *token != END).map(|token| u8::try_from(token).expect("a byte"));
    String::from_utf8(bytes.collect()).expect("whole characters")
}

/// Validator of a schema, with an older draft if the schema is invalid in the latest one.
fn validator(schema: &Value) -> Result<Validator, String> {
    let latest = jsonschema::validator_for(schema);
    let older = |_| jsonschema::options().with_draft(Draft::Draft4).build(schema);
    latest.or_else(older).map_err(|error| error.to_string())
}

#[test]
fn schemas_that_vllm_takes_are_taken_and_followed() {
    let (source, entries) = (source(), entries());
    assert!(entries.len() >= 300, "{}", entries.len());
    let mut wrong = Vec::new();
    for entry in &entries {
        let structure = match source.structure(&format!("{{\"json\": {}}}", entry.text)) {
            Ok(structure) => structure,
            Err(_) if !entry.is_taken => continue,
            Err(problem) => {
                wrong.push(format!("{}: refused: {problem}", entry.name));
                continue;
            }
        };
        let is_unfit = UNFIT.contains(&entry.name.as_str());
        let validator = match validator(&entry.schema) {
            Ok(validator) => validator,
            Err(problem) => {
                assert!(is_unfit, "{}: {problem}", entry.name);
                continue;
            }
        };
        for seed in 0..30 {
            let text = text(&source, &structure, seed, if seed % 3 == 0 { 40 } else { 4_000 });
            let Ok(value) = serde_json::from_str::<Value>(&text) else {
                assert!(text.len() == 40, "{}: {text}", entry.name);
                continue;
            };
            if let Err(problem) = validator.validate(&value)
                && !is_unfit
            {
                wrong.push(format!("{}: {value}: {problem}", entry.name));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Arguments of tools that are not strict may follow any schema.
#[test]
fn every_schema_makes_arguments_of_tools() {
    let source = source();
    for entry in entries() {
        let content = |style: &str| {
            format!(
                "{{\"type\": \"tag\", \"begin\": \"\", \"end\": \"\", \"content\": {{\"type\": \"json_schema\", \
                 \"json_schema\": {}, \"style\": \"{style}\"}}}}",
                entry.text
            )
        };
        for style in ["json", "qwen_xml", "glm_xml", "python_keywords"] {
            let tag = format!("{{\"structural_tag\": {{\"format\": {}}}}}", content(style));
            let structure = source.structure(&tag).unwrap_or_else(|problem| panic!("{}: {problem}", entry.name));
            for seed in 0..3 {
                let text = text(&source, &structure, seed, 4_000);
                assert!(style != "json" || serde_json::from_str::<Value>(&text).is_ok(), "{}: {text}", entry.name);
            }
        }
    }
}

/// Recombined parts of schemas cause no panic, and the output is JSON.
#[test]
fn schemas_of_all_kinds_of_parts_are_read() {
    let source = source();
    let mut parts = Vec::new();
    for entry in entries() {
        let mut open = vec![entry.schema];
        while let Some(part) = open.pop() {
            match &part {
                Value::Object(entries) => open.extend(entries.values().cloned()),
                Value::Array(items) => open.extend(items.iter().cloned()),
                _ => {}
            }
            parts.push(part);
        }
    }
    let mut rng = Rng::new(7, 0);
    let keywords = [
        "type",
        "enum",
        "const",
        "items",
        "prefixItems",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "$ref",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "multipleOf",
        "uniqueItems",
        "contains",
        "dependentRequired",
        "minProperties",
        "maxProperties",
    ];
    for seed in 0..4_000 {
        let mut schema = json!({});
        for _ in 0..1 + rng.next_u32() % 5 {
            let keyword = keywords[rng.next_u32() as usize % keywords.len()];
            schema[keyword] = parts[rng.next_u32() as usize % parts.len()].clone();
        }
        if let Ok(structure) = source.structure(&json!({ "json": schema }).to_string()) {
            let text = text(&source, &structure, seed, 100_000);
            assert!(serde_json::from_str::<Value>(&text).is_ok(), "{schema}: {text}");
        }
    }
}
