//! Workers whose situation changed at an instant: those that may start a step then.

use super::Fleet;

impl Fleet {
    /// The situation of a worker has changed.
    #[inline]
    pub(crate) fn note_change(&mut self, worker: u32) {
        self.changed.push(worker);
    }

    /// The workers whose situation has changed, in any order and maybe more than once.
    pub(crate) fn changed(&self) -> &[u32] {
        &self.changed
    }

    /// Takes them, each once, with all ranks of those that step together.
    pub(crate) fn take_changed(&mut self) -> Vec<u32> {
        let mut workers = std::mem::take(&mut self.changed);
        self.widen_to_engines(&mut workers);
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Takes those from the worker `first` on.
    pub(crate) fn take_changed_from(&mut self, first: u32) -> impl Iterator<Item = u32> {
        self.changed.extract_if(.., move |worker| *worker >= first)
    }

    /// Their steps have started at this instant, but for those of `postponed`; `room` is the
    /// list of [`Self::take_changed`], kept for its room.
    pub(crate) fn keep_changed(&mut self, mut room: Vec<u32>, postponed: &[u32]) {
        // Starting a step only ever adds events, never changes other workers.
        debug_assert!(self.changed.is_empty());
        room.clear();
        room.extend_from_slice(postponed);
        self.changed = room;
    }

    /// Adds the other ranks of those that step together.
    fn widen_to_engines(&self, workers: &mut Vec<u32>) {
        if !self.barriers {
            return;
        }
        workers.sort_unstable();
        let mut widened = 0;
        for position in 0..workers.len() {
            let worker = workers[position];
            if worker >= widened && self.has_barrier(worker) {
                let ranks = self.ranks_of(worker);
                widened = ranks.end;
                workers.extend(ranks);
            }
        }
    }
}
