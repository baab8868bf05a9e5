//! The queue of free cached blocks, in the order of their release.

use super::BlockId;

/// The stored form of a block id.
pub(super) trait Link: Copy + Eq + std::fmt::Debug {
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

/// A ring of blocks. Removing a block from the middle leaves a hole.
#[derive(Debug)]
pub(super) struct FreeQueue<L> {
    /// Blocks; the null block stands for a hole.
    ring: Vec<L>,
    first: usize,
    /// Number of entries from the first block to the last, including holes.
    len: usize,
}

impl<L: Link> FreeQueue<L> {
    pub(super) fn new(num_blocks: u32) -> Self {
        // Closing the holes costs time proportional to the number of blocks. This number of holes needs little memory
        // and makes that cost rare.
        let holes = num_blocks / 2 + 1;
        Self { ring: vec![L::NULL; (num_blocks + holes) as usize], first: 0, len: 0 }
    }

    #[inline]
    pub(super) fn remove(&mut self, place: u32) {
        self.ring[place as usize] = L::NULL;
    }

    /// Moves the first `count` blocks to `table`.
    ///
    /// # Panics
    /// If there are fewer blocks.
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

    /// The end of the queue, with room for `count` blocks. Calls `moved` for each block that is moved to make room.
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

    /// The blocks and their indices, from first to last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, BlockId)> + '_ {
        let places = (0..self.len).map(|offset| self.place(offset));
        places.map(|place| (place as u32, self.ring[place].number())).filter(|&(_, id)| id != L::NULL.number())
    }

    /// The ring index of the entry at `offset` from the first.
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

/// The end of a queue, where new entries are written.
pub(super) struct End<'a, L> {
    ring: &'a mut [L],
    len: &'a mut usize,
    next: usize,
    /// Number of entries written. [`End::close`] adds it to the queue. A counter in the queue would make each push
    /// wait for the previous one.
    pushed: usize,
}

impl<L: Link> End<'_, L> {
    /// Appends a block. Returns its index.
    #[inline]
    pub(super) fn push(&mut self, id: BlockId) -> u32 {
        let place = self.next;
        self.ring[place] = L::of(id);
        self.pushed += 1;
        self.next = after(place, self.ring.len());
        place as u32
    }

    /// Adds the written entries to the queue's length.
    pub(super) fn close(self) {
        *self.len += self.pushed;
    }
}
