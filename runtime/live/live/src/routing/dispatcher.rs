//! The router of a process, with the load and the inbox of each engine.
//!
//! An engine asks the router about each request that its frontend sends. If the router chooses another engine, the
//! request goes to that engine's inbox, and the outputs come back through the inbox of the first engine, the
//! *origin*: the frontend believes that the origin computes the request. Without a router there is no dispatcher.

use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventLog};
use vcr_core::route::{Choice, EndedRequest, RouteError, RouteRequest, Router, WorkerLoad};
use vcr_core::{AnyEngine, EngineConfig, ServingEngine as _};
use vcr_wire::{EngineCoreRequest, VllmMinor, Waker, monotonic_ns};

/// Shared by all engines of a process, which have indices from 0.
pub(crate) struct Dispatcher {
    routing: Mutex<Routing>,
    needs_overlap: bool,
    needs_ended: bool,
    /// Ended requests, which the router gets with its next query, so that an engine that ends a request never waits for
    /// the router.
    ended: Mutex<Vec<EndedRequest>>,
    entries: Vec<EngineEntry>,
    max_num_seqs: u32,
    total_blocks: u32,
    /// Time zero on the router's clock.
    origin_ns: u64,
}

struct Routing {
    router: Box<dyn Router>,
    next: NonZeroU64,
    loads: Vec<WorkerLoad>,
}

struct EngineEntry {
    status: Mutex<EngineStatus>,
    inbox: Mutex<Inbox>,
    waker: Waker,
}

/// The load of an engine, as last reported.
#[derive(Default)]
pub(crate) struct EngineStatus {
    pub(crate) takes_requests: bool,
    /// Duration of the last step.
    pub(crate) last_step_ns: u64,
    running_requests: u32,
    waiting_requests: u32,
    loading_requests: u32,
    active_blocks: u32,
    outstanding_prefill_tokens: u64,
    preemption_count: u64,
    /// Requests routed to the engine since its last report, which the counts above do not include yet.
    routed_requests: u32,
    routed_tokens: u64,
    /// Hashes in the engine's prefix cache, with the number of blocks of each. Empty unless the router uses them.
    cached: HashTable<(BlockHash, u32)>,
}

#[derive(Default)]
struct Inbox {
    is_open: bool,
    messages: Vec<PeerMessage>,
}

/// A message from one engine to another.
pub(crate) enum PeerMessage {
    /// A request to compute.
    Request(Box<RoutedRequest>),
    /// Abort of a delegated request.
    Abort(RouteHandle, Box<str>),
    /// Outputs of delegated requests, for an API server of the origin.
    Outputs { client: u32, frame: Vec<u8> },
    /// The end of a delegated request, after its last outputs.
    Ended(RouteHandle, Box<str>),
    /// The engine of this delegated request has been lost.
    Lost(RouteHandle, Box<str>),
}

/// A request in transit to the engine that computes it.
pub(crate) struct RoutedRequest {
    pub(crate) handle: RouteHandle,
    /// The engine whose frontend sent the request.
    pub(crate) origin: usize,
    /// The frontend's version, and whether its messages have a weight version.
    pub(crate) version: VllmMinor,
    pub(crate) sends_weight_version: bool,
    pub(crate) request: Box<EngineCoreRequest>,
}

/// The router's handle of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteHandle {
    pub(crate) number: NonZeroU64,
    /// Prompt tokens to compute, given the cache hits that were known when the request was routed.
    prefill_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    To(usize, RouteHandle),
    Shed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent: no update panics half-way, and a panicked engine ends all engines.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dispatcher {
    /// A dispatcher for the engines of `config`, which `wakers` wake; none of them serves yet.
    pub(crate) fn new(router: Box<dyn Router>, config: &EngineConfig, wakers: Vec<Waker>) -> Self {
        let entry = |waker| EngineEntry { status: Mutex::default(), inbox: Mutex::default(), waker };
        Self {
            needs_overlap: router.needs_overlap(),
            needs_ended: router.needs_ended(),
            routing: Mutex::new(Routing { router, next: NonZeroU64::MIN, loads: Vec::new() }),
            ended: Mutex::default(),
            entries: wakers.into_iter().map(entry).collect(),
            max_num_seqs: config.max_num_seqs(),
            total_blocks: config.num_gpu_blocks() - 1,
            origin_ns: monotonic_ns(),
        }
    }

    /// Whether the router uses prefix caches, so that engines must record cache events.
    pub(crate) fn needs_overlap(&self) -> bool {
        self.needs_overlap
    }

    pub(crate) fn engines(&self) -> usize {
        self.entries.len()
    }

    /// Marks an engine as serving, with no requests and an empty cache. Requests may be routed to it from now on.
    pub(crate) fn open(&self, engine: usize) {
        let entry = &self.entries[engine];
        lock(&entry.inbox).is_open = true;
        let mut status = lock(&entry.status);
        status.cached.clear();
        (status.running_requests, status.waiting_requests, status.active_blocks) = (0, 0, 0);
        (status.loading_requests, status.last_step_ns) = (0, 0);
        status.outstanding_prefill_tokens = 0;
        status.takes_requests = true;
    }

    /// Marks an engine as no longer serving. Returns its unread messages.
    pub(crate) fn close(&self, engine: usize) -> Vec<PeerMessage> {
        let entry = &self.entries[engine];
        lock(&entry.status).takes_requests = false;
        let mut inbox = lock(&entry.inbox);
        inbox.is_open = false;
        std::mem::take(&mut inbox.messages)
    }

    /// The load of an engine, for its report.
    pub(crate) fn status(&self, engine: usize) -> MutexGuard<'_, EngineStatus> {
        lock(&self.entries[engine].status)
    }

    pub(crate) fn apply_cache_events(&self, engine: usize, log: &KvEventLog) {
        if self.needs_overlap {
            lock(&self.entries[engine].status).apply_cache_events(log);
        }
    }

    /// Cancels a routed request that its engine will never take. For the router, the request has failed.
    pub(crate) fn cancel(&self, engine: usize, handle: RouteHandle) {
        lock(&self.entries[engine].status).forget_routed(&[handle]);
        self.ended(engine, handle.number, 0, true);
    }

    /// Asks the router for an engine. Sets the time and the ID of `query`, and gives it a session of its own if its
    /// session is 0. Returns `None` if no engine takes requests now.
    pub(crate) fn route(&self, query: RouteRequest<'_>) -> Result<Option<Decision>, RouteError> {
        let mut routing = lock(&self.routing);
        let Routing { router, next, loads } = &mut *routing;
        loads.clear();
        for (index, entry) in self.entries.iter().enumerate() {
            let status = lock(&entry.status);
            if status.takes_requests {
                let cached_prompt_blocks =
                    if self.needs_overlap { status.overlap_blocks(query.block_hashes) } else { 0 };
                loads.push(WorkerLoad {
                    worker: index as u32,
                    running_requests: status.running_requests,
                    waiting_requests: status.waiting_requests + status.routed_requests,
                    max_running_requests: self.max_num_seqs,
                    active_blocks: status.active_blocks,
                    total_blocks: self.total_blocks,
                    outstanding_prefill_tokens: status.outstanding_prefill_tokens + status.routed_tokens,
                    cached_prompt_blocks,
                    loading_requests: status.loading_requests,
                    last_step_ns: status.last_step_ns,
                    host_prompt_blocks: 0,
                    disk_prompt_blocks: 0,
                    preemption_count: status.preemption_count,
                });
            }
        }
        if loads.is_empty() {
            return Ok(None);
        }
        for request in lock(&self.ended).drain(..) {
            router.ended(&request);
        }
        let number = *next;
        *next = next.saturating_add(1);
        let query = RouteRequest {
            now_ns: monotonic_ns().saturating_sub(self.origin_ns),
            id: number.get(),
            session: if query.session == 0 { number.get() } else { query.session },
            ..query
        };
        let refused = |reason: String| RouteError { router: "router".to_owned(), reason };
        match router.route(&query, loads)? {
            Choice::Refuse if query.may_refuse => Ok(Some(Decision::Shed)),
            Choice::Refuse => Err(refused("it refused a request whose prompt has been computed".to_owned())),
            Choice::Worker(worker) => {
                let load = loads.iter().find(|load| load.worker == worker);
                let load = load.ok_or_else(|| refused(format!("it chose the engine {worker}, which is not up")))?;
                let cached_tokens = load.cached_prompt_blocks.saturating_mul(query.block_size_tokens);
                let handle = RouteHandle { number, prefill_tokens: query.prompt_tokens.saturating_sub(cached_tokens) };
                let mut status = lock(&self.entries[load.worker as usize].status);
                status.routed_requests += 1;
                status.routed_tokens += u64::from(handle.prefill_tokens);
                Ok(Some(Decision::To(load.worker as usize, handle)))
            }
        }
    }

    /// Tells the router that a request which was routed to `engine` has ended.
    pub(crate) fn ended(&self, engine: usize, number: NonZeroU64, output_tokens: u32, failed: bool) {
        if self.needs_ended {
            let ended = EndedRequest { id: number.get(), worker: engine as u32, output_tokens, failed, ttft_ns: None };
            lock(&self.ended).push(ended);
        }
    }

    /// Puts a message into an engine's inbox and wakes the engine.
    pub(crate) fn send(&self, to: usize, message: PeerMessage) -> Result<(), PeerMessage> {
        let entry = &self.entries[to];
        let mut inbox = lock(&entry.inbox);
        if !inbox.is_open {
            return Err(message);
        }
        inbox.messages.push(message);
        // With earlier messages in the inbox, the engine was woken already.
        if inbox.messages.len() == 1 {
            entry.waker.wake();
        }
        Ok(())
    }

    pub(crate) fn receive(&self, engine: usize) -> Vec<PeerMessage> {
        std::mem::take(&mut lock(&self.entries[engine].inbox).messages)
    }
}

impl EngineStatus {
    /// Records the load of the engine, which includes the requests in `taken`.
    pub(crate) fn report_load(&mut self, engine: &AnyEngine, taken: &[RouteHandle]) {
        let load = engine.load();
        self.running_requests = load.num_running as u32;
        self.waiting_requests = load.num_waiting as u32;
        self.loading_requests = load.num_loading as u32;
        self.active_blocks = load.num_active_blocks;
        self.outstanding_prefill_tokens = load.outstanding_prefill_tokens;
        self.preemption_count = engine.stats().preemptions;
        self.forget_routed(taken);
    }

    fn forget_routed(&mut self, handles: &[RouteHandle]) {
        for handle in handles {
            self.routed_requests -= 1;
            self.routed_tokens -= u64::from(handle.prefill_tokens);
        }
    }

    fn overlap_blocks(&self, blocks: &[BlockHash]) -> u32 {
        let is_cached = |hash: &&BlockHash| self.cached.find(**hash, |(cached, _)| cached == *hash).is_some();
        blocks.iter().take_while(is_cached).count() as u32
    }

    /// Applies changes of the cache to the copy.
    fn apply_cache_events(&mut self, log: &KvEventLog) {
        let cached = &mut self.cached;
        for event in log.iter() {
            match event {
                KvEvent::Stored { blocks, .. } => {
                    for &hash in blocks {
                        cached
                            .entry(hash, |(cached, _)| *cached == hash, |(cached, _)| *cached)
                            .and_modify(|(_, blocks)| *blocks += 1)
                            .or_insert((hash, 1));
                    }
                }
                KvEvent::Removed(hash) => {
                    if let Ok(mut entry) = cached.find_entry(hash, |(cached, _)| *cached == hash) {
                        entry.get_mut().1 -= 1;
                        if entry.get().1 == 0 {
                            entry.remove();
                        }
                    }
                }
                KvEvent::Cleared => cached.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use vcr_core::kv_pool::KvPool;

    use super::*;

    proptest! {
        /// The router must see the hits that a lookup would find, also if several blocks have the same content.
        #[test]
        fn the_copy_of_a_cache_is_the_cache(
            sequences in prop::collection::vec((0u64..4, 1usize..6, 0usize..3), 1..60),
        ) {
            let mut pool = KvPool::new(12, true);
            pool.record_events(true);
            let mut status = EngineStatus::default();
            let hashes = |content: u64, len: usize| -> Vec<BlockHash> {
                // Two contents share their first two blocks.
                (0..len as u64).map(|at| vcr_core::seed::mix((if at < 2 { content / 2 } else { content }) << 8 | at)).collect()
            };
            let mut held: VecDeque<Vec<u32>> = VecDeque::new();
            for (content, len, keep) in sequences {
                while held.len() > keep || (pool.num_free() as usize) < len {
                    let Some(table) = held.pop_front() else { break };
                    pool.release(&table);
                }
                if content == 3 && len == 5 && held.is_empty() {
                    prop_assert!(pool.reset_cache());
                } else {
                    let (mut table, hashes) = (Vec::new(), hashes(content, len));
                    pool.allocate(len as u32, &mut table);
                    pool.store(0, None, &table, &hashes, &[]);
                    held.push_back(table);
                }
                status.apply_cache_events(pool.events().expect("they are recorded"));
                pool.clear_events();
                for content in 0..4 {
                    let wanted = hashes(content, 5);
                    prop_assert_eq!(status.overlap_blocks(&wanted), pool.cached_prefix_blocks(&wanted));
                }
            }
        }
    }

    #[test]
    fn messages_keep_their_order_and_need_an_engine_that_serves() {
        struct Never;
        impl Router for Never {
            fn route(&mut self, _: &RouteRequest<'_>, _: &[WorkerLoad]) -> Result<Choice, RouteError> {
                Ok(Choice::Refuse)
            }
        }
        let config = EngineConfig::new(vcr_core::EngineConfigInput::default()).expect("the defaults are valid");
        let waiter = vcr_wire::Waiter::new().expect("there are descriptors");
        let dispatcher = Dispatcher::new(Box::new(Never), &config, vec![waiter.waker(), waiter.waker()]);
        let handle = RouteHandle { number: NonZeroU64::MIN, prefill_tokens: 3 };
        let abort = |id: &str| PeerMessage::Abort(handle, id.into());
        assert!(dispatcher.send(1, abort("early")).is_err());
        dispatcher.open(1);
        for id in ["a", "b"] {
            assert!(dispatcher.send(1, abort(id)).is_ok());
        }
        let ids = |messages: Vec<PeerMessage>| -> Vec<String> {
            messages
                .iter()
                .map(|message| if let PeerMessage::Abort(_, id) = message { id.to_string() } else { String::new() })
                .collect()
        };
        assert_eq!(ids(dispatcher.receive(1)), ["a", "b"]);
        assert!(dispatcher.send(1, abort("c")).is_ok());
        assert_eq!(ids(dispatcher.close(1)), ["c"]);
        assert!(dispatcher.send(1, abort("late")).is_err());
        let query = RouteRequest {
            now_ns: 0,
            id: 0,
            prompt_tokens: 3,
            max_tokens: 1,
            priority: 0,
            adapter: None,
            tenant: 0,
            session: 0,
            slo: Default::default(),
            block_size_tokens: 16,
            phase: vcr_core::route::RoutePhase::Whole,
            may_refuse: true,
            block_hashes: &[],
        };
        assert_eq!(dispatcher.route(query), Ok(None), "no engine serves");
        dispatcher.open(0);
        assert_eq!(dispatcher.route(query), Ok(Some(Decision::Shed)), "an engine serves before it reports its load");
    }
}
