//! Reads tokenizers: converts texts to tokens, and lists the vocabulary for the guest `json-tokens`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use vcr_base::input::MAX_TOKENIZER_BYTES;

use crate::import::ImportError;

pub(crate) struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        let bytes = vcr_base::input::read_bytes(path, MAX_TOKENIZER_BYTES).map_err(Into::into);
        let read = bytes.and_then(tokenizers::Tokenizer::from_bytes);
        read.map(Self)
            .map_err(|error| ImportError::Tokenizer { name: path.display().to_string(), problem: error.to_string() })
    }

    /// The tokens of a text, without special tokens.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.0.encode_fast(text, false);
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|error| error.to_string())
    }
}

/// A tokenizer's notation of bytes that are not printable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Each byte is a letter of a fixed alphabet (GPT-2, Llama 3, Qwen).
    ByteLevel,
    /// A space is `▁`; other bytes are written like `<0x0A>` (Llama 2, Mistral, Gemma).
    SentencePiece,
}

/// The character that SentencePiece writes for a space.
const LOW_LINE: char = '\u{2581}';

/// Reads a `tokenizer.json`. Returns the texts of its tokens in the form that `json-tokens` reads: `vocabulary`
/// contains pieces of text with their tokens, and `byte_tokens` is present if every single byte has a token.
/// Special tokens and pieces that are not complete texts are left out.
///
/// # Errors
/// If the file is not a tokenizer, or the texts of its pieces are unknown.
pub fn vocabulary(tokenizer: &Path) -> Result<Value, ImportError> {
    let refused = |problem: String| ImportError::Tokenizer { name: tokenizer.display().to_string(), problem };
    let Tokenizer(read) = Tokenizer::open(tokenizer)?;
    let decoder = serde_json::to_value(read.get_decoder()).map_err(|error| refused(error.to_string()))?;
    let spelling = spelling_of(&decoder).ok_or_else(|| {
        refused("its pieces are neither byte-level nor those of SentencePiece, so their text is unknown".into())
    })?;
    let special = read.get_added_vocabulary();
    // Sorted by token, because the order of a hash map differs from run to run.
    let tokens: BTreeMap<u32, String> = read
        .get_vocab(false)
        .into_iter()
        .filter(|(piece, _)| !special.is_special_token(piece))
        .map(|(p, t)| (t, p))
        .collect();
    let mut bytes: [Option<u32>; 256] = [None; 256];
    let mut pieces = Map::new();
    for (token, piece) in tokens {
        let Some(spelt) = spelling.bytes(&piece) else { continue };
        if let [byte] = spelt[..] {
            bytes[usize::from(byte)].get_or_insert(token);
        }
        if let Ok(text) = String::from_utf8(spelt)
            && !text.is_empty()
        {
            // If two tokens have the same text, tokenizers use the first.
            pieces.entry(text).or_insert(token.into());
        }
    }
    let mut config = json!({ "vocabulary": pieces });
    if let Some(bytes) = bytes.into_iter().collect::<Option<Vec<u32>>>() {
        config["byte_tokens"] = bytes.into();
    }
    Ok(config)
}

fn spelling_of(decoder: &Value) -> Option<Spelling> {
    match decoder["type"].as_str()? {
        "ByteLevel" => Some(Spelling::ByteLevel),
        "Metaspace" | "ByteFallback" => Some(Spelling::SentencePiece),
        "Replace" if decoder["pattern"]["String"] == LOW_LINE.to_string() => Some(Spelling::SentencePiece),
        "Sequence" => decoder["decoders"].as_array()?.iter().find_map(spelling_of),
        _ => None,
    }
}

impl Spelling {
    /// The bytes of a piece; None if the piece is not text.
    fn bytes(self, piece: &str) -> Option<Vec<u8>> {
        match self {
            Self::ByteLevel => piece.chars().map(byte_of_letter).collect(),
            Self::SentencePiece => Some(match escaped_byte(piece) {
                Some(byte) => vec![byte],
                None => piece.replace(LOW_LINE, " ").into_bytes(),
            }),
        }
    }
}

/// The byte of a letter in the byte-level alphabet. A visible byte is its own letter; the other bytes follow in
/// order.
fn byte_of_letter(letter: char) -> Option<u8> {
    let is_seen = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match u8::try_from(u32::from(letter)) {
        Ok(byte) if is_seen(&byte) => Some(byte),
        Ok(_) => None,
        Err(_) => {
            let index = u32::from(letter).checked_sub(256)?;
            (0..=u8::MAX).filter(|byte| !is_seen(byte)).nth(index as usize)
        }
    }
}

/// The byte that a piece such as `<0x0A>` stands for.
fn escaped_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(model: &Value, decoder: &Value) -> Result<Value, String> {
        let special = json!({"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true});
        let text = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder, "model": model});
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, text.to_string()).expect("it is writable");
        vocabulary(&path).map_err(|error| error.to_string())
    }

    fn bpe(vocabulary: &Value) -> Value {
        json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []})
    }

    #[test]
    fn byte_level_pieces_are_turned_into_text() {
        let pieces = json!({"<s>": 0, "a": 1, "\u{120}the": 2, "\u{10a}": 3, "\u{c3}": 4, "\u{c3}\u{a9}": 5});
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        let config = of(&bpe(&pieces), &decoder).expect("it is a tokenizer");
        assert_eq!(
            config,
            json!({"vocabulary": {"a": 1, " the": 2, "\n": 3, "\u{e9}": 5}}),
            "half a letter is not a text"
        );

        let letters: Map<String, Value> = (0..=u32::from('\u{143}'))
            .filter_map(char::from_u32)
            .filter_map(|letter| Some((letter.to_string(), (1 + u32::from(byte_of_letter(letter)?)).into())))
            .collect();
        let config = of(&bpe(&Value::Object(letters)), &decoder).expect("it is a tokenizer");
        assert_eq!(config["byte_tokens"], json!((1..=256).collect::<Vec<u32>>()), "every byte has a letter");
        assert_eq!(config["vocabulary"].as_object().map(Map::len), Some(128), "and those of ASCII are texts");
    }

    #[test]
    fn pieces_of_sentencepiece_are_turned_into_text() {
        let pieces = json!({"<s>": 0, "<0x0A>": 1, "\u{2581}the": 2, "<0xC3>": 3, "x": 4});
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]});
        let config = of(&bpe(&pieces), &decoder).expect("it is a tokenizer");
        assert_eq!(config, json!({"vocabulary": {"\n": 1, " the": 2, "x": 4}}));
    }

    #[test]
    fn other_vocabularies_are_refused() {
        let model = json!({"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"x": 1, "##y": 2}});
        let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
        let error = of(&model, &decoder).expect_err("pieces of words");
        assert!(error.contains("neither byte-level nor those of SentencePiece"), "{error}");
        let error = vocabulary(Path::new("no-such-file")).expect_err("it is not there").to_string();
        assert!(error.contains("cannot use the tokenizer `no-such-file`"), "{error}");
    }
}
