//! Passes that decode between two that prefill, where data-parallel ranks may count them together.
//!
//! SGLang's ranks tell each other whether any of them prefills, so all wait for as many passes.
//! The driver, which knows the ranks, says when a pass of theirs begins and ends.

/// Passes between two that prefill.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillInterval {
    /// Passes that decode between two that prefill.
    length: u32,
    /// Passes to come that decode before one prefills.
    decodes_due: u32,
    /// Whether that is counted by the driver, for several ranks.
    counts_together: bool,
}

impl PrefillInterval {
    pub(super) fn new(length: u32) -> Self {
        Self { length, decodes_due: 0, counts_together: false }
    }

    /// Passes to come that decode before one prefills.
    pub(super) fn decodes_due(self) -> u32 {
        self.decodes_due
    }

    /// Whether passes are counted by the driver, for several ranks.
    pub(super) fn counts_together(self) -> bool {
        self.counts_together
    }

    /// The driver counts passes from now on.
    pub(super) fn count_together(&mut self) {
        self.counts_together = true;
    }

    /// This many passes have been decided, in the first of which a prompt was begun or went on, or in none.
    pub(super) fn end_passes(&mut self, passes: u32, any_prefills: bool) {
        self.decodes_due = if any_prefills { self.length } else { self.decodes_due.saturating_sub(passes) };
    }

    /// All passes that are due decode nothing. False if none is due.
    pub(super) fn skip(&mut self) -> bool {
        std::mem::take(&mut self.decodes_due) > 0
    }
}
