//! Byte-pair encoding in little memory. The library keeps the text of each token twice, each
//! in memory of its own: most of what a server without requests would take.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

use super::{IDS_MAX, Table};

/// Characters below this one have their tokens in a table; all of byte-level texts are.
const TABLED_CHARS: usize = 0x200;

/// A model of byte pairs as byte-level tokenizers have them, without dropout, affixes,
/// unknown tokens and byte fallback.
pub(super) struct Bpe {
    texts: Table,
    /// Tokens in the order of their texts.
    sorted: Box<[u32]>,
    chars: Box<[Option<u32>]>,
    merges: Merges,
    /// Whether a word that is a token becomes that token, whatever its merges are.
    ignore_merges: bool,
}

/// By pair of tokens, one in each half of the key.
type Merges = HashMap<u64, Merge, BuildHasherDefault<PairHasher>>;

/// The lowest rank is merged first.
#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    token: u32,
}

/// Spreads pairs over a table.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, pair: u64) {
        self.0 = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The upper bits depend on all others.
        self.0.rotate_left(26)
    }
}

/// A part of a word on its way to a token. Parts are merged into their left neighbour.
#[derive(Clone, Copy)]
struct Part {
    token: u32,
    /// 0 once it is merged.
    bytes: u32,
    before: u32,
    after: u32,
}

/// No part.
const NONE: u32 = u32::MAX;

impl Bpe {
    fn new(read: Read) -> Result<Self, &'static str> {
        let Read { vocab, merges, ignore_merges, .. } = read;
        let Vocab { text, mut entries } = vocab;
        entries.sort_unstable_by_key(|entry| entry.token);
        let mut texts = Table::default();
        for Entry { token, start, end } in &entries {
            if *token as usize != texts.len() || start == end || *token > IDS_MAX {
                return Err("expected each id from 0 on once, and texts that are not empty");
            }
            texts.push(&text.as_bytes()[*start as usize..*end as usize]);
        }
        texts.shrink();
        let mut sorted: Box<[u32]> = (0..texts.len() as u32).collect();
        sorted.sort_unstable_by_key(|token| texts.get(*token));
        if sorted.windows(2).any(|pair| texts.get(pair[0]) == texts.get(pair[1])) {
            return Err("expected each text once");
        }
        let mut bpe = Self {
            texts,
            sorted,
            chars: Box::default(),
            merges: Merges::default(),
            ignore_merges: ignore_merges.unwrap_or(false),
        };
        let chars = (0..TABLED_CHARS as u32).map(|code| bpe.token(char::from_u32(code)?.encode_utf8(&mut [0; 4])));
        bpe.chars = chars.collect();
        bpe.merges.reserve(merges.ends.len());
        let mut start = 0;
        for (rank, (middle, end)) in (0..).zip(merges.ends) {
            let text = &merges.text[start..end as usize];
            let (left, right) = text.split_at(middle as usize - start);
            start = end as usize;
            let token = |text| bpe.token(text).ok_or("expected merges of tokens to tokens");
            let (pair, token) = (pair(token(left)?, token(right)?), token(text)?);
            // Of equal ones the last counts, as in the library.
            bpe.merges.insert(pair, Merge { rank, token });
        }
        Ok(bpe)
    }

    /// The token of a text.
    fn token(&self, text: &str) -> Option<u32> {
        let place = self.sorted.binary_search_by_key(&text.as_bytes(), |token| self.texts.get(*token)).ok()?;
        Some(self.sorted[place])
    }

    fn char(&self, char: char) -> Option<u32> {
        match self.chars.get(char as usize) {
            Some(token) => *token,
            None => self.token(char.encode_utf8(&mut [0; 4])),
        }
    }

    fn merge(&self, left: u32, right: u32) -> Option<Merge> {
        self.merges.get(&pair(left, right)).copied()
    }

    /// The parts of a word once all merges are done: the lowest rank first, and of equal
    /// ones the one before the others.
    fn parts(&self, word: &str) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::with_capacity(word.len());
        // A character that is no token is left out.
        for (token, char) in word.chars().filter_map(|char| Some((self.char(char)?, char))) {
            let place = parts.len() as u32;
            parts.push(Part {
                token,
                bytes: char.len_utf8() as u32,
                before: place.checked_sub(1).unwrap_or(NONE),
                after: place + 1,
            });
        }
        if let Some(last) = parts.last_mut() {
            last.after = NONE;
        }
        let known = |(place, pair): (usize, &[Part])| {
            let Merge { rank, token } = self.merge(pair[0].token, pair[1].token)?;
            Some(Reverse((rank, place as u32, token)))
        };
        let mut due: BinaryHeap<_> = parts.windows(2).enumerate().filter_map(known).collect();
        while let Some(Reverse((_, place, token))) = due.pop() {
            let part = parts[place as usize];
            if part.bytes == 0 || part.after == NONE {
                continue;
            }
            let next = parts[part.after as usize];
            // One of both may have been merged with another one.
            if self.merge(part.token, next.token).is_none_or(|merge| merge.token != token) {
                continue;
            }
            parts[part.after as usize].bytes = 0;
            parts[place as usize] = Part { token, bytes: part.bytes + next.bytes, after: next.after, ..part };
            if let Some(behind) = parts.get_mut(next.after as usize) {
                behind.before = place;
            }
            for left in [part.before, place] {
                let Some(part) = parts.get(left as usize) else { continue };
                let Some(next) = parts.get(part.after as usize) else { continue };
                if let Some(Merge { rank, token }) = self.merge(part.token, next.token) {
                    due.push(Reverse((rank, left, token)));
                }
            }
        }
        parts.retain(|part| part.bytes > 0);
        parts
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Model for Bpe {
    type Trainer = BpeTrainer;

    /// Tokens without their texts, which nobody asks for.
    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        if self.ignore_merges
            && let Some(token) = self.token(word)
        {
            return Ok(vec![Token::new(token, String::new(), (0, word.len()))]);
        }
        let mut end = 0;
        let token = |part: Part| {
            let start = end;
            end += part.bytes as usize;
            Token::new(part.token, String::new(), (start, end))
        };
        Ok(self.parts(word).into_iter().map(token).collect())
    }

    fn token_to_id(&self, text: &str) -> Option<u32> {
        self.token(text)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        let text = self.texts.get(id);
        (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.sorted.iter().filter_map(|token| Some((self.id_to_token(*token)?, *token))).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.sorted.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a tokenizer is not written".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

/// A model as its file has it.
#[derive(Deserialize)]
struct Read {
    r#type: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: MergeTexts,
}

/// Only of plain models; any other is an error.
impl<'de> Deserialize<'de> for Bpe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = Read::deserialize(deserializer)?;
        let is_empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
        let is_plain = read.r#type.as_deref() == Some("BPE")
            && read.dropout.unwrap_or(0.0) == 0.0
            && read.unk_token.is_none()
            && is_empty(&read.continuing_subword_prefix)
            && is_empty(&read.end_of_word_suffix)
            && !read.byte_fallback.unwrap_or(false);
        if !is_plain {
            return Err(D::Error::custom("expected a model of byte pairs and nothing else"));
        }
        Self::new(read).map_err(D::Error::custom)
    }
}

/// Texts one after another, and their tokens.
#[derive(Default)]
struct Vocab {
    text: String,
    entries: Vec<Entry>,
}

struct Entry {
    token: u32,
    start: u32,
    end: u32,
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> Visitor<'de> for VocabVisitor {
    type Value = Vocab;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("tokens by their texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut vocab = Vocab::default();
        loop {
            let start = vocab.text.len() as u32;
            if map.next_key_seed(Append(&mut vocab.text))?.is_none() {
                return Ok(vocab);
            }
            let end = vocab.text.len() as u32;
            vocab.entries.push(Entry { token: map.next_value()?, start, end });
        }
    }
}

/// Pairs of texts, all one after another, with the ends of both.
#[derive(Default)]
struct MergeTexts {
    text: String,
    ends: Vec<(u32, u32)>,
}

impl<'de> Deserialize<'de> for MergeTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(MergesVisitor)
    }
}

struct MergesVisitor;

impl<'de> Visitor<'de> for MergesVisitor {
    type Value = MergeTexts;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("pairs of texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<MergeTexts, A::Error> {
        let mut merges = MergeTexts::default();
        while let Some(middle) = pairs.next_element_seed(AppendPair(&mut merges.text))? {
            merges.ends.push((middle, merges.text.len() as u32));
        }
        Ok(merges)
    }
}

/// Appends a pair, written as a list or with a space between both; says where the first ends.
struct AppendPair<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for AppendPair<'_> {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u32, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AppendPair<'_> {
    type Value = u32;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("two texts")
    }

    fn visit_str<E: serde::de::Error>(self, pair: &str) -> Result<u32, E> {
        let (left, right) = pair.split_once(' ').ok_or_else(|| E::custom("expected two texts"))?;
        self.0.push_str(left);
        let middle = self.0.len() as u32;
        self.0.push_str(right);
        Ok(middle)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<u32, A::Error> {
        let left = pair.next_element_seed(Append(&mut *self.0))?;
        let middle = self.0.len() as u32;
        let right = pair.next_element_seed(Append(self.0))?;
        match (left, right, pair.next_element::<IgnoredAny>()?) {
            (Some(()), Some(()), None) => Ok(middle),
            _ => Err(A::Error::custom("expected two texts")),
        }
    }
}

/// Appends a text.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Append<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }
}
