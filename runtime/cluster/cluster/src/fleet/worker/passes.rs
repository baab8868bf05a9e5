//! Passes that an engine's ranks count together.

use vcr_core::ServingEngine;

use super::Worker;

impl Worker {
    /// Whether it has decided a step that has not ended.
    pub(crate) fn has_decided(&self) -> bool {
        self.engine.steps_in_flight() > 0
    }

    /// Whether its engine has any requests, or KV that others are to take.
    pub(crate) fn has_requests(&self) -> bool {
        !self.engine.live_tags().is_empty()
    }

    /// Whether any of its requests decodes in its next pass; asked of SGLang's engines.
    pub(crate) fn has_decodes(&self) -> bool {
        self.engine.as_sglang().is_some_and(|engine| engine.has_decodes())
    }

    /// Its ranks begin a pass; see [`vcr_core::sglang::SglangEngine::begin_pass_of_ranks`] and
    /// [`vcr_core::Engine::throttle_prefills`].
    pub(crate) fn begin_pass(&mut self, any_decodes: bool, throttles_prefills: bool) {
        if let Some(engine) = self.engine.as_sglang_mut() {
            engine.begin_pass_of_ranks(any_decodes);
        }
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.throttle_prefills(throttles_prefills);
        }
    }

    /// This many passes of its ranks are decided.
    pub(crate) fn end_passes(&mut self, passes: u32, any_prefills: bool) {
        if let Some(engine) = self.engine.as_sglang_mut() {
            engine.end_passes_of_ranks(passes, any_prefills);
        }
    }
}
