//! Routing by prefix affinity as a guest.
//!
//! The config is a `vcr_routing::AffinityConfig`, for example
//! `{"load_factor": 1.5, "max_waiting": 32}`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::{String, ToString};

use vcr_guest_sdk::{Choice, RouteRequest, RouterGuest, Workers, export_router};
use vcr_routing::{AffinityConfig, Candidate, PrefixAffinity, Request};

struct PrefixAffinityGuest(PrefixAffinity);

impl RouterGuest for PrefixAffinityGuest {
    type Config = AffinityConfig;

    fn configure(config: AffinityConfig, seed: u64) -> Result<Self, String> {
        PrefixAffinity::new(config, seed).map(Self).map_err(|error| error.to_string())
    }

    fn route(&mut self, request: &RouteRequest<'_>, workers: Workers<'_>) -> Result<Choice, String> {
        let candidates = workers.iter().map(|load| Candidate {
            worker: load.worker,
            running_requests: load.running_requests,
            waiting_requests: load.waiting_requests,
            outstanding_prefill_tokens: load.outstanding_prefill_tokens,
            overlap_blocks: load.overlap_blocks,
        });
        let request = Request {
            prompt_tokens: request.prompt_tokens,
            priority: request.priority,
            block_size_tokens: request.block_size_tokens,
            may_shed: request.may_shed,
            blocks: request.blocks,
        };
        Ok(match self.0.choose(&request, candidates) {
            vcr_routing::Choice::Candidate(position) => {
                let load = workers.get(position).ok_or("the host showed no engine")?;
                Choice::Worker(load.worker)
            }
            vcr_routing::Choice::Shed => Choice::Shed,
        })
    }
}

export_router!(PrefixAffinityGuest);

#[cfg(test)]
mod tests {
    use vcr_guest_sdk::RoutePhase;

    use super::*;

    #[test]
    fn the_index_of_the_engine_is_answered_and_not_its_position() {
        let mut guest = PrefixAffinityGuest::configure(AffinityConfig::default(), 1).expect("a good config");
        // Engines 2 and 5; the latter has cached the prompt.
        let words = [[2, 0, 0, 8, 0, 100, 0, 0], [5, 0, 0, 8, 0, 100, 0, 2]].concat();
        let request = RouteRequest {
            now_ns: 0,
            request: 0,
            prompt_tokens: 40,
            max_tokens: 8,
            priority: 0,
            lora: None,
            tenant: 0,
            session: 0,
            block_size_tokens: 16,
            phase: RoutePhase::Whole,
            may_shed: true,
            blocks: &[1, 2],
        };
        let workers = Workers::of_words(&words).expect("two engines");
        assert_eq!(guest.route(&request, workers), Ok(Choice::Worker(5)));
    }
}
