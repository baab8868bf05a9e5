//! The step that a worker is in, and the digest of all its steps.

use std::ops::Range;

use vcr_core::seed;

use super::pricing::PricedSteps;

#[derive(Default)]
pub(super) struct Booking {
    /// Whether the oldest step in flight has started.
    executing: bool,
    step_start_ns: u64,
    /// Durations of the latest step, and of the one before it.
    step_ns: u64,
    before_ns: u64,
    /// The end of its computation, and of the wait for other ranks after it.
    computes_until_ns: u64,
    waits_until_ns: u64,
    /// Rolling hash over its steps.
    digest: u64,
    /// The hash after each step, shortened; None unless requested.
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

    /// Keeps a digest of each step from now on.
    pub(super) fn keep_digests(&mut self) {
        self.digests = Some(Vec::new());
    }

    pub(super) fn take_digests(&mut self) -> Option<Vec<u32>> {
        self.digests.take()
    }

    /// Books steps of `range` from `start_ns`, one after another. Returns the end of the last one.
    pub(super) fn book(&mut self, mut start_ns: u64, priced: &PricedSteps, range: Range<usize>) -> u64 {
        self.executing = true;
        let durations_ns = &priced.durations_ns[range.clone()];
        let mut digest = self.digest;
        let mut digests = self.digests.take();
        let mut book = |prefill_tokens: u64, decode_requests: u64, active_blocks: u64, duration_ns: u64| {
            // Shares of a word, so that a step takes one.
            let work = prefill_tokens << 44 ^ decode_requests << 24 ^ active_blocks;
            digest = seed::absorb(digest, start_ns ^ duration_ns.rotate_left(40) ^ seed::spread(work));
            digests.iter_mut().for_each(|digests| digests.push(digest as u32));
            self.step_start_ns = start_ns;
            start_ns = start_ns.saturating_add(duration_ns);
        };
        let first = priced.shape(range.start);
        book(first.prefill_tokens, first.decode_requests, first.kv_active_blocks, durations_ns[0]);
        // The steps after the decodes.
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

    /// Records that the worker is in a step of its engine from `now_ns` to `until_ns`. Its own part of the
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

    /// Cuts off the step in progress, or the run, at `now_ns`. Returns the remaining times of computing and
    /// of waiting for other ranks.
    pub(super) fn cut(&mut self, now_ns: u64) -> [u64; 2] {
        let rest_ns = self.computes_until_ns.saturating_sub(now_ns);
        let wait_ns = self.waits_until_ns.saturating_sub(self.computes_until_ns.max(now_ns));
        self.computes_until_ns = self.computes_until_ns.min(now_ns);
        self.waits_until_ns = self.waits_until_ns.min(now_ns);
        [rest_ns, wait_ns]
    }

    /// Ends the step that was executing.
    pub(super) fn end(&mut self) {
        self.executing = false;
    }
}
