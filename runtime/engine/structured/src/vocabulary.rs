use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Characters that every vocabulary must cover: the characters of JSON and of our words.
const NEEDED: &str = "{}[]\",:.- 0123456789abcdefghijklmnopqrstuvwxyz";

pub(crate) struct Vocabulary {
    /// Pieces in byte order, without duplicates.
    pieces: Vec<(Box<[u8]>, u32)>,
}

impl Vocabulary {
    pub(crate) fn new(pieces: Vec<(String, u32)>, byte_tokens: Option<Vec<u32>>) -> Result<Self, String> {
        let mut all: Vec<(Box<[u8]>, u32)> =
            pieces.into_iter().map(|(piece, token)| (piece.into_bytes().into_boxed_slice(), token)).collect();
        if let Some(tokens) = byte_tokens {
            if tokens.len() != 256 {
                return Err(format!("`byte_tokens` has {} tokens, but there are 256 bytes", tokens.len()));
            }
            let bytes = (0..=u8::MAX).map(|byte| Box::from([byte]));
            all.extend(bytes.zip(tokens));
        }
        // Sorting is stable, so of equal pieces the vocabulary's piece comes before the byte's.
        Self::of_pieces(all)
    }

    pub(crate) fn of_pieces(mut all: Vec<(Box<[u8]>, u32)>) -> Result<Self, String> {
        sort(&mut all);
        all.dedup_by(|(later, _), (first, _)| later == first);
        all.retain(|(piece, _)| !piece.is_empty());
        let vocabulary = Self { pieces: all };
        for needed in NEEDED.split_inclusive(|_| true) {
            vocabulary
                .tokens(needed)
                .map_err(|problem| format!("{problem}: add it to `vocabulary`, or give `byte_tokens`"))?;
        }
        Ok(vocabulary)
    }

    /// The tokens of a text. At each position, the longest piece that fits is used.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let (length, token) = self.longest(&text.as_bytes()[at..]).ok_or_else(|| {
                let rest = text.get(at..).and_then(|rest| rest.chars().next());
                match rest.unwrap_or(char::REPLACEMENT_CHARACTER) {
                    // Written as in the configuration.
                    control if control.is_control() => {
                        format!("the vocabulary has no piece for `{}`", control.escape_default())
                    }
                    other => format!("the vocabulary has no piece for `{other}`"),
                }
            })?;
            tokens.push(token);
            at += length;
        }
        Ok(tokens)
    }

    /// Length and token of the longest piece with which `text` begins.
    fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut longest = None;
        // The pieces that begin like the text. Each byte narrows them down.
        let mut pieces = &self.pieces[..];
        for (index, byte) in text.iter().enumerate() {
            let from = pieces.partition_point(|(piece, _)| piece.get(index) < Some(byte));
            let to = pieces.partition_point(|(piece, _)| piece.get(index) <= Some(byte));
            pieces = &pieces[from..to];
            match pieces.first() {
                // The shortest piece comes first, so only this piece can end here.
                Some((piece, token)) if piece.len() == index + 1 => longest = Some((index + 1, *token)),
                Some(_) => {}
                None => break,
            }
        }
        longest
    }
}

/// Sorts pieces by their bytes, stably. Vocabularies are large, so most comparisons use a single number made of the
/// first bytes.
fn sort(pieces: &mut Vec<(Box<[u8]>, u32)>) {
    let mut keyed: Vec<_> = pieces.drain(..).map(|piece| (head(&piece.0), piece)).collect();
    keyed.sort_by(|(one_head, (one, _)), (other_head, (other, _))| {
        one_head.cmp(other_head).then_with(|| one.cmp(other))
    });
    pieces.extend(keyed.into_iter().map(|(_, piece)| piece));
}

/// The first bytes of a piece, as a number with the same order.
fn head(piece: &[u8]) -> u64 {
    let mut head = [0; 8];
    let length = piece.len().min(head.len());
    head[..length].copy_from_slice(&piece[..length]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(pieces: &[(&str, u32)]) -> Vocabulary {
        let pieces = pieces.iter().map(|(piece, token)| (String::from(*piece), *token)).collect();
        Vocabulary::new(pieces, Some((0..256).collect())).expect("it has all bytes")
    }

    #[test]
    fn the_longest_piece_is_taken_and_bytes_fill_the_gaps() {
        let vocabulary = vocabulary(&[("ab", 300), ("abcd", 301), ("{\"", 302), ("a", 303)]);
        assert_eq!(vocabulary.tokens("abcabcd"), Ok(alloc::vec![300, 99, 301]));
        assert_eq!(vocabulary.tokens("{\"a\""), Ok(alloc::vec![302, 303, 34]));
        assert_eq!(vocabulary.tokens("\u{e9}"), Ok(alloc::vec![0xc3, 0xa9]));
    }

    #[test]
    fn a_vocabulary_that_cannot_make_json_is_refused() {
        let error = Vocabulary::new(Vec::new(), None).err().expect("it has nothing");
        assert_eq!(error, "the vocabulary has no piece for `{`: add it to `vocabulary`, or give `byte_tokens`");
        let error = Vocabulary::new(Vec::new(), Some(alloc::vec![1, 2])).err().expect("it has two");
        assert_eq!(error, "`byte_tokens` has 2 tokens, but there are 256 bytes");
        let pieces = NEEDED.chars().enumerate().map(|(token, piece)| (String::from(piece), token as u32)).collect();
        let vocabulary = Vocabulary::new(pieces, None).expect("it has all that is needed");
        assert_eq!(vocabulary.tokens("a\u{e9}"), Err("the vocabulary has no piece for `\u{e9}`".into()));
        assert_eq!(vocabulary.tokens("a\n"), Err("the vocabulary has no piece for `\\n`".into()));
    }
}
