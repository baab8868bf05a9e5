//! The latest exchanges between clients and a server.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use vcr_wire::monotonic_ns;

use super::gist::Gist;
use crate::tee::Passed;

/// Approximate memory of an exchange without its bodies.
const EXCHANGE_BYTES: usize = 2048;
/// The memory of bodies is counted in units of this many bytes, so that most chunks do not change the count.
const PART_BYTES: usize = 4096;
/// Maximum number of exchanges per second that are kept while nobody looks at the list. More would be dropped before
/// anyone could read them. Keeping an exchange takes a sixth of the processor time of a short request.
pub(super) const UNSEEN_PER_SECOND: u64 = 200;
/// For this time after a request for the list, somebody counts as looking at it.
const LOOKING_NS: u64 = 30_000_000_000;
/// The maximum number of engine requests of one exchange that are shown separately.
const ENGINE_REQUESTS: usize = 64;
/// The maximum number of preemption times that are kept per request.
const PREEMPTIONS: usize = 64;

tokio::task_local! {
    pub(super) static CURRENT: Arc<Exchange>;
}

/// The exchange that this task serves, if it is watched.
pub(crate) fn current() -> Option<Arc<Exchange>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Limits of the kept exchanges.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    pub exchanges: usize,
    /// The total memory of all exchanges.
    pub bytes: usize,
    pub body_bytes: usize,
    /// The maximum number of chunks of a response whose times are kept.
    pub chunks: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self { exchanges: 1000, bytes: 64 << 20, body_bytes: 256 << 10, chunks: 8192 }
    }
}

/// The latest exchanges, in order of arrival.
#[derive(Debug)]
pub struct Watch {
    own: Weak<Self>,
    exchanges: Mutex<VecDeque<Arc<Exchange>>>,
    bytes: AtomicUsize,
    last: AtomicU64,
    revision: AtomicU64,
    /// When the list was last requested, or 0.
    asked_ns: AtomicU64,
    /// The current second, and how many exchanges were kept in it.
    kept: Mutex<(u64, u64)>,
    /// The number of exchanges that were not kept.
    skipped: AtomicU64,
    limits: WatchLimits,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    watch: Weak<Watch>,
    pub(super) limits: WatchLimits,
    pub(super) number: u64,
    /// The watch's revision when the exchange started or ended.
    revision: AtomicU64,
    pub(super) start_ns: u64,
    /// Milliseconds since 1970.
    pub(super) start_unix_ms: f64,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) peer: SocketAddr,
    state: Mutex<State>,
    /// A summary of the request body, after it has arrived.
    pub(super) gist: OnceLock<Gist>,
}

/// The start of a body, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    pub(super) left_out: u64,
}

impl Kept {
    fn counted(&self) -> usize {
        self.bytes.len() / PART_BYTES * PART_BYTES
    }
}

/// An engine's report about a request. Times are in seconds on the system's monotonic clock, as in the engine.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineRequest {
    pub(super) id: String,
    pub(super) rank: u16,
    pub(super) prompt_tokens: u64,
    pub(super) max_tokens: Option<u64>,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) queued_s: Option<f64>,
    pub(super) scheduled_s: Option<f64>,
    pub(super) first_token_s: Option<f64>,
    pub(super) last_token_s: Option<f64>,
    pub(super) preempted_s: Vec<f64>,
    pub(super) finish: Option<&'static str>,
}

impl EngineRequest {
    pub(super) fn preempted(&mut self, at_s: f64) {
        if self.preempted_s.len() < PREEMPTIONS {
            self.preempted_s.push(at_s);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) is_forgotten: bool,
    pub(super) request: Kept,
    pub(super) status: Option<u16>,
    pub(super) headers: HeaderMap,
    pub(super) head_ns: u64,
    pub(super) answer: Kept,
    /// The time of each chunk, in nanoseconds since the start, and its length in bytes.
    pub(super) chunks: Vec<(u64, u32)>,
    pub(super) num_chunks: u64,
    pub(super) first_chunk_ns: u64,
    pub(super) last_chunk_ns: u64,
    pub(super) end: Option<(u64, Passed)>,
    pub(super) fault: Option<&'static str>,
    pub(super) engine: Vec<EngineRequest>,
}

impl Watch {
    /// Creates a watch without exchanges.
    #[must_use]
    pub fn new(limits: WatchLimits) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            own: own.clone(),
            exchanges: Mutex::default(),
            bytes: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            asked_ns: AtomicU64::new(0),
            kept: Mutex::default(),
            skipped: AtomicU64::new(0),
            limits,
        })
    }

    /// Whether to keep the next exchange. All are kept while somebody looks at the list. Otherwise, at most
    /// [`UNSEEN_PER_SECOND`] per second are kept.
    pub(super) fn keeps_next(&self) -> bool {
        let now_ns = monotonic_ns();
        let asked_ns = self.asked_ns.load(Ordering::Relaxed);
        if asked_ns > 0 && now_ns.saturating_sub(asked_ns) < LOOKING_NS {
            return true;
        }
        let second = now_ns / 1_000_000_000;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0 != second {
            *kept = (second, 0);
        }
        if kept.1 < UNSEEN_PER_SECOND {
            kept.1 += 1;
            return true;
        }
        self.skipped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Records that somebody looks at the list. Returns how many exchanges were not kept so far.
    pub(super) fn look(&self) -> u64 {
        self.asked_ns.store(monotonic_ns(), Ordering::Relaxed);
        self.skipped.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, request: &Request, peer: SocketAddr) -> Arc<Exchange> {
        let exchange = Arc::new(Exchange {
            watch: self.own.clone(),
            limits: self.limits,
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            revision: AtomicU64::new(self.next_revision()),
            start_ns: monotonic_ns(),
            start_unix_ms: unix_ms(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
            peer,
            state: Mutex::default(),
            gist: OnceLock::new(),
        });
        self.exchanges().push_back(Arc::clone(&exchange));
        self.bytes.fetch_add(EXCHANGE_BYTES, Ordering::Relaxed);
        self.trim();
        exchange
    }

    fn exchanges(&self) -> MutexGuard<'_, VecDeque<Arc<Exchange>>> {
        // A panic cannot leave the list inconsistent.
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_revision(&self) -> u64 {
        self.revision.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts `bytes` more memory, and drops the oldest exchanges if the limit is exceeded.
    fn take(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limits.bytes {
            self.trim();
        }
    }

    /// Drops the oldest exchanges until the limits are met.
    fn trim(&self) {
        loop {
            let mut exchanges = self.exchanges();
            let is_over = self.bytes.load(Ordering::Relaxed) > self.limits.bytes && exchanges.len() > 1;
            if exchanges.len() <= self.limits.exchanges && !is_over {
                return;
            }
            let oldest = exchanges.pop_front();
            drop(exchanges);
            if let Some(oldest) = oldest {
                self.bytes.fetch_sub(oldest.forget(), Ordering::Relaxed);
            }
        }
    }

    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.exchanges());
        for exchange in all {
            self.bytes.fetch_sub(exchange.forget(), Ordering::Relaxed);
        }
        self.next_revision();
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// The number of the oldest kept exchange.
    pub(super) fn oldest(&self) -> u64 {
        self.exchanges().front().map_or(self.last.load(Ordering::Relaxed) + 1, |oldest| oldest.number)
    }

    /// The exchanges that changed after a revision or are in progress.
    pub(super) fn since(&self, revision: u64) -> Vec<Arc<Exchange>> {
        let exchanges: Vec<_> = self.exchanges().iter().cloned().collect();
        let is_new = |exchange: &Arc<Exchange>| {
            // Check the state first: whoever ends an exchange changes both while holding the state.
            let is_under_way = exchange.state().end.is_none();
            is_under_way || exchange.revision.load(Ordering::Relaxed) > revision
        };
        exchanges.into_iter().filter(is_new).collect()
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<Exchange>> {
        self.exchanges().iter().find(|exchange| exchange.number == number).cloned()
    }
}

impl Exchange {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // After a panic, the state is shown as it is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn since_start_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.start_ns)
    }

    /// Frees the exchange's memory. Returns the number of freed bytes.
    fn forget(&self) -> usize {
        let mut state = self.state();
        state.is_forgotten = true;
        let bodies = state.request.counted() + state.answer.counted();
        (state.request, state.answer, state.chunks) = (Kept::default(), Kept::default(), Vec::new());
        bodies + EXCHANGE_BYTES
    }

    fn keep(&self, bytes: &[u8], of: fn(&mut State) -> &mut Kept, then: impl FnOnce(&mut State)) {
        let mut state = self.state();
        if state.is_forgotten {
            return;
        }
        let limit = self.limits.body_bytes;
        let kept = of(&mut state);
        let counted = kept.counted();
        let room = limit.saturating_sub(kept.bytes.len()).min(bytes.len());
        kept.bytes.extend_from_slice(&bytes[..room]);
        kept.left_out += (bytes.len() - room) as u64;
        let more = kept.counted() - counted;
        then(&mut state);
        drop(state);
        if more > 0
            && let Some(watch) = self.watch.upgrade()
        {
            watch.take(more);
        }
    }

    pub(super) fn asked(&self, bytes: &[u8]) {
        self.keep(bytes, |state| &mut state.request, |_| {});
    }

    pub(super) fn chunk(&self, bytes: &[u8]) {
        let at_ns = self.since_start_ns();
        let most = self.limits.chunks;
        let note = |state: &mut State| {
            if state.num_chunks == 0 {
                state.first_chunk_ns = at_ns;
            }
            state.num_chunks += 1;
            state.last_chunk_ns = at_ns;
            if state.chunks.len() < most {
                state.chunks.push((at_ns, u32::try_from(bytes.len()).unwrap_or(u32::MAX)));
            }
        };
        self.keep(bytes, |state| &mut state.answer, note);
    }

    pub(super) fn answered(&self, response: &Response) {
        let mut state = self.state();
        state.head_ns = self.since_start_ns();
        state.status = Some(response.status().as_u16());
        state.headers.clone_from(response.headers());
    }

    /// Records the end of the response. Only the first call counts.
    pub(super) fn ended(&self, end: Passed) {
        let mut state = self.state();
        if state.end.is_none() {
            state.end = Some((self.since_start_ns(), end));
            if let Some(watch) = self.watch.upgrade() {
                self.revision.store(watch.next_revision(), Ordering::Relaxed);
            }
        }
    }

    /// Records a fault of the response.
    pub(crate) fn met(&self, fault: &'static str) {
        self.state().fault.get_or_insert(fault);
    }

    /// Records a request that was sent to an engine. Returns its index, if there is room.
    pub(super) fn engine_begins(&self, request: EngineRequest) -> Option<usize> {
        let mut state = self.state();
        let place = state.engine.len();
        (place < ENGINE_REQUESTS).then(|| {
            state.engine.push(request);
            place
        })
    }

    /// Changes the engine's report about a request.
    pub(super) fn engine_tells(&self, place: usize, tell: impl FnOnce(&mut EngineRequest)) {
        if let Some(request) = self.state().engine.get_mut(place) {
            tell(request);
        }
    }
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn asked(watch: &Watch, bytes: &[u8]) -> Arc<Exchange> {
        let request = Request::new(Body::empty());
        let exchange = watch.begin(&request, ([127, 0, 0, 1], 1).into());
        exchange.asked(bytes);
        exchange
    }

    fn limits() -> WatchLimits {
        WatchLimits { exchanges: 3, bytes: 4 * EXCHANGE_BYTES, body_bytes: PART_BYTES, chunks: 2 }
    }

    #[test]
    fn the_oldest_are_forgotten_beyond_the_limits() {
        let watch = Watch::new(limits());
        let all: Vec<_> = (0..5).map(|_| asked(&watch, b"x")).collect();
        assert_eq!((watch.oldest(), watch.since(0).len()), (3, 3));
        assert!(all[0].state().is_forgotten && !all[2].state().is_forgotten);
        // Memory is limited, too. The bodies of removed exchanges take none.
        all[4].chunk(&[0; 5000]);
        assert!(watch.oldest() > 3);
        assert!(watch.bytes.load(Ordering::Relaxed) <= limits().bytes);
        all[0].chunk(&[0; 5000]);
        assert!(all[0].state().answer.bytes.is_empty());
    }

    #[test]
    fn bodies_and_times_of_chunks_are_limited_and_what_is_left_out_is_counted() {
        let watch = Watch::new(limits());
        let exchange = asked(&watch, b"abc");
        for _ in 0..3 {
            exchange.chunk(&[0; 2000]);
        }
        let state = exchange.state();
        assert_eq!((state.answer.bytes.len(), state.answer.left_out), (PART_BYTES, 6000 - PART_BYTES as u64));
        assert_eq!((state.chunks.len(), state.num_chunks), (2, 3));
        assert!(state.first_chunk_ns <= state.last_chunk_ns);
    }

    #[test]
    fn most_of_a_fast_load_is_not_kept_while_nobody_looks() {
        let watch = Watch::new(limits());
        // This takes far less than ten seconds.
        let kept = (0..10 * UNSEEN_PER_SECOND).filter(|_| watch.keeps_next()).count() as u64;
        assert!((UNSEEN_PER_SECOND..10 * UNSEEN_PER_SECOND).contains(&kept), "{kept}");
        assert_eq!(watch.look(), 10 * UNSEEN_PER_SECOND - kept);
        assert!((0..2 * UNSEEN_PER_SECOND).all(|_| watch.keeps_next()), "somebody looks");
    }

    #[test]
    fn changes_are_told_since_a_revision() {
        let watch = Watch::new(limits());
        let (one, two) = (asked(&watch, b""), asked(&watch, b""));
        one.ended(Passed::Whole);
        one.ended(Passed::Left);
        assert_eq!(one.state().end.as_ref().map(|(_, end)| end.clone()), Some(Passed::Whole));
        let seen = watch.revision();
        let numbers = |revision| watch.since(revision).iter().map(|exchange| exchange.number).collect::<Vec<_>>();
        assert_eq!(numbers(0), [1, 2]);
        assert_eq!(numbers(seen), [2], "what is under way changes always");
        two.ended(Passed::Whole);
        assert_eq!(numbers(seen), [2]);
        assert_eq!(numbers(watch.revision()), [0; 0]);
        watch.clear();
        assert_eq!((numbers(0).len(), watch.oldest()), (0, 3));
        assert_eq!(watch.bytes.load(Ordering::Relaxed), 0);
    }
}
