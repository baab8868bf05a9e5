//! Blocks, the order of free blocks, and the map from hash to block.
//!
//! In a large pool, every memory access misses the CPU's near caches, and dependent accesses cost most. So free
//! blocks are read sequentially, writing a block's predecessor in its bucket is the same operation for buckets and
//! blocks, only lookups follow links or read hashes, and links are as narrow as the pool allows.

use super::BlockId;
use super::queue::{FreeQueue, Link};
use crate::kv::hash::BlockHash;

#[derive(Clone, Debug)]
struct Block {
    /// With [`QUEUED`]: index in the queue of free blocks. Otherwise: number of requests that reference
    /// the block.
    place_or_refs: u32,
    /// Index in [`Blocks::links`] of the previous entry in the block's bucket. [`UNCACHED`] if the block is
    /// not in the cache map.
    linked_from: u32,
}

const QUEUED: u32 = 1 << 31;
const UNCACHED: u32 = u32::MAX;

impl Block {
    /// Referenced by one request, and not cached.
    const TAKEN: Self = Self { place_or_refs: 1, linked_from: UNCACHED };

    fn refs(&self) -> u32 {
        if self.place_or_refs & QUEUED == 0 { self.place_or_refs } else { 0 }
    }

    fn is_cached(&self) -> bool {
        self.linked_from != UNCACHED
    }
}

#[derive(Debug)]
pub(super) struct Blocks<L> {
    /// The null block and all blocks that were ever allocated.
    blocks: Vec<Block>,
    /// For each block, the last hash under which it was cached.
    hashes: Vec<BlockHash>,
    num_blocks: u32,
    /// Free blocks without a hash. They are allocated before all others, the last one first. Blocks that were
    /// never allocated follow, and then the blocks in `queue`.
    unhashed: Vec<BlockId>,
    /// Free blocks that were cached when they were released, in the order of release.
    queue: FreeQueue<L>,
    /// The cache map. The first entries are the buckets, each with its most recently cached block. After the maximum
    /// number of buckets, there is one entry per block: the block in the same bucket that was cached before it.
    links: Vec<L>,
    /// Number of buckets in use, a power of two; 0 without a cache map. It grows with the number of blocks that were
    /// ever allocated, so that the cache map of a large pool stays in the CPU's near caches for as long as possible.
    num_buckets: usize,
    /// The maximum number of buckets. This is also the index of the null block's link.
    first_link: usize,
    /// Whether blocks that were never cached are queued as well.
    queues_all: bool,
}

impl<L: Link> Blocks<L> {
    /// A pool of `num_blocks` blocks, including the null block.
    pub(super) fn new(num_blocks: u32, caching: bool, has_queue: bool) -> Self {
        let mut blocks = Vec::with_capacity(num_blocks as usize);
        blocks.push(Block { place_or_refs: 0, ..Block::TAKEN });
        let first_link = if caching { most_buckets(num_blocks - 1) } else { 0 };
        let num_links = if caching { first_link + num_blocks as usize } else { 0 };
        Self {
            blocks,
            hashes: vec![0; if caching { num_blocks as usize } else { 0 }],
            num_blocks,
            unhashed: Vec::new(),
            // Without prefix caching, blocks are queued only under some rules.
            queue: FreeQueue::new(if has_queue { num_blocks } else { 0 }),
            links: vec![L::NULL; num_links],
            num_buckets: first_link.min(FIRST_BUCKETS),
            first_link,
            queues_all: has_queue && !caching,
        }
    }

    pub(super) fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id as usize].refs() == 0
    }

    pub(super) fn is_shared(&self, id: BlockId) -> bool {
        self.blocks[id as usize].refs() > 1
    }

    /// Adds a reference to a cached block. Returns whether the block was free.
    pub(super) fn touch(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks[id as usize];
        let is_free = block.place_or_refs & QUEUED != 0;
        if is_free {
            self.queue.remove(block.place_or_refs ^ QUEUED);
            block.place_or_refs = 0;
        }
        block.place_or_refs += 1;
        is_free
    }

    /// Moves `count` free blocks to `table`. The caller has checked that there are enough. Calls `removed`
    /// for each block that was cached.
    pub(super) fn take(&mut self, count: u32, table: &mut Vec<BlockId>, removed: impl FnMut(BlockId, &BlockHash)) {
        let mut left = count as usize;
        let unhashed = left.min(self.unhashed.len());
        for id in self.unhashed.drain(self.unhashed.len() - unhashed..).rev() {
            self.blocks[id as usize].place_or_refs = 1;
            table.push(id);
        }
        left -= unhashed;
        let first = self.blocks.len();
        let fresh = left.min(self.num_blocks as usize - first);
        self.blocks.resize(first + fresh, Block::TAKEN);
        if self.blocks.len() > self.num_buckets && self.num_buckets < self.first_link {
            self.split_buckets();
        }
        table.extend(first as BlockId..(first + fresh) as BlockId);
        if left > fresh {
            self.evict(left - fresh, table, removed);
        }
    }

    /// Doubles the number of buckets until there are as many as blocks. Blocks of a bucket keep their order.
    #[cold]
    fn split_buckets(&mut self) {
        while self.num_buckets < self.first_link && self.num_buckets < self.blocks.len() {
            let before = self.num_buckets;
            self.num_buckets *= 2;
            for bucket in 0..before {
                let mut ends = [bucket, bucket + before];
                let mut next = self.links[bucket];
                while next != L::NULL {
                    let id = next.number() as usize;
                    let upper = bucket_of(self.hashes[id], self.num_buckets) != bucket;
                    let end = &mut ends[usize::from(upper)];
                    self.links[*end] = next;
                    self.blocks[id].linked_from = *end as u32;
                    *end = self.first_link + id;
                    next = self.links[*end];
                }
                ends.into_iter().for_each(|end| self.links[end] = L::NULL);
            }
        }
    }

    /// Allocates free cached blocks in the order of their release.
    fn evict(&mut self, count: usize, table: &mut Vec<BlockId>, mut removed: impl FnMut(BlockId, &BlockHash)) {
        let first = table.len();
        self.queue.take(count, table);
        let (blocks, links, first_link) = (&mut self.blocks[..], &mut self.links[..], self.first_link);
        for &id in &table[first..] {
            let block = std::mem::replace(&mut blocks[id as usize], Block::TAKEN);
            // The block is cached unless the cache was reset after its release.
            if block.is_cached() {
                let from = block.linked_from;
                let after = links[first_link + id as usize];
                links[from as usize] = after;
                blocks[after.number() as usize].linked_from = from;
                removed(id, &self.hashes[id as usize]);
            }
        }
    }

    pub(super) fn insert(&mut self, ids: &[BlockId], hashes: &[BlockHash]) {
        let (num_buckets, first_link) = (self.num_buckets, self.first_link);
        let (blocks, links, own_hashes) = (&mut self.blocks[..], &mut self.links[..], &mut self.hashes[..]);
        for (&id, &hash) in ids.iter().zip(hashes) {
            let bucket = bucket_of(hash, num_buckets);
            let own_link = first_link + id as usize;
            let after = std::mem::replace(&mut links[bucket], L::of(id));
            links[own_link] = after;
            own_hashes[id as usize] = hash;
            debug_assert!(!blocks[id as usize].is_cached());
            blocks[id as usize].linked_from = bucket as u32;
            blocks[after.number() as usize].linked_from = own_link as u32;
        }
    }

    pub(super) fn forget(&mut self, id: BlockId) {
        let from = std::mem::replace(&mut self.blocks[id as usize].linked_from, UNCACHED);
        let after = self.links[self.first_link + id as usize];
        self.links[from as usize] = after;
        self.blocks[after.number() as usize].linked_from = from;
    }

    /// Number of free blocks without a hash, including blocks that were never allocated.
    pub(super) fn num_uncached(&self) -> u32 {
        (self.unhashed.len() + self.num_blocks as usize - self.blocks.len()) as u32
    }

    /// Removes a free block from the cache map. It is then allocated before cached blocks.
    pub(super) fn uncache_free(&mut self, id: BlockId) {
        self.forget(id);
        let place = std::mem::replace(&mut self.blocks[id as usize].place_or_refs, 0);
        self.queue.remove(place ^ QUEUED);
        self.unhashed.push(id);
    }

    pub(super) fn hash_of(&self, id: BlockId) -> Option<BlockHash> {
        self.blocks[id as usize].is_cached().then(|| self.hashes[id as usize])
    }

    #[inline]
    pub(super) fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.in_bucket(bucket_of(hash, self.num_buckets)).filter(|&id| self.hashes[id as usize] == hash).last()
    }

    pub(super) fn count(&self, hash: BlockHash) -> usize {
        let bucket = self.in_bucket(bucket_of(hash, self.num_buckets));
        bucket.filter(|&id| self.hashes[id as usize] == hash).count()
    }

    pub(super) fn forget_hashes(&mut self) {
        self.links[..self.num_buckets].fill(L::NULL);
        self.blocks.iter_mut().for_each(|block| block.linked_from = UNCACHED);
    }

    /// Drops one reference to each block of a table, the last one first. Returns how many blocks became
    /// free.
    pub(super) fn release(&mut self, table: &[BlockId]) -> u32 {
        let unhashed_before = self.unhashed.len();
        let (blocks, queues_all) = (&mut self.blocks[..], self.queues_all);
        let mut end = self.queue.end(table.len(), |id, place| blocks[id as usize].place_or_refs = place | QUEUED);
        let mut kept = 0;
        for &id in table.iter().rev() {
            let block = &mut blocks[id as usize];
            match block.refs() {
                0 => released_too_often(id),
                1 if block.is_cached() || queues_all => block.place_or_refs = end.push(id) | QUEUED,
                1 => {
                    block.place_or_refs = 0;
                    self.unhashed.push(id);
                }
                refs => {
                    block.place_or_refs = refs - 1;
                    kept += 1;
                }
            }
        }
        end.close();
        self.unhashed[unhashed_before..].reverse();
        table.len() as u32 - kept
    }

    /// The free blocks in allocation order.
    pub(super) fn free(&self) -> impl Iterator<Item = BlockId> + '_ {
        let unhashed = self.unhashed.iter().rev().copied();
        unhashed.chain(self.blocks.len() as BlockId..self.num_blocks).chain(self.queue.iter().map(|(_, id)| id))
    }

    #[inline]
    fn in_bucket(&self, bucket: usize) -> impl Iterator<Item = BlockId> + '_ {
        let block_at = |link: usize| Some(self.links[link]).filter(|&link| link != L::NULL).map(L::number);
        std::iter::successors(block_at(bucket), move |&id| block_at(self.first_link + id as usize))
    }

    pub(super) fn total_references(&self) -> u64 {
        self.blocks[1..].iter().map(|block| u64::from(block.refs())).sum()
    }

    /// Checks all invariants, given the number of free blocks.
    pub(super) fn assert_consistent(&self, num_free: u32) {
        for (place, id) in self.queue.iter() {
            assert_eq!(self.blocks[id as usize].place_or_refs, place | QUEUED, "block {id} is queued elsewhere");
        }
        for &id in &self.unhashed {
            let block = &self.blocks[id as usize];
            assert!(block.place_or_refs == 0 && !block.is_cached(), "block {id} is free in two ways");
        }
        let idle = self.blocks[1..].iter().filter(|block| block.refs() == 0).count();
        let fresh = self.num_blocks as usize - self.blocks.len();
        assert_eq!(self.free().count(), idle + fresh, "a block without references is not free");
        assert_eq!(self.free().count(), num_free as usize, "number of free blocks");
        let cached = self.blocks[1..].iter().filter(|block| block.is_cached()).count();
        let mut mapped = 0;
        for bucket in 0..self.num_buckets {
            let mut linked_from = bucket;
            for id in self.in_bucket(bucket) {
                let block = &self.blocks[id as usize];
                assert_eq!(
                    bucket_of(self.hashes[id as usize], self.num_buckets),
                    bucket,
                    "block {id} is in the wrong bucket"
                );
                assert_eq!(block.linked_from as usize, linked_from, "broken bucket at block {id}");
                mapped += 1;
                linked_from = self.first_link + id as usize;
            }
        }
        assert_eq!(mapped, cached, "a cached block is missing from the cache map");
    }
}

#[inline]
fn bucket_of(hash: BlockHash, num_buckets: usize) -> usize {
    // The hash is well mixed, so its low bits suffice.
    hash as usize & (num_buckets - 1)
}

/// A separate function, so that the panic message does not slow down the loop.
#[cold]
fn released_too_often(id: BlockId) -> ! {
    panic!("block {id} released more often than taken")
}

/// This number of buckets fits into the CPU's second-level cache.
const FIRST_BUCKETS: usize = 1 << 16;

/// At least as many buckets as blocks, and up to twice as many if these still fit into the CPU's
/// second-level cache.
fn most_buckets(num_blocks: u32) -> usize {
    let enough = (num_blocks as usize).next_power_of_two();
    enough.max((2 * enough).min(FIRST_BUCKETS))
}

/// Whether block ids fit into narrow links.
pub(super) fn are_narrow(num_blocks: u32) -> bool {
    num_blocks <= u16::MAX.into()
}
