//! Blocks, the order of the free ones, and the map from hash to block.
//!
//! In a large pool every look at memory leaves the CPU's near caches, and one that
//! waits for another costs most. So lists are linked both ways, what is at their ends
//! is linked to the null block, nothing but a lookup follows links, and links are as
//! narrow as the pool allows.

use super::BlockId;
use crate::hash::BlockHash;

/// The number of a block, or of references to one, as it is kept.
///
/// Whoever references a block has taken one of its own, so no block has more
/// references than there are blocks.
pub(super) trait Link: Copy + Eq + std::fmt::Debug {
    /// The null block.
    const NULL: Self;
    /// No block: pools are smaller.
    const NONE: Self;
    fn of(number: u32) -> Self;
    fn number(self) -> u32;
    fn index(self) -> usize {
        self.number() as usize
    }
}

impl Link for u16 {
    const NULL: Self = 0;
    const NONE: Self = Self::MAX;

    #[inline]
    fn of(number: u32) -> Self {
        debug_assert!(number < Self::NONE.into());
        number as Self
    }

    #[inline]
    fn number(self) -> u32 {
        self.into()
    }
}

impl Link for u32 {
    const NULL: Self = 0;
    const NONE: Self = Self::MAX;

    #[inline]
    fn of(number: u32) -> Self {
        number
    }

    #[inline]
    fn number(self) -> u32 {
        self
    }
}

#[derive(Clone, Debug)]
struct Block<L> {
    /// 0 while the block is not in the cache map.
    hash: BlockHash,
    /// The next of the free blocks that were cached; [`Link::NONE`] if it is none.
    next_free: L,
    /// The one before it; of a block that is not listed the references.
    prev_free_or_refs: L,
    /// The block of its bucket that was cached before it.
    next_in_bucket: L,
    /// The one that was cached after it.
    prev_in_bucket: L,
}

impl<L: Link> Block<L> {
    /// Taken by one request, and not cached.
    fn taken() -> Self {
        let [null, refs] = [0, 1].map(L::of);
        Self { hash: 0, next_free: L::NONE, prev_free_or_refs: refs, next_in_bucket: null, prev_in_bucket: null }
    }

    /// Begin and end of the free blocks that were cached, of which there are none.
    fn null() -> Self {
        Self { next_free: L::NULL, prev_free_or_refs: L::NULL, ..Self::taken() }
    }

    /// How many requests hold it.
    fn refs(&self) -> u32 {
        if self.next_free == L::NONE { self.prev_free_or_refs.number() } else { 0 }
    }
}

/// The blocks of a pool.
#[derive(Debug)]
pub(super) struct Blocks<L> {
    /// The null block, and all that were ever taken.
    blocks: Vec<Block<L>>,
    num_blocks: u32,
    /// Free blocks without a hash, which are taken first, the last of these before
    /// all others. After them come blocks that were never taken, then those of
    /// the list that begins and ends with the null block.
    unhashed: Vec<BlockId>,
    /// The cache map: of each bucket of hashes, the block that was cached last.
    buckets: Vec<L>,
}

impl<L: Link> Blocks<L> {
    /// So many blocks, the null block included.
    pub(super) fn new(num_blocks: u32, caching: bool) -> Self {
        let mut blocks = Vec::with_capacity(num_blocks as usize);
        blocks.push(Block::null());
        let buckets = if caching { num_buckets(num_blocks - 1) } else { 0 };
        Self { blocks, num_blocks, unhashed: Vec::new(), buckets: vec![L::NULL; buckets] }
    }

    pub(super) fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id as usize].refs() == 0
    }

    /// Adds a reference to a cached block. Gives whether it was free.
    pub(super) fn touch(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks[id as usize];
        if block.next_free == L::NONE {
            block.prev_free_or_refs = L::of(block.prev_free_or_refs.number() + 1);
            return false;
        }
        let next = std::mem::replace(&mut block.next_free, L::NONE);
        let prev = std::mem::replace(&mut block.prev_free_or_refs, L::of(1));
        self.blocks[prev.index()].next_free = next;
        self.blocks[next.index()].prev_free_or_refs = prev;
        true
    }

    /// Takes `count` of the free blocks, of which there are so many, into `table`, and
    /// tells the hashes of those that were cached.
    pub(super) fn take(&mut self, count: u32, table: &mut Vec<BlockId>, removed: impl FnMut(BlockHash)) {
        let mut left = count as usize;
        let unhashed = left.min(self.unhashed.len());
        for id in self.unhashed.drain(self.unhashed.len() - unhashed..).rev() {
            self.blocks[id as usize].prev_free_or_refs = L::of(1);
            table.push(id);
        }
        left -= unhashed;
        let first = self.blocks.len();
        let fresh = left.min(self.num_blocks as usize - first);
        self.blocks.resize(first + fresh, Block::taken());
        table.extend(first as BlockId..(first + fresh) as BlockId);
        if left > fresh {
            self.evict(left - fresh, table, removed);
        }
    }

    /// Takes so many of the free blocks that were cached, the one that was released
    /// first before all others.
    fn evict(&mut self, count: usize, table: &mut Vec<BlockId>, mut removed: impl FnMut(BlockHash)) {
        let (blocks, buckets) = (&mut self.blocks[..], &mut self.buckets[..]);
        let mut next = blocks[L::NULL.index()].next_free;
        table.extend((0..count).map(|_| {
            let id = next;
            let block = &mut blocks[id.index()];
            next = std::mem::replace(&mut block.next_free, L::NONE);
            block.prev_free_or_refs = L::of(1);
            let hash = std::mem::take(&mut block.hash);
            // It is 0 where the cache was reset.
            if hash != 0 {
                let (after, before) = (block.next_in_bucket, block.prev_in_bucket);
                blocks[after.index()].prev_in_bucket = before;
                if before == L::NULL {
                    buckets[hash as usize & (buckets.len() - 1)] = after;
                } else {
                    blocks[before.index()].next_in_bucket = after;
                }
                removed(hash);
            }
            id.number()
        }));
        blocks[L::NULL.index()].next_free = next;
        blocks[next.index()].prev_free_or_refs = L::NULL;
    }

    /// Puts a block that a request holds into the cache map.
    #[inline]
    pub(super) fn insert(&mut self, id: BlockId, hash: BlockHash) {
        let bucket = self.bucket_of(hash);
        let after = std::mem::replace(&mut self.buckets[bucket], L::of(id));
        let block = &mut self.blocks[id as usize];
        debug_assert_eq!(block.hash, 0);
        block.hash = hash;
        block.next_in_bucket = after;
        block.prev_in_bucket = L::NULL;
        self.blocks[after.index()].prev_in_bucket = L::of(id);
    }

    /// Of the blocks with this hash, the one that was cached first.
    #[inline]
    pub(super) fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.in_bucket(self.bucket_of(hash)).filter(|&id| self.blocks[id as usize].hash == hash).last()
    }

    /// Empties the cache map.
    pub(super) fn forget_hashes(&mut self) {
        self.buckets.fill(L::NULL);
        self.blocks.iter_mut().for_each(|block| block.hash = 0);
    }

    /// Drops one reference to each block of a table, the last one first. Gives how many
    /// are free by that.
    pub(super) fn release(&mut self, table: &[BlockId]) -> u32 {
        let unhashed_before = self.unhashed.len();
        let blocks = &mut self.blocks[..];
        let mut last = blocks[L::NULL.index()].prev_free_or_refs;
        let mut kept = 0;
        for &id in table.iter().rev() {
            let block = &mut blocks[id as usize];
            let refs = block.refs();
            assert!(refs > 0, "block {id} released more often than taken");
            if refs > 1 {
                block.prev_free_or_refs = L::of(refs - 1);
                kept += 1;
            } else if block.hash == 0 {
                block.prev_free_or_refs = L::of(0);
                self.unhashed.push(id);
            } else {
                // What follows it is noted when that is known.
                block.prev_free_or_refs = last;
                blocks[last.index()].next_free = L::of(id);
                last = L::of(id);
            }
        }
        blocks[last.index()].next_free = L::NULL;
        blocks[L::NULL.index()].prev_free_or_refs = last;
        self.unhashed[unhashed_before..].reverse();
        table.len() as u32 - kept
    }

    /// The free blocks, the one that is taken next first.
    pub(super) fn free(&self) -> impl Iterator<Item = BlockId> + '_ {
        let unhashed = self.unhashed.iter().rev().copied();
        unhashed.chain(self.blocks.len() as BlockId..self.num_blocks).chain(self.listed())
    }

    /// Those of the free blocks that were cached when they were released.
    fn listed(&self) -> impl Iterator<Item = BlockId> + '_ {
        let next = |id: BlockId| block_at(self.blocks[id as usize].next_free);
        std::iter::successors(next(L::NULL.number()), move |&id| next(id))
    }

    /// The blocks of a bucket, the one that was cached last first.
    #[inline]
    fn in_bucket(&self, bucket: usize) -> impl Iterator<Item = BlockId> + '_ {
        let next = |id: BlockId| block_at(self.blocks[id as usize].next_in_bucket);
        std::iter::successors(block_at(self.buckets[bucket]), move |&id| next(id))
    }

    #[inline]
    fn bucket_of(&self, hash: BlockHash) -> usize {
        // The hash is well mixed; its low bits will do.
        hash as usize & (self.buckets.len() - 1)
    }

    /// Sum over all blocks of references held.
    pub(super) fn total_references(&self) -> u64 {
        self.blocks[1..].iter().map(|block| u64::from(block.refs())).sum()
    }

    /// Checks every structural invariant, `num_free` being the number of free blocks.
    pub(super) fn assert_consistent(&self, num_free: u32) {
        let mut prev = L::NULL;
        for id in self.listed() {
            assert_eq!(self.blocks[id as usize].prev_free_or_refs, prev, "broken free list at block {id}");
            prev = L::of(id);
        }
        assert_eq!(self.blocks[L::NULL.index()].prev_free_or_refs, prev, "free list does not end at its tail");
        for &id in &self.unhashed {
            let block = &self.blocks[id as usize];
            assert!(block.next_free == L::NONE && block.hash == 0, "block {id} is free in two ways");
        }
        let idle = self.blocks[1..].iter().filter(|block| block.refs() == 0).count();
        let fresh = self.num_blocks as usize - self.blocks.len();
        assert_eq!(self.free().count(), idle + fresh, "a block without references is not free");
        assert_eq!(self.free().count(), num_free as usize, "number of free blocks");
        let hashed = self.blocks.iter().filter(|block| block.hash != 0).count();
        let mut mapped = 0;
        for bucket in 0..self.buckets.len() {
            let mut prev = L::NULL;
            for id in self.in_bucket(bucket) {
                let block = &self.blocks[id as usize];
                assert!(block.hash != 0, "block {id} without a hash is in the cache map");
                assert_eq!(self.bucket_of(block.hash), bucket, "block {id} is in the wrong bucket");
                assert_eq!(block.prev_in_bucket, prev, "broken bucket at block {id}");
                mapped += 1;
                prev = L::of(id);
            }
        }
        assert_eq!(mapped, hashed, "a hashed block is missing from the cache map");
    }
}

/// What a link leads to, if it leads to a block.
#[inline]
fn block_at<L: Link>(link: L) -> Option<BlockId> {
    (link != L::NULL).then_some(link.number())
}

/// At most one cached block per bucket on average, and fewer where the buckets fit
/// into the CPU's second cache all the same.
fn num_buckets(num_blocks: u32) -> usize {
    const MOST_SPARSE_BUCKETS: usize = 1 << 16;
    let enough = (num_blocks as usize).next_power_of_two();
    enough.max((2 * enough).min(MOST_SPARSE_BUCKETS))
}
