//! Sends a request to the engine with the lowest cost: the KV blocks of its load, minus the cached blocks of the
//! prompt. Refuses the request if all engines are full.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use vcr_guest_sdk::{Choice, RouteRequest, RouterGuest, WorkerLoad, WorkerLoads, export_router};

/// The user's settings; `config.json` has an example.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Value of a cached block, in blocks of load.
    cached_block_weight: u32,
    /// A request is refused if more requests than this wait at every engine.
    max_waiting: Option<u32>,
}

struct Router(Config);

impl Router {
    /// Cost of the request at this engine; the lowest wins. The load includes prompts that are not computed yet.
    fn cost(&self, request: &RouteRequest<'_>, load: &WorkerLoad) -> i64 {
        let prefill_blocks = load.outstanding_prefill_tokens.div_ceil(u64::from(request.block_size_tokens));
        let cached = i64::from(load.cached_prompt_blocks) * i64::from(self.0.cached_block_weight);
        i64::from(load.active_blocks) + prefill_blocks.cast_signed() - cached
    }

    fn has_room(&self, load: &WorkerLoad) -> bool {
        self.0.max_waiting.is_none_or(|most| load.waiting_requests <= most)
    }
}

impl RouterGuest for Router {
    type Config = Config;

    // `WorkerLoad` has every column of the interface; one that the host left out is 0. A router that reads none from
    // `host_prompt_blocks` on saves time with `const NEEDS_DETAILS: bool = false;`.

    fn configure(config: Config, _seed: u64) -> Result<Self, String> {
        Ok(Self(config))
    }

    fn route(&mut self, request: &RouteRequest<'_>, workers: WorkerLoads<'_>) -> Result<Choice, String> {
        // Of equal engines, takes the first one.
        let best = |only_with_room: bool| {
            let open = workers.iter().filter(|load| !only_with_room || self.has_room(load));
            open.min_by_key(|load| self.cost(request, load)).map(|load| load.worker)
        };
        match best(true) {
            Some(worker) => Ok(Choice::Worker(worker)),
            None if request.may_refuse => Ok(Choice::Refuse),
            None => best(false).map(Choice::Worker).ok_or_else(|| "there are no engines".into()),
        }
    }
}

export_router!(Router);

#[cfg(test)]
mod tests {
    use vcr_guest_sdk::{RoutePhase, WorkerColumns};

    use super::*;

    fn request(may_refuse: bool) -> RouteRequest<'static> {
        RouteRequest {
            now_ns: 0,
            id: 1,
            prompt_tokens: 100,
            max_tokens: 10,
            priority: 0,
            adapter: None,
            tenant: 0,
            slo: Default::default(),
            session: 0,
            block_size_tokens: 16,
            phase: RoutePhase::Whole,
            may_refuse,
            block_hashes: &[],
        }
    }

    /// The choice between the engines 0 and 3, which has cached a part of the prompt.
    fn choice(waiting_requests: u32, cached: u32, may_refuse: bool) -> Choice {
        let load = |worker, active_blocks, cached_prompt_blocks| WorkerLoad {
            worker,
            running_requests: 5,
            waiting_requests,
            active_blocks,
            cached_prompt_blocks,
            ..WorkerLoad::default()
        };
        let workers: WorkerColumns = [load(0, 40, 0), load(3, 50, cached)].into_iter().collect();
        let mut router = Router(Config { cached_block_weight: 2, max_waiting: Some(8) });
        router.route(&request(may_refuse), workers.view()).expect("there are engines")
    }

    #[test]
    fn a_cached_prefix_outweighs_some_load() {
        assert_eq!(choice(0, 0, true), Choice::Worker(0));
        assert_eq!(choice(0, 6, true), Choice::Worker(3));
    }

    #[test]
    fn prompts_that_are_not_computed_count_as_load() {
        let load = |worker, outstanding_prefill_tokens| WorkerLoad {
            worker,
            outstanding_prefill_tokens,
            ..WorkerLoad::default()
        };
        let workers: WorkerColumns = [load(0, 100), load(3, 0)].into_iter().collect();
        let mut router = Router(Config { cached_block_weight: 2, max_waiting: None });
        assert_eq!(router.route(&request(true), workers.view()), Ok(Choice::Worker(3)));
    }

    #[test]
    fn a_request_is_refused_where_all_are_full_and_it_may_be() {
        assert_eq!(choice(9, 0, true), Choice::Refuse);
        assert_eq!(choice(9, 0, false), Choice::Worker(0));
    }
}
