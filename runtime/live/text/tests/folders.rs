//! Model folders and tokenizers of the `tokenizers` library.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use vcr_text::{Detokenizer, English, ModelFolder, TextModel, Tokenizer};

/// Returns the character that stands for a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..byte).filter(|other| !printable(*other)).count() as u32;
    char::from_u32(if printable(byte) { byte.into() } else { 0x100 + others }).expect("a character")
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

/// A byte-level BPE tokenizer like Qwen's and Llama 3's, with few merges.
fn byte_level() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    for (index, piece) in ["th", "the", "\u{120}the", "in", "\u{120}t"].iter().enumerate() {
        vocab.insert((*piece).to_owned(), json!(256 + index));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(261, "<|end|>", true), added(262, "<tool_call>", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["t", "h"], ["th", "e"], ["i", "n"]]},
    })
}

/// A BPE tokenizer with byte fallback and `\u{2581}` for spaces, like Llama 2's.
fn byte_fallback() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255).map(|byte: u32| (format!("<0x{byte:02X}>"), json!(byte + 3))).collect();
    for (id, special) in ["<unk>", "<s>", "</s>"].iter().enumerate() {
        vocab.insert((*special).to_owned(), json!(id));
    }
    let letters = ('a'..='z').chain('A'..='Z').chain(" .,\u{e9}\u{2581}".chars().skip(1));
    for (index, letter) in letters.enumerate() {
        vocab.insert(letter.to_string(), json!(259 + index));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    })
}

fn write(folder: &Path, name: &str, value: &Value) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("it can be made");
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    std::fs::write(path, text).expect("it can be written");
}

fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().expect("there is room");
    for (name, value) in files {
        write(folder.path(), name, value);
    }
    folder
}

fn tokenizer(json: Value) -> Tokenizer {
    Tokenizer::from_folder(folder(&[("tokenizer.json", json)]).path()).expect("it is a tokenizer")
}

fn streamed(mut text: Detokenizer, ids: &[u32]) -> String {
    let mut out = String::new();
    ids.iter().for_each(|id| text.push(*id, &mut out));
    text.finish(&mut out);
    out
}

proptest! {
    /// Our byte table must agree with the library's decoder.
    #[test]
    fn byte_level_pieces_are_the_whole_text(ids in prop::collection::vec(0u32..270, 0..40), skip: bool) {
        let ours = tokenizer(byte_level());
        let library: tokenizers::Tokenizer =
            tokenizers::Tokenizer::from_bytes(byte_level().to_string()).expect("it is a tokenizer");
        prop_assert_eq!(&ours.decode(&ids, skip), &library.decode(&ids, skip).expect("it decodes"));
        prop_assert_eq!(streamed(Detokenizer::new(&ours, skip), &ids), ours.decode(&ids, skip));
    }

    /// With or without byte fallback, text of whole characters survives encoding and decoding.
    #[test]
    fn pieces_of_texts_with_byte_fallback_are_the_whole(text in "[a-z \u{e9}\u{4e2d}\u{1f600}]{0,40}") {
        let ours = tokenizer(byte_fallback());
        let ids = ours.encode(&text, true).expect("it has tokens");
        prop_assert_eq!(streamed(Detokenizer::new(&ours, true), &ids), ours.decode(&ids, true));
        let prompt = ours.encode("ask", true).expect("it has tokens");
        let answer = ours.encode(&text, false).expect("it has tokens");
        let space = if text.is_empty() { "" } else { " " };
        prop_assert_eq!(streamed(Detokenizer::after(&ours, true, &prompt), &answer), format!("{space}{text}"));
    }
}

#[test]
fn broken_bytes_are_not_held_back_for_ever() {
    let ours = tokenizer(byte_fallback());
    let mut text = Detokenizer::new(&ours, true);
    let mut out = String::new();
    for _ in 0..1000 {
        text.push(3 + 0xff, &mut out);
    }
    assert!(out.chars().count() > 900, "{}", out.chars().count());
}

#[test]
fn special_tokens_are_known_and_skipped() {
    let ours = tokenizer(byte_level());
    let ids = ours.encode("the<tool_call><|end|>", true).expect("it has tokens");
    assert_eq!(ids, [257, 262, 261]);
    assert_eq!(
        (ours.decode(&ids, true).as_str(), ours.decode(&ids, false).as_str()),
        ("the<tool_call>", "the<tool_call><|end|>")
    );
    assert!(ours.is_special(261) && !ours.is_special(262) && ours.vocab_size() == 263);
    assert_eq!(
        (ours.token_text(258).as_str(), ours.token_bytes(0xe9), ours.token_text(5000).as_str()),
        (" the", &[0xe9][..], "")
    );
    assert_eq!(tokenizer(byte_fallback()).encode("a", true).expect("it has tokens")[0], 1, "the first token is added");
}

#[test]
fn english_reads_the_same_in_any_tokenizer() {
    let mut texts = Vec::new();
    for tokenizer in [Tokenizer::builtin(), tokenizer(byte_level()), tokenizer(byte_fallback())] {
        let english = English::new(&tokenizer);
        let mut text = english.start(11);
        let mut ids = Vec::new();
        while !text.is_over() {
            ids.push(text.next_token(&english));
        }
        let mut out = String::new();
        let mut stream = Detokenizer::new(&tokenizer, true);
        ids.iter().for_each(|id| stream.push(*id, &mut out));
        stream.finish(&mut out);
        texts.push(out);
        // A model must also build from a vocabulary without pieces of JSON.
        let _ = TextModel::new(&tokenizer);
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
}

#[test]
fn a_folder_says_all_about_its_text() {
    let files = [
        ("tokenizer.json", byte_level()),
        (
            "tokenizer_config.json",
            json!({"eos_token": {"content": "<|end|>"}, "chat_template": "old", "model_max_length": 131_072}),
        ),
        ("chat_template.jinja", json!("{{ messages[0].content }}{{ eos_token }}")),
        ("generation_config.json", json!({"eos_token_id": [7, 261], "temperature": 0.6, "top_k": 20, "other": []})),
        (
            "config.json",
            json!({"max_position_embeddings": 32768,
            "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192}}),
        ),
    ];
    let folder = folder(&files);
    let model = ModelFolder::load(folder.path()).expect("it has all files");
    assert_eq!(model.eos_token_ids(), [7, 261]);
    assert_eq!(model.tokenizer.eos_token_ids(), [261]);
    assert_eq!(
        (model.generation.temperature, model.generation.top_k, model.generation.top_p),
        (Some(0.6), Some(20), None)
    );
    assert_eq!((model.max_model_len, model.cached_name), (Some(16384), None));
    let request = vcr_text::TemplateRequest {
        messages: serde_json::from_value(json!([{"role": "user", "content": "Hi"}])).expect("messages"),
        ..Default::default()
    };
    let template = model.chat_template.expect("it has one");
    assert_eq!(template.render_chat(&request).expect("it renders"), "Hi<|end|>");
}

#[test]
fn a_cached_model_is_found_by_its_revision() {
    let tokenizer = byte_level();
    let cache = folder(&[
        ("models--org--some--model/snapshots/aaa/tokenizer.json", tokenizer.clone()),
        ("models--org--some--model/snapshots/bbb/tokenizer.json", tokenizer),
        ("models--org--some--model/snapshots/bbb/config.json", json!({"max_position_embeddings": 9})),
    ]);
    let model = cache.path().join("models--org--some--model");
    let error = ModelFolder::load(&model).expect_err("there are two").to_string();
    assert!(error.contains("has no `refs/main`: it names one of the 2 snapshots"), "{error}");
    write(&model, "refs/main", &json!("bbb\n"));
    let loaded = ModelFolder::load(&model).expect("it is found");
    assert_eq!((loaded.max_model_len, loaded.cached_name.as_deref()), (Some(9), Some("org/some--model")));
    let loaded = ModelFolder::load(&model.join("snapshots/aaa")).expect("it is named");
    assert_eq!((loaded.max_model_len, loaded.cached_name.as_deref()), (None, Some("org/some--model")));
}

#[test]
fn bad_folders_are_said_to_be_so() {
    let error = |files: &[(&str, Value)]| ModelFolder::load(folder(files).path()).expect_err("it is bad").to_string();
    assert!(error(&[]).contains("has no `tokenizer.json`"), "{}", error(&[]));
    let broken = error(&[("tokenizer.json", json!({"version": "1.0"}))]);
    assert!(broken.starts_with("invalid file `") && broken.contains("tokenizer.json`: "), "{broken}");
    let config = error(&[("tokenizer.json", byte_level()), ("config.json", json!("{"))]);
    assert!(config.contains("config.json`: EOF"), "{config}");
    let template = error(&[("tokenizer.json", byte_level()), ("chat_template.jinja", json!("\n{% if %}"))]);
    assert!(template.starts_with("invalid chat template: line 2: "), "{template}");
    let missing = ModelFolder::load(Path::new("/no/such/folder")).expect_err("it is not there").to_string();
    assert!(missing.starts_with("cannot read `/no/such/folder`: "), "{missing}");
}
