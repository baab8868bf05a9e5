//! Incremental results of tokenizers, detokenizers and stop strings, compared with those for whole texts.

use proptest::prelude::*;
use vcr_text::{Detokenizer, English, StopStrings, Tokenizer};

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut text = Detokenizer::new(tokenizer, skip_special);
    let mut pieces = Vec::new();
    for id in ids {
        let mut piece = String::new();
        text.push(*id, &mut piece);
        pieces.push(piece);
    }
    let mut rest = String::new();
    text.finish(&mut rest);
    pieces.push(rest);
    pieces
}

proptest! {
    #[test]
    fn the_builtin_tokenizer_loses_nothing(text in "\\PC{0,200}|[a-z \\n]{0,200}") {
        let tokenizer = Tokenizer::builtin();
        let ids = tokenizer.encode(&text, true).expect("every text has tokens");
        prop_assert_eq!(tokenizer.decode(&ids, false), text);
    }

    /// Models can emit any bytes.
    #[test]
    fn pieces_are_the_whole_text(ids in prop::collection::vec(0u32..1400, 0..60), skip_special: bool) {
        let tokenizer = Tokenizer::builtin();
        prop_assert_eq!(streamed(&tokenizer, &ids, skip_special).concat(), tokenizer.decode(&ids, skip_special));
    }

    /// Most invalid sequences start like valid ones.
    #[test]
    fn pieces_of_broken_characters_are_the_whole_text(
        ids in prop::collection::vec(prop::sample::select(vec![65u32, 0x80, 0xbf, 0xc3, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0xff]), 0..40),
    ) {
        let tokenizer = Tokenizer::builtin();
        prop_assert_eq!(streamed(&tokenizer, &ids, true).concat(), tokenizer.decode(&ids, true));
    }

    /// With one stop string, results do not depend on how the text is cut.
    #[test]
    fn a_stop_string_is_found_wherever_the_text_is_cut(
        pieces in prop::collection::vec("[ab\u{e9}]{0,3}", 0..40),
        stop in "[ab\u{e9}]{1,4}",
        is_included: bool,
    ) {
        let whole = pieces.concat();
        let mut stops = StopStrings::new(vec![stop.clone()], is_included);
        let mut out = String::new();
        let matched = pieces.iter().any(|piece| stops.push(piece, true, &mut out).is_some());
        if !matched {
            stops.finish(&mut out);
        }
        let expected = match whole.find(&stop) {
            Some(at) => &whole[..at + if is_included { stop.len() } else { 0 }],
            None => &whole,
        };
        prop_assert_eq!(out, expected);
        prop_assert_eq!(matched, whole.contains(&stop));
    }

    #[test]
    fn released_text_never_holds_a_stop_string(
        pieces in prop::collection::vec("[ab]{0,3}", 0..60),
        stops in prop::collection::vec("[ab]{1,5}", 1..4),
    ) {
        let mut search = StopStrings::new(stops.clone(), false);
        let mut out = String::new();
        for piece in &pieces {
            if search.push(piece, true, &mut out).is_some() {
                break;
            }
            prop_assert!(stops.iter().all(|stop| !out.contains(stop.as_str())), "{}", out);
        }
    }
}

#[test]
fn characters_wait_for_all_their_bytes() {
    let pieces = streamed(&Tokenizer::builtin(), &[0xf0, 0x9f, 0x98, 0x80, 65, 0xc3], true);
    assert_eq!(pieces, ["", "", "", "\u{1f600}", "A", "", "\u{fffd}"]);
}

#[test]
fn what_is_held_back_is_as_in_vllm() {
    let mut stops = StopStrings::new(vec!["END".to_owned(), "\n\n".to_owned()], false);
    let mut out = String::new();
    assert_eq!(stops.push("hello", true, &mut out), None);
    assert_eq!(out, "hel", "two characters less than the longest");
    let found = stops.push("E\n\nND END", true, &mut out).expect("both are in it");
    assert_eq!((found.index, found.stop.as_str(), out.as_str()), (0, "END", "helloE\n\nND "), "the first in the list");
}

#[test]
fn a_stop_string_before_min_tokens_does_not_count() {
    let mut stops = StopStrings::new(vec!["ab".to_owned()], true);
    let mut out = String::new();
    assert_eq!(stops.push("ab", false, &mut out), None);
    assert_eq!(stops.push("c", true, &mut out), None, "it lies before the piece that is searched");
    assert!(stops.push("ab", true, &mut out).is_some());
    assert_eq!(out, "abcab");
}

#[test]
fn long_texts_keep_a_short_tail() {
    let mut stops = StopStrings::new(vec!["stop here".to_owned()], false);
    let mut out = String::new();
    for _ in 0..100_000 {
        assert_eq!(stops.push("\u{e9}xyz ", true, &mut out), None);
    }
    assert!(format!("{stops:?}").len() < 4096);
    assert!(stops.push("stop here", true, &mut out).is_some());
    assert_eq!(out, "\u{e9}xyz ".repeat(100_000));
}

/// Generates a text until it ends by itself.
fn text_of(tokenizer: &Tokenizer, english: &English, seed: u64) -> String {
    let mut text = english.start(seed);
    let mut ids = Vec::new();
    while !text.is_over() {
        ids.push(text.next_token(english));
    }
    tokenizer.decode(&ids, false)
}

#[test]
fn english_is_readable_varied_and_repeatable() {
    let tokenizer = Tokenizer::builtin();
    let english = English::new(&tokenizer);
    let texts: Vec<String> = (0..200).map(|seed| text_of(&tokenizer, &english, seed)).collect();
    for text in &texts {
        assert!(text.starts_with(|char: char| char.is_ascii_uppercase()), "{text}");
        assert!(text.ends_with('.') && !text.contains("  ") && !text.contains(" ,") && !text.contains('_'), "{text}");
    }
    let mut sorted = texts.clone();
    sorted.sort();
    sorted.dedup();
    assert!(sorted.len() > 190, "{} of 200 differ", sorted.len());
    assert_eq!(texts[7], text_of(&tokenizer, &English::new(&Tokenizer::builtin()), 7));
    // Most words should be one token, as in tokenizers of real models.
    let all = texts.concat();
    let (tokens, words) = (tokenizer.encode(&all, false).expect("it has tokens").len(), all.split(' ').count());
    assert!((words..2 * words).contains(&tokens), "{tokens} tokens of {words} words");
}

#[test]
fn drawn_tokens_are_those_of_the_text() {
    let tokenizer = Tokenizer::builtin();
    let english = English::new(&tokenizer);
    let mut text = english.start(3);
    let ids: Vec<u32> = (0..500).map(|_| text.next_token(&english)).collect();
    let whole = tokenizer.decode(&ids, false);
    assert!(!whole.contains('\u{fffd}'), "{whole}");
    assert_eq!(
        tokenizer.encode(&whole, false).expect("it has tokens"),
        ids,
        "an answer in a later prompt hits the cache"
    );
    assert!(whole.contains("\n\n"), "500 tokens have paragraphs: {whole}");
}
