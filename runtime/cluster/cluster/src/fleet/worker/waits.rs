//! Times that a worker waits for, other than the ends of its steps.

#[derive(Default)]
pub(super) struct Waits {
    stalled_until_ns: Option<u64>,
    /// When loads from the tiers must be checked next.
    tiers_ns: Option<u64>,
    /// The time at which a token of a request with per-request times is expected.
    token_ns: Option<u64>,
}

impl Waits {
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until_ns.is_some()
    }

    /// Stalls the worker until `until_ns`, unless a longer stall is in progress. Returns by how much this extends
    /// the stall.
    pub(super) fn stall(&mut self, now_ns: u64, until_ns: u64) -> u64 {
        let more_ns = until_ns.saturating_sub(self.stalled_until_ns.unwrap_or(now_ns));
        self.stalled_until_ns = Some(self.stalled_until_ns.map_or(until_ns, |other_ns| other_ns.max(until_ns)));
        more_ns
    }

    /// Ends a stall that is due. Returns whether there was one.
    pub(super) fn end_stall(&mut self, now_ns: u64) -> bool {
        self.stalled_until_ns.take_if(|until_ns| *until_ns <= now_ns).is_some()
    }

    /// Returns `at_ns`, the time of a token, unless an event for it is already scheduled.
    pub(super) fn expect_token(&mut self, now_ns: u64, at_ns: u64) -> Option<u64> {
        if self.token_ns.is_some_and(|earlier_ns| now_ns < earlier_ns && earlier_ns <= at_ns) {
            return None;
        }
        self.token_ns = Some(at_ns);
        Some(at_ns)
    }

    /// Returns `at_ns`, the time at which a load advances, unless a check is already scheduled by then.
    pub(super) fn expect_load(&mut self, at_ns: u64) -> Option<u64> {
        if self.tiers_ns.is_some_and(|earlier_ns| earlier_ns <= at_ns) {
            return None;
        }
        self.tiers_ns = Some(at_ns);
        Some(at_ns)
    }

    /// Records that loads are checked now.
    pub(super) fn look_at_loads(&mut self) {
        self.tiers_ns = None;
    }
}
