//! Passes that decode between two that prefill, where data-parallel ranks count them together.
//!
//! SGLang's ranks tell each other whether any of them prefills, so all wait for as many passes.
//! The driver, which knows the ranks, says when a pass of theirs begins and ends.

use crate::sglang::engine::SglangEngine;

impl SglangEngine {
    /// The engine is one of several ranks that count passes together.
    pub fn count_passes_together(&mut self) {
        self.counts_together = true;
    }

    /// Whether any of its requests decodes in its next pass, if none is retracted before.
    #[must_use]
    pub fn has_decodes(&self) -> bool {
        !self.running.is_empty() || self.kv_ready.len() > 0
    }

    /// Ranks are about to decide a pass; in it `any_decodes` of any rank. Passes without
    /// anything to decode take no time.
    pub fn begin_pass_of_ranks(&mut self, any_decodes: bool) {
        if !any_decodes {
            self.skip_decodes_due();
        }
    }

    /// This many passes of the ranks have been decided, in the first of which any rank
    /// prefills, or in none.
    pub fn end_passes_of_ranks(&mut self, passes: u32, any_prefills: bool) {
        self.decodes_due =
            if any_prefills { self.config.prefill_decode_interval } else { self.decodes_due.saturating_sub(passes) };
    }

    /// All passes that are due decode nothing.
    pub(super) fn skip_decodes_due(&mut self) {
        if self.decodes_due > 0 {
            self.decodes_due = 0;
            self.reserved_share.restart();
        }
    }
}
