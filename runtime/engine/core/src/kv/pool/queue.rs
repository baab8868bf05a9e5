//! The free blocks that were cached, in the order of their release.

use super::BlockId;

/// The stored form of a block number.
pub(super) trait Link: Copy + Eq + std::fmt::Debug {
    /// The null block.
    const NULL: Self;
    fn of(number: u32) -> Self;
    fn number(self) -> u32;
}

impl Link for u16 {
    const NULL: Self = 0;

    #[inline]
    fn of(number: u32) -> Self {
        debug_assert!(number <= Self::MAX.into());
        number as Self
    }

    #[inline]
    fn number(self) -> u32 {
        self.into()
    }
}

impl Link for u32 {
    const NULL: Self = 0;

    #[inline]
    fn of(number: u32) -> Self {
        number
    }

    #[inline]
    fn number(self) -> u32 {
        self
    }
}

/// A ring of blocks with removal from the middle, which leaves a hole.
#[derive(Debug)]
pub(super) struct FreeQueue<L> {
    /// A ring of blocks, with the null block for a hole.
    ring: Vec<L>,
    first: usize,
    /// Places from the first block to the last, with the holes between.
    len: usize,
}

impl<L: Link> FreeQueue<L> {
    /// Room for `num_blocks` blocks, and for some holes.
    pub(super) fn new(num_blocks: u32) -> Self {
        // Closing the holes costs as much as there are blocks; this many are few enough
        // for memory and enough to spread that.
        let holes = num_blocks / 2 + 1;
        Self { ring: vec![L::NULL; (num_blocks + holes) as usize], first: 0, len: 0 }
    }

    /// Removes the block at `place`, wherever in the queue that is.
    #[inline]
    pub(super) fn remove(&mut self, place: u32) {
        self.ring[place as usize] = L::NULL;
    }

    /// Takes the first `count` blocks into `table`.
    ///
    /// # Panics
    /// When there are fewer.
    pub(super) fn take(&mut self, count: usize, table: &mut Vec<BlockId>) {
        let all = table.len() + count;
        table.reserve(count);
        while table.len() < all {
            let places = (all - table.len()).min(self.len).min(self.ring.len() - self.first);
            assert!(places > 0, "fewer blocks are free than were counted");
            let next = &self.ring[self.first..self.first + places];
            if next.contains(&L::NULL) {
                table.extend(next.iter().filter(|&&id| id != L::NULL).map(|id| id.number()));
            } else {
                table.extend(next.iter().map(|id| id.number()));
            }
            self.first = self.place(places);
            self.len -= places;
        }
    }

    /// The end of the queue, with room for `count` blocks. `moved` is called for blocks that were moved to make room.
    #[inline]
    pub(super) fn end(&mut self, count: usize, moved: impl FnMut(BlockId, u32)) -> End<'_, L> {
        if self.len + count > self.ring.len() {
            self.close_holes(moved);
        }
        End { next: self.place(self.len), ring: &mut self.ring, len: &mut self.len, pushed: 0 }
    }

    #[cold]
    fn close_holes(&mut self, mut moved: impl FnMut(BlockId, u32)) {
        let mut to = self.first;
        let mut blocks = 0;
        for offset in 0..self.len {
            let id = self.ring[self.place(offset)];
            if id != L::NULL {
                self.ring[to] = id;
                moved(id.number(), to as u32);
                to = after(to, self.ring.len());
                blocks += 1;
            }
        }
        self.len = blocks;
    }

    /// The blocks and their places, first to last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, BlockId)> + '_ {
        let places = (0..self.len).map(|offset| self.place(offset));
        places.map(|place| (place as u32, self.ring[place].number())).filter(|&(_, id)| id != L::NULL.number())
    }

    /// The place so far behind the first.
    #[inline]
    fn place(&self, offset: usize) -> usize {
        let place = self.first + offset;
        if place < self.ring.len() { place } else { place - self.ring.len() }
    }
}

#[inline]
fn after(place: usize, places: usize) -> usize {
    if place + 1 == places { 0 } else { place + 1 }
}

/// The end of a queue, with room for new entries.
pub(super) struct End<'a, L> {
    ring: &'a mut [L],
    len: &'a mut usize,
    next: usize,
    /// Counted here, and added to the queue by [`End::close`]: with a count in memory, each block would wait
    /// for the previous one.
    pushed: usize,
}

impl<L: Link> End<'_, L> {
    /// Appends a block. Returns its place.
    #[inline]
    pub(super) fn push(&mut self, id: BlockId) -> u32 {
        let place = self.next;
        self.ring[place] = L::of(id);
        self.pushed += 1;
        self.next = after(place, self.ring.len());
        place as u32
    }

    /// Enters the written entries into the queue.
    pub(super) fn close(self) {
        *self.len += self.pushed;
    }
}
