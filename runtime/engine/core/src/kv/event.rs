//! KV events of a prefix cache, in vLLM's order.
//!
//! Owns the log of one pool. The log uses flat buffers that are reused, so it allocates nothing once they are large
//! enough. Block hashes are the engine's own; the wire format translates them.

use std::collections::BTreeMap;

use crate::kv::hash::BlockHash;

/// A change of the prefix cache (vLLM's `KVCacheEvent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Consecutive blocks of one sequence became reusable.
    Stored {
        /// Tag of the request that computed the blocks.
        tag: u64,
        /// Hash of the block before the first one; None at the start of a sequence.
        parent: Option<BlockHash>,
        /// Hashes in sequence order. Empty if a group of layers keeps none of the blocks.
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

/// A position in a [`KvEventLog`]: the events before it have been read. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvEventCursor {
    entries: usize,
    hashes: usize,
    tokens: usize,
}

/// Positions of the blocks of a [`KvEvent::Stored`] in their sequence, and the tokens that their names cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPlaces<'a> {
    /// Position of the event's first token in the sequence. The event covers all tokens up to [`StoredPlaces::end`].
    pub start: u32,
    /// Position after the event's last token.
    pub end: u32,
    /// Number of tokens per block.
    pub block_tokens: u32,
    /// Position after each of the event's blocks.
    pub ends: &'a [u32],
    /// Tokens of the sequence that no event of the request has shown yet. They may extend beyond the last block,
    /// because a block's name can cover later tokens.
    pub unseen: &'a [u32],
}

#[derive(Clone, Copy, Debug)]
struct Places {
    start: u32,
    end: u32,
    block_tokens: u32,
    ends: u32,
    unseen: u32,
}

/// The positions of all stored blocks.
#[derive(Clone, Debug, Default)]
struct PlaceLog {
    /// Number of tokens after a block that its name covers.
    lookahead_tokens: u32,
    /// For each request, the number of tokens shown in events.
    seen: BTreeMap<u64, u32>,
    places: Vec<Places>,
    ends: Vec<u32>,
    unseen: Vec<u32>,
}

pub(crate) struct StoredBlocks<'a, B: Iterator<Item = (BlockHash, u32)>> {
    pub(crate) group: usize,
    pub(crate) tag: u64,
    pub(crate) parent: Option<BlockHash>,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) block_tokens: u32,
    /// Block hashes, each with the position after the block.
    pub(crate) blocks: B,
    /// All known tokens of the sequence, if they are kept.
    pub(crate) known: &'a [u32],
}

/// Recorded events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct KvEventLog {
    entries: Vec<Entry>,
    hashes: Vec<BlockHash>,
    tokens: Vec<u32>,
    places: Option<Box<PlaceLog>>,
}

impl KvEventLog {
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all events and keeps the buffers.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.hashes.clear();
        self.tokens.clear();
        if let Some(log) = &mut self.places {
            log.places.clear();
            log.ends.clear();
            log.unseen.clear();
        }
    }

    /// Also records the positions of blocks from now on. Block hashes cover `lookahead_tokens` tokens after the
    /// block.
    pub fn record_places(&mut self, lookahead_tokens: u32) {
        self.places = Some(Box::new(PlaceLog { lookahead_tokens, ..PlaceLog::default() }));
    }

    pub(crate) fn has_places(&self) -> bool {
        self.places.is_some()
    }

    /// Forgets how many tokens of an ended request the events have shown.
    pub fn forget_request(&mut self, tag: u64) {
        if let Some(log) = &mut self.places {
            log.seen.remove(&tag);
        }
    }

    /// All events, oldest first, with their groups and the positions of stored blocks.
    ///
    /// # Panics
    /// If positions are not recorded.
    pub fn iter_with_places(&self) -> impl Iterator<Item = (u32, KvEvent<'_>, Option<StoredPlaces<'_>>)> {
        let log = self.places.as_ref().expect("places are recorded");
        let (mut places, mut ends, mut unseen) = (log.places.iter(), 0, 0);
        self.iter_by_group().map(move |(group, event)| {
            let place = matches!(event, KvEvent::Stored { .. }).then(|| {
                let place = places.next().expect("each such event has one");
                let (first_end, first_unseen) = (ends, unseen);
                ends += place.ends as usize;
                unseen += place.unseen as usize;
                StoredPlaces {
                    start: place.start,
                    end: place.end,
                    block_tokens: place.block_tokens,
                    ends: &log.ends[first_end..ends],
                    unseen: &log.unseen[first_unseen..unseen],
                }
            });
            (group, event, place)
        })
    }

    /// The events, oldest first; with groups of layers, only the events of the first group.
    pub fn iter(&self) -> impl Iterator<Item = KvEvent<'_>> {
        self.iter_by_group().filter(|(group, _)| *group == 0).map(|(_, event)| event)
    }

    /// The events, oldest first, each with the index of its group of layers; 0 if there is one group.
    pub fn iter_by_group(&self) -> impl Iterator<Item = (u32, KvEvent<'_>)> {
        let mut cursor = KvEventCursor::default();
        self.entries.iter().map(move |entry| self.event(entry, &mut cursor))
    }

    /// Passes the events from `cursor` to index `end`, counted over all groups, to `show`, as
    /// [`KvEventLog::iter`] returns them. Moves the cursor to `end`.
    pub fn read(&self, cursor: &mut KvEventCursor, end: usize, mut show: impl FnMut(KvEvent<'_>)) {
        let end = end.min(self.entries.len());
        for entry in self.entries.get(cursor.entries..end).unwrap_or_default() {
            if let (0, event) = self.event(entry, cursor) {
                show(event);
            }
        }
    }

    /// The event of the entry at `cursor`. Advances the cursor.
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
        debug_assert!(self.places.is_none(), "the places are not known here");
        self.hashes.extend_from_slice(blocks);
        self.tokens.extend_from_slice(tokens);
        let (blocks, tokens) = (blocks.len() as u32, tokens.len() as u32);
        self.entries.push(Entry::Stored { group: 0, tag, parent, blocks, tokens });
    }

    pub(crate) fn stored_of_group<B: Iterator<Item = (BlockHash, u32)>>(&mut self, stored: StoredBlocks<'_, B>) {
        let StoredBlocks { group, tag, parent, start, end, block_tokens, blocks, known } = stored;
        let before = self.hashes.len();
        let tokens = known.get(start as usize..end as usize).unwrap_or(&[]);
        self.tokens.extend_from_slice(tokens);
        match &mut self.places {
            None => self.hashes.extend(blocks.map(|(hash, _)| hash)),
            Some(log) => {
                let first_end = log.ends.len();
                for (hash, end) in blocks {
                    self.hashes.push(hash);
                    log.ends.push(end);
                }
                let seen = log.seen.entry(tag).or_default();
                let shown = known.len().min(end.saturating_add(log.lookahead_tokens) as usize);
                let unseen = known.get(*seen as usize..shown).unwrap_or(&[]);
                *seen += unseen.len() as u32;
                log.unseen.extend_from_slice(unseen);
                let ends = (log.ends.len() - first_end) as u32;
                log.places.push(Places { start, end, block_tokens, ends, unseen: unseen.len() as u32 });
            }
        }
        let blocks = (self.hashes.len() - before) as u32;
        self.entries.push(Entry::Stored { group: group as u8, tag, parent, blocks, tokens: tokens.len() as u32 });
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
        log.stored_of_group(StoredBlocks {
            group: 1,
            tag: 1,
            parent: None,
            start: 0,
            end: 3,
            block_tokens: 1,
            blocks: [20, 21, 22].into_iter().zip(1..),
            known: &[],
        });
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

    /// Each token of a sequence is shown once, including tokens after the blocks, in whatever order groups
    /// offer their blocks.
    #[test]
    fn places_come_with_the_tokens_that_no_event_has_shown() {
        let known: Vec<u32> = (100..120).collect();
        let mut log = KvEventLog::default();
        log.record_places(2);
        let mut store = |group, start, end, ends: &[u32]| {
            let blocks = ends.iter().map(|&end| (u64::from(end), end));
            let (tag, parent, known) = (7, None, &known[..]);
            log.stored_of_group(StoredBlocks { group, tag, parent, start, end, block_tokens: 4, blocks, known });
        };
        store(0, 4, 8, &[8]);
        store(1, 0, 12, &[4, 12]);
        store(0, 8, 12, &[]);
        store(0, 12, 20, &[16, 20]);
        log.removed_of_group(1, 4);
        let seen: Vec<_> = log.iter_with_places().collect();
        let places: Vec<StoredPlaces<'_>> = seen.iter().filter_map(|(.., places)| *places).collect();
        assert_eq!((seen.len(), places.len()), (5, 4));
        let unseen: Vec<&[u32]> = places.iter().map(|places| places.unseen).collect();
        assert_eq!(unseen, [&known[..10], &known[10..14], &[], &known[14..]]);
        assert_eq!(
            places.iter().map(|places| places.ends.to_vec()).collect::<Vec<_>>(),
            [vec![8], vec![4, 12], vec![], vec![16, 20]]
        );
        let KvEvent::Stored { tokens, blocks, .. } = seen[1].1 else { panic!("it is one of stored blocks") };
        assert_eq!((tokens, blocks), (&known[..12], &[4, 12][..]));
    }
}
