//! The router of `vcr_policy::prefix_affinity`, natively. The guest `prefix-affinity` has the
//! same source and chooses the same.

use vcr_policy::prefix_affinity::{AffinityConfig, Candidate, PrefixAffinity, Request};

use vcr_core::route::{Choice, RouteError, RouteQuery, Router, WorkerLoad};

/// Routes by prefix affinity.
pub(crate) struct Affine(PrefixAffinity);

impl Affine {
    pub(crate) fn new(config: AffinityConfig, seed: u64) -> Result<Self, RouteError> {
        let made = PrefixAffinity::new(config, seed);
        let error = |reason: vcr_policy::prefix_affinity::AffinityError| RouteError {
            router: "prefix_affinity".to_owned(),
            reason: reason.to_string(),
        };
        made.map(Self).map_err(error)
    }
}

impl Router for Affine {
    fn route(&mut self, query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let request = Request {
            prompt_tokens: query.prompt_tokens,
            priority: query.priority,
            block_size_tokens: query.block_size_tokens,
            may_shed: query.may_shed,
            blocks: query.blocks,
        };
        let candidates = workers.iter().map(|load| Candidate {
            worker: load.worker,
            running_requests: load.running_requests,
            waiting_requests: load.waiting_requests,
            outstanding_prefill_tokens: load.outstanding_prefill_tokens,
            overlap_blocks: load.overlap_blocks,
        });
        Ok(match self.0.choose(&request, candidates) {
            vcr_policy::prefix_affinity::Choice::Candidate(position) => Choice::Worker(position),
            vcr_policy::prefix_affinity::Choice::Shed => Choice::Shed,
        })
    }

    fn needs_overlap(&self) -> bool {
        true
    }
}
