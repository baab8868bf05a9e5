//! Slots of the tokens that come of prompts.
//!
//! Every token has one as soon as it comes; those of decodes are taken in `decode.rs`.

use crate::request::RequestId;
use crate::sglang::config::PassOrder;
use crate::sglang::engine::SglangEngine;

impl SglangEngine {
    /// Gives pages for their first output to the requests whose prompts are computed in
    /// this pass. If there are too few, none of these gives its first token in it.
    pub(super) fn take_first_slots(&mut self) {
        let missing: u32 = self.joining.iter().map(|&id| self.missing_for_first(id)).sum();
        if missing > self.pages.num_available() {
            let without_slot = self.tokens_without_slot();
            for entry in &mut self.prefills {
                let request = &self.requests[entry.request];
                let has_slot = request.end_tokens - request.num_tokens <= without_slot;
                self.pages.set_stalled(entry.request, entry.samples && !has_slot);
                entry.samples &= has_slot;
            }
            return;
        }
        for index in 0..self.joining.len() {
            let id = self.joining[index];
            self.pages.grow(id, self.missing_for_first(id));
        }
    }

    /// Pages that a request lacks for the token that comes of its prompt.
    fn missing_for_first(&self, id: RequestId) -> u32 {
        let request = &self.requests[id];
        if request.end_tokens - request.num_tokens <= self.tokens_without_slot() {
            return 0;
        }
        self.pages.for_tokens(request.num_tokens + 1) - self.pages.held(id)
    }

    /// Where a prompt's token is the only one, it has no slot, unless it comes of a decode.
    fn tokens_without_slot(&self) -> u32 {
        u32::from(self.config.pass_order() == PassOrder::PrefillFirst)
    }
}
