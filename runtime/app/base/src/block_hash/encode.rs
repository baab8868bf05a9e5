//! The Python values that vLLM hashes, independent of their serialisation.

use crate::block_hash::{Digest, ExtraKey, HashRules};

/// Writes one Python value at a time into a reused buffer.
pub(crate) trait Encode {
    /// Clears the buffer.
    fn begin(&mut self);

    /// Ends the value and returns its bytes.
    fn finish(&mut self) -> &[u8];

    fn none(&mut self);

    fn int(&mut self, value: i64);

    /// A bytes object that occurs once.
    fn bytes(&mut self, value: &[u8]);

    /// A string that is not a constant of the program.
    fn text(&mut self, value: &str);

    /// A string constant of the program, always the same object. It must have more than one character, because
    /// CPython shares shorter strings.
    fn constant(&mut self, value: &'static str);

    /// A tuple that occurs once; `items` writes its `len` values.
    fn tuple(&mut self, len: usize, items: impl FnOnce(&mut Self));
}

/// Encodes the string whose hash stands for the parent of a first block.
pub(crate) fn encode_text<'a>(out: &'a mut impl Encode, text: &str) -> &'a [u8] {
    out.begin();
    out.text(text);
    out.finish()
}

/// Encodes `(parent, tuple(tokens), tuple(extra) or None)`, see `hash_block_tokens`. With lookahead tokens it is
/// `(parent, tuple(tokens), (tuple(extra) or None, *ahead))`.
pub(crate) fn encode_block<'a>(
    out: &'a mut impl Encode,
    rules: HashRules,
    parent: &Digest,
    tokens: &[u32],
    extra: &[ExtraKey<'_>],
    ahead: &[u32],
) -> &'a [u8] {
    out.begin();
    out.tuple(3, |out| {
        out.bytes(parent.as_bytes());
        out.tuple(tokens.len(), |out| tokens.iter().for_each(|&token| out.int(i64::from(token))));
        if ahead.is_empty() {
            encode_extra(out, rules, extra);
        } else {
            out.tuple(1 + ahead.len(), |out| {
                encode_extra(out, rules, extra);
                ahead.iter().for_each(|&token| out.int(i64::from(token)));
            });
        }
    });
    out.finish()
}

fn encode_extra(out: &mut impl Encode, rules: HashRules, extra: &[ExtraKey<'_>]) {
    if extra.is_empty() {
        out.none();
    } else {
        out.tuple(extra.len(), |out| extra.iter().for_each(|key| key.encode(rules, out)));
    }
}
