//! The records of requests by tag: open records, which may change, and packed records.

use std::ops::{Index, IndexMut};

use super::packed::PackedRecords;
use super::record::{Outcome, RequestRecord};
use crate::window::Window;

/// Number of arrivals between two attempts to pack records.
const ARRIVALS_PER_LOOK: u64 = 256;

/// Records by tag, from 0 on without gaps.
#[derive(Debug, Default)]
pub(super) struct RecordStore {
    open: Window<RequestRecord>,
    /// Packed records, which precede the open ones; None if records are not packed.
    packed: Option<PackedRecords>,
}

impl RecordStore {
    /// Packs the records of ended requests from now on. Packed records cannot be read by tag efficiently.
    pub(super) fn pack_ended(&mut self) {
        self.packed = Some(PackedRecords::default());
    }

    pub(super) fn reserve(&mut self, requests: usize) {
        if self.packed.is_none() {
            self.open.reserve_exact(requests);
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.open.end()
    }

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

    pub(super) fn open(&self) -> &[RequestRecord] {
        self.open.as_slice()
    }

    pub(super) fn open_mut(&mut self) -> &mut [RequestRecord] {
        self.open.as_mut_slice()
    }

    pub(super) fn find(&self, tag: u64) -> Option<RequestRecord> {
        match &self.packed {
            Some(packed) if tag < self.first_open() => packed.iter().nth(tag as usize),
            _ => self.open.get(tag).cloned(),
        }
    }

    /// All records except the first `skipped`, unpacked or packed.
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
