//! Routes requests to workers. Each pool has a router with a queue in front of it.
//!
//! A router is called once per request. It gets everything else through the hooks of [`PoolRouter`], which do
//! nothing by default. Hooks that might run at every step are only called for routers that request them in
//! [`RouterNeeds`].

mod kv;
mod native;
mod sessions;

use vcr_core::route::{EndedRequest, RouteError, RouteRequest};
use vcr_core::{PluginContext, seed};

use crate::config::{PoolConfig, PoolRole, RouterConfig, RunConfig};
use crate::error::SimError;
use crate::event::{Event, EventQueue};
use crate::fleet::{Fleet, Worker};
use kv::{KvRouter, PoolFacts};
use native::{LoadRouter, RoundRobin};
use sessions::Sessions;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteInput<'a> {
    pub(crate) query: RouteRequest<'a>,
    pub(crate) arrival_ns: u64,
    /// Requests with a higher value leave the queue earlier, whatever their priority.
    pub(crate) strict_priority: u32,
    /// The class or family that the request names for the router's queue.
    pub(crate) policy_class: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoutedTo {
    /// Index of the worker in the pool.
    pub(crate) worker: u32,
    /// Number of leading blocks that the router believes are cached there, if it uses caches.
    pub(crate) overlap_blocks: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    To(RoutedTo),
    /// The request is refused.
    Shed,
    /// The request waits in the router.
    Queued,
    /// No suitable worker is up.
    Nowhere,
}

/// The calls that a router needs in addition to `route`. They never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouterNeeds {
    /// Whether requests may wait in the router.
    pub(crate) queue: bool,
    /// Whether the router must see outputs grow.
    pub(crate) outputs: bool,
    /// Whether the router must see each step at its end, instead of several steps at once.
    pub(crate) single_steps: bool,
    /// Whether the router must see the engines' KV events.
    pub(crate) kv_events: bool,
    /// Whether the router sees the KV events of a step when the step ends. Otherwise it sees them when the step
    /// starts.
    pub(crate) kv_events_at_step_end: bool,
}

pub(crate) trait PoolRouter: Send {
    /// Chooses among the workers of the pool that are up.
    fn route(&mut self, request: &RouteInput<'_>, workers: &mut [Worker]) -> Result<Routed, RouteError>;

    fn needs(&self) -> RouterNeeds {
        RouterNeeds::default()
    }

    /// Number of requests that the router will send to other workers before `worker` gets one, if all stay up. None
    /// if unknown.
    fn requests_before(&self, _worker: u32) -> Option<u64> {
        None
    }

    /// Whether the latest request went to another worker than the previous request of its session. Only for routers
    /// with sticky sessions.
    fn take_moved(&mut self) -> bool {
        false
    }

    /// Takes the next request that may leave the queue.
    fn release(&mut self, _now_ns: u64, _workers: &[Worker]) -> Option<(u64, RoutedTo)> {
        None
    }

    /// The time at which queued requests may leave although no other event occurs.
    fn wakes_at_ns(&self) -> Option<u64> {
        None
    }

    /// Number of waiting requests, and the sum of their prompt tokens.
    fn queued(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Removes a request from the queue, if it is there.
    fn leave_queue(&mut self, _request: u64) {}

    fn drain_queue(&mut self) -> Vec<u64> {
        Vec::new()
    }

    fn prefilled(&mut self, _now_ns: u64, _request: u64) {}

    fn generated(&mut self, _now_ns: u64, _request: u64, _output_tokens: u32) {}

    /// A request has left its engine but has not ended.
    fn left(&mut self, _now_ns: u64, _request: u64) {}

    /// A request that this router routed has ended.
    fn ended(&mut self, _now_ns: u64, _request: &EndedRequest) {}

    /// Shows the KV events before `upto` in the worker's log, which were published by `at_ns`.
    fn kv_events(&mut self, _at_ns: u64, _worker: &mut Worker, _upto: usize) {}

    /// A worker has lost its cache and all requests.
    fn crashed(&mut self, _worker: u32) {}
}

struct PoolQueue {
    router: Box<dyn PoolRouter>,
    needs: RouterNeeds,
    /// The scheduled time at which the router checks its queue again, if any.
    wakes_at_ns: Option<u64>,
    /// Whether something happened that may let a request leave the router's queue.
    may_release: bool,
    /// Requests that wait for a worker to start, oldest first.
    parked: Vec<u64>,
}

impl PoolQueue {
    fn of(router: Box<dyn PoolRouter>) -> Self {
        let needs = router.needs();
        Self { router, needs, wakes_at_ns: None, may_release: false, parked: Vec::new() }
    }
}

pub(crate) struct Routing {
    fronts: Vec<PoolQueue>,
}

impl Routing {
    pub(crate) fn new(run: &RunConfig, fleet: &Fleet) -> Result<Self, SimError> {
        let fronts = fleet.pools().iter().map(|pool| Ok(PoolQueue::of(new_router(run, pool.config(), pool.role())?)));
        Ok(Self { fronts: fronts.collect::<Result<_, _>>()? })
    }

    fn front(&self, role: PoolRole) -> &PoolQueue {
        &self.fronts[role.index()]
    }

    fn front_mut(&mut self, role: PoolRole) -> &mut PoolQueue {
        &mut self.fronts[role.index()]
    }

    pub(crate) fn needs(&self, role: PoolRole) -> RouterNeeds {
        self.front(role).needs
    }

    pub(crate) fn requests_before(&self, role: PoolRole, worker: u32) -> Option<u64> {
        self.front(role).router.requests_before(worker)
    }

    pub(crate) fn route(
        &mut self,
        role: PoolRole,
        request: &RouteInput<'_>,
        workers: &mut [Worker],
    ) -> Result<Routed, RouteError> {
        self.front_mut(role).router.route(request, workers)
    }

    /// Whether the request routed last went to another worker than its session's previous one.
    pub(crate) fn take_moved(&mut self, role: PoolRole) -> bool {
        self.front_mut(role).router.take_moved()
    }

    /// Records an event that may let requests leave the router's queue.
    pub(crate) fn may_release(&mut self, role: PoolRole) {
        self.front_mut(role).may_release = true;
    }

    /// Whether requests may leave the router's queue because of any event since the last call.
    pub(crate) fn take_may_release(&mut self, role: PoolRole) -> bool {
        let front = self.front_mut(role);
        std::mem::take(&mut front.may_release) && front.needs.queue
    }

    /// Takes the next request that leaves the router's queue.
    pub(crate) fn release(&mut self, role: PoolRole, now_ns: u64, workers: &[Worker]) -> Option<(u64, RoutedTo)> {
        self.front_mut(role).router.release(now_ns, workers)
    }

    /// Schedules the router's next check of its queue.
    pub(crate) fn expect_wake(&mut self, role: PoolRole, now_ns: u64, events: &mut EventQueue) {
        let front = self.front_mut(role);
        if let Some(at_ns) = front.router.wakes_at_ns()
            && front.wakes_at_ns.is_none_or(|earlier_ns| at_ns < earlier_ns)
        {
            front.wakes_at_ns = Some(at_ns);
            events.push(at_ns.max(now_ns), Event::RouterWakes { pool: role });
        }
    }

    /// Handles a scheduled check of the router's queue.
    pub(crate) fn wake(&mut self, role: PoolRole) {
        let front = self.front_mut(role);
        front.may_release = true;
        front.wakes_at_ns = None;
    }

    /// Makes a request wait for a worker to start.
    pub(crate) fn park(&mut self, role: PoolRole, tag: u64) {
        self.front_mut(role).parked.push(tag);
    }

    pub(crate) fn parked(&self, role: PoolRole) -> &[u64] {
        &self.front(role).parked
    }

    pub(crate) fn take_parked(&mut self, role: PoolRole) -> Vec<u64> {
        std::mem::take(&mut self.front_mut(role).parked)
    }

    /// Removes all requests in front of a pool that will have no more engines.
    pub(crate) fn drain(&mut self, role: PoolRole) -> Vec<u64> {
        let mut tags = self.take_parked(role);
        tags.extend(self.front_mut(role).router.drain_queue());
        tags
    }

    /// Removes a request that waits in front of a pool.
    pub(crate) fn withdraw(&mut self, role: PoolRole, tag: u64) {
        let front = self.front_mut(role);
        front.parked.retain(|&other| other != tag);
        front.router.leave_queue(tag);
    }

    /// Number of requests that wait in front of a pool's engines.
    pub(crate) fn waiting(&self, role: PoolRole) -> u64 {
        let (in_router, _) = self.queued(role);
        self.parked(role).len() as u64 + in_router
    }

    /// Number of requests that wait in the router, and the sum of their prompt tokens.
    pub(crate) fn queued(&self, role: PoolRole) -> (u64, u64) {
        self.front(role).router.queued()
    }

    /// Records that the first token of a request arrived from a pool.
    pub(crate) fn prefilled(&mut self, role: PoolRole, now_ns: u64, tag: u64) {
        self.front_mut(role).router.prefilled(now_ns, tag);
        self.may_release(role);
    }

    /// Records that the output of a request has grown. Only for routers that need outputs.
    pub(crate) fn generated(&mut self, role: PoolRole, now_ns: u64, tag: u64, output_tokens: u32) {
        self.front_mut(role).router.generated(now_ns, tag, output_tokens);
    }

    pub(crate) fn moved_on(&mut self, role: PoolRole, now_ns: u64, tag: u64) {
        self.front_mut(role).router.left(now_ns, tag);
        self.may_release(role);
    }

    pub(crate) fn lost(&mut self, now_ns: u64, tag: u64) {
        for front in &mut self.fronts {
            front.router.left(now_ns, tag);
            front.may_release = true;
        }
    }

    /// Records that `request`, last sent to the workers in `routed`, has ended.
    pub(crate) fn ended(&mut self, now_ns: u64, routed: [Option<u32>; 2], request: EndedRequest) {
        for (front, worker) in self.fronts.iter_mut().zip(routed) {
            if let Some(worker) = worker {
                front.router.ended(now_ns, &EndedRequest { worker, ..request });
                front.may_release = true;
            }
        }
    }

    /// Shows a worker's new KV events to its pool's router, if the router needs them. `at_ns` is the time of the
    /// events.
    pub(crate) fn show_kv_events(&mut self, at_ns: u64, worker: &mut Worker) {
        let front = self.front_mut(worker.role());
        if front.needs.kv_events {
            let upto = worker.num_kv_events();
            front.router.kv_events(at_ns, worker, upto);
        }
    }

    /// Shows the KV events of the steps of a fast-forward. The time of each event is the start or end of its step.
    pub(crate) fn show_fast_forward_events(&mut self, start_ns: u64, durations_ns: &[u64], worker: &mut Worker) {
        let front = self.front_mut(worker.role());
        if !front.needs.kv_events {
            return;
        }
        let (mut out_ns, durations_ns) = match (front.needs.kv_events_at_step_end, durations_ns) {
            (true, [first_ns, rest @ ..]) => (start_ns.saturating_add(*first_ns), rest),
            (_, [rest @ .., _]) => (start_ns, rest),
            (_, []) => return,
        };
        for (step, duration_ns) in durations_ns.iter().enumerate() {
            out_ns = out_ns.saturating_add(*duration_ns);
            let Some(upto) = worker.num_kv_events_by_step(step) else { break };
            front.router.kv_events(out_ns, worker, upto);
        }
        worker.clear_kv_events();
    }

    /// Records that a worker's process has ended and its cache is lost.
    pub(crate) fn crashed(&mut self, worker: &Worker) {
        self.front_mut(worker.role()).router.crashed(worker.index());
    }
}

pub(crate) fn new_router(
    run: &RunConfig,
    config: &PoolConfig,
    role: PoolRole,
) -> Result<Box<dyn PoolRouter>, SimError> {
    let seed = seed::derive(run.seed, &format!("router:{}", config.name), 0);
    if let Some(kv) = config.router.kv() {
        let sessions = match &config.router {
            RouterConfig::Sticky(sticky) => Some(Sessions::pinned(sticky)),
            _ => None,
        };
        let facts = PoolFacts {
            workers: config.most_ranks(),
            block_size_tokens: config.engine.block_size(),
            max_num_batched_tokens: config.engine.max_num_batched_tokens(),
            role,
            has_tiers: config.engine.kv_tiers().is_some(),
        };
        return Ok(Box::new(KvRouter::new(kv.clone(), facts, seed).with_sessions(sessions)));
    }
    let plugin_context = PluginContext { run: &run.name, pool: &config.name, engine: None, engine_info: None, seed };
    let failed = |reason| SimError::Route { pool: config.name.clone(), request: None, at_ms: 0.0, reason };
    let loads = |router: &RouterConfig| Ok(LoadRouter::new(router.build(&plugin_context).map_err(failed)?));
    Ok(Box::new(match &config.router {
        RouterConfig::RoundRobin if role == PoolRole::Aggregated => {
            let router = RoundRobin::over(config.most_engines(), config.data_parallel.size);
            LoadRouter::new(Box::new(router))
        }
        RouterConfig::Sticky(sticky) => loads(&sticky.router)?.with_sessions(Sessions::pinned(sticky)),
        router @ RouterConfig::SessionHash(_) => loads(router)?.with_sessions(Sessions::watched()),
        router => loads(router)?,
    }))
}
