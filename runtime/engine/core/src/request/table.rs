//! The table of live requests.
//!
//! Owns the slots that request ids index. A slot is reused once its request has
//! ended and every step that refers to it has been applied.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::request::{Request, RequestId, RequestStatus};
use crate::seed::mix;

#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    slots: Vec<Request>,
    vacant: Vec<u32>,
    by_tag: HashTable<u32>,
    /// Slots of ended requests, with the number of the last step that may refer to them.
    retired: VecDeque<(u64, u32)>,
    num_arrived: u64,
}

impl RequestTable {
    pub(crate) fn next_sequence(&mut self) -> u64 {
        let sequence = self.num_arrived;
        self.num_arrived += 1;
        sequence
    }

    pub(crate) fn insert(&mut self, request: Request) -> RequestId {
        let tag = request.tag;
        let id = self.place(request);
        let slots = &self.slots;
        self.by_tag.insert_unique(mix(tag), id.0, |&slot| mix(slots[slot as usize].tag));
        id
    }

    pub(crate) fn find(&self, tag: u64) -> Option<RequestId> {
        self.by_tag.find(mix(tag), |&slot| self.slots[slot as usize].tag == tag).map(|&slot| RequestId(slot))
    }

    fn place(&mut self, request: Request) -> RequestId {
        match self.vacant.pop() {
            Some(slot) => {
                // Queues may still hold entries of the slot's previous request.
                let epoch = self.slots[slot as usize].queue_epoch + 1;
                self.slots[slot as usize] = Request { queue_epoch: epoch, ..request };
                RequestId(slot)
            }
            None => {
                self.grow();
                self.slots.push(request);
                RequestId(self.slots.len() as u32 - 1)
            }
        }
    }

    /// Grows by a quarter, so that a long queue neither uses twice its memory nor is copied often.
    fn grow(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(self.slots.len() / 4 + 64);
        }
    }

    /// Frees a request's resources. Its slot is reused after step `last_step`.
    pub(crate) fn retire(&mut self, id: RequestId, last_step: u64) {
        let tag = self[id].tag;
        if let Ok(entry) = self.by_tag.find_entry(mix(tag), |&slot| slot == id.0) {
            entry.remove();
        }
        let request = &mut self[id];
        request.status = RequestStatus::Finished;
        request.queue_epoch += 1;
        request.block_table = Vec::new();
        request.block_hashes = Vec::new();
        request.tokens = Vec::new();
        request.stops = None;
        self.retired.push_back((last_step, id.0));
    }

    /// Makes slots reusable whose last step has been applied.
    pub(crate) fn recycle(&mut self, applied_steps: u64) {
        while let Some(&(last_step, slot)) = self.retired.front()
            && last_step <= applied_steps
        {
            self.retired.pop_front();
            self.vacant.push(slot);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_tag.len()
    }

    /// Requests that have not ended or still hold KV, by slot.
    pub(crate) fn live_ids(&self) -> impl Iterator<Item = RequestId> {
        let ids = (0..self.slots.len() as u32).map(RequestId);
        ids.filter(|&id| self[id].status != RequestStatus::Finished)
    }
}

impl std::ops::Index<RequestId> for RequestTable {
    type Output = Request;

    #[inline]
    fn index(&self, id: RequestId) -> &Request {
        &self.slots[id.0 as usize]
    }
}

impl std::ops::IndexMut<RequestId> for RequestTable {
    #[inline]
    fn index_mut(&mut self, id: RequestId) -> &mut Request {
        &mut self.slots[id.0 as usize]
    }
}
