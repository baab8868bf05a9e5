//! Requests with structured outputs, which wait for their grammar: vLLM's `WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR`.
//!
//! Grammars are compiled outside the scheduler. The driver reports when the compilation of a grammar has
//! succeeded or failed; until then each step skips its request. If the compilation fails, the next step that
//! reaches the request marks it, and the request ends with an error when the next result is applied.

use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::engine::reject::RejectReason;
use crate::plan::{ScheduledRequest, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::request::{RequestId, RequestSpec, RequestStatus};

#[derive(Debug, Default)]
pub(super) struct Grammars {
    /// The result of each compilation, once it is known.
    awaited: BTreeMap<RequestId, Option<Compilation>>,
    num_compiling: usize,
    /// Requests that a step reached after their grammar had failed.
    failed: Vec<RequestId>,
}

/// The result of compiling a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compilation {
    /// The grammar is ready.
    Succeeded,
    /// The compilation failed; the request must end with an error.
    Failed,
}

impl Engine {
    /// Reports the end of the compilation of a request's grammar. Returns false if the request does not
    /// wait for it, for example because it was aborted.
    pub fn end_compilation(&mut self, tag: u64, compilation: Compilation) -> bool {
        let Some(id) = self.find(tag) else { return false };
        let Some(grammars) = &mut self.grammars else { return false };
        let Some(known @ None) = grammars.awaited.get_mut(&id) else { return false };
        *known = Some(compilation);
        grammars.num_compiling -= 1;
        true
    }

    /// Number of requests whose grammar is being compiled. No step can admit them before that is done.
    #[must_use]
    pub fn num_compiling(&self) -> usize {
        self.grammars.as_ref().map_or(0, |grammars| grammars.num_compiling)
    }

    /// Whether requests will end with an error because their grammar failed. They end when the next result is applied.
    /// If no step is in flight, [`Engine::apply_transfers`] ends them.
    #[must_use]
    pub fn has_failed_grammars(&self) -> bool {
        self.grammars.as_ref().is_some_and(|grammars| !grammars.failed.is_empty())
    }

    pub(super) fn check_structured(&self, spec: &RequestSpec) -> Result<(), RejectReason> {
        let is_simulated = self.config.simulates_structured_outputs() && !spec.resumable && !self.turns.are_paced();
        if is_simulated { Ok(()) } else { Err(RejectReason::StructuredNotSimulated) }
    }

    pub(super) fn await_grammar(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        request.has_grammar = true;
        request.status = RequestStatus::WaitingForGrammar;
        let grammars = self.grammars.get_or_insert_with(Box::default);
        grammars.awaited.insert(id, None);
        grammars.num_compiling += 1;
        self.queues.set_deferred(id, true, &mut self.requests);
    }

    /// Whether the grammar of the next request is ready. If so, the request waits like any other from now on.
    #[cold]
    pub(super) fn has_grammar_ready(&mut self, id: RequestId) -> bool {
        let Some(grammars) = &mut self.grammars else { return true };
        match grammars.awaited.get(&id) {
            Some(None) => false,
            Some(Some(Compilation::Failed)) => {
                if !grammars.failed.contains(&id) {
                    grammars.failed.push(id);
                }
                false
            }
            Some(Some(Compilation::Succeeded)) | None => {
                grammars.awaited.remove(&id);
                self.requests[id].status = RequestStatus::Waiting;
                true
            }
        }
    }

    /// Forgets the grammar of a request that is aborted or ends without a grammar.
    pub(super) fn forget_grammar(&mut self, id: RequestId) {
        if let Some(grammars) = &mut self.grammars {
            grammars.num_compiling -= usize::from(grammars.awaited.remove(&id) == Some(None));
            grammars.failed.retain(|&failed| failed != id);
        }
    }

    pub(super) fn list_failed_grammars(&self, into: &mut Vec<RequestId>) {
        if let Some(grammars) = &self.grammars {
            into.extend_from_slice(&grammars.failed);
        }
    }

    /// When a request enters a step with drafts, records whether its drafts are checked against the grammar
    /// before they are verified. They are if the worker has the drafts of this request. In a pipeline, the worker has
    /// the drafts of the previous step, which may be of other requests. A padded admission has no drafts.
    #[cold]
    pub(super) fn note_checked_drafts(&self, plan: &mut StepPlan, id: RequestId) {
        let request = &self.requests[id];
        let are_checked = request.has_grammar
            && request.num_output_placeholders > 0
            && (self.config.pipeline_parallel_size() == 1 || self.steps.samples_last(id));
        if are_checked {
            plan.with_checked_drafts.push(id);
        }
    }

    /// Number of drafts in this step that do not fit the request's grammar.
    #[cold]
    pub(super) fn count_invalid<S: TokenSource + ?Sized>(
        entry: &ScheduledRequest,
        source: &mut S,
        out: &mut StepOutputs,
    ) -> u32 {
        let drafts = u32::from(entry.num_draft_tokens);
        let invalid = drafts - source.valid_drafts(entry.tag, drafts).min(drafts);
        if invalid > 0 {
            out.invalid_drafts.push((entry.tag, invalid as u16));
        }
        invalid
    }

    /// Drops the newly proposed drafts from the first one on that does not fit the request's grammar.
    #[cold]
    pub(super) fn drop_invalid_drafts<S: TokenSource + ?Sized>(
        &mut self,
        entry: &ScheduledRequest,
        proposed: u32,
        source: &mut S,
        out: &mut StepOutputs,
    ) {
        if !self.requests[entry.request].has_grammar {
            return;
        }
        let valid = source.valid_drafts(entry.tag, proposed).min(proposed);
        self.requests[entry.request].num_draft_tokens = valid as u16;
        if valid < proposed {
            out.invalid_drafts.push((entry.tag, (proposed - valid) as u16));
        }
    }
}
