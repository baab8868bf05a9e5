//! The workers that serve sessions.

use std::collections::{BTreeMap, BTreeSet};

use vcr_core::route::{Choice, EndedRequest, RouteError, RouteRequest, Router, WorkerLoad};
use vcr_core::seed::mix;

use crate::config::{SessionHashConfig, StickyConfig};

/// Maximum number of remembered sessions. The least recently used ones are forgotten.
const MAX_SESSIONS: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Place {
    worker: u32,
    used_ns: u64,
}

/// The worker that served each session last.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Whether further requests of a session go to the same worker.
    pins: bool,
    ttl_ns: Option<u64>,
    places: BTreeMap<u64, Place>,
    /// Whether the latest request went to another worker than its session's previous request.
    has_moved: bool,
    /// Requests in flight that were sent to their session's worker without asking the router.
    unasked: BTreeSet<u64>,
}

impl Sessions {
    /// Sessions whose requests stay with a worker.
    pub(super) fn pinned(config: &StickyConfig) -> Self {
        Self { pins: true, ttl_ns: config.ttl_ns, ..Self::default() }
    }

    /// Sessions of another router, to record which of them move.
    pub(super) fn watched() -> Self {
        Self::default()
    }

    /// The worker of a session, unless the session was unused for too long.
    fn place(&self, session: u64, now_ns: u64) -> Option<u32> {
        let place = self.places.get(&session)?;
        let is_kept = self.ttl_ns.is_none_or(|ttl_ns| now_ns.saturating_sub(place.used_ns) <= ttl_ns);
        is_kept.then_some(place.worker)
    }

    /// The worker that a request must go to, if that worker is up.
    pub(super) fn pin(&self, query: &RouteRequest<'_>, is_up: impl Fn(u32) -> bool) -> Option<u32> {
        self.place(query.session, query.now_ns).filter(|&worker| self.pins && is_up(worker))
    }

    pub(super) fn enter(&mut self, query: &RouteRequest<'_>, worker: u32) {
        let before = self.place(query.session, query.now_ns);
        self.has_moved = before.is_some_and(|before| before != worker);
        self.places.insert(query.session, Place { worker, used_ns: query.now_ns });
        if self.places.len() > MAX_SESSIONS {
            let mut used: Vec<u64> = self.places.values().map(|place| place.used_ns).collect();
            let (_, middle_ns, _) = used.select_nth_unstable(MAX_SESSIONS / 2);
            let middle_ns = *middle_ns;
            self.places.retain(|_, place| place.used_ns > middle_ns);
        }
    }

    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Records that the router was not asked about a request, so that the router does not see its end either.
    pub(super) fn pass_by(&mut self, request: u64) {
        self.unasked.insert(request);
    }

    /// Whether the router was asked about a request that has ended.
    pub(super) fn was_asked(&mut self, request: u64) -> bool {
        !self.unasked.remove(&request)
    }
}

/// Asks another router for the first request of each session. Later requests go to the same worker while it is up.
pub(super) struct Sticky {
    pub(super) router: Box<dyn Router>,
    pub(super) sessions: Sessions,
}

impl Router for Sticky {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let pin = self.sessions.pin(query, |worker| workers.iter().any(|load| load.worker == worker));
        let choice = match pin {
            Some(worker) => {
                if self.router.needs_ended() {
                    self.sessions.pass_by(query.id);
                }
                Choice::Worker(worker)
            }
            None => self.router.route(query, workers)?,
        };
        if let Choice::Worker(worker) = choice {
            self.sessions.enter(query, worker);
        }
        Ok(choice)
    }

    fn needs_overlap(&self) -> bool {
        self.router.needs_overlap()
    }

    fn needs_ended(&self) -> bool {
        self.router.needs_ended()
    }

    fn ended(&mut self, request: &EndedRequest) {
        if self.sessions.was_asked(request.id) {
            self.router.ended(request);
        }
    }
}

/// Rendezvous hashing: each session goes to the worker with the highest weight for it. A worker that starts or
/// stops therefore moves only its own sessions.
pub(super) struct SessionHash {
    pub(super) config: SessionHashConfig,
    pub(super) seed: u64,
}

impl Router for SessionHash {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        let requests = |load: &WorkerLoad| u64::from(load.running_requests) + u64::from(load.waiting_requests);
        let mean = (workers.iter().map(requests).sum::<u64>() + 1) as f64 / workers.len() as f64;
        let most = self.config.load_factor.map_or(f64::INFINITY, |factor| factor * mean);
        let session = mix(self.seed ^ mix(query.session));
        let weight = |load: &WorkerLoad| mix(session ^ mix(u64::from(load.worker) + 1));
        // Some worker has at most the mean number of requests, so at least one has room.
        let has_room = |load: &&WorkerLoad| (requests(load) + 1) as f64 <= most.max(mean.ceil());
        let chosen = workers.iter().filter(has_room).max_by_key(|load| weight(load));
        Ok(Choice::Worker(chosen.or(workers.first()).map_or(0, |load| load.worker)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RouterConfig;

    fn loads(count: u32) -> Vec<WorkerLoad> {
        (0..count).map(|worker| WorkerLoad { worker, ..WorkerLoad::default() }).collect()
    }

    fn chosen(router: &mut dyn Router, session: u64, now_ns: u64, workers: &[WorkerLoad]) -> u32 {
        match router.route(&RouteRequest { session, now_ns, ..RouteRequest::default() }, workers) {
            Ok(Choice::Worker(worker)) => worker,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_worker_that_goes_moves_its_own_sessions_only() {
        let mut router = SessionHash { config: SessionHashConfig::default(), seed: 7 };
        let four = loads(4);
        let before: Vec<u32> = (0..1_000).map(|session| chosen(&mut router, session, 0, &four)).collect();
        for worker in 0..4 {
            let sessions = before.iter().filter(|&&chosen| chosen == worker).count();
            assert!((180..320).contains(&sessions), "worker {worker} has {sessions}");
        }
        let three: Vec<WorkerLoad> = four.iter().filter(|load| load.worker != 2).copied().collect();
        for (session, before) in before.iter().enumerate() {
            let after = chosen(&mut router, session as u64, 0, &three);
            assert!(if *before == 2 { after != 2 } else { after == *before }, "session {session}");
        }
    }

    #[test]
    fn bounded_loads_move_what_a_worker_has_too_much_of() {
        let bounded = SessionHashConfig { load_factor: Some(1.25) };
        let mut router = SessionHash { config: bounded, seed: 7 };
        let mut two = loads(2);
        let home = chosen(&mut router, 5, 0, &two);
        two[home as usize].running_requests = 10;
        assert_eq!(chosen(&mut router, 5, 0, &two), 1 - home);
        let mut unbounded = SessionHash { config: SessionHashConfig::default(), seed: 7 };
        assert_eq!(chosen(&mut unbounded, 5, 0, &two), home);
    }

    #[test]
    fn sessions_stay_until_their_worker_is_gone_or_their_time_is_over() {
        let config = StickyConfig { router: RouterConfig::LeastLoaded, ttl_ns: Some(100) };
        let sessions = Sessions::pinned(&config);
        let mut router = Sticky { router: Box::new(super::super::native::LeastLoaded), sessions };
        let mut three = loads(3);
        assert_eq!(chosen(&mut router, 1, 0, &three), 0);
        three[0].running_requests = 5;
        assert_eq!((chosen(&mut router, 1, 90, &three), chosen(&mut router, 2, 90, &three)), (0, 1));
        assert!(!router.sessions.take_moved());
        // The session's worker has been removed: the session moves, and stays there when the worker is back.
        assert_eq!(chosen(&mut router, 1, 150, &three[1..]), 1);
        assert!(router.sessions.take_moved());
        three[1].running_requests = 9;
        assert_eq!(chosen(&mut router, 1, 200, &three), 1);
        assert_eq!(chosen(&mut router, 1, 301, &three), 2, "it has not been used for too long");
        assert!(!router.sessions.take_moved());
    }
}
