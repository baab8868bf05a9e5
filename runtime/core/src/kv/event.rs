//! KV events of a prefix cache, in vLLM's order.
//!
//! Owns the log of one pool: flat buffers that are reused, so that announcing
//! costs no allocation once they are warm. Hashes here are the engine's own;
//! what leaves on a wire is translated where it leaves.

use crate::kv::hash::BlockHash;

/// A change of the prefix cache (vLLM's `KVCacheEvent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Consecutive blocks of one sequence became reusable.
    Stored {
        /// The driver's number for the request they were computed for.
        tag: u64,
        /// Hash of the block before the first one; none at a sequence start.
        parent: Option<BlockHash>,
        /// Hashes in sequence order; none where a group of layers keeps none of these blocks.
        blocks: &'a [BlockHash],
        /// All tokens of these blocks, if the request's prompt kept its tokens.
        tokens: &'a [u32],
    },
    /// A cached block was evicted.
    Removed(BlockHash),
    /// Every cached block was dropped.
    Cleared,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Stored { group: u8, tag: u64, parent: Option<BlockHash>, blocks: u32, tokens: u32 },
    Removed { group: u8, hash: BlockHash },
    Cleared,
}

/// A place in a [`KvEventLog`]: the events before it are read. It is the beginning by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvEventCursor {
    entries: usize,
    hashes: usize,
    tokens: usize,
}

/// Recorded events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct KvEventLog {
    entries: Vec<Entry>,
    hashes: Vec<BlockHash>,
    tokens: Vec<u32>,
}

impl KvEventLog {
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all events and keeps the buffers.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.hashes.clear();
        self.tokens.clear();
    }

    /// The events, oldest first; where layers are in groups those of the first group alone.
    pub fn iter(&self) -> impl Iterator<Item = KvEvent<'_>> {
        self.iter_by_group().filter(|(group, _)| *group == 0).map(|(_, event)| event)
    }

    /// The events, oldest first, each with the index of the group of layers whose blocks it is
    /// about; 0 where all are.
    pub fn iter_by_group(&self) -> impl Iterator<Item = (u32, KvEvent<'_>)> {
        let mut cursor = KvEventCursor::default();
        self.entries.iter().map(move |entry| self.event(entry, &mut cursor))
    }

    /// Shows the events from `cursor` up to the one at index `end`, those of all groups counted, as
    /// [`KvEventLog::iter`] gives them, and moves the cursor there.
    pub fn read(&self, cursor: &mut KvEventCursor, end: usize, mut show: impl FnMut(KvEvent<'_>)) {
        let end = end.min(self.entries.len());
        for entry in self.entries.get(cursor.entries..end).unwrap_or_default() {
            if let (0, event) = self.event(entry, cursor) {
                show(event);
            }
        }
    }

    /// The event of the entry at `cursor`, which moves on.
    #[inline]
    fn event(&self, entry: &Entry, cursor: &mut KvEventCursor) -> (u32, KvEvent<'_>) {
        cursor.entries += 1;
        match *entry {
            Entry::Stored { group, tag, parent, blocks, tokens } => {
                let (first_hash, first_token) = (cursor.hashes, cursor.tokens);
                cursor.hashes += blocks as usize;
                cursor.tokens += tokens as usize;
                let blocks = &self.hashes[first_hash..cursor.hashes];
                let tokens = &self.tokens[first_token..cursor.tokens];
                (group.into(), KvEvent::Stored { tag, parent, blocks, tokens })
            }
            Entry::Removed { group, hash } => (group.into(), KvEvent::Removed(hash)),
            Entry::Cleared => (0, KvEvent::Cleared),
        }
    }

    pub(crate) fn stored(&mut self, tag: u64, parent: Option<BlockHash>, blocks: &[BlockHash], tokens: &[u32]) {
        self.stored_of_group(0, tag, parent, blocks.iter().copied(), tokens);
    }

    pub(crate) fn stored_of_group(
        &mut self,
        group: u8,
        tag: u64,
        parent: Option<BlockHash>,
        blocks: impl Iterator<Item = BlockHash>,
        tokens: &[u32],
    ) {
        let before = self.hashes.len();
        self.hashes.extend(blocks);
        self.tokens.extend_from_slice(tokens);
        let blocks = (self.hashes.len() - before) as u32;
        self.entries.push(Entry::Stored { group, tag, parent, blocks, tokens: tokens.len() as u32 });
    }

    pub(crate) fn removed(&mut self, hash: BlockHash) {
        self.removed_of_group(0, hash);
    }

    pub(crate) fn removed_of_group(&mut self, group: u8, hash: BlockHash) {
        self.entries.push(Entry::Removed { group, hash });
    }

    pub(crate) fn cleared(&mut self) {
        self.entries.push(Entry::Cleared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_in_parts_and_those_of_later_groups_are_passed() {
        let mut log = KvEventLog::default();
        log.stored(1, None, &[10, 11], &[5, 6]);
        log.removed_of_group(1, 99);
        log.stored_of_group(1, 1, None, [20, 21, 22].into_iter(), &[]);
        log.removed(10);
        log.stored(2, Some(11), &[12], &[7]);
        let whole: Vec<KvEvent<'_>> = log.iter().collect();
        assert_eq!(whole.len(), 3);
        for first_part in 0..=log.len() {
            let (mut cursor, mut read) = (KvEventCursor::default(), Vec::new());
            for end in [first_part, first_part, log.len() + 1] {
                log.read(&mut cursor, end, |event| read.push(format!("{event:?}")));
            }
            assert_eq!(read, whole.iter().map(|event| format!("{event:?}")).collect::<Vec<_>>(), "{first_part}");
        }
    }
}
