//! The records of requests by tag: those that may change, and those that are packed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Index, IndexMut};
use std::slice::Iter;

use super::packed::PackedRecords;
use super::record::{Outcome, RequestRecord};
use crate::window::Window;

/// Arrivals between two looks for records to pack.
const ARRIVALS_PER_LOOK: u64 = 256;

/// Records by tag, from 0 on without a gap.
#[derive(Debug, Default)]
pub(super) struct RecordStore {
    open: Window<RequestRecord>,
    /// Those before the open ones, if ended ones are packed.
    packed: Option<PackedRecords>,
}

impl RecordStore {
    /// Packs the records of requests that have ended. They are not to be looked at again.
    pub(super) fn pack_ended(&mut self) {
        self.packed = Some(PackedRecords::default());
    }

    pub(super) fn reserve(&mut self, requests: usize) {
        if self.packed.is_none() {
            self.open.reserve_exact(requests);
        }
    }

    /// Number of all of them.
    pub(super) fn len(&self) -> u64 {
        self.open.end()
    }

    /// The first tag whose record is not packed.
    pub(super) fn first_open(&self) -> u64 {
        self.open.begin()
    }

    pub(super) fn push(&mut self, record: RequestRecord) {
        if let Some(packed) = &mut self.packed
            && self.open.end().is_multiple_of(ARRIVALS_PER_LOOK)
        {
            let is_over = |record: &&RequestRecord| record.outcome != Outcome::Unfinished;
            let over = self.open.as_slice().iter().take_while(is_over).inspect(|record| packed.push(record)).count();
            self.open.advance(self.open.begin() + over as u64);
        }
        self.open.push(record);
    }

    /// Those that are not packed.
    pub(super) fn open(&self) -> &[RequestRecord] {
        self.open.as_slice()
    }

    pub(super) fn open_mut(&mut self) -> &mut [RequestRecord] {
        self.open.as_mut_slice()
    }

    /// A record, packed or not.
    pub(super) fn find(&self, tag: u64) -> Option<RequestRecord> {
        match &self.packed {
            Some(packed) if tag < self.first_open() => packed.iter().nth(tag as usize),
            _ => self.open.get(tag).cloned(),
        }
    }

    /// All of them but the first `skipped`: in a list, or packed.
    pub(super) fn close(self, skipped: u64) -> (Vec<RequestRecord>, PackedRecords) {
        let Self { open, packed } = self;
        match packed {
            None => {
                let mut records = open.into_vec();
                records.drain(..skipped as usize);
                (records, PackedRecords::default())
            }
            Some(mut packed) => {
                open.as_slice().iter().for_each(|record| packed.push(record));
                packed.skip_first(skipped);
                (Vec::new(), packed)
            }
        }
    }

    pub(super) fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Takes over the records of other stores: of engines from a worker on, and with the tags
    /// here, which ascend. A run that was stopped may lack some, which get empty records.
    pub(super) fn join(&mut self, others: Vec<(Self, u32, Vec<u64>)>) {
        assert!(self.len() == 0, "the stores of all requests are joined");
        if others.iter().any(|(store, ..)| !store.is_packed()) {
            let last = others.iter().filter_map(|(_, _, tags)| tags.last()).max();
            let mut records = vec![RequestRecord::default(); last.map_or(0, |last| *last as usize + 1)];
            for (store, first_worker, tags) in others {
                let (own, _) = store.close(0);
                for (record, tag) in own.into_iter().zip(tags) {
                    records[tag as usize] = of_workers_from(record, first_worker);
                }
            }
            self.open = Window::of(records);
            return;
        }
        let others: Vec<_> =
            others.into_iter().map(|(store, first_worker, tags)| (store.close(0).1, first_worker, tags)).collect();
        let mut heads: Vec<_> =
            others.iter().map(|(store, first_worker, tags)| (store.iter(), *first_worker, tags.iter())).collect();
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let head = |tags: &mut Iter<'_, u64>, index| tags.next().map(|tag| Reverse((*tag, index)));
        next.extend(heads.iter_mut().enumerate().filter_map(|(index, (_, _, tags))| head(tags, index)));
        let mut joined = PackedRecords::default();
        while let Some(Reverse((tag, index))) = next.pop() {
            while joined.len() < tag {
                joined.push(&RequestRecord::default());
            }
            let (records, first_worker, tags) = &mut heads[index];
            joined.extend(records.next().map(|record| of_workers_from(record, *first_worker)));
            next.extend(head(tags, index));
        }
        self.open = Window::after(joined.len());
        self.packed = Some(joined);
    }
}

/// A record of engines that have the workers from `first_worker` on.
fn of_workers_from(mut record: RequestRecord, first_worker: u32) -> RequestRecord {
    for worker in [&mut record.prefill_worker, &mut record.decode_worker].into_iter().flatten() {
        *worker += first_worker;
    }
    record
}

impl Index<usize> for RecordStore {
    type Output = RequestRecord;

    #[inline]
    fn index(&self, tag: usize) -> &RequestRecord {
        &self.open[tag]
    }
}

impl IndexMut<usize> for RecordStore {
    #[inline]
    fn index_mut(&mut self, tag: usize) -> &mut RequestRecord {
        &mut self.open[tag]
    }
}
