//! Our model of byte pairs against the library's.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use vcr_text::Tokenizer;

/// Letters of the vocabulary, one of them beyond those of byte-level texts.
const LETTERS: [&str; 5] = ["a", "b", "\u{120}", "\u{e9}", "\u{4e2d}"];

/// A model whose merges join earlier texts, by their places.
fn model(pairs: &[(prop::sample::Index, prop::sample::Index)], changes: &[(&str, Value)]) -> Value {
    let mut texts: Vec<String> = LETTERS.map(str::to_owned).to_vec();
    let mut merges = Vec::new();
    let mut known: BTreeSet<String> = texts.iter().cloned().collect();
    for (left, right) in pairs {
        let (left, right) = (left.get(&texts).clone(), right.get(&texts).clone());
        // Several pairs may make the same token.
        if known.insert(format!("{left}{right}")) {
            texts.push(format!("{left}{right}"));
        }
        merges.push(json!([left, right]));
    }
    let vocab: Map<String, Value> = texts.into_iter().enumerate().map(|(id, text)| (text, json!(id))).collect();
    let mut model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": vocab, "merges": merges});
    for (key, value) in changes {
        model[*key] = value.clone();
    }
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
        "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model})
}

fn assert_same(file: &Value, texts: &[String]) {
    let theirs = tokenizers::Tokenizer::from_bytes(file.to_string()).expect("the library reads it");
    let folder = tempfile::tempdir().expect("there is room");
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).expect("it can be written");
    let ours = Tokenizer::from_folder(folder.path()).expect("it is read");
    for text in texts {
        let wanted = theirs.encode_fast(text.as_str(), true).expect("it has tokens").get_ids().to_vec();
        assert_eq!(ours.encode(text, true).expect("it has tokens"), wanted, "{text} by {file}");
    }
    for (text, id) in theirs.get_vocab(true) {
        assert_eq!((ours.token_id(&text), ours.token_name(id)), (Some(id), text));
    }
    assert_eq!(Some(ours.vocab_size() - 1), theirs.get_vocab(true).into_values().max());
    assert_eq!((ours.token_id("no token"), ours.token_name(1_000_000).as_str()), (None, ""));
}

proptest! {
    #[test]
    fn texts_become_the_tokens_of_the_library(
        pairs in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..40),
        // The last letter is no token: it is left out.
        texts in prop::collection::vec("[ab\u{120}\u{e9}\u{4e2d}x]{0,60}", 1..20),
        ignore_merges in any::<bool>(),
    ) {
        assert_same(&model(&pairs, &[("ignore_merges", json!(ignore_merges))]), &texts);
    }
}

/// Models that have more than merges are left to the library.
#[test]
fn other_models_are_those_of_the_library() {
    let texts = ["a", "abab", "axb", "\u{4e2d}a"].map(str::to_owned);
    let pair = |left, right| json!([left, right]);
    let vocab = json!({"a": 0, "b": 1, "ab": 2, "##b": 3, "b</w>": 4, "<unk>": 5});
    for changes in [
        vec![("unk_token", json!("<unk>"))],
        vec![("unk_token", json!("<unk>")), ("fuse_unk", json!(true))],
        vec![("continuing_subword_prefix", json!("##")), ("merges", json!([pair("a", "##b")]))],
        vec![("end_of_word_suffix", json!("</w>")), ("merges", json!([]))],
        vec![("merges", json!(["a b"]))],
        // An id is left out.
        vec![("vocab", json!({"a": 0, "b": 2, "ab": 3}))],
    ] {
        let mut file = model(&[], &[("vocab", vocab.clone()), ("merges", json!([pair("a", "b")]))]);
        for (key, value) in changes {
            file["model"][key] = value;
        }
        assert_same(&file, &texts);
    }
}
