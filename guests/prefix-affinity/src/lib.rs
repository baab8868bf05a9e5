//! A guest that routes by prefix affinity.
//!
//! The config is a `vcr_policy::prefix_affinity::AffinityConfig`, for example
//! `{"load_factor": 1.5, "max_waiting": 32}`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::{String, ToString};

use vcr_guest_sdk::{Choice, RouteRequest, RouterGuest, WorkerLoads, export_router};
use vcr_policy::prefix_affinity::{AffinityConfig, PrefixAffinity};

struct PrefixAffinityGuest(PrefixAffinity);

impl RouterGuest for PrefixAffinityGuest {
    type Config = AffinityConfig;
    const NEEDS_DETAILS: bool = false;

    fn configure(config: AffinityConfig, seed: u64) -> Result<Self, String> {
        PrefixAffinity::new(config, seed).map(Self).map_err(|error| error.to_string())
    }

    fn route(&mut self, request: &RouteRequest<'_>, workers: WorkerLoads<'_>) -> Result<Choice, String> {
        Ok(self.0.choose(request, workers.iter()))
    }
}

export_router!(PrefixAffinityGuest);

#[cfg(test)]
mod tests {
    use vcr_guest_sdk::{WorkerColumns, WorkerLoad};

    use super::*;

    #[test]
    fn the_engine_that_has_cached_the_prompt_is_chosen() {
        let mut guest = PrefixAffinityGuest::configure(AffinityConfig::default(), 1).expect("a good config");
        let load = |worker, cached_prompt_blocks| WorkerLoad {
            worker,
            max_running_requests: 8,
            total_blocks: 100,
            cached_prompt_blocks,
            ..WorkerLoad::default()
        };
        let workers: WorkerColumns = [load(2, 0), load(5, 2)].into_iter().collect();
        let request = RouteRequest {
            prompt_tokens: 40,
            max_tokens: 8,
            block_size_tokens: 16,
            may_refuse: true,
            block_hashes: &[1, 2],
            ..RouteRequest::default()
        };
        assert_eq!(guest.route(&request, workers.view()), Ok(Choice::Worker(5)));
    }
}
