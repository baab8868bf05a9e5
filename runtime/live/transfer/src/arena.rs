//! The memory of one engine: all pages, and the owner and content of each block.
//!
//! The pages are in one anonymous mapping, which other processes may read by its addresses (NIXL). In this process,
//! every access holds the page locks of its blocks during one copy or one non-blocking system call.
//!
//! The state of each block has a separate lock, which no thread holds while pages are copied, written or compared. An
//! engine's thread only accesses this state: it claims blocks, takes them back, and sets the content that readers
//! expect. So it never waits for a copy by another thread, which may have no processor. Later accesses to the pages
//! wait for that copy.

use std::collections::TryReserveError;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use memmap2::{MmapOptions, MmapRaw};

use crate::error::{ErrorKind, TransferError};
use crate::geometry::Geometry;
use crate::pattern;

/// A contiguous part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Tensor-parallel rank.
    pub rank: u32,
    /// Index of the region in the rank.
    pub region: u32,
    pub block: u32,
    /// Offset in the page.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
}

impl Span {
    /// Whether the span lies within the pages of `geometry`.
    #[must_use]
    pub fn is_within(&self, geometry: &Geometry) -> bool {
        self.rank < geometry.ranks()
            && self.region < geometry.regions()
            && self.block < geometry.blocks()
            && u64::from(self.offset) + u64::from(self.bytes) <= u64::from(geometry.page_bytes())
    }
}

const NONE: u64 = 0;

#[derive(Clone, Copy, Debug, Default)]
struct BlockState {
    /// The transfer that may write the block, or [`NONE`].
    owner: u64,
    content: Option<u64>,
    /// The content that readers expect.
    wanted: Option<u64>,
}

/// A block: its state, and the lock of its pages. A thread that needs both locks takes the pages' lock first.
#[derive(Debug, Default)]
struct Block {
    state: Mutex<BlockState>,
    pages: RwLock<()>,
    /// Whether the pages are counted as memory in use.
    is_backed: AtomicBool,
}

/// The reason why an arena cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The arena would exceed the memory limit.
    #[error(
        "the KV arena needs {needed_bytes} bytes ({blocks} blocks of {block_bytes} bytes), but this process may use \
         {limit_bytes}"
    )]
    TooLarge { needed_bytes: u64, blocks: u32, block_bytes: u64, limit_bytes: u64 },
    #[error("cannot map {bytes} bytes for the KV arena")]
    Map {
        bytes: u64,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    #[error("cannot allocate the table of {blocks} KV blocks")]
    Table {
        blocks: u32,
        /// The allocator's error.
        #[source]
        source: TryReserveError,
    },
}

/// The pages of one engine.
pub struct Arena {
    geometry: Geometry,
    memory: MmapRaw,
    blocks: Vec<Block>,
    /// Maximum number of blocks whose pages take memory; [`Arena::back`] enforces it.
    max_backed: usize,
    num_backed: AtomicUsize,
}

impl Arena {
    /// Maps the memory. Pages are zero, and take memory only when they are first written.
    ///
    /// # Errors
    /// The arena is larger than `limit_bytes`, or the system refuses.
    pub fn new(geometry: Geometry, limit_bytes: Option<u64>) -> Result<Self, ArenaError> {
        let (needed_bytes, blocks) = (geometry.total_bytes(), geometry.blocks());
        if let Some(limit_bytes) = limit_bytes.filter(|limit_bytes| needed_bytes > *limit_bytes) {
            let block_bytes = geometry.block_bytes();
            return Err(ArenaError::TooLarge { needed_bytes, blocks, block_bytes, limit_bytes });
        }
        Self::map(geometry, blocks as usize)
    }

    /// Maps address space for all blocks. Only as many blocks as fit into `limit_bytes` may be written.
    pub fn backed_as_used(geometry: Geometry, limit_bytes: Option<u64>) -> Result<Self, ArenaError> {
        let room = limit_bytes.map_or(u64::MAX, |limit_bytes| limit_bytes / geometry.block_bytes().max(1));
        Self::map(geometry, usize::try_from(room).unwrap_or(usize::MAX))
    }

    fn map(geometry: Geometry, max_backed: usize) -> Result<Self, ArenaError> {
        let (needed_bytes, blocks) = (geometry.total_bytes(), geometry.blocks());
        let map_error = |source| ArenaError::Map { bytes: needed_bytes, source };
        let len = usize::try_from(needed_bytes).map_err(|_| map_error(std::io::ErrorKind::OutOfMemory.into()))?;
        let memory = MmapOptions::new().len(len).no_reserve_swap().map_anon().map_err(map_error)?;
        let mut table = Vec::new();
        table.try_reserve_exact(blocks as usize).map_err(|source| ArenaError::Table { blocks, source })?;
        table.resize_with(blocks as usize, Block::default);
        Ok(Self { geometry, memory: memory.into(), blocks: table, max_backed, num_backed: AtomicUsize::new(0) })
    }

    /// Whether the pages of a block may take memory, because they do already or because there is room.
    ///
    /// # Panics
    /// There is no such block.
    pub fn back(&self, block: u32) -> bool {
        let block = &self.blocks[block as usize];
        if block.is_backed.load(Ordering::Acquire) {
            return true;
        }
        // Several callers may count the block; only the one that changes the flag leaves it counted.
        let has_room = self.num_backed.fetch_add(1, Ordering::AcqRel) < self.max_backed;
        if has_room && !block.is_backed.swap(true, Ordering::AcqRel) {
            return true;
        }
        self.num_backed.fetch_sub(1, Ordering::AcqRel);
        has_room
    }

    /// The error when [`Arena::back`] refuses a block.
    #[must_use]
    pub fn no_room(&self) -> TransferError {
        let room = self.max_backed as u64 * self.geometry.block_bytes();
        let message = format!(
            "the KV of {} blocks of {} bytes takes all memory that this process may use for it ({room} bytes): give fewer \
             blocks (--num-gpu-blocks) or smaller ones (--kv-block-bytes)",
            self.max_backed,
            self.geometry.block_bytes()
        );
        TransferError::new(ErrorKind::Local, message)
    }

    /// The sizes of the engine's KV.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The address of a page in this process, for libraries that read and write memory themselves. They must
    /// respect the owners of blocks.
    ///
    /// # Panics
    /// There is no such page.
    #[must_use]
    pub fn page_address(&self, rank: u32, region: u32, block: u32) -> usize {
        let span = Span { rank, region, block, offset: 0, bytes: self.geometry.page_bytes() };
        assert!(span.is_within(&self.geometry), "there is no page {span:?}");
        self.memory.as_ptr() as usize + self.geometry.page_offset(rank, region, block) as usize
    }

    /// The content of a block, if it is known.
    ///
    /// # Panics
    /// There is no such block.
    #[must_use]
    pub fn content(&self, block: u32) -> Option<u64> {
        self.state(block).content
    }

    /// Assigns a block to the transfer `owner`. The content is unknown from now on. The previous owner starts no
    /// more copies; a copy in progress ends before anyone else gets the pages.
    ///
    /// # Panics
    /// There is no such block, or `owner` is 0.
    pub fn claim(&self, block: u32, owner: u64) {
        assert_ne!(owner, NONE, "0 is not a transfer");
        *self.state(block) = BlockState { owner, content: None, wanted: None };
    }

    /// Waits until no copy to or from a block's pages is in progress, for libraries that access memory themselves.
    /// After [`Arena::claim`], only the owner starts new copies.
    ///
    /// # Panics
    /// There is no such block.
    pub fn settle(&self, block: u32) {
        drop(self.lock_mut(vec![block]));
    }

    /// Takes a block from the transfer `owner`, if that still owns it. `content` is the block's content, if it is
    /// known.
    ///
    /// # Panics
    /// There is no such block.
    pub fn take_back(&self, block: u32, owner: u64, content: Option<u64>) {
        let mut state = self.state(block);
        if state.owner == owner {
            *state = BlockState { owner: NONE, content, wanted: content };
        }
    }

    /// Whether the transfer `owner` still owns this block.
    ///
    /// # Panics
    /// There is no such block.
    #[must_use]
    pub fn is_owned(&self, block: u32, owner: u64) -> bool {
        self.state(block).owner == owner
    }

    /// Takes a block from the transfer that owns it, for readers that expect `content`. Returns whether the pages
    /// have this content; if not, [`Arena::materialize`] writes it.
    ///
    /// # Panics
    /// There is no such block.
    pub fn want(&self, block: u32, content: u64) -> bool {
        let mut state = self.state(block);
        *state = BlockState { owner: NONE, wanted: Some(content), ..*state };
        state.content == Some(content)
    }

    /// Writes the content that readers of a block expect into all its pages, unless it is there already. Returns
    /// the content; `None` if the block is not for readers (any more), or if there is no room for its pages.
    ///
    /// # Panics
    /// There is no such block.
    pub fn materialize(&self, block: u32) -> Option<u64> {
        let is_there = |state: &BlockState| state.content == state.wanted;
        let found = *self.state(block);
        if is_there(&found) {
            // Do not wait for readers of the same content.
            return found.content;
        }
        if !self.back(block) {
            return None;
        }
        let mut pages = self.lock_mut(vec![block]);
        let wanted = {
            let mut state = self.state(block);
            if is_there(&state) {
                return state.content;
            }
            state.content = None;
            state.wanted?
        };
        let geometry = &self.geometry;
        for (rank, region) in
            (0..geometry.ranks()).flat_map(|rank| (0..geometry.regions()).map(move |region| (rank, region)))
        {
            let span = Span { rank, region, block, offset: 0, bytes: geometry.page_bytes() };
            let slices = pages.spans_mut(std::slice::from_ref(&span));
            let slices = slices.flat_map(|page| page.chunks_exact_mut(self.head_bytes()));
            for (head, slice) in (geometry.first_head(rank)..).zip(slices) {
                pattern::fill(slice, pattern::first_word(wanted, region, head));
            }
        }
        let mut state = self.state(block);
        if state.wanted == Some(wanted) {
            state.content = Some(wanted);
        }
        drop(pages);
        state.content
    }

    /// Calls [`Arena::want`] and [`Arena::materialize`].
    ///
    /// # Panics
    /// There is no such block.
    pub fn fill(&self, block: u32, content: u64) {
        self.want(block, content);
        self.materialize(block);
    }

    /// The offset in its page of the first byte of a span that differs from the pattern of `content`; `None` if no
    /// byte differs.
    ///
    /// # Panics
    /// There is no such span, or the span does not consist of whole slices.
    #[must_use]
    pub fn first_wrong(&self, span: &Span, content: u64) -> Option<usize> {
        let head_bytes = self.head_bytes();
        assert!((span.offset as usize).is_multiple_of(head_bytes), "{span:?} begins within a slice");
        let pages = self.lock(span.block);
        let head = self.geometry.first_head(span.rank) + (span.offset as usize / head_bytes) as u32;
        let slices = self.span(&pages, span).chunks(head_bytes).enumerate();
        let mut wrong = slices.filter_map(|(index, slice)| {
            let word = pattern::first_word(content, span.region, head + index as u32);
            Some(span.offset as usize + index * head_bytes + pattern::first_wrong(slice, word)?)
        });
        wrong.next()
    }

    /// Changes a byte of a span that the transfer `owner` owns, to inject a fault.
    ///
    /// # Panics
    /// There is no such span.
    pub fn corrupt(&self, span: &Span, owner: u64) {
        self.with_spans_mut(owner, &[*span], |slices| {
            if let Some(byte) = slices.first_mut().and_then(|slice| slice.first_mut()) {
                *byte ^= 0x55;
            }
        });
    }

    /// Calls `send` with the bytes of the spans, in their order, if `is_right` holds for each block and its
    /// content. `send` must not block.
    ///
    /// # Panics
    /// There is no such span.
    pub fn with_spans<R>(
        &self,
        spans: &[Span],
        is_right: impl Fn(u32, Option<u64>) -> bool,
        send: impl FnOnce(&mut [IoSlice<'_>]) -> R,
    ) -> Option<R> {
        let blocks = blocks_of(spans);
        let guards: Vec<_> = blocks.iter().map(|block| self.lock(*block)).collect();
        if !blocks.iter().all(|block| is_right(*block, self.content(*block))) {
            return None;
        }
        let slice = |span: &Span| {
            let place = blocks.binary_search(&span.block).expect("each block of a span was locked");
            IoSlice::new(self.span(&guards[place], span))
        };
        let mut slices: Vec<_> = spans.iter().map(slice).collect();
        Some(send(&mut slices))
    }

    /// Calls `receive` with the bytes of the spans, in their order, if the transfer `owner` owns all their blocks.
    /// `receive` must not block.
    ///
    /// # Panics
    /// There is no such span, or two spans overlap.
    pub fn with_spans_mut<R>(
        &self,
        owner: u64,
        spans: &[Span],
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
    ) -> Option<R> {
        let mut pages = self.lock_mut(blocks_of(spans));
        if !pages.blocks.iter().all(|block| self.is_owned(*block, owner)) {
            return None;
        }
        let mut slices: Vec<_> = pages.spans_mut(spans).map(IoSliceMut::new).collect();
        let received = receive(&mut slices);
        drop(slices);
        for block in &pages.blocks {
            let mut state = self.state(*block);
            if state.owner != owner {
                // The block was taken during the copy, so a content that was set in the meantime is wrong.
                state.content = None;
            }
        }
        drop(pages);
        Some(received)
    }

    fn head_bytes(&self) -> usize {
        self.geometry.head_bytes() as usize
    }

    fn state(&self, block: u32) -> MutexGuard<'_, BlockState> {
        // Each change is complete in itself.
        self.blocks[block as usize].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, block: u32) -> RwLockReadGuard<'_, ()> {
        // After a panic, pages may be half written, but no state is invalid.
        self.blocks[block as usize].pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_mut(&self, blocks: Vec<u32>) -> LockedPages<'_> {
        let lock = |block: &u32| self.blocks[*block as usize].pages.write().unwrap_or_else(PoisonError::into_inner);
        LockedPages { arena: self, _guards: blocks.iter().map(lock).collect(), blocks }
    }

    fn range(&self, span: &Span) -> std::ops::Range<usize> {
        assert!(span.is_within(&self.geometry), "there is no {span:?}");
        let start = self.geometry.page_offset(span.rank, span.region, span.block) as usize + span.offset as usize;
        start..start + span.bytes as usize
    }

    /// The bytes of a span whose block's pages are locked by `_guard`.
    #[expect(unsafe_code, reason = "the mapping has no references of its own; locks of blocks guard its parts")]
    fn span<'a>(&'a self, _guard: &'a RwLockReadGuard<'_, ()>, span: &Span) -> &'a [u8] {
        let range = self.range(span);
        // SAFETY: the range is in the mapping, which lives as long as `self`, is initialised, and changes only
        // under the write lock of its block. The read lock is held as long as the slice lives.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(range.start), range.len()) }
    }
}

/// Write locks of the pages of some blocks, which allow changes of their bytes.
struct LockedPages<'a> {
    arena: &'a Arena,
    blocks: Vec<u32>,
    _guards: Vec<RwLockWriteGuard<'a, ()>>,
}

impl LockedPages<'_> {
    /// The bytes of spans, in their order.
    ///
    /// # Panics
    /// A span is in another block, or two spans overlap.
    #[expect(unsafe_code, reason = "the mapping has no references of its own; locks of blocks guard its parts")]
    fn spans_mut<'s>(&'s mut self, spans: &'s [Span]) -> impl Iterator<Item = &'s mut [u8]> {
        let arena = self.arena;
        let mut ranges: Vec<_> = spans.iter().map(|span| arena.range(span)).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        assert!(ranges.is_sorted_by(|one, next| one.end <= next.start), "two spans overlap");
        let is_locked = |span: &Span| self.blocks.binary_search(&span.block).is_ok();
        assert!(spans.iter().all(is_locked), "a span is of a block that is not locked");
        spans.iter().map(move |span| {
            let range = arena.range(span);
            // SAFETY: the range is in the mapping, which lives as long as the arena. `self` holds the write lock of
            // the block as long as the slices live, which excludes other slices. `self` is borrowed mutably, and
            // the slices of this call do not overlap.
            unsafe { std::slice::from_raw_parts_mut(arena.memory.as_mut_ptr().add(range.start), range.len()) }
        })
    }
}

/// The blocks of some spans, ascending. Locks are always taken in this order.
fn blocks_of(spans: &[Span]) -> Vec<u32> {
    let mut blocks: Vec<u32> = spans.iter().map(|span| span.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests;
