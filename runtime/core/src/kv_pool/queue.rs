//! The free blocks that were cached, in the order of their release.

use super::BlockId;
use super::blocks::Link;

/// A ring of blocks from which any may be removed: a hole is left where it was.
#[derive(Debug)]
pub(super) struct FreeQueue<L> {
    /// The null block where a hole is, and outside the queue.
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

    /// Takes the first `count` blocks; the caller knows that there are so many.
    #[inline]
    pub(super) fn take(&mut self, count: usize) -> impl ExactSizeIterator<Item = BlockId> + '_ {
        (0..count).map(|_| {
            loop {
                assert!(self.len > 0, "fewer blocks are free than were counted");
                let id = std::mem::replace(&mut self.ring[self.first], L::NULL);
                self.first = self.after(self.first);
                self.len -= 1;
                if id != L::NULL {
                    return id.number();
                }
            }
        })
    }

    /// The end of the queue, with room for `count` blocks. `moved` is told where others
    /// have gone for that.
    #[inline]
    pub(super) fn entry(&mut self, count: usize, moved: impl FnMut(BlockId, u32)) -> Entry<'_, L> {
        if self.len + count > self.ring.len() {
            self.close_holes(moved);
        }
        Entry { at: self.place(self.len), queue: self }
    }

    #[cold]
    fn close_holes(&mut self, mut moved: impl FnMut(BlockId, u32)) {
        let (mut from, mut to) = (self.first, self.first);
        let mut blocks = 0;
        for _ in 0..self.len {
            let id = std::mem::replace(&mut self.ring[from], L::NULL);
            from = self.after(from);
            if id != L::NULL {
                self.ring[to] = id;
                moved(id.number(), to as u32);
                to = self.after(to);
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
    fn place(&self, offset: usize) -> usize {
        let place = self.first + offset;
        if place < self.ring.len() { place } else { place - self.ring.len() }
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.ring.len() { 0 } else { place + 1 }
    }

    /// Checks that nothing is outside the queue.
    pub(super) fn assert_consistent(&self) {
        let blocks = self.ring.iter().filter(|&&id| id != L::NULL).count();
        assert_eq!(self.iter().count(), blocks, "a free block is outside the queue");
    }
}

/// The end of a queue, with room for what is to come.
pub(super) struct Entry<'a, L> {
    queue: &'a mut FreeQueue<L>,
    at: usize,
}

impl<L: Link> Entry<'_, L> {
    /// Puts a block at the end. Gives its place.
    #[inline]
    pub(super) fn push(&mut self, id: BlockId) -> u32 {
        let place = self.at;
        self.queue.ring[place] = L::of(id);
        self.queue.len += 1;
        self.at = self.queue.after(place);
        place as u32
    }
}
