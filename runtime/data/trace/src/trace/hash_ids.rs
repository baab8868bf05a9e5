//! The content-block ids of prompts, stored as runs of consecutive ids.
//!
//! Ids are numbered in the order of their first appearance. The new blocks of a prompt are therefore consecutive,
//! and a later prompt with the same beginning has the same runs. A turn of a long conversation takes a few words
//! instead of one per block; a list without runs takes one word per id.

use std::ops::Range;

/// Marks a word as the first id of a run. The next word is the length of the run.
const RUN: u32 = 1 << 31;
/// Marks a run whose first id does not fit next to [`RUN`]. The next word is the first id, and the word after it
/// the length.
const WIDE_RUN: u32 = u32::MAX;
/// Minimum length of a run. A shorter run would take at least as many words as single ids.
const MIN_RUN: u32 = 3;

/// The ids of all prompts of a [`Trace`](crate::Trace).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashIds {
    /// Each entry is an id below [`RUN`], or a run of several words.
    words: Vec<u32>,
}

/// The ids of one prompt, as a range of [`HashIds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashIdRange {
    start: usize,
    len: u32,
}

impl HashIdRange {
    /// Number of ids.
    #[must_use]
    pub fn len(self) -> u32 {
        self.len
    }

    /// Whether there are no ids.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first `len` ids of the range, or the whole range if it is shorter.
    #[must_use]
    pub fn first(self, len: u32) -> Self {
        Self { len: len.min(self.len), ..self }
    }
}

impl HashIds {
    /// Whether no prompt has ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Adds the ids of a prompt. There must be fewer than 2^32.
    pub fn push(&mut self, ids: impl IntoIterator<Item = u32>) -> HashIdRange {
        let start = self.words.len();
        let mut len = 0;
        let (mut first, mut run) = (0, 0);
        for id in ids {
            len += 1;
            if id.checked_sub(first) == Some(run) {
                run += 1;
            } else {
                self.push_run(first, run);
                (first, run) = (id, 1);
            }
        }
        self.push_run(first, run);
        HashIdRange { start, len }
    }

    fn push_run(&mut self, first: u32, len: u32) {
        let end = first.saturating_add(len);
        if first >= RUN - 1 {
            if len > 0 {
                self.words.extend([WIDE_RUN, first, len]);
            }
        } else if len < MIN_RUN {
            self.words.extend(first..end);
        } else {
            self.words.extend([RUN | first, len]);
        }
    }

    /// The ids of a prompt.
    #[must_use]
    pub fn list(&self, range: HashIdRange) -> HashIdList<'_> {
        HashIdList { words: &self.words[range.start..], len: range.len }
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.words.shrink_to_fit();
    }
}

/// The ids of a prompt, in order.
#[derive(Clone, Copy, Debug)]
pub struct HashIdList<'a> {
    /// The words of the prompt, followed by the words of other prompts.
    words: &'a [u32],
    len: u32,
}

impl<'a> HashIdList<'a> {
    /// Number of ids.
    #[must_use]
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there are no ids.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The ids.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.runs().flatten()
    }

    /// The ids as ranges of consecutive ids.
    pub fn runs(self) -> Runs<'a> {
        Runs { words: self.words, left: self.len }
    }

    /// The ids as a vector.
    #[must_use]
    pub fn to_vec(self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.len());
        ids.extend(self.iter());
        ids
    }
}

impl PartialEq for HashIdList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<const N: usize> PartialEq<[u32; N]> for HashIdList<'_> {
    fn eq(&self, other: &[u32; N]) -> bool {
        self.len() == N && self.iter().eq(other.iter().copied())
    }
}

/// The iterator that [`HashIdList::runs`] returns.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    words: &'a [u32],
    left: u32,
}

impl Iterator for Runs<'_> {
    type Item = Range<u32>;

    fn next(&mut self) -> Option<Range<u32>> {
        if self.left == 0 {
            return None;
        }
        let (first, len, rest) = match *self.words {
            [WIDE_RUN, first, len, ref rest @ ..] => (first, len, rest),
            [word, len, ref rest @ ..] if word & RUN != 0 => (word & !RUN, len, rest),
            [id, ref rest @ ..] => (id, 1, rest),
            [] => return None,
        };
        self.words = rest;
        let len = len.min(self.left);
        self.left -= len;
        // The last id is below 2^32, because a list returns only ids that were pushed.
        Some(first..first.saturating_add(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> impl Strategy<Value = Vec<u32>> {
        let first = prop_oneof![0..40u32, RUN - 9..RUN + 9, u32::MAX - 40..u32::MAX - 9, any::<u32>()];
        let run = (first, prop_oneof![1..4u32, 1..9u32])
            .prop_map(|(first, len)| (0..len).map_while(move |n| first.checked_add(n)));
        prop::collection::vec(run, 0..12)
            .prop_map(|runs| runs.into_iter().flatten().filter(|id| *id < u32::MAX).collect())
    }

    proptest! {
        #[test]
        fn lists_are_what_was_pushed(lists in prop::collection::vec(ids(), 1..6), cut in 0..9u32) {
            let mut all = HashIds::default();
            let ranges: Vec<_> = lists.iter().map(|ids| all.push(ids.iter().copied())).collect();
            for (ids, range) in lists.iter().zip(ranges) {
                prop_assert_eq!(&all.list(range).to_vec(), ids);
                prop_assert_eq!((range.len() as usize, all.list(range).len()), (ids.len(), ids.len()));
                let first = &ids[..ids.len().min(cut as usize)];
                prop_assert_eq!(&all.list(range.first(cut)).to_vec()[..], first);
            }
        }

        /// A list must not take more than one word per id; otherwise short prompts would need more memory.
        #[test]
        fn no_list_is_longer_than_its_ids(ids in prop::collection::vec(0..60u32, 0..200)) {
            let mut all = HashIds::default();
            all.push(ids.iter().copied());
            prop_assert!(all.words.len() <= ids.len());
        }
    }

    #[test]
    fn a_conversation_takes_a_few_words_for_each_turn() {
        let mut all = HashIds::default();
        let first = all.push(0..1000);
        let second = all.push((0..1000).chain(5000..5040));
        assert_eq!((all.words.len(), all.list(second).len()), (6, 1040));
        assert_eq!(all.list(second).runs().collect::<Vec<_>>(), [0..1000, 5000..5040]);
        assert_eq!(all.list(second.first(1000)), all.list(first));
        assert_ne!(all.list(second), all.list(first));
        assert_eq!(all.list(first.first(3)), [0, 1, 2]);
    }
}
