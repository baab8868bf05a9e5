//! Keys that distinguish blocks of the same tokens.

use crate::block_hash::HashRules;
use crate::block_hash::encode::Encode;

/// A key that distinguishes blocks with the same tokens and the same predecessors.
///
/// A block's keys come in the order of the variants
/// (`generate_block_hash_extra_keys`); there may be several multimodal inputs,
/// but only one of each other kind. How one is written, bare or tagged, is a
/// matter of the rules.
///
/// Pickle writes an object that it has written before as a reference, so it matters which strings are the
/// same object. In an engine, a process that decodes its requests from a socket, the same objects are the
/// tags, which are constants of the program, and equal strings of at most one character up to U+00FF, which
/// CPython shares. All other strings are separate objects, even the same image's identifier given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// The adapter of a request, on each of its blocks.
    Lora {
        /// `lora_name`.
        name: &'a str,
        /// `lora_path`; only hashed from 0.31.
        path: &'a str,
    },
    /// A multimodal input that has tokens in the block.
    MultiModal {
        /// The input.
        identifier: &'a str,
        /// Its first token relative to the block's; negative if it began in an
        /// earlier block.
        offset: i64,
    },
    /// The `cache_salt` of a request, on its first block only. An empty one counts as none.
    CacheSalt(&'a str),
    /// The SHA-256 of the block's part of the prompt embeddings.
    PromptEmbeds(&'a [u8; 32]),
}

impl<'a> ExtraKey<'a> {
    /// The key of a multimodal input with `len` tokens from `offset` on in its prompt, for the tokens from
    /// `start` to before `end`; none if it has no token there.
    #[must_use]
    pub fn of_input(identifier: &'a str, (offset, len): (u32, u32), start: u64, end: u64) -> Option<Self> {
        let (first, behind) = (u64::from(offset), u64::from(offset) + u64::from(len));
        let is_inside = len > 0 && first < end && behind > start;
        is_inside.then(|| Self::MultiModal { identifier, offset: i64::from(offset) - start as i64 })
    }
}

impl ExtraKey<'_> {
    /// Place in the order of keys.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Lora { .. } => 0,
            Self::MultiModal { .. } => 1,
            Self::CacheSalt(_) => 2,
            Self::PromptEmbeds(_) => 3,
        }
    }

    pub(crate) fn encode(&self, rules: HashRules, out: &mut impl Encode) {
        if rules.tags_extra_keys() { self.encode_tagged(out) } else { self.encode_bare(out) }
    }

    fn encode_tagged(&self, out: &mut impl Encode) {
        match *self {
            Self::Lora { name, path } => out.tuple(3, |out| {
                out.constant("lora");
                out.text(name);
                out.text(path);
            }),
            Self::MultiModal { identifier, offset } => out.tuple(3, |out| {
                out.constant("mm");
                out.text(identifier);
                out.int(offset);
            }),
            Self::CacheSalt(salt) => out.tuple(2, |out| {
                out.constant("cache_salt");
                out.text(salt);
            }),
            Self::PromptEmbeds(digest) => out.tuple(2, |out| {
                out.constant("prompt_embeds");
                out.bytes(digest);
            }),
        }
    }

    fn encode_bare(&self, out: &mut impl Encode) {
        match *self {
            Self::Lora { name, .. } => out.text(name),
            Self::MultiModal { identifier, offset } => out.tuple(2, |out| {
                out.text(identifier);
                out.int(offset);
            }),
            Self::CacheSalt(salt) => out.text(salt),
            Self::PromptEmbeds(digest) => out.bytes(digest),
        }
    }
}
