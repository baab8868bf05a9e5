//! A small tokenizer for tests.

use serde_json::{Map, Value, json};

/// A `tokenizer.json` whose tokens are the bytes, in the form of byte-level tokenizers.
#[must_use]
pub fn byte_tokenizer() -> Value {
    let is_seen = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let hidden = (0..256).filter(|byte| !is_seen(*byte)).zip(256..).map(|(byte, letter)| (letter, byte));
    let letters = (0..256).filter(|byte| is_seen(*byte)).map(|byte| (byte, byte)).chain(hidden);
    let vocabulary: Map<String, Value> =
        letters.filter_map(|(letter, byte)| Some((char::from_u32(letter)?.to_string(), byte.into()))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []}})
}
