//! The paged KV pool: who owns which block, what is cached, what goes next.
//!
//! Owns reference counts, the free list and the map from block hash to block.
//! Promises vLLM's order exactly (0.32 and 0.33, `vllm/v1/core/block_pool.py`):
//! blocks are taken from the front of the free list; released blocks without a
//! hash go to the front, hashed ones to the back; a hit on a free cached block
//! takes it out of the list; taking a cached block drops its hash. Nothing
//! here scans the pool.

use crate::hash::BlockHash;
use crate::kv_event::KvEventLog;

/// Index of a KV block; block 0 is the null block and is never handed out.
pub type BlockId = u32;

const NIL: BlockId = BlockId::MAX;
const NULL_BLOCK: BlockId = 0;

#[derive(Clone, Debug)]
struct Block {
    /// 0 while the block is not in the cache map.
    hash: BlockHash,
    refs: u32,
    prev_free: BlockId,
    next_free: BlockId,
    /// Cached blocks of one bucket form a list in order of insertion.
    next_in_bucket: BlockId,
}

/// The blocks of one engine.
#[derive(Debug)]
pub struct KvPool {
    blocks: Vec<Block>,
    first_free: BlockId,
    last_free: BlockId,
    num_free: u32,
    /// The cache map: of each bucket of hashes, the block that was cached first.
    ///
    /// In a large pool every look at memory leaves the CPU's near caches. A
    /// bucket is one such look, and since eviction takes the oldest block, that
    /// block stands at the head of its bucket's list.
    buckets: Vec<BlockId>,
    caching: bool,
    events: Option<KvEventLog>,
}

impl KvPool {
    /// A pool of `num_gpu_blocks` blocks, the null block included.
    #[must_use]
    pub fn new(num_gpu_blocks: u32, caching: bool) -> Self {
        let last = num_gpu_blocks - 1;
        let blocks = (0..num_gpu_blocks)
            .map(|id| Block {
                hash: 0,
                refs: u32::from(id == NULL_BLOCK),
                prev_free: if id <= 1 { NIL } else { id - 1 },
                next_free: if id == NULL_BLOCK || id == last { NIL } else { id + 1 },
                next_in_bucket: NIL,
            })
            .collect();
        let any = num_gpu_blocks > 1;
        Self {
            blocks,
            first_free: if any { 1 } else { NIL },
            last_free: if any { last } else { NIL },
            num_free: last,
            buckets: if caching { vec![NIL; num_buckets(last)] } else { Vec::new() },
            caching,
            events: None,
        }
    }

    /// Starts or stops recording events. Whoever translates them must start
    /// before the first request.
    pub fn record_events(&mut self, on: bool) {
        self.events = on.then(KvEventLog::default);
    }

    /// Events recorded since the log was last cleared; none while recording is off.
    #[must_use]
    pub fn events(&self) -> Option<&KvEventLog> {
        self.events.as_ref()
    }

    /// Forgets the recorded events.
    pub fn clear_events(&mut self) {
        if let Some(events) = &mut self.events {
            events.clear();
        }
    }

    /// Whether full blocks are kept for reuse.
    #[must_use]
    pub fn caching(&self) -> bool {
        self.caching
    }

    /// Blocks that no request references.
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.num_free
    }

    /// Blocks that requests can use in all.
    #[must_use]
    pub fn num_usable(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// Blocks referenced by at least one request.
    #[must_use]
    pub fn num_active(&self) -> u32 {
        self.num_usable() - self.num_free
    }

    /// The longest run of cached blocks at the start of `hashes`, appended to `hit`.
    pub fn lookup(&self, hashes: &[BlockHash], hit: &mut Vec<BlockId>) {
        if self.caching {
            hit.extend(hashes.iter().map_while(|&hash| self.find(hash)));
        }
    }

    /// Length in blocks of the longest cached run at the start of `hashes`, which
    /// are those of one sequence.
    ///
    /// A block is released before its parent and used no later, so it is evicted
    /// before it: a cached block has all its parents. So the end of the run can be
    /// searched for.
    #[must_use]
    pub fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        let cached = |index: usize| self.find(hashes[index]).is_some();
        if !self.caching || hashes.is_empty() || !cached(0) {
            return 0;
        }
        // Doubling first: most runs are short.
        let mut end = 1;
        while end < hashes.len() && cached(end) {
            end = (2 * end + 1).min(hashes.len());
        }
        let mut known = end / 2;
        while known + 1 < end {
            let middle = usize::midpoint(known, end);
            if cached(middle) { known = middle } else { end = middle }
        }
        known as u32 + 1
    }

    /// How many of `blocks` are free, and so would cost a free block to revive.
    #[must_use]
    pub fn count_free_among(&self, blocks: &[BlockId]) -> u32 {
        blocks.iter().filter(|&&id| self.blocks[id as usize].refs == 0).count() as u32
    }

    /// Adds a reference to each cached block of a hit.
    pub fn touch(&mut self, hit: &[BlockId]) {
        for &id in hit {
            if self.blocks[id as usize].refs == 0 {
                self.unlink_free(id);
            }
            self.blocks[id as usize].refs += 1;
        }
    }

    /// Takes `count` blocks from the front of the free list into `table`,
    /// evicting what they cached. The caller has checked [`KvPool::num_free`].
    pub fn allocate(&mut self, count: u32, table: &mut Vec<BlockId>) {
        assert!(count <= self.num_free, "allocate {count} of {} free blocks", self.num_free);
        let mut next = self.first_free;
        let taken = table.len();
        table.resize(taken + count as usize, NULL_BLOCK);
        let (blocks, buckets) = (&mut self.blocks[..], &mut self.buckets[..]);
        for place in &mut table[taken..] {
            let id = next;
            *place = id;
            let block = &mut blocks[id as usize];
            block.refs = 1;
            next = block.next_free;
            let hash = std::mem::take(&mut block.hash);
            if hash == 0 {
                continue;
            }
            let after = std::mem::replace(&mut block.next_in_bucket, NIL);
            let first = &mut buckets[hash as usize & (buckets.len() - 1)];
            if *first == id {
                *first = after;
            } else {
                let before = before_in_bucket(blocks, *first, id).expect("a cached block is in its bucket");
                blocks[before as usize].next_in_bucket = after;
            }
            if let Some(events) = &mut self.events {
                events.removed(hash);
            }
        }
        self.first_free = next;
        match next {
            NIL => self.last_free = NIL,
            next => self.blocks[next as usize].prev_free = NIL,
        }
        self.num_free -= count;
    }

    /// Registers consecutive full blocks of one sequence for reuse. `tokens`
    /// are theirs, if known; they and the request's `tag` only go into the events.
    pub fn store(
        &mut self,
        tag: u64,
        parent: Option<BlockHash>,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        tokens: &[u32],
    ) {
        debug_assert_eq!(blocks.len(), hashes.len());
        if !self.caching || blocks.is_empty() {
            return;
        }
        for (&id, &hash) in blocks.iter().zip(hashes) {
            self.insert(id, hash);
        }
        if let Some(events) = &mut self.events {
            events.stored(tag, parent, hashes, tokens);
        }
    }

    /// Forgets every cached block. False, and nothing done, while any block is
    /// referenced (vLLM's `reset_prefix_cache`).
    pub fn reset_cache(&mut self) -> bool {
        if self.num_active() > 0 {
            return false;
        }
        self.buckets.fill(NIL);
        for block in &mut self.blocks {
            block.hash = 0;
            block.next_in_bucket = NIL;
        }
        if let Some(events) = &mut self.events {
            events.cleared();
        }
        true
    }

    /// Drops one reference to each block of a request's table, tail first.
    pub fn release(&mut self, table: &[BlockId]) {
        // Tail first, so that the deepest block of a chain is evicted before
        // its parents. Blocks without a hash cannot be hit and are reused
        // before any cached one.
        let mut unhashed_before = self.first_free;
        let mut left = table.iter().rev();
        loop {
            let last = self.last_free;
            let unhashed = self.release_hashed(&mut left);
            if unhashed_before == NIL {
                unhashed_before = match last {
                    NIL => self.first_free,
                    last => self.blocks[last as usize].next_free,
                };
            }
            let Some(id) = unhashed else { return };
            self.link_before(id, unhashed_before);
        }
    }

    /// Drops a reference to each of the blocks and puts those that have a hash at
    /// the back of the free list, up to the first one without; that one is given.
    fn release_hashed<'a>(&mut self, left: &mut impl Iterator<Item = &'a BlockId>) -> Option<BlockId> {
        let blocks = &mut self.blocks[..];
        let (mut last, mut freed) = (self.last_free, 0);
        let mut unhashed = None;
        for &id in left {
            let block = &mut blocks[id as usize];
            assert!(block.refs > 0, "block {id} released more often than taken");
            block.refs -= 1;
            if block.refs > 0 {
                continue;
            }
            if block.hash == 0 {
                unhashed = Some(id);
                break;
            }
            block.prev_free = last;
            block.next_free = NIL;
            match last {
                NIL => self.first_free = id,
                last => blocks[last as usize].next_free = id,
            }
            last = id;
            freed += 1;
        }
        self.last_free = last;
        self.num_free += freed;
        unhashed
    }

    /// The free blocks, the one that is taken next first.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let listed = |id: BlockId| (id != NIL).then_some(id);
        std::iter::successors(listed(self.first_free), move |&id| listed(self.blocks[id as usize].next_free))
    }

    /// Sum over all blocks of references held; for conservation checks.
    #[must_use]
    pub fn total_references(&self) -> u64 {
        self.blocks[1..].iter().map(|block| u64::from(block.refs)).sum()
    }

    /// Checks every structural invariant by walking the whole pool.
    ///
    /// # Panics
    /// When the free list, reference counts or cache map disagree.
    pub fn assert_consistent(&self) {
        let mut seen = 0;
        let mut prev = NIL;
        for id in self.free_blocks() {
            let block = &self.blocks[id as usize];
            assert_eq!(block.refs, 0, "referenced block {id} is in the free list");
            assert_eq!(block.prev_free, prev, "broken free list at block {id}");
            seen += 1;
            prev = id;
        }
        assert_eq!(self.last_free, prev, "free list does not end at its tail");
        assert_eq!(seen, self.num_free, "free list length");
        let idle = self.blocks[1..].iter().filter(|block| block.refs == 0).count();
        assert_eq!(idle as u32, self.num_free, "a block without references is not free");
        let hashed = self.blocks.iter().filter(|block| block.hash != 0).count();
        let mut mapped = 0;
        for (bucket, &first) in self.buckets.iter().enumerate() {
            let mut cached = first;
            while cached != NIL {
                let block = &self.blocks[cached as usize];
                assert!(block.hash != 0, "block {cached} without a hash is in the cache map");
                assert_eq!(self.bucket_of(block.hash), bucket, "block {cached} is in the wrong bucket");
                mapped += 1;
                cached = block.next_in_bucket;
            }
        }
        assert_eq!(mapped, hashed, "a hashed block is missing from the cache map");
    }

    fn bucket_of(&self, hash: BlockHash) -> usize {
        // The hash is well mixed; its low bits will do.
        hash as usize & (self.buckets.len() - 1)
    }

    /// Of the blocks with this hash, the one that was cached first.
    fn find(&self, hash: BlockHash) -> Option<BlockId> {
        let mut cached = self.buckets[self.bucket_of(hash)];
        while cached != NIL {
            let block = &self.blocks[cached as usize];
            if block.hash == hash {
                return Some(cached);
            }
            cached = block.next_in_bucket;
        }
        None
    }

    #[inline]
    fn insert(&mut self, id: BlockId, hash: BlockHash) {
        debug_assert_eq!(self.blocks[id as usize].hash, 0);
        let bucket = self.bucket_of(hash);
        let blocks = &mut self.blocks[..];
        blocks[id as usize].hash = hash;
        let first = &mut self.buckets[bucket];
        match before_in_bucket(blocks, *first, NIL) {
            Some(last) => blocks[last as usize].next_in_bucket = id,
            None => *first = id,
        }
    }

    fn unlink_free(&mut self, id: BlockId) {
        let Block { prev_free, next_free, .. } = self.blocks[id as usize];
        match prev_free {
            NIL => self.first_free = next_free,
            prev => self.blocks[prev as usize].next_free = next_free,
        }
        match next_free {
            NIL => self.last_free = prev_free,
            next => self.blocks[next as usize].prev_free = prev_free,
        }
        self.num_free -= 1;
    }

    /// Puts `id` into the free list before `next`, or at the back if none.
    fn link_before(&mut self, id: BlockId, next: BlockId) {
        let prev = match next {
            NIL => std::mem::replace(&mut self.last_free, id),
            next => std::mem::replace(&mut self.blocks[next as usize].prev_free, id),
        };
        match prev {
            NIL => self.first_free = id,
            prev => self.blocks[prev as usize].next_free = id,
        }
        let block = &mut self.blocks[id as usize];
        block.prev_free = prev;
        block.next_free = next;
        self.num_free += 1;
    }
}

/// The block whose successor in the bucket that begins with `first` is `end`; none if
/// that is the first.
#[inline]
fn before_in_bucket(blocks: &[Block], first: BlockId, end: BlockId) -> Option<BlockId> {
    let mut before = None;
    let mut cached = first;
    while cached != end {
        before = Some(cached);
        cached = blocks[cached as usize].next_in_bucket;
    }
    before
}

/// At most one cached block per bucket on average, and fewer where the buckets fit
/// into the CPU's second cache all the same.
fn num_buckets(num_blocks: u32) -> usize {
    const MOST_SPARSE_BUCKETS: usize = 1 << 16;
    let enough = (num_blocks as usize).next_power_of_two();
    enough.max((2 * enough).min(MOST_SPARSE_BUCKETS))
}
