//! Routers that are called once per request with the loads of the engines.

use std::collections::BTreeMap;

use super::sessions::{SessionHash, Sessions, Sticky};
use super::{PoolRouter, RouteInput, Routed, RoutedTo};
use vcr_core::route::{Choice, EndedRequest, RouteError, RouteRequest, Router, WorkerLoad};
use vcr_core::{PluginContext, ServingEngine, TierRun};

use crate::config::{KvAwareConfig, LoraAffinityConfig, RouterConfig};
use crate::fleet::Worker;
use vcr_policy::prefix_affinity::{AffinityConfig, PrefixAffinity};

impl RouterConfig {
    /// Makes the router.
    ///
    /// # Errors
    /// When the configuration is invalid, when the caller's factory fails, or for [`Self::Kv`], which needs more
    /// than the inputs of a [`Router`].
    pub fn build(&self, plugin_context: &PluginContext<'_>) -> Result<Box<dyn Router>, RouteError> {
        Ok(match self {
            Self::RoundRobin => Box::new(RoundRobin::over(0, 1)),
            Self::LeastLoaded => Box::new(LeastLoaded),
            Self::KvAware(config) => Box::new(KvAware { config: *config }),
            Self::Kv(_) => {
                let reason = "it needs more than the inputs of other routers, so it cannot replace one";
                return Err(RouteError { router: "kv_router".to_owned(), reason: reason.to_owned() });
            }
            Self::PrefixAffinity(config) => Box::new(Affine::new(*config, plugin_context.seed)?),
            Self::LoraAffinity(config) => Box::new(LoraAffinity { config: *config, adapters: BTreeMap::new() }),
            Self::SessionHash(config) => Box::new(SessionHash { config: *config, seed: plugin_context.seed }),
            Self::Sticky(config) => {
                let router = config.router.build(plugin_context)?;
                Box::new(Sticky { router, sessions: Sessions::pinned(config) })
            }
            Self::Made(make) => make(plugin_context)?,
        })
    }
}

pub(crate) struct RoundRobin {
    engines: u32,
    ranks: u32,
    next_turn: u32,
}

impl RoundRobin {
    /// A round robin over `engines` engines with `ranks` ranks each. The ranks of an engine take the engine's turns
    /// in rotation.
    pub(crate) fn over(engines: u32, ranks: u32) -> Self {
        Self { engines, ranks, next_turn: 0 }
    }

    /// The position of a worker's turn in a full round.
    fn turn(&self, worker: u32) -> u32 {
        worker % self.ranks * self.engines + worker / self.ranks
    }
}

impl Router for RoundRobin {
    fn route(&mut self, _query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let turns = || workers.iter().map(|load| (load.worker, self.turn(load.worker)));
        // Workers that are down are absent, so their turns pass to the next worker that is up.
        let next = turns().filter(|(_, turn)| *turn >= self.next_turn).min_by_key(|(_, turn)| *turn);
        let (choice, turn) = next.or_else(|| turns().min_by_key(|(_, turn)| *turn)).unwrap_or((0, 0));
        self.next_turn = turn + 1;
        Ok(Choice::Worker(choice))
    }

    fn requests_before(&self, worker: u32) -> Option<u64> {
        let round = self.engines * self.ranks;
        // The number is not wrapped after the last turn of a round.
        let next_turn = if self.next_turn < round { self.next_turn } else { 0 };
        Some(u64::from((self.turn(worker) + round - next_turn) % round))
    }
}

pub(super) struct LeastLoaded;

impl Router for LeastLoaded {
    fn route(&mut self, _query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let load = |w: &WorkerLoad| (w.running_requests + w.waiting_requests, w.outstanding_prefill_tokens, w.worker);
        Ok(Choice::Worker(workers.iter().min_by_key(|worker| load(worker)).map_or(0, |worker| worker.worker)))
    }
}

/// The scores of `lora-affinity-scorer` and `queue-scorer` of the Gateway API Inference Extension. An engine is
/// assumed to hold the adapters of its latest requests, up to its maximum number of adapters.
struct LoraAffinity {
    config: LoraAffinityConfig,
    /// Adapters by worker, most recently used last.
    adapters: BTreeMap<u32, Vec<u32>>,
}

const HAS_ADAPTER: f64 = 1.0;
/// Score of a worker that has room for the adapter.
const HAS_PLACE: f64 = 0.8;

impl LoraAffinity {
    fn affinity(&self, adapter: Option<u32>, worker: u32) -> f64 {
        let Some(adapter) = adapter else { return 0.0 };
        match self.adapters.get(&worker) {
            Some(adapters) if adapters.contains(&adapter) => HAS_ADAPTER,
            Some(adapters) if adapters.len() >= self.config.max_loras as usize => 0.0,
            _ => HAS_PLACE,
        }
    }
}

impl Router for LoraAffinity {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let waiting = || workers.iter().map(|load| load.waiting_requests);
        let (least, most) = (waiting().min().unwrap_or(0), waiting().max().unwrap_or(0));
        let score = |load: &WorkerLoad| {
            let queue =
                if most == least { 1.0 } else { f64::from(most - load.waiting_requests) / f64::from(most - least) };
            self.config.weight * self.affinity(query.adapter, load.worker) + queue
        };
        let busy = |load: &WorkerLoad| load.running_requests + load.waiting_requests;
        let better = |one: &&WorkerLoad, other: &&WorkerLoad| {
            let order = score(one).total_cmp(&score(other));
            order.then(busy(other).cmp(&busy(one))).then(other.worker.cmp(&one.worker))
        };
        let worker = workers.iter().max_by(better).map_or(0, |load| load.worker);
        if let Some(adapter) = query.adapter {
            let adapters = self.adapters.entry(worker).or_default();
            adapters.retain(|other| *other != adapter);
            adapters.push(adapter);
            adapters.drain(..adapters.len().saturating_sub(self.config.max_loras as usize));
        }
        Ok(Choice::Worker(worker))
    }
}

/// The cost of Dynamo's KV router, but with exact knowledge of the caches and with ties broken by load.
struct KvAware {
    config: KvAwareConfig,
}

impl KvAware {
    fn cost(&self, query: &RouteRequest<'_>, load: &WorkerLoad) -> f64 {
        let block = f64::from(query.block_size_tokens);
        let prompt_tokens = u64::from(query.prompt_tokens);
        let prefill_blocks = (load.outstanding_prefill_tokens + prompt_tokens) as f64 / block;
        let credit = self.config.overlap_score_credit * f64::from(load.cached_prompt_blocks);
        let new_blocks = query.prompt_tokens.div_ceil(query.block_size_tokens) - load.cached_prompt_blocks;
        let requests = load.running_requests + load.waiting_requests;
        self.config.prefill_load_scale * (prefill_blocks - credit).max(0.0)
            + f64::from(load.active_blocks + new_blocks)
            + self.config.decode_active_request_weight * f64::from(requests)
    }
}

impl Router for KvAware {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
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
        Ok(Choice::Worker(workers.get(best).map_or(0, |load| load.worker)))
    }

    fn needs_overlap(&self) -> bool {
        true
    }
}

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
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        Ok(self.0.choose(query, workers.iter().copied()))
    }

    fn needs_overlap(&self) -> bool {
        true
    }
}

pub(super) struct LoadRouter {
    router: Box<dyn Router>,
    /// The workers of sessions, if sessions are sticky.
    sessions: Option<Sessions>,
    /// Scratch.
    loads: Vec<WorkerLoad>,
}

impl LoadRouter {
    pub(super) fn new(router: Box<dyn Router>) -> Self {
        Self { router, sessions: None, loads: Vec::new() }
    }

    pub(super) fn with_sessions(self, sessions: Sessions) -> Self {
        Self { sessions: Some(sessions), ..self }
    }
}

impl PoolRouter for LoadRouter {
    fn route(&mut self, request: &RouteInput<'_>, workers: &mut [Worker]) -> Result<Routed, RouteError> {
        let query = &request.query;
        let needs_overlap = self.router.needs_overlap();
        let needs_tiers = needs_overlap && self.router.needs_tiers();
        self.loads.clear();
        let loads = &mut self.loads;
        let look = |worker: &mut Worker| {
            if !worker.lifecycle().is_up() {
                return;
            }
            let hit = if needs_overlap { worker.engine().cached_prefix_blocks(query.block_hashes) } else { 0 };
            let beyond = &query.block_hashes[hit as usize..];
            let tiers = if needs_tiers { worker.find_tier_run(query.now_ns, beyond) } else { TierRun::default() };
            loads.push(worker.load(hit, tiers));
        };
        match needs_tiers {
            true => Worker::each_with_tiers(workers, look),
            false => workers.iter_mut().for_each(look),
        }
        if self.loads.is_empty() {
            return Ok(Routed::Nowhere);
        }
        let Some(sessions) = &mut self.sessions else { return choose(self.router.as_mut(), query, &self.loads) };
        let pin = sessions.pin(query, |worker| self.loads.iter().any(|load| load.worker == worker));
        let routed = match pin {
            Some(worker) => {
                if self.router.needs_ended() {
                    sessions.pass_by(query.id);
                }
                let load = self.loads.iter().find(|load| load.worker == worker).filter(|_| needs_overlap);
                Routed::To(RoutedTo { worker, overlap_blocks: load.map(|load| load.cached_prompt_blocks) })
            }
            None => choose(self.router.as_mut(), query, &self.loads)?,
        };
        if let Routed::To(to) = routed {
            sessions.enter(query, to.worker);
        }
        Ok(routed)
    }

    fn take_moved(&mut self) -> bool {
        self.sessions.as_mut().is_some_and(Sessions::take_moved)
    }

    fn requests_before(&self, worker: u32) -> Option<u64> {
        self.router.requests_before(worker)
    }

    fn ended(&mut self, _now_ns: u64, request: &EndedRequest) {
        let was_asked = |sessions: &mut Sessions| sessions.was_asked(request.id);
        if self.router.needs_ended() && self.sessions.as_mut().is_none_or(was_asked) {
            self.router.ended(request);
        }
    }
}

fn choose(router: &mut dyn Router, query: &RouteRequest<'_>, loads: &[WorkerLoad]) -> Result<Routed, RouteError> {
    let refused = |reason: String| Err(RouteError { router: "router".to_owned(), reason });
    match router.route(query, loads)? {
        Choice::Refuse if query.may_refuse => Ok(Routed::Shed),
        Choice::Refuse => refused("it refused a request that has been with an engine before".to_owned()),
        Choice::Worker(worker) => match loads.iter().find(|load| load.worker == worker) {
            Some(load) => Ok(Routed::To(RoutedTo {
                worker: load.worker,
                overlap_blocks: router.needs_overlap().then_some(load.cached_prompt_blocks),
            })),
            None => refused(format!("it chose the engine {worker}, which is not up")),
        },
    }
}

#[cfg(test)]
mod tests {
    use vcr_core::route::RoutePhase;
    use vcr_policy::prefix_affinity::AffinityConfig;

    use super::*;

    fn loads(count: u32) -> Vec<WorkerLoad> {
        (0..count).map(|worker| WorkerLoad { worker, total_blocks: 100, ..WorkerLoad::default() }).collect()
    }

    fn query(blocks: &[u64]) -> RouteRequest<'_> {
        RouteRequest {
            now_ns: 0,
            id: 0,
            prompt_tokens: 64,
            max_tokens: 8,
            priority: 0,
            adapter: None,
            tenant: 0,
            slo: Default::default(),
            session: 0,
            block_size_tokens: 16,
            phase: RoutePhase::Whole,
            may_refuse: true,
            block_hashes: blocks,
        }
    }

    fn choices(router: &RouterConfig, loads: &[WorkerLoad], times: usize) -> Vec<u32> {
        let query = query(&[1, 2, 3, 4]);
        let mut router = router.build(&PluginContext::of_seed(1)).expect("it can be made");
        let choices = (0..times).map(|_| match router.route(&query, loads) {
            Ok(Choice::Worker(worker)) => worker,
            answer => panic!("{answer:?}"),
        });
        choices.collect()
    }

    #[test]
    fn round_robin_takes_turns_and_skips_missing_workers() {
        let mut three = loads(3);
        assert_eq!(choices(&RouterConfig::RoundRobin, &three, 4), [0, 1, 2, 0]);
        three.remove(1);
        assert_eq!(choices(&RouterConfig::RoundRobin, &three, 4), [0, 2, 0, 2]);
    }

    #[test]
    fn engines_take_turns_and_so_do_the_ranks_of_each() {
        let mut four = loads(4);
        let mut router = RoundRobin::over(2, 2);
        let mut next = |loads: &[WorkerLoad]| match router.route(&query(&[]), loads) {
            Ok(Choice::Worker(worker)) => worker,
            answer => panic!("{answer:?}"),
        };
        assert_eq!([0; 6].map(|_| next(&four)), [0, 2, 1, 3, 0, 2]);
        four.drain(2..);
        assert_eq!([0; 3].map(|_| next(&four)), [1, 0, 1]);
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
    fn lora_affinity_weighs_adapters_against_queues() {
        let config = LoraAffinityConfig { weight: 1.0, max_loras: 1 };
        let mut router = RouterConfig::LoraAffinity(config).build(&PluginContext::of_seed(1)).expect("it can be made");
        let mut route =
            |adapter, loads: &[WorkerLoad]| match router.route(&RouteRequest { adapter, ..query(&[]) }, loads) {
                Ok(Choice::Worker(worker)) => worker,
                answer => panic!("{answer:?}"),
            };
        let mut two = loads(2);
        assert_eq!(route(Some(7), &two), 0);
        two[0].running_requests = 9;
        assert_eq!(route(Some(7), &two), 0, "it has the adapter");
        assert_eq!(route(Some(8), &two), 1, "it has a place");
        assert_eq!((route(Some(7), &two), route(Some(8), &two)), (0, 1));
        assert_eq!(route(None, &two), 1, "no adapter: by requests");
        two[0].waiting_requests = 1;
        assert_eq!(route(Some(7), &two), 1, "1 + 0 and 0 + 1: by requests");
    }

    #[test]
    fn kv_aware_prefers_the_cache_until_load_outweighs_it() {
        let router = RouterConfig::KvAware(KvAwareConfig::default());
        let mut two = loads(2);
        two[1].cached_prompt_blocks = 3;
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

    #[test]
    fn prefix_affinity_sees_caches_and_refuses_what_may_be_refused() {
        let config = AffinityConfig { max_waiting: Some(2), ..AffinityConfig::default() };
        let affine = RouterConfig::PrefixAffinity(config);
        let mut two = loads(2);
        two[1].cached_prompt_blocks = 4;
        assert_eq!(choices(&affine, &two, 1), [1]);
        two[0].waiting_requests = 3;
        two[1].waiting_requests = 3;
        let mut router = affine.build(&PluginContext::of_seed(1)).expect("it can be made");
        assert_eq!(router.route(&query(&[1]), &two), Ok(Choice::Refuse));
        let served = RouteRequest { may_refuse: false, ..query(&[1]) };
        assert_eq!(router.route(&served, &two), Ok(Choice::Worker(1)));
    }

    #[test]
    fn a_bad_config_is_an_error_that_names_the_router() {
        let affine = RouterConfig::PrefixAffinity(AffinityConfig { load_factor: 0.0, ..AffinityConfig::default() });
        let error = affine.build(&PluginContext::of_seed(1)).err().expect("it is bad").to_string();
        assert_eq!(error, "router `prefix_affinity` failed: invalid `load_factor`: expected 1 to 1e6, got 0");
    }
}
