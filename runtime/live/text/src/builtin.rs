//! The built-in tokenizer. Ids:
//!
//! * 0 to 255: single bytes
//! * 256 to 287: special tokens; the first twelve have names, the rest are reserved
//! * from 288 on: the lines of `pieces.txt`, with the escapes `\n`, `\s` (a trailing space) and `\\`. Append new
//!   lines only: an id never changes.

use std::collections::BTreeMap;

const SPECIAL: [&str; 12] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|image|>",
    "<|audio|>",
    "<|video|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];
const SPECIAL_START: u32 = 256;
const PIECES_START: u32 = 288;
/// The number of special tokens that decoded text leaves out. Parsers need the others as text.
const CONTROL: usize = 6;
const END_OF_TEXT: u32 = SPECIAL_START;
const END_OF_TURN: u32 = SPECIAL_START + 2;

const PIECES: &str = include_str!("pieces.txt");

pub(crate) struct Builtin {
    /// The bytes of each token, by id.
    pieces: Vec<Vec<u8>>,
    /// Token ids by their first two bytes, longest token first.
    by_head: BTreeMap<[u8; 2], Vec<u32>>,
}

impl Builtin {
    pub(crate) fn new() -> Self {
        let mut pieces: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        pieces.extend(SPECIAL.iter().map(|text| text.as_bytes().to_vec()));
        let reserved =
            (SPECIAL.len() as u32..PIECES_START - SPECIAL_START).map(|index| format!("<|reserved_{index}|>"));
        pieces.extend(reserved.map(String::into_bytes));
        pieces.extend(PIECES.lines().map(|line| unescaped(line).into_bytes()));
        let mut by_head: BTreeMap<[u8; 2], Vec<u32>> = BTreeMap::new();
        for (id, piece) in pieces.iter().enumerate().skip(256) {
            if let [first, second, ..] = piece[..] {
                by_head.entry([first, second]).or_default().push(id as u32);
            }
        }
        for ids in by_head.values_mut() {
            ids.sort_by_key(|id| std::cmp::Reverse(pieces[*id as usize].len()));
        }
        Self { pieces, by_head }
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(Vec::as_slice)
    }

    pub(crate) fn special_ids(&self) -> impl Iterator<Item = u32> {
        let reserved = SPECIAL_START + SPECIAL.len() as u32..PIECES_START;
        (SPECIAL_START..SPECIAL_START + CONTROL as u32).chain(reserved)
    }

    pub(crate) fn eos_ids(&self) -> Vec<u32> {
        vec![END_OF_TURN, END_OF_TEXT]
    }

    pub(crate) fn special_texts(&self) -> BTreeMap<String, String> {
        let text = |id: u32| String::from_utf8_lossy(&self.pieces[id as usize]).into_owned();
        let named = [("eos_token", END_OF_TURN), ("pad_token", END_OF_TEXT)];
        named.map(|(name, id)| (name.to_owned(), text(id))).into()
    }

    pub(crate) fn token_id(&self, text: &str) -> Option<u32> {
        self.pieces.iter().position(|piece| piece == text.as_bytes()).map(|id| id as u32)
    }

    /// Takes the longest matching piece at each position, from left to right.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let mut rest = text.as_bytes();
        let mut ids = Vec::with_capacity(rest.len() / 3);
        while let [first, more @ ..] = rest {
            let id = more.first().and_then(|second| self.longest([*first, *second], rest));
            let id = id.unwrap_or(u32::from(*first));
            ids.push(id);
            rest = &rest[self.pieces[id as usize].len()..];
        }
        ids
    }

    fn longest(&self, head: [u8; 2], text: &[u8]) -> Option<u32> {
        self.by_head.get(&head)?.iter().copied().find(|id| text.starts_with(&self.pieces[*id as usize]))
    }
}

fn unescaped(line: &str) -> String {
    let mut text = String::new();
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('s') => ' ',
                other => other.unwrap_or('\\'),
            },
            plain => plain,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recordings and users' prompts contain these ids.
    #[test]
    fn ids_are_frozen() {
        let builtin = Builtin::new();
        assert_eq!(builtin.token_id("<|im_end|>"), Some(258));
        assert_eq!(builtin.token_id("</think>"), Some(267));
        assert_eq!(builtin.encode("The quick brown fox, 42!"), FROZEN);
        assert_eq!(builtin.pieces[288..].iter().filter(|piece| piece.len() < 2).count(), 0, "bytes have ids already");
        let mut sorted = builtin.pieces.clone();
        sorted.sort();
        assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a piece occurs twice");
    }

    const FROZEN: [u32; 8] = [877, 1203, 1204, 1205, 44, 32, 1303, 33];
}
