//! Multimodal items of prompts in captures and traces.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// A multimodal item of a prompt: the identity of its content, and the position of its placeholder tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaItem {
    /// The identity of the content. Caches treat items with equal hashes as equal.
    pub hash: String,
    /// Position of the item's first placeholder in the prompt.
    pub offset: u32,
    /// Number of placeholders.
    pub tokens: u32,
    /// `image`, `audio`, `video` or another word of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modality: Option<String>,
    /// Runs `[start, end]` of placeholders that embeddings replace, counted from the item's first placeholder.
    /// Absent if embeddings replace all placeholders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeds: Option<Vec<[u32; 2]>>,
}

/// A problem of a multimodal item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaProblem {
    /// The item has no identity.
    #[error("the hash is empty; give equal items the same text")]
    NoHash,
    /// The item has no placeholders.
    #[error("the item has no tokens; it has at least one placeholder")]
    Empty,
    /// The item overlaps the previous item.
    #[error("it begins at token {offset}, but the item before it ends at {end}; order items by their places")]
    Overlap {
        /// Position of the item's first placeholder.
        offset: u32,
        /// The position after the previous item's last placeholder.
        end: u64,
    },
    /// The item extends beyond the end of the prompt.
    #[error("it ends at token {end}, but the prompt has {prompt_tokens}")]
    BeyondPrompt {
        /// The position after the item's last placeholder.
        end: u64,
        /// Length of the prompt.
        prompt_tokens: u32,
    },
    /// A run of embeddings is out of order, empty, or beyond the item.
    #[error("invalid run [{start}, {end}]: expected ascending runs within the item's {tokens} tokens")]
    Run {
        /// First placeholder of the run.
        start: u32,
        /// The position after the run's last placeholder.
        end: u32,
        /// Number of placeholders of the item.
        tokens: u32,
    },
}

/// (Index of the item, name of the invalid field, problem).
pub(crate) type ItemProblem = (usize, &'static str, MediaProblem);

impl MediaItem {
    /// A number that identifies the content.
    #[must_use]
    pub fn identity(&self) -> u64 {
        xxh3_64(self.hash.as_bytes())
    }

    /// The position after the last placeholder.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.tokens)
    }

    /// Whether the items of a prompt of `prompt_tokens` tokens are valid: not empty, in order, without overlap, and
    /// within the prompt.
    #[must_use]
    pub fn are_in_place(items: &[Self], prompt_tokens: u32) -> bool {
        check(items, prompt_tokens).is_ok()
    }
}

/// Checks that the items of a prompt are within the prompt and do not overlap.
pub(crate) fn check(items: &[MediaItem], prompt_tokens: u32) -> Result<(), ItemProblem> {
    let mut before = 0;
    for (index, item) in items.iter().enumerate() {
        let (offset, end) = (item.offset, item.end());
        if item.hash.is_empty() {
            return Err((index, "hash", MediaProblem::NoHash));
        }
        if item.tokens == 0 {
            return Err((index, "tokens", MediaProblem::Empty));
        }
        if u64::from(offset) < before {
            return Err((index, "offset", MediaProblem::Overlap { offset, end: before }));
        }
        if end > u64::from(prompt_tokens) {
            return Err((index, "tokens", MediaProblem::BeyondPrompt { end, prompt_tokens }));
        }
        before = end;
        check_runs(item).map_err(|problem| (index, "embeds", problem))?;
    }
    Ok(())
}

fn check_runs(item: &MediaItem) -> Result<(), MediaProblem> {
    let mut before = 0;
    for &[start, end] in item.embeds.iter().flatten() {
        if start < before || start >= end || end > item.tokens {
            return Err(MediaProblem::Run { start, end, tokens: item.tokens });
        }
        before = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(offset: u32, tokens: u32) -> MediaItem {
        MediaItem { hash: "cat".to_owned(), offset, tokens, ..MediaItem::default() }
    }

    #[test]
    fn items_are_within_the_prompt_and_apart() {
        assert_eq!(check(&[item(0, 4), item(4, 4), item(9, 1)], 10), Ok(()));
        assert_eq!(check(&[], 1), Ok(()));
        let runs = |runs: &[[u32; 2]]| MediaItem { embeds: Some(runs.to_vec()), ..item(2, 5) };
        assert_eq!(check(&[runs(&[[0, 1], [1, 3], [4, 5]]), runs(&[])][..1], 7), Ok(()));
        let nameless = MediaItem { hash: String::new(), ..item(0, 1) };
        for (items, expected) in [
            (vec![nameless], (0, "hash", MediaProblem::NoHash)),
            (vec![item(0, 0)], (0, "tokens", MediaProblem::Empty)),
            (vec![item(0, 4), item(3, 1)], (1, "offset", MediaProblem::Overlap { offset: 3, end: 4 })),
            (vec![item(4, 7)], (0, "tokens", MediaProblem::BeyondPrompt { end: 11, prompt_tokens: 10 })),
            (
                vec![item(u32::MAX, u32::MAX)],
                (0, "tokens", MediaProblem::BeyondPrompt { end: 8_589_934_590, prompt_tokens: 10 }),
            ),
            (vec![runs(&[[1, 1]])], (0, "embeds", MediaProblem::Run { start: 1, end: 1, tokens: 5 })),
            (vec![runs(&[[0, 2], [1, 3]])], (0, "embeds", MediaProblem::Run { start: 1, end: 3, tokens: 5 })),
            (vec![runs(&[[0, 6]])], (0, "embeds", MediaProblem::Run { start: 0, end: 6, tokens: 5 })),
        ] {
            assert_eq!(check(&items, 10), Err(expected), "{items:?}");
            assert!(!MediaItem::are_in_place(&items, 10));
        }
    }
}
