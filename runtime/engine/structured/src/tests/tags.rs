use super::*;

fn texts(tag: &Value) -> Vec<String> {
    let wanted = json!({ "structural_tag": tag }).to_string();
    (0..50)
        .map(|seed| {
            let (text, tokens) = said(&request(&wanted, seed));
            assert_eq!(tokens.last(), Some(&EOS), "{text}");
            text
        })
        .collect()
}

fn texts_of_format(format: &Value) -> Vec<String> {
    texts(&json!({ "type": "structural_tag", "format": format }))
}

/// The JSON between the required beginning and end of a text.
fn content(text: &str, begin: &str, end: &str) -> Option<Value> {
    let content = text.strip_prefix(begin)?.strip_suffix(end)?;
    Some(serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// A forced tool call, as vLLM's frontends request it.
#[test]
fn a_tool_is_called() {
    let go = "<tool_call>\n{\"name\": \"go\", \"arguments\": ";
    let stay = "<tool_call>\n{\"name\": \"stay\", \"arguments\": ";
    let end = "}\n</tool_call>";
    let schema = json!({
        "type": "object", "properties": { "days": { "type": "integer" } }, "required": ["days"]
    });
    let format = json!({
        "type": "tags_with_separator", "separator": "", "at_least_one": true, "stop_after_first": true,
        "tags": [
            { "begin": go, "content": { "type": "json_schema", "json_schema": schema, "style": "json" }, "end": end },
            { "type": "tag", "begin": stay, "content": { "type": "json_schema", "json_schema": true }, "end": end }
        ]
    });
    let tag = json!({ "type": "structural_tag", "format": format });
    let said = texts(&json!(tag.to_string()));
    assert_eq!(said, texts(&tag), "the text of a tag is the tag");
    let mut called = [0, 0];
    for text in said {
        if let Some(arguments) = content(&text, go, end) {
            assert!(arguments["days"].is_i64(), "{text}");
            called[0] += 1;
        } else {
            assert!(content(&text, stay, end).expect("one of the tools").is_object(), "{text}");
            called[1] += 1;
        }
    }
    assert!(called[0] > 10 && called[1] > 10, "{called:?}");
}

#[test]
fn tags_of_the_older_form_are_followed() {
    let schema = json!({ "type": "array", "items": { "type": "boolean" } });
    for schema in [json!(schema.to_string()), schema] {
        let structures = json!([{ "begin": "<f>", "schema": schema, "end": "</f>" }]);
        let tag = json!({ "type": "structural_tag", "structures": structures, "triggers": ["<f"] });
        assert!(texts(&tag).iter().all(|text| content(text, "<f>", "</f>").expect("the tag").is_array()));
    }
}

#[test]
fn formats_are_put_together() {
    let tag = json!({ "begin": "<f>", "content": { "type": "json_schema", "json_schema": {} }, "end": ["</f>", "."] });
    let texts = texts_of_format(&json!({ "type": "sequence", "elements": [
        { "type": "const_string", "value": "<think>" },
        { "type": "any_text", "excludes": ["<f>"] },
        { "type": "or", "elements": [{ "type": "const_string", "value": "!" }, { "type": "const_string", "value": "?" }] },
        { "type": "triggered_tags", "triggers": ["<f"], "tags": [tag] }
    ] }));
    for text in &texts {
        let (thought, call) = text.split_once("<f>").expect("the tag");
        let thought = thought.strip_prefix("<think>").and_then(|thought| thought.strip_suffix(['!', '?']));
        assert!(thought.expect("a thought").split(' ').all(|word| values::words::WORDS.contains(&word)), "{text}");
        let arguments = content(call, "", "</f>").or_else(|| content(call, "", "."));
        assert!(arguments.expect("the end").is_object(), "{text}");
    }
    for part in ["!<f>", "?<f>", "</f>", "."] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}");
    }
}

#[test]
fn parts_are_left_out_and_repeated_within_their_bounds() {
    let part = json!({ "type": "const_string", "value": "a" });
    let lengths = |format: Value| -> std::collections::BTreeSet<usize> {
        texts_of_format(&format).iter().map(String::len).collect()
    };
    assert_eq!(lengths(json!({ "type": "optional", "content": part })), [0, 1].into());
    assert!(lengths(json!({ "type": "star", "content": part })).contains(&0));
    assert!(!lengths(json!({ "type": "plus", "content": part })).contains(&0));
    assert_eq!(lengths(json!({ "type": "repeat", "content": part, "min": 2, "max": 3 })), [2, 3].into());
}

/// `parallel_tool_calls` of a vLLM request arrives as `stop_after_first`.
#[test]
fn tags_repeat_where_they_may() {
    let tag = json!({ "begin": "<f>", "content": { "type": "json_schema", "json_schema": true }, "end": "</f>" });
    let most = |stop_after_first: bool| {
        let format = json!({ "type": "tags_with_separator", "separator": ";", "at_least_one": true,
                             "stop_after_first": stop_after_first, "tags": [tag] });
        texts_of_format(&format).iter().map(|text| text.split("</f>;<f>").count()).max()
    };
    assert_eq!((most(true), most(false)), (Some(1), Some(2)));
}

#[test]
fn a_call_gets_smaller_where_room_is_scarce_and_nothing_is_said_behind_it() {
    let content = json!({ "type": "json_schema", "json_schema": true });
    let format = json!({ "type": "tag", "begin": "<f>\n", "content": content, "end": "</f>" });
    let wanted = json!({ "structural_tag": { "format": format } }).to_string();
    for seed in 0..50 {
        let tight = TokenRequest { max_tokens: 11, ..request(&wanted, seed) };
        assert_eq!(said(&tight).0, "<f>\n{}</f>");
        let long = TokenRequest { min_tokens: 1_000, ..request(&wanted, seed) };
        assert!(said(&long).0.ends_with("</f>"));
    }
}

#[test]
fn a_line_break_needs_a_piece() {
    let mut pieces: serde_json::Map<String, Value> =
        (' '..='~').map(|piece| (piece.to_string(), u32::from(piece).into())).collect();
    let tag = json!({ "format": { "type": "const_string", "value": "a\nb" } });
    let wanted = json!({ "structural_tag": tag }).to_string();
    let start = |pieces: &serde_json::Map<String, Value>| {
        let config = json!({ "vocabulary": pieces, "strict": true }).to_string();
        let mut guest = JsonTokens::configure(serde_json::from_str(&config).expect("a config"), 1).expect("it is good");
        let mut output = guest.start(&request(&wanted, 1))?;
        (0..4).map(|index| guest.next_token(&mut output, index)).collect::<Result<Vec<u32>, String>>()
    };
    let problem = "the structured output cannot be made: the vocabulary has no piece for `\\n`";
    assert_eq!(start(&pieces), Err(problem.into()));
    pieces.insert("\n".into(), 10.into());
    assert_eq!(start(&pieces), Ok([97, 10, 98, EOS].into()));
}

#[test]
fn tags_that_cannot_be_followed_are_named() {
    let tag = |content: Value| json!({ "format": { "type": "tag", "begin": "a", "content": content, "end": "b" } });
    for (tag, expected) in [
        (json!({ "type": "structural_tag" }), "neither `format` nor `structures`"),
        (json!({ "format": { "type": "or", "elements": [] } }), "an `or` has no elements"),
        (json!({ "format": { "type": "tags_with_separator", "tags": [] } }), "there are no tags"),
        (
            json!({ "format": { "type": "repeat", "content": { "type": "any_text" }, "min": 2, "max": 1 } }),
            "nothing is repeated from 2 to 1 times",
        ),
        (tag(json!({ "type": "regex", "pattern": "a)" })), "the regular expression `a)` cannot be followed"),
        (tag(json!({ "type": "grammar", "grammar": "root" })), "`root` is not a rule"),
        (tag(json!({ "type": "xml", "pattern": "a+" })), "its `type` is `xml`"),
        (
            tag(json!({ "type": "json_schema", "json_schema": {}, "style": "deepseek_xml" })),
            "its `style` is `deepseek_xml`",
        ),
    ] {
        let wanted = json!({ "structural_tag": tag }).to_string();
        let error = guest().start(&request(&wanted, 1)).err().expect(expected);
        assert!(error.contains(expected), "{error}");
    }
}

/// Tools that are not strict may have any schema.
#[test]
fn arguments_follow_a_schema_as_far_as_it_can_be_followed() {
    for schema in [
        json!(false),
        json!(7),
        json!({ "type": "text" }),
        json!({ "type": "object", "properties": { "a": { "enum": [] } }, "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/Gone" } }, "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 2, "maximum": 1 } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": { "minLength": 1_000_000 } }, "required": ["a"] }),
        json!({ "type": "object", "required": "a", "properties": [], "additionalProperties": { "pattern": "(" } }),
    ] {
        for style in ["json", "qwen_xml", "python_keywords"] {
            let content = json!({ "type": "json_schema", "json_schema": schema, "style": style });
            let format = json!({ "type": "tag", "begin": "<f>", "content": content, "end": "</f>" });
            for text in texts_of_format(&format) {
                assert!(style != "json" || content_of(&text).is_some_and(|arguments| arguments.is_object()), "{text}");
            }
        }
    }
}

fn content_of(text: &str) -> Option<Value> {
    content(text, "<f>", "</f>")
}
