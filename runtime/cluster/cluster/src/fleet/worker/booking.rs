//! The step that a worker executes, and the digest of all its steps.

use std::ops::Range;

use vcr_core::seed;

use super::pricing::PricedSteps;

#[derive(Default)]
pub(super) struct Booking {
    /// Whether the oldest step in flight has started.
    executing: bool,
    step_start_ns: u64,
    /// Durations of the latest step (`step_ns`) and of the step before.
    step_ns: u64,
    before_ns: u64,
    /// The end of the step's computation, and the end of the following wait for other ranks.
    computes_until_ns: u64,
    waits_until_ns: u64,
    /// Rolling hash over the worker's steps.
    digest: u64,
    /// The low bits of the hash after each step; None unless requested.
    digests: Option<Vec<u32>>,
}

impl Booking {
    pub(super) fn is_executing(&self) -> bool {
        self.executing
    }

    pub(super) fn step_start_ns(&self) -> u64 {
        self.step_start_ns
    }

    /// Duration of the step that ended last.
    pub(super) fn last_step_ns(&self) -> u64 {
        if self.executing { self.before_ns } else { self.step_ns }
    }

    pub(super) fn computes_until_ns(&self) -> u64 {
        self.computes_until_ns
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn keep_digests(&mut self) {
        self.digests = Some(Vec::new());
    }

    pub(super) fn take_digests(&mut self) -> Option<Vec<u32>> {
        self.digests.take()
    }

    /// Records the steps of `range` one after another, starting at `start_ns`. Returns the end of the last step.
    pub(super) fn book(&mut self, mut start_ns: u64, priced: &PricedSteps, range: Range<usize>) -> u64 {
        self.executing = true;
        let durations_ns = &priced.durations_ns[range.clone()];
        let mut digest = self.digest;
        let mut digests = self.digests.take();
        let mut book = |prefill_tokens: u64, decode_requests: u64, active_blocks: u64, duration_ns: u64| {
            // The three numbers share a 64-bit word.
            let work = prefill_tokens << 44 ^ decode_requests << 24 ^ active_blocks;
            digest = seed::absorb(digest, start_ns ^ duration_ns.rotate_left(40) ^ seed::spread(work));
            digests.iter_mut().for_each(|digests| digests.push(digest as u32));
            self.step_start_ns = start_ns;
            start_ns = start_ns.saturating_add(duration_ns);
        };
        let first = priced.shape(range.start);
        book(first.prefill_tokens, first.decode_requests, first.kv_active_blocks, durations_ns[0]);
        // All steps after the first one decode.
        for (&active_blocks, &duration_ns) in priced.active_blocks_after(&range).iter().zip(&durations_ns[1..]) {
            book(0, first.decode_requests, active_blocks, duration_ns);
        }
        for &duration_ns in &durations_ns[durations_ns.len().saturating_sub(2)..] {
            self.before_ns = std::mem::replace(&mut self.step_ns, duration_ns);
        }
        self.digest = digest;
        self.digests = digests;
        self.computes_until_ns = start_ns;
        self.waits_until_ns = start_ns;
        start_ns
    }

    /// Records that the worker's engine is in a step from `now_ns` to `until_ns`. The worker's own part of the
    /// step, if any, is already recorded. Returns the time of waiting for other ranks.
    pub(super) fn wait(&mut self, now_ns: u64, until_ns: u64) -> u64 {
        if !self.executing {
            self.computes_until_ns = now_ns;
        }
        let waited_ns = until_ns - self.computes_until_ns;
        self.waits_until_ns = until_ns;
        self.digest = seed::absorb(self.digest, waited_ns);
        waited_ns
    }

    /// Cuts off the step in progress at `now_ns`. Returns the remaining times of computing and of waiting for other
    /// ranks.
    pub(super) fn cut(&mut self, now_ns: u64) -> [u64; 2] {
        let rest_ns = self.computes_until_ns.saturating_sub(now_ns);
        let wait_ns = self.waits_until_ns.saturating_sub(self.computes_until_ns.max(now_ns));
        self.computes_until_ns = self.computes_until_ns.min(now_ns);
        self.waits_until_ns = self.waits_until_ns.min(now_ns);
        [rest_ns, wait_ns]
    }

    pub(super) fn end(&mut self) {
        self.executing = false;
    }
}
