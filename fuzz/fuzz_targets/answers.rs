//! No text may panic the reader of answers. An accepted text has an answer with a token for every
//! request.
#![no_main]

#[path = "../served.rs"]
mod served;

use libfuzzer_sys::fuzz_target;
use vcr_frontend::answers::parse;

/// Rows behind which a text has more.
const HEADS: [&str; 3] =
    ["", "{\"answer\": \"a\"}\n", r#"[{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "#];

fuzz_target!(|text: &str| {
    let (model, chats) = served::model();
    for head in HEADS {
        let text = format!("{head}{text}");
        let Ok(Some(list)) = parse(&text, model, chats, Some(0)) else { continue };
        assert!(!list.in_turn.is_empty());
        assert!(list.in_turn.iter().chain(list.by_prompt.values()).all(|tokens| !tokens.is_empty()));
        assert!(list.by_prompt.len() <= list.in_turn.len());
    }
});
