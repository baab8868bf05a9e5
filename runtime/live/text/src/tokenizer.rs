//! The built-in tokenizer and the tokenizers of model folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value as Json;
use tokenizers::Model as _;
use tokenizers::decoders::DecoderWrapper;

use crate::TextError;
use crate::builtin::Builtin;

/// A tokenizer. Clones share its tables.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    kind: Kind,
    table: Table,
    special: BTreeSet<u32>,
    eos: Vec<u32>,
    /// The texts of `bos_token`, `eos_token` and so on, for templates.
    special_texts: BTreeMap<String, String>,
    /// The number of characters in the longest vocabulary entry.
    max_token_chars: usize,
}

enum Kind {
    Builtin(Box<Builtin>),
    Library { tokenizer: Box<tokenizers::Tokenizer>, is_byte_level: bool, room: Room },
}

/// Memory that the `tokenizers` library needs per byte of text, mostly for offsets of characters.
const LIBRARY_BYTES: usize = 40;
/// Texts of at least this length wait until memory is free.
const LARGE_TEXT_BYTES: usize = 64 * 1024;
/// Memory limit of all large texts that are being tokenized.
const ROOM_BYTES: usize = 512 << 20;

/// The bytes of all tokens, concatenated.
#[derive(Default)]
struct Table {
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Table {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..*end as usize]
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Returns the built-in tokenizer: 256 bytes, special tokens and frequent English pieces. It encodes text
    /// greedily, longest piece first. Ids never change: new pieces are only appended.
    #[must_use]
    pub fn builtin() -> Self {
        let builtin = Builtin::new();
        let mut table = Table::default();
        builtin.pieces().for_each(|piece| table.push(piece));
        Self(Arc::new(Inner {
            special: builtin.special_ids().collect(),
            eos: builtin.eos_ids(),
            special_texts: builtin.special_texts(),
            max_token_chars: builtin
                .pieces()
                .map(|piece| String::from_utf8_lossy(piece).chars().count())
                .max()
                .unwrap_or(1),
            kind: Kind::Builtin(Box::new(builtin)),
            table,
        }))
    }

    /// Loads a model folder's tokenizer from `tokenizer.json`, and the special tokens named in
    /// `tokenizer_config.json`, if that file exists.
    ///
    /// # Errors
    /// When a file is missing, cannot be read or is invalid.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            let needed = "`tokenizer.json` converts text to tokens".to_owned();
            return Err(TextError::Missing { folder: folder.to_owned(), file: "tokenizer.json".to_owned(), needed });
        }
        let bytes = crate::files::read_bytes(&path);
        let bytes = bytes.map_err(|source| TextError::Unreadable { path: path.clone(), source })?;
        let config = crate::files::read_json(&folder.join("tokenizer_config.json"))?;
        Self::from_json(&bytes, config.as_ref()).map_err(|reason| TextError::Invalid { path, reason })
    }

    fn from_json(bytes: &[u8], config: Option<&Json>) -> Result<Self, String> {
        let tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        let is_byte_level = match tokenizer.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => true,
            Some(DecoderWrapper::Sequence(sequence)) => {
                matches!(sequence.get_decoders(), [DecoderWrapper::ByteLevel(_)])
            }
            _ => false,
        };
        let added = tokenizer.get_added_tokens_decoder();
        let bytes_of = byte_characters();
        let (mut table, mut max_token_chars) = (Table::default(), 1);
        let mut piece = Vec::new();
        // Read the tokens one by one: the whole vocabulary at once would need twice the memory.
        let mut ids = Ids::new(&tokenizer, added.keys().max().copied());
        while let Some((id, text)) = ids.next()? {
            piece.clear();
            // An added token can replace the text in the model's vocabulary.
            let own = added.get(&id).map(|token| &token.content);
            if let Some(text) = own.or(text.as_ref()) {
                max_token_chars = max_token_chars.max(text.chars().count());
                match text.chars().map(|char| bytes_of.get(&char).copied()).collect::<Option<Vec<u8>>>() {
                    Some(bytes) if is_byte_level => piece.extend(bytes),
                    _ if is_byte_level || own.is_some() => piece.extend(text.as_bytes()),
                    _ => piece.extend(plain_piece(text)),
                }
            }
            table.push(&piece);
        }
        table.ends.truncate(ids.end as usize);
        if table.ends.is_empty() {
            return Err("it has no tokens".to_owned());
        }
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let special_texts = config.map(special_texts).unwrap_or_default();
        let eos = special_texts.get("eos_token").and_then(|text| tokenizer.token_to_id(text)).into_iter().collect();
        let kind = Kind::Library { tokenizer: Box::new(tokenizer), is_byte_level, room: Room::new(ROOM_BYTES) };
        Ok(Self(Arc::new(Inner { kind, table, special, eos, special_texts, max_token_chars })))
    }

    /// Encodes a text. `add_special` adds the model's special tokens around the text, such as a BOS token. Special
    /// tokens written in the text are recognized. Large texts may wait for each other, because the library needs
    /// many times the length of a text in memory.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        match &self.0.kind {
            Kind::Builtin(builtin) => Ok(builtin.encode(text)),
            Kind::Library { tokenizer, room, .. } => {
                let _held =
                    (text.len() >= LARGE_TEXT_BYTES).then(|| room.wait(text.len().saturating_mul(LIBRARY_BYTES)));
                let encoding = tokenizer.encode_fast(text, add_special);
                encoding
                    .map(|encoding| encoding.get_ids().to_vec())
                    .map_err(|error| TextError::Encode(error.to_string()))
            }
        }
    }

    /// Decodes tokens. Invalid UTF-8 becomes replacement characters; ids beyond the vocabulary have no text.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        if let Kind::Library { tokenizer, is_byte_level: false, .. } = &self.0.kind {
            return tokenizer.decode(ids, skip_special).unwrap_or_default();
        }
        let mut bytes = Vec::new();
        for id in ids.iter().filter(|id| !skip_special || !self.is_special(**id)) {
            bytes.extend_from_slice(self.token_bytes(*id));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The tokens that end an output, from the tokenizer alone. A generation config may add more.
    #[must_use]
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.0.eos
    }

    /// The largest id plus one.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.0.table.ends.len() as u32
    }

    /// The number of characters in the longest token. vLLM uses it to reject long texts before it tokenizes them.
    #[must_use]
    pub fn max_token_chars(&self) -> usize {
        self.0.max_token_chars
    }

    /// The text of a single token. Parts of a character become replacement characters.
    #[must_use]
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// The name of a token in the vocabulary, such as `Ġtwo`.
    #[must_use]
    pub fn token_name(&self, id: u32) -> String {
        match &self.0.kind {
            Kind::Builtin(_) => self.token_text(id),
            Kind::Library { tokenizer, .. } => tokenizer.id_to_token(id).unwrap_or_default(),
        }
    }

    /// The bytes of a token, or none beyond the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.table.get(id)
    }

    /// Whether a token is special, so that decoded text can leave it out.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.contains(&id)
    }

    /// Looks up the id of a token, special or not, by its text.
    #[must_use]
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.0.kind {
            Kind::Builtin(builtin) => builtin.token_id(text),
            Kind::Library { tokenizer, .. } => tokenizer.token_to_id(text),
        }
    }

    /// The texts of `bos_token`, `eos_token` and so on, by name.
    #[must_use]
    pub fn special_texts(&self) -> &BTreeMap<String, String> {
        &self.0.special_texts
    }

    /// Whether decoding concatenates the bytes of the tokens.
    pub(crate) fn is_byte_level(&self) -> bool {
        !matches!(self.0.kind, Kind::Library { is_byte_level: false, .. })
    }
}

/// All ids of a tokenizer, from 0, each with its text in the model's vocabulary.
struct Ids<'a> {
    tokenizer: &'a tokenizers::Tokenizer,
    last_added: Option<u32>,
    /// The number of texts in the model's vocabulary that are not yet returned.
    left: usize,
    next: u32,
    /// The last id with a text, plus one.
    end: u32,
}

impl<'a> Ids<'a> {
    fn new(tokenizer: &'a tokenizers::Tokenizer, last_added: Option<u32>) -> Self {
        let end = last_added.map_or(0, |last| last.saturating_add(1));
        Self { tokenizer, last_added, left: tokenizer.get_vocab_size(false), next: 0, end }
    }

    /// Returns the next id, or none after the last.
    fn next(&mut self) -> Result<Option<(u32, Option<String>)>, String> {
        let id = self.next;
        if self.left == 0 && self.last_added.is_none_or(|last| id > last) {
            return Ok(None);
        }
        if id > IDS_MAX {
            // If several texts share an id, `left` never reaches zero.
            return match self.tokenizer.get_vocab(true).into_values().max() {
                Some(last) if last > IDS_MAX => Err(format!("a token has id {last}: expected at most {IDS_MAX}")),
                _ => Ok(None),
            };
        }
        let text = self.tokenizer.get_model().id_to_token(id);
        self.next = id + 1;
        if text.is_some() {
            self.left -= 1;
            self.end = self.end.max(self.next);
        }
        Ok(Some((id, text)))
    }
}

/// Larger ids are refused, so that a wrong id cannot use up all memory.
const IDS_MAX: u32 = 4_000_000;

/// Returns the special tokens in `tokenizer_config.json`.
fn special_texts(config: &Json) -> BTreeMap<String, String> {
    let Some(config) = config.as_object() else { return BTreeMap::new() };
    let named = config.iter().filter(|(name, _)| name.ends_with("_token"));
    let text = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    named.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

/// The characters that stand for bytes in byte-level vocabularies: printable bytes stand for themselves, the others
/// start at U+0100.
fn byte_characters() -> BTreeMap<char, u8> {
    let mut others = 0x100..;
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let pair = |byte: u8| {
        let code = if is_printable(byte) { u32::from(byte) } else { others.next()? };
        Some((char::from_u32(code)?, byte))
    };
    (0..=u8::MAX).filter_map(pair).collect()
}

/// Decodes a vocabulary entry with byte fallback (`<0x0A>`) and `▁` for spaces.
fn plain_piece(text: &str) -> Vec<u8> {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => text.replace('\u{2581}', " ").into_bytes(),
    }
}

/// A shared memory limit. A job larger than the limit runs when no other job runs.
#[derive(Debug)]
struct Room {
    limit_bytes: usize,
    taken_bytes: Mutex<usize>,
    freed: Condvar,
}

impl Room {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, taken_bytes: Mutex::new(0), freed: Condvar::new() }
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks this thread until `bytes` are free, and takes them until the guard is dropped.
    pub(crate) fn wait(&self, bytes: usize) -> Held<'_> {
        let bytes = bytes.min(self.limit_bytes);
        let is_full = |taken: &mut usize| *taken + bytes > self.limit_bytes;
        let mut taken = self.freed.wait_while(self.taken(), is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += bytes;
        Held { room: self, bytes }
    }
}

/// Memory taken by one job.
#[derive(Debug)]
struct Held<'a> {
    room: &'a Room,
    bytes: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.room.taken() -= self.bytes;
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Jobs run in parallel as long as they fit, and a job that is too large runs alone.
    #[test]
    fn works_wait_for_room() {
        let room = Room::new(10);
        let (first, second) = (room.wait(4), room.wait(6));
        std::thread::scope(|scope| {
            let (began, begins) = mpsc::channel();
            for bytes in [1, 1000] {
                let (room, began) = (&room, began.clone());
                scope.spawn(move || {
                    let held = room.wait(bytes);
                    began.send(*room.taken()).expect("it is heard");
                    drop(held);
                });
            }
            assert!(begins.try_recv().is_err(), "there is no room");
            drop((first, second));
            for _ in 0..2 {
                let taken = begins.recv().expect("it has begun");
                // The small job may start while the second one still runs.
                assert!([1, 7, 10].contains(&taken), "{taken} bytes: they were there at the same time");
            }
        });
        assert_eq!(*room.taken(), 0);
    }
}
