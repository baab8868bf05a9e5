use crate::block_hash::HashRules;
use crate::block_hash::encode::Encode;

/// A key that distinguishes blocks with the same tokens and parent.
///
/// A block's keys are ordered by variant (`generate_block_hash_extra_keys`). A block may have several multimodal
/// inputs, but only one key of each other kind. [`HashRules`](crate::block_hash::HashRules) decide whether keys are
/// written bare or tagged.
///
/// Pickle replaces a repeated object by a reference, so object identity affects the hash. In an engine that decodes
/// its requests from a socket, only two kinds of strings are shared objects: the tags, and equal strings of at most
/// one character up to U+00FF, which CPython shares. All other strings are separate objects, even if the same
/// identifier occurs twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// The LoRA adapter of the request, on each of its blocks.
    Lora {
        /// `lora_name`.
        name: &'a str,
        /// `lora_path`; hashed from 0.31 on.
        path: &'a str,
    },
    /// A multimodal input with tokens in the block.
    MultiModal {
        /// Identifier of the input.
        identifier: &'a str,
        /// First token of the input relative to the block's; negative if the input begins in an earlier block.
        offset: i64,
    },
    /// The request's `cache_salt`, on its first block only. An empty salt counts as none.
    CacheSalt(&'a str),
    /// SHA-256 of the block's part of the prompt embeddings.
    PromptEmbeds(&'a [u8; 32]),
}

impl<'a> ExtraKey<'a> {
    /// The key of a multimodal input for the block with tokens `start..end`; none if the input has no token there.
    /// The input has `len` tokens from `offset` on.
    #[must_use]
    pub fn of_input(identifier: &'a str, (offset, len): (u32, u32), start: u64, end: u64) -> Option<Self> {
        let (first, behind) = (u64::from(offset), u64::from(offset) + u64::from(len));
        let is_inside = len > 0 && first < end && behind > start;
        is_inside.then(|| Self::MultiModal { identifier, offset: i64::from(offset) - start as i64 })
    }
}

impl ExtraKey<'_> {
    /// Position in the order of keys.
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
