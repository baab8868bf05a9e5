//! Routers: which worker of a pool takes a request.

use vcr_core::Prompt;

/// What a router may know of a worker when it decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Index of the worker in its pool.
    pub worker: u32,
    /// Requests in the running list.
    pub running_requests: u32,
    /// Requests waiting for admission or a transfer.
    pub waiting_requests: u32,
    /// KV blocks referenced by at least one request.
    pub active_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Prompt tokens assigned to the worker and not yet computed.
    pub outstanding_prefill_tokens: u64,
    /// Leading prompt blocks of the request in the worker's prefix cache; 0
    /// unless [`Router::needs_overlap`].
    pub overlap_blocks: u32,
}

/// The request to be routed.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    /// Its prompt.
    pub prompt: &'a Prompt,
    /// Tokens per KV block in the pool.
    pub block_size_tokens: u32,
}

/// Chooses among the workers of one pool that are up.
pub trait Router: Send {
    /// Index into `workers`, which is never empty and ordered by worker.
    fn route(&mut self, query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> usize;

    /// Whether [`WorkerLoad::overlap_blocks`] should be filled in.
    fn needs_overlap(&self) -> bool {
        false
    }
}

/// The routers that come with vcr.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RouterConfig {
    /// Workers in turn, in order of arrival.
    #[default]
    RoundRobin,
    /// Fewest requests, then fewest outstanding prefill tokens.
    LeastLoaded,
    /// Cheapest by uncached prefill plus KV blocks in use.
    KvAware(KvAwareConfig),
}

/// Weights of the KV-aware router's cost. Names follow Dynamo's router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvAwareConfig {
    /// Worth of a cached block in prefill blocks.
    pub overlap_score_credit: f64,
    /// Weight of prefill blocks against blocks in use.
    pub prefill_load_scale: f64,
    /// Blocks that one active request counts for.
    pub decode_active_request_weight: f64,
}

impl Default for KvAwareConfig {
    fn default() -> Self {
        Self { overlap_score_credit: 1.0, prefill_load_scale: 1.0, decode_active_request_weight: 0.0 }
    }
}

impl RouterConfig {
    /// A router in its initial state.
    #[must_use]
    pub fn build(&self) -> Box<dyn Router> {
        match self {
            Self::RoundRobin => Box::new(RoundRobin { next_worker: 0 }),
            Self::LeastLoaded => Box::new(LeastLoaded),
            Self::KvAware(config) => Box::new(KvAware { config: *config }),
        }
    }
}

struct RoundRobin {
    next_worker: u32,
}

impl Router for RoundRobin {
    fn route(&mut self, _query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> usize {
        // Workers that are down are absent; the turn passes to the next one up.
        let choice = workers.iter().position(|load| load.worker >= self.next_worker).unwrap_or(0);
        self.next_worker = workers[choice].worker + 1;
        choice
    }
}

struct LeastLoaded;

impl Router for LeastLoaded {
    fn route(&mut self, _query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> usize {
        let load = |w: &WorkerLoad| (w.running_requests + w.waiting_requests, w.outstanding_prefill_tokens, w.worker);
        (0..workers.len()).min_by_key(|&index| load(&workers[index])).unwrap_or(0)
    }
}

/// The cost of Dynamo's KV router, with exact knowledge of the caches instead
/// of an event-fed index, and ties broken by load instead of at random.
struct KvAware {
    config: KvAwareConfig,
}

impl KvAware {
    fn cost(&self, query: &RouteQuery<'_>, load: &WorkerLoad) -> f64 {
        let block = f64::from(query.block_size_tokens);
        let prompt_tokens = u64::from(query.prompt.len_tokens());
        let prefill_blocks = (load.outstanding_prefill_tokens + prompt_tokens) as f64 / block;
        let credit = self.config.overlap_score_credit * f64::from(load.overlap_blocks);
        let new_blocks = query.prompt.len_tokens().div_ceil(query.block_size_tokens) - load.overlap_blocks;
        let requests = load.running_requests + load.waiting_requests;
        self.config.prefill_load_scale * (prefill_blocks - credit).max(0.0)
            + f64::from(load.active_blocks + new_blocks)
            + self.config.decode_active_request_weight * f64::from(requests)
    }
}

impl Router for KvAware {
    fn route(&mut self, query: &RouteQuery<'_>, workers: &[WorkerLoad]) -> usize {
        let mut best = 0;
        let mut best_cost = f64::INFINITY;
        for (index, load) in workers.iter().enumerate() {
            let cost = self.cost(query, load);
            let busy = |w: &WorkerLoad| w.running_requests + w.waiting_requests;
            if cost < best_cost || (cost == best_cost && busy(load) < busy(&workers[best])) {
                best = index;
                best_cost = cost;
            }
        }
        best
    }

    fn needs_overlap(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(count: u32) -> Vec<WorkerLoad> {
        (0..count).map(|worker| WorkerLoad { worker, total_blocks: 100, ..WorkerLoad::default() }).collect()
    }

    fn prompt(tokens: u32) -> Prompt {
        let mut prompt = Prompt::new(16, 0);
        prompt.push_run(1, 0, tokens);
        prompt
    }

    fn choices(router: &RouterConfig, loads: &[WorkerLoad], times: usize) -> Vec<u32> {
        let prompt = prompt(64);
        let query = RouteQuery { prompt: &prompt, block_size_tokens: 16 };
        let mut router = router.build();
        (0..times).map(|_| loads[router.route(&query, loads)].worker).collect()
    }

    #[test]
    fn round_robin_takes_turns_and_skips_missing_workers() {
        let mut three = loads(3);
        assert_eq!(choices(&RouterConfig::RoundRobin, &three, 4), [0, 1, 2, 0]);
        three.remove(1);
        assert_eq!(choices(&RouterConfig::RoundRobin, &three, 4), [0, 2, 0, 2]);
    }

    #[test]
    fn least_loaded_counts_waiting_requests_too() {
        let mut two = loads(2);
        two[0].running_requests = 2;
        two[1].running_requests = 1;
        two[1].waiting_requests = 2;
        assert_eq!(choices(&RouterConfig::LeastLoaded, &two, 1), [0]);
    }

    #[test]
    fn kv_aware_prefers_the_cache_until_load_outweighs_it() {
        let router = RouterConfig::KvAware(KvAwareConfig::default());
        let mut two = loads(2);
        two[1].overlap_blocks = 3;
        assert_eq!(choices(&router, &two, 1), [1]);
        two[1].active_blocks = 50;
        assert_eq!(choices(&router, &two, 1), [0]);
    }

    #[test]
    fn kv_aware_breaks_ties_by_requests_then_by_worker() {
        let router = RouterConfig::KvAware(KvAwareConfig::default());
        let mut two = loads(2);
        assert_eq!(choices(&router, &two, 1), [0]);
        two[0].running_requests = 1;
        assert_eq!(choices(&router, &two, 1), [1]);
    }
}
