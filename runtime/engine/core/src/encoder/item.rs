//! Multimodal items of a prompt: images, sounds, videos.

use std::ops::Range;

/// One multimodal item of a prompt (vLLM's `MultiModalFeatureSpec`): the position of its
/// placeholder tokens, and its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptItem {
    identity: u64,
    offset_tokens: u32,
    len_tokens: u32,
    num_embeds: u32,
    /// Runs of placeholders that the encoder's outputs replace, counted from the first placeholder. None if
    /// they replace all placeholders.
    embed_runs: Option<Box<[Range<u32>]>>,
}

impl PromptItem {
    /// An item whose placeholder tokens are all replaced by embeddings. Items of the same `identity` are the
    /// same to the encoder cache and to the prefix cache. `offset_tokens` counts from the start of the prompt.
    #[must_use]
    pub fn new(identity: u64, offset_tokens: u32, len_tokens: u32) -> Self {
        Self { identity, offset_tokens, len_tokens, num_embeds: len_tokens, embed_runs: None }
    }

    /// An item whose embeddings replace only the placeholders of `runs`; the other placeholders are
    /// breaks or text (vLLM's `is_embed`). Runs count from the first placeholder. Runs that are out of order
    /// or beyond the last placeholder are cut off.
    #[must_use]
    pub fn with_embed_runs(self, runs: impl IntoIterator<Item = Range<u32>>) -> Self {
        let mut kept: Vec<Range<u32>> = Vec::new();
        for run in runs {
            let start = kept.last().map_or(0, |last| last.end).max(run.start);
            let end = run.end.min(self.len_tokens);
            if start < end {
                kept.push(start..end);
            }
        }
        let num_embeds = kept.iter().map(|run| run.end - run.start).sum();
        Self { num_embeds, embed_runs: Some(kept.into()), ..self }
    }

    /// The item as an input of cross attention, where no prompt token represents it.
    #[must_use]
    pub fn without_place(self) -> Self {
        Self { len_tokens: 0, ..self }
    }

    /// Identity of the item's content.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Position of the first placeholder in the prompt.
    #[must_use]
    pub fn offset_tokens(&self) -> u32 {
        self.offset_tokens
    }

    /// Number of placeholders.
    #[must_use]
    pub fn len_tokens(&self) -> u32 {
        self.len_tokens
    }

    /// Position after the last placeholder.
    #[must_use]
    pub fn end_tokens(&self) -> u32 {
        self.offset_tokens.saturating_add(self.len_tokens)
    }

    /// Number of embeddings that the encoder computes; the item's size in the encoder cache.
    #[must_use]
    pub fn num_embeds(&self) -> u32 {
        self.num_embeds
    }

    /// Runs of placeholders that embeddings replace, counted from the first placeholder. None if they
    /// replace all placeholders.
    #[must_use]
    pub fn embed_runs(&self) -> Option<&[Range<u32>]> {
        self.embed_runs.as_deref()
    }

    /// Whether embeddings replace any prompt token in `start..end`.
    pub(crate) fn has_embeds_within(&self, start: u32, end: u32) -> bool {
        let first = start.saturating_sub(self.offset_tokens);
        let last = end.saturating_sub(self.offset_tokens).min(self.len_tokens);
        match &self.embed_runs {
            None => first < last,
            Some(runs) => runs.iter().any(|run| run.start.max(first) < run.end.min(last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_those_of_the_runs_within_the_item() {
        let item = PromptItem::new(7, 10, 8).with_embed_runs([1..3, 2..4, 6..20, 5..6]);
        assert_eq!((item.num_embeds(), item.end_tokens()), (5, 18));
        for (start, end, expected) in [(0, 11, false), (0, 12, true), (14, 16, false), (16, 17, true), (18, 30, false)]
        {
            assert_eq!(item.has_embeds_within(start, end), expected, "{start}..{end}");
        }
        let whole = PromptItem::new(7, 10, 8);
        assert!(whole.has_embeds_within(17, 18) && !whole.has_embeds_within(18, 19) && !whole.has_embeds_within(0, 10));
        assert_eq!(whole.clone().with_embed_runs([]).num_embeds(), 0);
    }
}
