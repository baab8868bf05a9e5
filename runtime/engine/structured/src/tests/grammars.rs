//! Regular expressions and grammars.

use super::*;

/// Texts for many seeds. Checks that each ends with the end token.
fn texts(wanted: &Value) -> Vec<String> {
    let wanted = wanted.to_string();
    (0..60)
        .map(|seed| {
            let (text, tokens) = said(&request(&wanted, seed));
            assert_eq!(tokens.last(), Some(&EOS), "{text}");
            text
        })
        .collect()
}

/// The form in which vLLM's Python frontend requests a choice.
#[test]
fn a_choice_as_a_grammar_is_one_of_them() {
    let said = texts(&json!({ "grammar": r#"root ::= "yes" | "no" | "say \"no\" \\ more""# }));
    for choice in ["yes", "no", r#"say "no" \ more"#] {
        assert!(said.iter().any(|text| text == choice), "{choice}: {said:?}");
    }
    assert!(said.iter().all(|text| ["yes", "no", r#"say "no" \ more"#].contains(&text.as_str())), "{said:?}");
}

#[test]
fn rules_are_followed() {
    let grammar = r#"
        # A little of SQL.
        root ::= "SELECT " columns " FROM " ("orders" | "users")
                 where?
        where ::= " WHERE id = " [1-9] [0-9]{2,3}
        columns ::= name ("," " " name)*
        name ::= "id" | "na\x6de"
    "#;
    let mut seen = [0, 0, 0];
    for text in texts(&json!({ "grammar": grammar })) {
        let rest = text.strip_prefix("SELECT ").expect("it begins so");
        let (columns, rest) = rest.split_once(" FROM ").expect("it goes on so");
        assert!(columns.split(", ").all(|column| ["id", "name"].contains(&column)), "{text}");
        let rest = rest.strip_prefix("orders").or_else(|| rest.strip_prefix("users")).expect("a table");
        if let Some(id) = rest.strip_prefix(" WHERE id = ") {
            assert!((3..=4).contains(&id.len()) && id.parse::<u32>().is_ok_and(|id| id >= 100), "{text}");
            seen[0] += 1;
        } else {
            assert_eq!(rest, "");
            seen[1] += 1;
        }
        seen[2] += u32::from(columns.contains(", "));
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn a_grammar_that_leads_into_itself_ends() {
    let grammar = "root ::= \"(\" root \")\" | root root | \"x\"";
    for text in texts(&json!({ "grammar": grammar })) {
        let mut open = 0_i32;
        for char in text.chars() {
            open += match char {
                '(' => 1,
                ')' => -1,
                char => i32::from(char != 'x') * 1_000,
            };
            assert!((0..1_000).contains(&open), "{text}");
        }
        assert_eq!(open, 0, "{text}");
    }
}

#[test]
fn a_regular_expression_is_matched() {
    let is_digit = |char: char| char.is_ascii_digit();
    for text in texts(&json!({ "regex": r"^\+?\d{1,3}-(\d{3}|call) [A-F]\w*$" })) {
        let (country, rest) = text.trim_start_matches('+').split_once('-').expect("a hyphen");
        assert!((1..=3).contains(&country.len()) && country.chars().all(is_digit), "{text}");
        let (number, letters) = rest.split_once(' ').expect("a space");
        assert!(number == "call" || (number.len() == 3 && number.chars().all(is_digit)), "{text}");
        assert!(letters.starts_with(|char| ('A'..='F').contains(&char)), "{text}");
        assert!(letters.chars().all(|char| char.is_ascii_alphanumeric()), "{text}");
    }
    assert!(
        texts(&json!({ "regex": "[\u{e9}\u{ea}]" })).iter().all(|text| ["\u{e9}", "\u{ea}"].contains(&text.as_str()))
    );
    assert!(texts(&json!({ "regex": "(|a)" })).iter().any(String::is_empty));
}

#[test]
fn the_pattern_of_a_schema_is_matched_within_its_lengths() {
    let schema = json!({
        "type": "object",
        "properties": {
            "zip": { "type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$" },
            "quoted": { "type": "string", "pattern": "[\"\\\\]{2}" },
            "code": { "pattern": "[A-Z]+", "minLength": 4, "maxLength": 6 }
        },
        "required": ["zip", "quoted", "code"]
    });
    for value in documents(&schema) {
        let zip = value["zip"].as_str().expect("a string");
        assert!([5, 10].contains(&zip.len()) && zip.chars().all(|char| char.is_ascii_digit() || char == '-'), "{zip}");
        let quoted = value["quoted"].as_str().expect("a string");
        assert!(quoted.len() == 2 && quoted.chars().all(|char| ['"', '\\'].contains(&char)), "{quoted}");
        let code = value["code"].as_str().expect("a string");
        assert!((4..=6).contains(&code.len()) && code.chars().all(|char| char.is_ascii_uppercase()), "{code}");
    }
}

#[test]
fn parts_of_a_tag_may_be_either() {
    let tag = json!({ "format": { "type": "sequence", "elements": [
        { "type": "regex", "pattern": "[0-9]{2}" },
        { "type": "grammar", "grammar": "root ::= \"a\" | \"b\"" }
    ] } });
    for text in texts(&json!({ "structural_tag": tag })) {
        let (digits, letter) = text.split_at(2);
        assert!(digits.chars().all(|char| char.is_ascii_digit()) && ["a", "b"].contains(&letter), "{text}");
    }
}

#[test]
fn less_is_said_where_room_is_scarce() {
    let wanted = json!({ "regex": "a(bbbb)*" }).to_string();
    for seed in 0..50 {
        assert_eq!(said(&TokenRequest { max_tokens: 4, ..request(&wanted, seed) }).0, "a");
    }
}
