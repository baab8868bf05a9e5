//! The running list, and those who have left it for want of blocks.

use std::ops::Deref;

use crate::request::RequestId;

/// The requests that run, in order of admission.
#[derive(Debug, Default)]
pub(super) struct RunningRequests {
    ids: Vec<RequestId>,
    /// Tags of requests preempted since the last plan took them over.
    preempted: Vec<u64>,
    /// Scratch for the adapters that count against the cap.
    loras: Vec<u32>,
}

impl Deref for RunningRequests {
    type Target = [RequestId];

    #[inline]
    fn deref(&self) -> &[RequestId] {
        &self.ids
    }
}

impl RunningRequests {
    /// A request is admitted.
    #[inline]
    pub(super) fn push(&mut self, id: RequestId) {
        self.ids.push(id);
    }

    /// Takes the newest out of the list.
    pub(super) fn pop(&mut self) -> Option<RequestId> {
        self.ids.pop()
    }

    /// Takes a request out of the list, and gives the place that it had.
    ///
    /// # Panics
    /// When it does not run.
    pub(super) fn remove(&mut self, id: RequestId) -> usize {
        let position = self.ids.iter().position(|&other| other == id).expect("a victim is running");
        self.ids.remove(position);
        position
    }

    /// Keeps those of which this is true.
    #[inline]
    pub(super) fn retain(&mut self, is_kept: impl FnMut(&RequestId) -> bool) {
        self.ids.retain(is_kept);
    }

    /// A request that has left the list is one of those that the next plan names as preempted.
    pub(super) fn note_preempted(&mut self, tag: u64) {
        self.preempted.push(tag);
    }

    /// Moves the tags of preempted requests into a plan.
    #[inline]
    pub(super) fn take_preempted(&mut self, into: &mut Vec<u64>) {
        into.append(&mut self.preempted);
    }

    /// Takes the scratch for adapters, to be put back.
    #[inline]
    pub(super) fn take_loras(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.loras)
    }

    /// Puts the scratch for adapters back.
    #[inline]
    pub(super) fn put_loras(&mut self, mut loras: Vec<u32>) {
        loras.clear();
        self.loras = loras;
    }
}
