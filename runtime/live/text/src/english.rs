//! Readable English from a small grammar, encoded with any tokenizer.

mod grammar;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use vcr_base::random::Stream;

use crate::Tokenizer;
use grammar::{PATTERNS, Part, parts};

/// The grammar, encoded for one tokenizer. Clones share it.
#[derive(Clone)]
pub struct English(Arc<Tables>);

struct Tables {
    /// The token ids of each piece of text.
    pieces: Vec<Box<[u32]>>,
    patterns: Vec<Vec<Slot>>,
    /// Index of the piece that separates paragraphs.
    paragraph: usize,
}

struct Slot {
    /// Indexes of the allowed pieces, encoded as continuations of a paragraph.
    choices: Vec<usize>,
    /// The same pieces, encoded for the start of a text or paragraph. Filled only for the first slot of a sentence.
    at_start: Vec<usize>,
}

impl std::fmt::Debug for English {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("English").field("pieces", &self.0.pieces.len()).finish_non_exhaustive()
    }
}

/// Average number of sentences in a paragraph, and in a text that ends by itself.
const PARAGRAPH_SENTENCES: f64 = 4.0;
const TEXT_SENTENCES: f64 = 6.0;
const TEXT_SENTENCES_MAX: u32 = 40;

/// A text that is being generated.
#[derive(Clone, Debug)]
pub struct EnglishText {
    stream: Stream,
    queue: VecDeque<u32>,
    sentences: u32,
    wanted_sentences: u32,
    last_pattern: Option<usize>,
}

impl English {
    /// Encodes the grammar with `tokenizer`.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let mut pieces = Pieces { tokenizer, ids: BTreeMap::new(), all: Vec::new() };
        let paragraph = pieces.get("\n\n", false);
        let patterns = PATTERNS.iter().map(|pattern| {
            let slots = parts(pattern).enumerate().map(|(index, part)| pieces.slot(&part, index == 0));
            slots.collect()
        });
        let patterns = patterns.collect();
        Self(Arc::new(Tables { patterns, paragraph, pieces: pieces.all }))
    }

    /// Starts a text. Equal seeds give equal texts.
    #[must_use]
    pub fn start(&self, seed: u64) -> EnglishText {
        let mut stream = Stream::new(seed, "english");
        let wanted = 1 + (stream.exponential() * (TEXT_SENTENCES - 1.0)) as u32;
        EnglishText {
            stream,
            queue: VecDeque::new(),
            sentences: 0,
            wanted_sentences: wanted.min(TEXT_SENTENCES_MAX),
            last_pattern: None,
        }
    }
}

impl EnglishText {
    /// Returns the next token. A text never runs out of tokens.
    pub fn next_token(&mut self, english: &English) -> u32 {
        loop {
            if let Some(token) = self.queue.pop_front() {
                return token;
            }
            self.sentence(english);
        }
    }

    /// Whether the last sentence is complete, or the text is still empty.
    #[must_use]
    pub fn is_between_sentences(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the text has reached its drawn length, at the end of a sentence.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_between_sentences() && self.sentences >= self.wanted_sentences
    }

    fn sentence(&mut self, english: &English) {
        let tables = &english.0;
        let mut pattern = self.below(tables.patterns.len());
        // Never use the same pattern twice in a row.
        if self.last_pattern == Some(pattern) {
            pattern = (pattern + 1) % tables.patterns.len();
        }
        self.last_pattern = Some(pattern);
        let begins_paragraph = self.sentences > 0 && self.stream.unit() < 1.0 / PARAGRAPH_SENTENCES;
        if begins_paragraph {
            self.queue.extend(tables.pieces[tables.paragraph].iter());
        }
        let is_at_start = begins_paragraph || self.sentences == 0;
        let mut used: Vec<usize> = Vec::new();
        for (index, slot) in tables.patterns[pattern].iter().enumerate() {
            let choices = if index == 0 && is_at_start { &slot.at_start } else { &slot.choices };
            let mut piece = choices[self.below(choices.len())];
            // If a slot has many words, no word appears twice in a sentence.
            if choices.len() > 8 {
                while used.contains(&piece) {
                    piece = choices[self.below(choices.len())];
                }
                used.push(piece);
            }
            self.queue.extend(tables.pieces[piece].iter());
        }
        self.sentences = self.sentences.saturating_add(1);
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.stream.unit() * end as f64) as usize).min(end - 1)
    }
}

/// Ids of pieces, by their text.
struct Pieces<'a> {
    tokenizer: &'a Tokenizer,
    ids: BTreeMap<(String, bool), usize>,
    all: Vec<Box<[u32]>>,
}

impl Pieces<'_> {
    fn slot(&mut self, part: &Part, is_first: bool) -> Slot {
        let texts = part.texts();
        let space = if part.is_attached() { "" } else { " " };
        let choices = texts.iter().map(|text| self.get(&format!("{space}{text}"), false)).collect();
        let at_start = texts.iter().filter(|_| is_first).map(|text| self.get(text, true)).collect();
        Slot { choices, at_start }
    }

    fn get(&mut self, text: &str, is_at_start: bool) -> usize {
        let key = (text.to_owned(), is_at_start);
        if let Some(found) = self.ids.get(&key) {
            return *found;
        }
        let tokens = tokens(self.tokenizer, text, if is_at_start { "\n\n" } else { "the" });
        self.all.push(tokens.into());
        self.ids.insert(key, self.all.len() - 1);
        self.all.len() - 1
    }
}

/// Returns tokens that append `text` to a text ending with `before`. Some tokenizers insert a space before every
/// text, so `text` is also tried without its leading space, and as the tail of `before + text`.
fn tokens(tokenizer: &Tokenizer, text: &str, before: &str) -> Vec<u32> {
    let encode = |text: &str| tokenizer.encode(text, false).unwrap_or_default();
    let context = encode(before);
    let fits = |tokens: &Vec<u32>| {
        let joined = [&context[..], &tokens[..]].concat();
        let decoded = tokenizer.decode(&joined, false);
        !tokens.is_empty() && decoded.strip_prefix(tokenizer.decode(&context, false).as_str()) == Some(text)
    };
    let both = encode(&format!("{before}{text}"));
    let rest = both.strip_prefix(&context[..]).map(<[u32]>::to_vec).unwrap_or_default();
    let candidates = [encode(text), rest, encode(text.trim_start())];
    let found = candidates.iter().find(|tokens| fits(tokens)).or(candidates.iter().find(|tokens| !tokens.is_empty()));
    // Use token 0 if the tokenizer has no tokens for plain words.
    found.cloned().unwrap_or_else(|| vec![0])
}
