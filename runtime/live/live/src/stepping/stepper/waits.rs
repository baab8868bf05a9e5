//! Waits of requests in an engine while others pass: for KV from a tier below the device, and for grammars.

use vcr_core::{Compilation, KvTiers};

use super::Stepper;

impl Stepper {
    /// The grammar of a request that was submitted is compiled at that time, no earlier than those before it.
    pub(crate) fn expect_grammar(&mut self, tag: u64, due_ns: u64) {
        self.compilations.push_back((due_ns, tag));
    }

    /// When KV comes from a tier below the device.
    pub(crate) fn next_tier_load_ns(&self) -> Option<u64> {
        self.engine.kv_tiers().and_then(KvTiers::next_load_ns)
    }

    /// When the next grammar is compiled.
    pub(crate) fn next_grammar_ns(&self) -> Option<u64> {
        self.compilations.front().map(|(due_ns, _)| *due_ns)
    }

    /// Sees which grammars are compiled: their requests can be admitted.
    pub(super) fn advance_grammars(&mut self, now_ns: u64) {
        while let Some((_, tag)) = self.compilations.pop_front_if(|(due_ns, _)| *due_ns <= now_ns) {
            self.may_decide |= self.engine.end_compilation(tag, Compilation::Succeeded);
        }
    }

    /// Sees what has come from tiers: its requests can be admitted.
    pub(super) fn advance_tiers(&mut self, now_ns: u64) {
        if self.engine.kv_tiers().is_some() {
            self.loaded.clear();
            self.engine.advance_tiers(now_ns, &mut self.loaded);
            self.may_decide |= !self.loaded.is_empty() || self.engine.has_deferred_lookups();
        }
    }
}
