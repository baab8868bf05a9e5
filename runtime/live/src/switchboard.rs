//! The router of a process's engines: what it knows of them, and the mail by
//! which they give requests to each other.
//!
//! An engine asks it for each request that its frontend sends. Where the router
//! chooses another one, that one computes the request, and what comes of it
//! goes back by mail: to its frontend it belongs to the engine that it was
//! sent to. Without a router there is no switchboard.

use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventLog};
use vcr_core::route::{Choice, EndedRequest, RouteError, RouteQuery, Router, WorkerLoad};
use vcr_core::{Engine, EngineConfig};
use vcr_wire::{EngineCoreRequest, Line, Waker, monotonic_ns};

/// Shared by all engines of a process. An engine is its place among them.
pub(crate) struct Switchboard {
    routing: Mutex<Routing>,
    needs_overlap: bool,
    needs_ended: bool,
    /// Told to the router with the next request, so that who ends one never
    /// waits for a choice.
    ended: Mutex<Vec<EndedRequest>>,
    desks: Vec<Desk>,
    max_num_seqs: u32,
    total_blocks: u32,
    /// Zero on the router's clock.
    origin_ns: u64,
}

struct Routing {
    router: Box<dyn Router>,
    next: NonZeroU64,
    loads: Vec<WorkerLoad>,
}

/// What the switchboard has of one engine.
struct Desk {
    place: Mutex<Place>,
    mailbox: Mutex<Mailbox>,
    waker: Waker,
}

/// How an engine stands, as it told last.
#[derive(Default)]
struct Place {
    takes_requests: bool,
    running_requests: u32,
    waiting_requests: u32,
    active_blocks: u32,
    outstanding_prefill_tokens: u64,
    /// Requests that were routed to it and are not among the above yet.
    coming_requests: u32,
    coming_tokens: u64,
    /// Hashes of the blocks in its prefix cache, and how many blocks have them;
    /// kept where the router needs it.
    cached: HashTable<(BlockHash, u32)>,
}

#[derive(Default)]
struct Mailbox {
    is_open: bool,
    mails: Vec<Mail>,
}

/// What one engine tells another.
pub(crate) enum Mail {
    /// A request to be computed.
    Request(Box<RoutedRequest>),
    /// A request that was given away is not wanted any more.
    Abort(Ticket, Box<str>),
    /// Outputs of requests that were given away, for an API server.
    Outputs { client: u32, frame: Vec<u8> },
    /// A request that was given away has ended, and everything of it was sent.
    Ended(Ticket, Box<str>),
    /// Whoever was to compute a request is gone.
    Lost(Ticket, Box<str>),
}

/// A request on its way to the engine that computes it.
pub(crate) struct RoutedRequest {
    pub(crate) ticket: Ticket,
    /// The engine whose frontend waits for it.
    pub(crate) home: usize,
    /// That frontend's line, and whether it is told of versions of weights.
    pub(crate) line: Line,
    pub(crate) tells_weight_version: bool,
    pub(crate) request: EngineCoreRequest,
}

/// A request as the router knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) number: NonZeroU64,
    /// Tokens that the engine must compute for it, as far as could be seen.
    prefill_tokens: u32,
}

/// What the router decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    To(usize, Ticket),
    Shed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of an engine ends all of them; until then what it left is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switchboard {
    /// For engines of `config` that are woken by `wakers`; all of them are away.
    pub(crate) fn new(router: Box<dyn Router>, config: &EngineConfig, wakers: Vec<Waker>) -> Self {
        let desk = |waker| Desk { place: Mutex::default(), mailbox: Mutex::default(), waker };
        Self {
            needs_overlap: router.needs_overlap(),
            needs_ended: router.needs_ended(),
            routing: Mutex::new(Routing { router, next: NonZeroU64::MIN, loads: Vec::new() }),
            ended: Mutex::default(),
            desks: wakers.into_iter().map(desk).collect(),
            max_num_seqs: config.max_num_seqs,
            total_blocks: config.num_gpu_blocks - 1,
            origin_ns: monotonic_ns(),
        }
    }

    /// Whether engines must record what their caches hold.
    pub(crate) fn needs_overlap(&self) -> bool {
        self.needs_overlap
    }

    /// Engines of the process.
    pub(crate) fn engines(&self) -> usize {
        self.desks.len()
    }

    /// An engine begins to serve, with nothing in its cache.
    pub(crate) fn open(&self, engine: usize) {
        let desk = &self.desks[engine];
        lock(&desk.place).cached.clear();
        lock(&desk.mailbox).is_open = true;
    }

    /// An engine serves no longer. Gives the mail that it has not read.
    pub(crate) fn close(&self, engine: usize) -> Vec<Mail> {
        let desk = &self.desks[engine];
        lock(&desk.place).takes_requests = false;
        let mut mailbox = lock(&desk.mailbox);
        mailbox.is_open = false;
        std::mem::take(&mut mailbox.mails)
    }

    /// Tells how an engine stands, the requests among it that it has `taken`.
    pub(crate) fn tell(&self, index: usize, engine: &Engine, takes_requests: bool, taken: &[Ticket]) {
        let mut place = lock(&self.desks[index].place);
        place.takes_requests = takes_requests;
        place.running_requests = engine.num_running() as u32;
        place.waiting_requests = engine.num_waiting() as u32;
        place.active_blocks = engine.pool().num_active();
        place.outstanding_prefill_tokens = engine.outstanding_prefill_tokens();
        place.forget_coming(taken);
    }

    /// Tells what has changed in the cache of an engine.
    pub(crate) fn follow(&self, engine: usize, log: &KvEventLog) {
        if self.needs_overlap {
            lock(&self.desks[engine].place).follow(log);
        }
    }

    /// A request will not come to the engine that it was routed to: that is over
    /// for the router.
    pub(crate) fn not_coming(&self, engine: usize, ticket: Ticket) {
        lock(&self.desks[engine].place).forget_coming(&[ticket]);
        self.ended(engine, ticket.number, 0, true);
    }

    /// Asks the router. What `query` says of time and number is filled in, and
    /// so is a session of 0: then the request is a session to itself. `None`
    /// where no engine takes requests now.
    ///
    /// # Errors
    /// When the router fails.
    pub(crate) fn route(&self, query: RouteQuery<'_>) -> Result<Option<Way>, RouteError> {
        let mut routing = lock(&self.routing);
        let Routing { router, next, loads } = &mut *routing;
        loads.clear();
        for (index, desk) in self.desks.iter().enumerate() {
            let place = lock(&desk.place);
            if place.takes_requests {
                let overlap_blocks = if self.needs_overlap { place.overlap_blocks(query.blocks) } else { 0 };
                loads.push(WorkerLoad {
                    worker: index as u32,
                    running_requests: place.running_requests,
                    waiting_requests: place.waiting_requests + place.coming_requests,
                    max_num_seqs: self.max_num_seqs,
                    active_blocks: place.active_blocks,
                    total_blocks: self.total_blocks,
                    outstanding_prefill_tokens: place.outstanding_prefill_tokens + place.coming_tokens,
                    overlap_blocks,
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
        let query = RouteQuery {
            now_ns: monotonic_ns().saturating_sub(self.origin_ns),
            request: number.get(),
            session: if query.session == 0 { number.get() } else { query.session },
            ..query
        };
        let refused = |reason: String| RouteError { router: "router".to_owned(), reason };
        match router.route(&query, loads)? {
            Choice::Shed if query.may_shed => Ok(Some(Way::Shed)),
            Choice::Shed => Err(refused("it refused a request whose prompt has been computed".to_owned())),
            Choice::Worker(position) => {
                let load = loads
                    .get(position)
                    .ok_or_else(|| refused(format!("it chose position {position} of {} engines", loads.len())))?;
                let cached_tokens = load.overlap_blocks.saturating_mul(query.block_size_tokens);
                let ticket = Ticket { number, prefill_tokens: query.prompt_tokens.saturating_sub(cached_tokens) };
                let mut place = lock(&self.desks[load.worker as usize].place);
                place.coming_requests += 1;
                place.coming_tokens += u64::from(ticket.prefill_tokens);
                Ok(Some(Way::To(load.worker as usize, ticket)))
            }
        }
    }

    /// A request has ended that was routed to `engine`.
    pub(crate) fn ended(&self, engine: usize, number: NonZeroU64, output_tokens: u32, failed: bool) {
        if self.needs_ended {
            let ended = EndedRequest { request: number.get(), worker: engine as u32, output_tokens, failed };
            lock(&self.ended).push(ended);
        }
    }

    /// Sends mail to an engine, and wakes it.
    ///
    /// # Errors
    /// The mail, where that engine does not serve.
    pub(crate) fn post(&self, to: usize, mail: Mail) -> Result<(), Mail> {
        let desk = &self.desks[to];
        let mut mailbox = lock(&desk.mailbox);
        if !mailbox.is_open {
            return Err(mail);
        }
        mailbox.mails.push(mail);
        // Otherwise it was woken for what lies there already.
        if mailbox.mails.len() == 1 {
            desk.waker.wake();
        }
        Ok(())
    }

    /// Takes the mail of an engine.
    pub(crate) fn mail(&self, engine: usize) -> Vec<Mail> {
        std::mem::take(&mut lock(&self.desks[engine].mailbox).mails)
    }
}

impl Place {
    fn forget_coming(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            self.coming_requests -= 1;
            self.coming_tokens -= u64::from(ticket.prefill_tokens);
        }
    }

    fn overlap_blocks(&self, blocks: &[BlockHash]) -> u32 {
        let is_cached = |hash: &&BlockHash| self.cached.find(**hash, |(cached, _)| cached == *hash).is_some();
        blocks.iter().take_while(is_cached).count() as u32
    }

    /// Does to the copy what was done to the cache.
    fn follow(&mut self, log: &KvEventLog) {
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
        /// What the router is told of a cache must be what a lookup would find,
        /// also where several blocks have the same content.
        #[test]
        fn the_copy_of_a_cache_is_the_cache(
            sequences in prop::collection::vec((0u64..4, 1usize..6, 0usize..3), 1..60),
        ) {
            let mut pool = KvPool::new(12, true);
            pool.record_events(true);
            let mut place = Place::default();
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
                place.follow(pool.events().expect("they are recorded"));
                pool.clear_events();
                for content in 0..4 {
                    let wanted = hashes(content, 5);
                    prop_assert_eq!(place.overlap_blocks(&wanted), pool.cached_prefix_blocks(&wanted));
                }
            }
        }
    }

    #[test]
    fn mail_is_kept_in_order_and_only_for_who_serves() {
        struct Never;
        impl Router for Never {
            fn route(&mut self, _: &RouteQuery<'_>, _: &[WorkerLoad]) -> Result<Choice, RouteError> {
                Ok(Choice::Shed)
            }
        }
        let config = EngineConfig::new(vcr_core::EngineConfigInput::default()).expect("the defaults are valid");
        let waiter = vcr_wire::Waiter::new().expect("there are descriptors");
        let board = Switchboard::new(Box::new(Never), &config, vec![waiter.waker(), waiter.waker()]);
        let ticket = Ticket { number: NonZeroU64::MIN, prefill_tokens: 3 };
        let abort = |id: &str| Mail::Abort(ticket, id.into());
        assert!(board.post(1, abort("early")).is_err());
        board.open(1);
        for id in ["a", "b"] {
            assert!(board.post(1, abort(id)).is_ok());
        }
        let ids = |mails: Vec<Mail>| -> Vec<String> {
            mails
                .iter()
                .map(|mail| if let Mail::Abort(_, id) = mail { id.to_string() } else { String::new() })
                .collect()
        };
        assert_eq!(ids(board.mail(1)), ["a", "b"]);
        assert!(board.post(1, abort("c")).is_ok());
        assert_eq!(ids(board.close(1)), ["c"]);
        assert!(board.post(1, abort("late")).is_err());
        let query = RouteQuery {
            now_ns: 0,
            request: 0,
            prompt_tokens: 3,
            max_tokens: 1,
            priority: 0,
            lora: None,
            tenant: 0,
            session: 0,
            block_size_tokens: 16,
            phase: vcr_core::route::RoutePhase::Whole,
            may_shed: true,
            blocks: &[],
        };
        assert_eq!(board.route(query), Ok(None), "nobody serves");
    }
}
