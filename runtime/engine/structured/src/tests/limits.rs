//! What a request may ask for, and the work of it.

use super::*;

/// What is asked for with a lot of something.
fn many(count: usize) -> Vec<(&'static str, Value)> {
    let names: Vec<String> = (0..count).map(|index| format!("p{index}")).collect();
    let text = json!({ "type": "string" });
    let properties: Value =
        names.iter().map(|name| (name.clone(), text.clone())).collect::<serde_json::Map<_, _>>().into();
    let definitions: Value = names
        .iter()
        .map(|name| (name.clone(), json!({ "$ref": "#/$defs/p0" })))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let references: Vec<Value> = names.iter().map(|name| json!({ "$ref": format!("#/$defs/{name}") })).collect();
    let constants: Vec<Value> = (0..count).map(|index| json!({ "const": index })).collect();
    vec![
        ("required", json!({ "json": { "type": "object", "properties": properties, "required": names } })),
        (
            "optional",
            json!({ "json": { "type": "array", "minItems": 5_000, "items": { "type": "object", "properties": properties } } }),
        ),
        ("any_of", json!({ "json": { "type": "array", "minItems": 5_000, "items": { "anyOf": constants } } })),
        ("one_of", json!({ "json": { "type": "array", "minItems": 5_000, "items": { "oneOf": constants } } })),
        (
            "enum",
            json!({ "json": { "type": "array", "minItems": 5_000, "uniqueItems": true, "items": { "enum": names } } }),
        ),
        ("definitions", json!({ "json": { "$defs": definitions, "anyOf": references } })),
        ("choices", json!({ "choice": names })),
        ("patterns", json!({ "json": { "patternProperties": properties, "minProperties": count } })),
        (
            "nested",
            json!({ "json": { "type": "array", "minItems": count, "items": { "type": "string", "pattern": "^(?=(a|a)*b)(a*)*c$" } } }),
        ),
        (
            "tags",
            json!({ "structural_tag": { "format": { "type": "repeat", "min": count, "max": -1, "content":
            { "type": "json_schema", "json_schema": { "type": "object", "properties": properties } } } } }),
        ),
        (
            "text",
            json!({ "structural_tag": { "format": { "type": "repeat", "min": 4_000_000_000_u32, "max": -1,
            "content": { "type": "const_string", "value": "" } } } }),
        ),
    ]
}

/// Each either has an output, made with bounded work, or is refused in words.
#[test]
fn a_lot_of_anything_is_made_or_refused() {
    let mut source = guest();
    for count in [300, 3_000, 100_000] {
        for (name, wanted) in many(count) {
            let wanted = wanted.to_string();
            let structure = match source.structure(&wanted) {
                Ok(structure) => structure,
                Err(problem) => {
                    assert!(count > 300 || ["nested", "patterns", "tags", "text"].contains(&name), "{name}: {problem}");
                    assert!(problem.contains(" more than ") || problem.contains("may have"), "{name}: {problem}");
                    continue;
                }
            };
            for seed in 0..16 {
                let request = request(&wanted, seed);
                let mut output = source.follow_structure(&structure, &request, &settings::USUAL).expect(name);
                source.next_token(&mut output, 0).expect(name);
            }
        }
    }
}

/// Requests with room for a few tokens of a long output share what they are cut from.
#[test]
fn a_long_output_that_is_cut_off_is_made_once() {
    let source = guest();
    let wanted = json!({ "json": { "type": "array", "items": { "type": "integer" }, "minItems": 4_000 } }).to_string();
    let structure = source.structure(&wanted).expect("it can be followed");
    let said = |seed| {
        let request = TokenRequest { max_tokens: 50, ..request(&wanted, seed) };
        let mut output = source.follow_structure(&structure, &request, &settings::USUAL).expect("it is followed");
        (0..50).map(|index| source.continued(&mut output, index).expect("it goes on")).collect::<Vec<_>>()
    };
    assert_eq!(said(1), said(2));
    assert_eq!(said(1)[0], u32::from(b'['));
}
