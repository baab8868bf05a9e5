use serde_json::{Value, json};

use super::*;

mod grammars;
mod tags;

const EOS: u32 = 999;

/// A source in which each byte is a token, and some longer pieces are tokens, too.
fn guest() -> JsonTokens {
    let bytes: Vec<u32> = (0..256).collect();
    let config = json!({ "byte_tokens": bytes, "vocabulary": { "\": ": 300, "true": 301 } });
    JsonTokens::configure(serde_json::from_value(config).expect("a config"), 1).expect("it is good")
}

fn request(structured_output: &str, seed: u64) -> TokenRequest<'_> {
    TokenRequest { seed, max_tokens: 2_000, eos_token: Some(EOS), structured_output, ..TokenRequest::default() }
}

/// The output up to the end token, or up to `max_tokens`.
fn said(request: &TokenRequest<'_>) -> (String, Vec<u32>) {
    let mut guest = guest();
    let mut output = guest.start(request).expect("it starts");
    let (mut text, mut tokens) = (Vec::new(), Vec::new());
    for index in 0..request.max_tokens {
        let token = guest.next_token(&mut output, index).expect("it goes on");
        tokens.push(token);
        match token {
            EOS if index >= request.min_tokens => break,
            EOS => {}
            300 => text.extend(b"\": "),
            301 => text.extend(b"true"),
            byte => text.push(u8::try_from(byte).expect("a byte")),
        }
    }
    (String::from_utf8(text).expect("whole characters"), tokens)
}

/// JSON outputs for a schema, for many seeds.
fn documents(schema: &Value) -> Vec<Value> {
    let wanted = json!({ "json": schema, "regex": null, "_backend": "xgrammar" }).to_string();
    (0..100)
        .map(|seed| {
            let (text, tokens) = said(&request(&wanted, seed));
            assert_eq!(tokens.last(), Some(&EOS), "{text}");
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
        })
        .collect()
}

#[test]
fn a_json_object_is_one() {
    let mut sizes = Vec::new();
    for seed in 0..100 {
        let (text, _) = said(&request(r#"{"json_object": true}"#, seed));
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        sizes.push(value.as_object().expect("an object").len());
    }
    assert!(sizes.iter().any(|size| *size > 2), "{sizes:?}");
}

#[test]
fn an_object_of_no_keys_is_empty() {
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    assert!(documents(&schema).iter().all(|document| *document == json!({})));
}

#[test]
fn a_schema_is_followed() {
    let schema = json!({
        "title": "Order", "type": "object", "additionalProperties": false,
        "properties": {
            "name": { "type": "string", "minLength": 3, "maxLength": 8 },
            "count": { "type": "integer", "minimum": 1, "maximum": 5 },
            "price": { "type": "number", "exclusiveMinimum": 0, "maximum": 9.5 },
            "paid": { "type": "boolean" },
            "color": { "enum": ["red", "gr\u{fc}n", 7, null] },
            "version": { "const": 2 },
            "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            "lines": { "type": "array", "items": { "$ref": "#/$defs/Line" }, "minItems": 1, "maxItems": 3 },
            "a \"quoted\" key": { "type": ["integer", "null"] }
        },
        "required": ["name", "count", "price", "color", "version", "lines"],
        "$defs": { "Line": {
            "type": "object", "properties": { "sku": { "type": "string" } }, "required": ["sku"]
        } }
    });
    let mut optional = [0, 0];
    for value in documents(&schema) {
        let name = value["name"].as_str().expect("a string");
        assert!((3..=8).contains(&name.len()), "{name}");
        assert!((1..=5).contains(&value["count"].as_i64().expect("an integer")));
        let price = value["price"].as_f64().expect("a number");
        assert!(price > 0.0 && price <= 9.5, "{price}");
        assert!([json!("red"), json!("gr\u{fc}n"), json!(7), Value::Null].contains(&value["color"]));
        assert_eq!(value["version"], 2);
        let lines = value["lines"].as_array().expect("an array");
        assert!((1..=3).contains(&lines.len()));
        assert!(lines.iter().all(|line| line["sku"].is_string()));
        optional[usize::from(value.get("paid").is_some_and(Value::is_boolean))] += 1;
        assert!(value.get("note").is_none_or(|note| note.is_string() || note.is_null()));
        assert!(value.get("a \"quoted\" key").is_none_or(|value| value.is_i64() || value.is_null()));
    }
    assert!(optional[0] > 20 && optional[1] > 20, "{optional:?}");
}

#[test]
fn properties_come_in_the_order_of_the_schema() {
    let wanted = r#"{"json": "{\"properties\": {\"zeta\": {}, \"alpha\": {}}, \"required\": [\"alpha\", \"zeta\"]}"}"#;
    let (text, _) = said(&request(wanted, 1));
    assert!(text.starts_with("{\"zeta\": ") && text.contains(", \"alpha\": "), "{text}");
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    let schema = json!({
        "$ref": "#/$defs/Node",
        "$defs": { "Node": {
            "type": "object",
            "properties": { "value": { "type": "integer" }, "next": { "anyOf": [{ "$ref": "#/$defs/Node" }, { "type": "null" }] } },
            "required": ["value", "next"]
        } }
    });
    assert!(documents(&schema).iter().any(|node| node["next"]["value"].is_i64()));
    let endless = r##"{"json": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}}"##;
    let error = guest().start(&request(endless, 1)).err().expect("it has no end");
    assert_eq!(error, "the structured output cannot be made: the schema leads more than 40 values deep");
}

#[test]
fn documents_get_smaller_where_room_is_scarce() {
    let wanted = json!({ "json": {
        "type": "object",
        "properties": {
            "id": { "type": "integer", "maximum": 9, "minimum": 0 },
            "text": { "type": "string" },
            "tags": { "type": "array", "items": { "type": "string" } }
        },
        "required": ["id", "tags"]
    } })
    .to_string();
    for seed in 0..100 {
        let tight = TokenRequest { max_tokens: 22, ..request(&wanted, seed) };
        let (text, tokens) = said(&tight);
        assert_eq!(tokens.last(), Some(&EOS), "{text}");
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let tighter = TokenRequest { max_tokens: 5, ..request(&wanted, seed) };
        assert_eq!(said(&tighter).1.len(), 5, "what does not fit is cut off");
    }
}

#[test]
fn an_output_that_may_not_end_stays_json() {
    let wanted = r#"{"json": {"type": "integer", "minimum": 1, "maximum": 9}}"#;
    for (min_tokens, eos_token) in [(10, Some(EOS)), (0, None)] {
        let request = TokenRequest { min_tokens, eos_token, max_tokens: 20, ..request(wanted, 1) };
        let (text, tokens) = said(&request);
        assert_eq!(tokens.len(), if eos_token.is_some() { 11 } else { 20 });
        assert!(serde_json::from_str::<u32>(&text).is_ok(), "{text:?}");
    }
    let stopped = TokenRequest { eos_token: None, stop_tokens: &[400, 401], ..request(wanted, 1) };
    let mut guest = guest();
    let mut output = guest.start(&stopped).expect("it starts");
    guest.next_token(&mut output, 0).expect("a digit");
    assert_eq!(guest.next_token(&mut output, 1), Ok(400), "a stop token ends as well");
}

#[test]
fn a_choice_is_one_of_them_and_fits_if_it_can() {
    let wanted = r#"{"choice": ["no", "yes", "perhaps"]}"#;
    let all: Vec<String> = (0..50).map(|seed| said(&request(wanted, seed)).0).collect();
    for choice in ["no", "yes", "perhaps"] {
        assert!(all.iter().any(|said| said == choice), "{choice}");
    }
    assert!(all.iter().all(|said| ["no", "yes", "perhaps"].contains(&said.as_str())));
    for seed in 0..50 {
        assert_eq!(said(&TokenRequest { min_tokens: 4, ..request(wanted, seed) }).0, "perhaps");
        assert_eq!(said(&TokenRequest { max_tokens: 3, ..request(wanted, seed) }).0, "no");
        let (text, tokens) = said(&TokenRequest { min_tokens: 9, ..request(r#"{"choice": ["a"]}"#, seed) });
        assert_eq!((text.as_str(), tokens.len()), ("a", 10), "nothing is said behind it");
    }
}

#[test]
fn other_requests_get_words_by_their_seed() {
    let (text, tokens) = said(&request("", 5));
    let count = text.split(' ').count();
    assert!((10..=60).contains(&count), "{count}");
    assert!(text.split(' ').all(|word| values::words::WORDS.contains(&word)), "{text}");
    assert_eq!(tokens.last(), Some(&EOS));
    assert_eq!(said(&request("", 5)).1, tokens);
    assert_ne!(said(&request("", 6)).1, tokens);
    let (_, tokens) = said(&TokenRequest { min_tokens: 1_000, ..request("", 5) });
    assert!(tokens.len() > 1_000 && tokens[..1_000].iter().all(|token| *token != EOS));
    assert_eq!(said(&TokenRequest { eos_token: None, ..request("", 5) }).1.len(), 2_000);
}

#[test]
fn what_cannot_be_followed_is_named() {
    for (wanted, expected) in [
        ("nonsense", "the structured output cannot be read"),
        (r#"{"regex": "(a"}"#, "the regular expression `(a` cannot be followed: unclosed group"),
        (r#"{"regex": "(?=a)b"}"#, "look-around"),
        (r#"{"regex": "a\\bb"}"#, "a word boundary inside"),
        (r#"{"regex": "a{70000}"}"#, "more than 2048 bytes"),
        (r#"{"grammar": "root ::= (((((\"\"*)*)*)*)*)* \"a\"{9000}"}"#, "more than 8192 bytes"),
        (r#"{"grammar": "root ::= 1 2"}"#, "there is no rule `1`"),
        (r#"{"grammar": "start: \"a\""}"#, "line 1: `start` is not a rule: rules are written `name ::= ...`"),
        (r#"{"grammar": "x ::= \"a\""}"#, "it has no rule `root`"),
        (r#"{"grammar": "root ::= \"a\" root"}"#, "no text of the rule `root` ever ends"),
        (r#"{"grammar": "root ::= . \"a\""}"#, "`.` is not supported"),
        (r#"{"grammar": "root ::= (\"a\"\n\n"}"#, "line 3: a group `(` has no end"),
        (r#"{"choice": []}"#, "an empty `choice`"),
        (r#"{"json_object": false}"#, "none of `json`, `json_object`, `choice`"),
        (
            r#"{"json": {"type": "string", "pattern": "^a$", "minLength": 5}}"#,
            "no text of 5 to 65536 characters matches the `pattern`",
        ),
        (r#"{"json": {"type": "text"}}"#, "the schema of the output cannot be followed: `\"text\"` is not a type"),
        (r#"{"json": false}"#, "nothing fits the schema `false`"),
        (r#"{"json": {"type": "string", "pattern": "(a"}}"#, "the regular expression `(a` cannot be followed"),
        (r#"{"json": {"minimum": 2, "maximum": 1}}"#, "there is no number from 2 to 1"),
        (r#"{"json": {"maxLength": -1}}"#, "`maxLength` is `-1`, not a count"),
        (r#"{"json": {"allOf": [{"type": "string"}, {"type": "null"}]}}"#, "its types exclude each other"),
        (r#"{"json": {"enum": []}}"#, "an empty `enum`"),
        (r##"{"json": {"$ref": "#/$defs/Gone"}}"##, "its `$ref` is `#/$defs/Gone`"),
        (r#"{"json": {"type": "array", "minItems": 3, "maxItems": 2}}"#, "`minItems` is 3, more than `maxItems`"),
        (r#"{"json": {"type": "string", "minLength": 2000000}}"#, "no string of 2000000"),
        (r#"{"json": {"type": "array", "items": {"const": "0123456789"}, "minItems": 1000000}}"#, "65536 bytes"),
    ] {
        let error = guest().start(&request(wanted, 1)).err().expect(expected);
        assert!(error.contains(expected), "{error}");
        let mut lenient = JsonTokens { is_strict: false, ..guest() };
        let mut output = lenient.start(&request(wanted, 1)).expect("it says something else");
        let mut plain = lenient.start(&request("", 1)).expect("it starts");
        for index in 0..400 {
            assert_eq!(lenient.next_token(&mut output, index), lenient.next_token(&mut plain, index));
        }
    }
}

#[test]
fn accepted_drafts_are_those_of_the_config() {
    let mut source = guest();
    let mut output = source.start(&request("", 1)).expect("it starts");
    assert_eq!(source.accepted_drafts(&mut output), None, "the engine's rates decide");
    let config = json!({ "byte_tokens": (0..256).collect::<Vec<u32>>(), "accepted_drafts": 2 });
    let mut source = JsonTokens::configure(serde_json::from_value(config).expect("a config"), 1).expect("it is good");
    assert_eq!(source.accepted_drafts(&mut output), Some(2));
}

#[test]
fn mistakes_in_the_config_are_named() {
    for (config, expected) in [
        (r#"{}"#, "the vocabulary has no piece for `{`"),
        (r#"{"byte_tokens": []}"#, "`byte_tokens` has 0 tokens"),
        (r#"{"byte_tokens": [1], "words": [5, 2]}"#, "expected the lesser number first, got [5, 2]"),
    ] {
        let config = serde_json::from_str(config).expect("it can be read");
        let error = JsonTokens::configure(config, 1).err().expect(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn strings_have_the_format_that_is_asked_for() {
    let has = |format: &str, fits: &dyn Fn(&str) -> bool| {
        for document in documents(&json!({ "type": "string", "format": format })) {
            assert!(document.as_str().is_some_and(fits), "{format}: {document}");
        }
    };
    has("email", &|text| text.ends_with("@example.com"));
    has("date", &|text| text.len() == 10 && text.split('-').count() == 3);
    has("date-time", &|text| text.len() == 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z'));
    has("ipv4", &|text| text.parse::<core::net::Ipv4Addr>().is_ok());
    has("ipv6", &|text| text.parse::<core::net::Ipv6Addr>().is_ok());
    let is_uuid = |text: &str| {
        let lengths: Vec<usize> = text.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12] && text.as_bytes()[14] == b'4' && "89ab".contains(&text[19..20])
    };
    has("uuid", &is_uuid);
    let wrapped = json!({ "allOf": [{ "type": "string", "format": "uri" }] });
    assert!(documents(&wrapped).iter().all(|text| text.as_str().is_some_and(|text| text.starts_with("https://"))));
}

/// Large requests of each kind.
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

/// Each input either has an output, generated with limited work, or is refused with a message.
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

fn values(schema: &Value) -> Vec<Value> {
    documents(schema)
}

#[test]
fn keywords_of_objects_are_followed() {
    let record = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    let all = values(&record);
    assert!(all.iter().all(|value| value.as_object().expect("a record").values().all(Value::is_i64)));
    assert!(all.iter().any(|value| value.as_object().is_some_and(|record| record.len() > 1)));
    let keyed = json!({ "type": "object", "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": { "type": "null" } });
    for value in values(&keyed) {
        assert!(value.as_object().expect("a record").keys().all(|key| ["a", "b"].contains(&key.as_str())), "{value}");
    }
    let counted = json!({ "type": "object", "minProperties": 5, "maxProperties": 6, "patternProperties": { "^x-[0-9]{3}$": { "type": "boolean" } }, "additionalProperties": false });
    for value in values(&counted) {
        let object = value.as_object().expect("an object");
        assert!((5..=6).contains(&object.len()), "{value}");
        assert!(
            object.iter().all(|(key, value)| key.starts_with("x-") && key.len() == 5 && value.is_boolean()),
            "{value}"
        );
    }
    let undescribed = json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a", "b"] });
    assert!(values(&undescribed).iter().all(|value| value.get("b").is_some()));
    let dependent = json!({ "properties": { "a": { "const": 1 }, "b": { "const": 2 } }, "required": ["a"], "dependentRequired": { "a": ["b"] } });
    assert!(values(&dependent).iter().all(|value| value["b"] == 2));
    let parts = json!({ "allOf": [
        { "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] },
        { "$ref": "#/$defs/B" }
    ], "properties": { "a": { "maxLength": 3, "minLength": 3 } }, "$defs": { "B": { "properties": { "b": { "type": "integer" } }, "required": ["b"] } } });
    assert!(
        values(&parts).iter().all(|value| value["a"].as_str().is_some_and(|a| a.len() == 3) && value["b"].is_i64())
    );
}

#[test]
fn keywords_of_arrays_are_followed() {
    let tuple = json!({ "type": "array", "prefixItems": [{ "type": "string" }, { "type": "number" }] });
    for value in values(&tuple) {
        let items = value.as_array().expect("a list");
        assert!(items.len() == 2 && items[0].is_string() && items[1].is_number(), "{value}");
    }
    let older = json!({ "type": "array", "items": [{ "type": "null" }], "additionalItems": { "type": "boolean" }, "minItems": 3 });
    for value in values(&older) {
        let items = value.as_array().expect("a list");
        assert!(items.len() >= 3 && items[0].is_null() && items[1..].iter().all(Value::is_boolean), "{value}");
    }
    let unique = json!({ "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "minItems": 3 });
    for value in values(&unique) {
        let mut items: Vec<&str> = value.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        items.sort_unstable();
        assert_eq!(items, ["a", "b", "c"]);
    }
    let contains = json!({ "type": "array", "items": { "type": "integer" }, "contains": { "const": 3 } });
    assert!(values(&contains).iter().all(|value| value.as_array().is_some_and(|items| items.contains(&json!(3)))));
}

#[test]
fn values_that_must_not_be_are_not() {
    let not = json!({ "type": "string", "enum": ["a", "b", "c"], "not": { "const": "b" } });
    assert!(values(&not).iter().all(|value| value != "b"));
    let one = json!({ "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] });
    assert!(values(&one).iter().all(|value| value.get("a").is_some() != value.get("b").is_some()));
    let given = json!({ "type": "object", "properties": { "kind": { "enum": ["x", "y"] }, "size": { "type": "integer" } },
        "required": ["kind"], "if": { "properties": { "kind": { "const": "x" } } }, "then": { "required": ["size"] } });
    let all = values(&given);
    assert!(all.iter().all(|value| value["kind"] != "x" || value["size"].is_i64()));
    assert!(all.iter().any(|value| value["kind"] == "y"));
}

#[test]
fn references_lead_anywhere_in_the_document() {
    let schema = json!({ "type": "object", "properties": {
        "a": { "type": "null" }, "b": { "$ref": "#/properties/a" }, "c": { "$ref": "#/$defs/a~1b%20c/items" },
        "d": { "$ref": "#here" }, "e": { "$ref": "https://example.com/e" }, "f": { "$ref": "#/$defs/list/anyOf/1" }
    }, "required": ["a", "b", "c", "d", "e", "f"], "$defs": {
        "a/b c": { "items": { "type": "null" } }, "anchor": { "$anchor": "here", "type": "null" },
        "id": { "$id": "https://example.com/e", "type": "null" }, "list": { "anyOf": [{}, { "type": "null" }] }
    } });
    for value in values(&schema) {
        assert!(value.as_object().expect("an object").values().all(Value::is_null), "{value}");
    }
}
