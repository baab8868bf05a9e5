//! The state that the threads of a plane share: transfers in progress, holds, events and totals.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::error::{ErrorKind, TransferError};
use crate::plane::{Expected, Held, Hold, PlaneContext, PlaneEvent, Wake};
use crate::statistics::{Direction, Moved, Statistics};
use crate::tcp::TcpSettings;
use crate::tcp::frame::PeerInfo;

/// Maximum number of notices that wait to be polled. More are dropped, and their leases end by time.
const MAX_WAITING_NOTICES: usize = 65_536;

pub(super) struct HoldState {
    /// Contents by block.
    pub(super) blocks: HashMap<u32, u64>,
    is_over: AtomicBool,
}

impl HoldState {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// Blocks that a peer is to write.
pub(super) struct ExpectedState {
    pub(super) id: u64,
    pub(super) blocks: HashMap<u32, u64>,
    pub(super) corrupts: AtomicBool,
    started: Instant,
    progress: Mutex<ExpectedProgress>,
}

#[derive(Default)]
struct ExpectedProgress {
    /// Number of missing bytes, by block.
    missing: HashMap<u32, u64>,
    moved: Moved,
    first: Option<Instant>,
}

struct Pending {
    peer: String,
    direction: Direction,
    blocks: Vec<Held>,
    deadline: Instant,
    is_over: Arc<AtomicBool>,
    /// The ID of the transfer, if a peer writes.
    expected: Option<String>,
}

#[derive(Default)]
struct Transfers {
    by_id: HashMap<u64, Pending>,
    deadlines: BTreeSet<(Instant, u64)>,
}

#[derive(Default)]
struct BackgroundWork {
    /// Holds whose pattern must be written.
    holds: VecDeque<Arc<HoldState>>,
    has_news: bool,
}

pub(super) struct Shared {
    pub(super) arena: Arc<Arena>,
    pub(super) settings: TcpSettings,
    pub(super) peer_info: PeerInfo,
    pub(super) stop: Arc<AtomicBool>,
    wake: Wake,
    events: Mutex<VecDeque<PlaneEvent>>,
    holds: Mutex<HashMap<String, Arc<HoldState>>>,
    expected: Mutex<HashMap<String, Arc<ExpectedState>>>,
    transfers: Mutex<Transfers>,
    statistics: Mutex<Statistics>,
    background_work: Mutex<BackgroundWork>,
    has_background_work: Condvar,
}

/// A panic leaves none of these values half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(context: PlaneContext, settings: TcpSettings) -> Self {
        let geometry = *context.arena.geometry();
        Self {
            arena: context.arena,
            settings,
            peer_info: PeerInfo {
                engine_id: context.engine_id,
                generation: context.generation,
                geometry,
                layout_hash: geometry.layout_hash(),
            },
            stop: Arc::default(),
            wake: context.wake,
            events: Mutex::default(),
            holds: Mutex::default(),
            expected: Mutex::default(),
            transfers: Mutex::default(),
            statistics: Mutex::default(),
            background_work: Mutex::default(),
            has_background_work: Condvar::new(),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        lock(&self.background_work).has_news = true;
        self.has_background_work.notify_all();
    }

    pub(super) fn statistics(&self) -> MutexGuard<'_, Statistics> {
        lock(&self.statistics)
    }

    pub(super) fn take_events(&self, events: &mut Vec<PlaneEvent>) {
        events.extend(lock(&self.events).drain(..));
    }

    fn push_event(&self, event: PlaneEvent) {
        {
            let mut events = lock(&self.events);
            if matches!(event, PlaneEvent::Notice(_)) && events.len() >= MAX_WAITING_NOTICES {
                return;
            }
            events.push_back(event);
        }
        (self.wake)();
    }

    pub(super) fn push_notice(&self, text: Vec<u8>) {
        self.push_event(PlaneEvent::Notice(text));
    }

    pub(super) fn hold(&self, hold: Hold) {
        // Missing pages are written in the background, or by the first thread that reads them.
        hold.blocks.iter().for_each(|held| _ = self.arena.want(held.block, held.content));
        let blocks = hold.blocks.iter().map(|held| (held.block, held.content)).collect();
        let state = Arc::new(HoldState { blocks, is_over: AtomicBool::new(false) });
        if let Some(before) = lock(&self.holds).insert(hold.request, Arc::clone(&state)) {
            before.is_over.store(true, Ordering::Release);
        }
        let mut background_work = lock(&self.background_work);
        background_work.holds.push_back(state);
        background_work.has_news = true;
        self.has_background_work.notify_one();
    }

    pub(super) fn release(&self, request: &str) {
        if let Some(hold) = lock(&self.holds).remove(request) {
            hold.is_over.store(true, Ordering::Release);
        }
    }

    pub(super) fn held(&self, request: &str) -> Option<Arc<HoldState>> {
        lock(&self.holds).get(request).cloned()
    }

    /// Registers a transfer that this engine starts, and claims the blocks that it writes to. The returned flag is
    /// set when the transfer has ended.
    pub(super) fn register(
        &self,
        id: u64,
        peer: &str,
        direction: Direction,
        blocks: Vec<Held>,
        deadline: Instant,
    ) -> Arc<AtomicBool> {
        if direction == Direction::Read {
            blocks.iter().for_each(|held| self.arena.claim(held.block, id));
        }
        let has_room = direction == Direction::Write || self.has_room(&blocks);
        let pending =
            Pending { peer: peer.to_owned(), direction, blocks, deadline, is_over: Arc::default(), expected: None };
        let is_over = self.insert(id, pending);
        if !has_room {
            self.finish(id, Err(self.arena.no_room()));
        }
        is_over
    }

    /// Whether there is memory for the pages of these blocks.
    fn has_room(&self, blocks: &[Held]) -> bool {
        blocks.iter().all(|held| self.arena.back(held.block))
    }

    fn insert(&self, id: u64, pending: Pending) -> Arc<AtomicBool> {
        let is_over = Arc::clone(&pending.is_over);
        let is_next = {
            let mut transfers = lock(&self.transfers);
            transfers.deadlines.insert((pending.deadline, id));
            let is_next = transfers.deadlines.first().is_some_and(|(_, first)| *first == id);
            transfers.by_id.insert(id, pending);
            is_next
        };
        if is_next {
            lock(&self.background_work).has_news = true;
            self.has_background_work.notify_one();
        }
        is_over
    }

    pub(super) fn expect(&self, expected: Expected) {
        let Expected { id, peer, request, blocks, timeout, corrupts } = expected;
        blocks.iter().for_each(|held| self.arena.claim(held.block, id));
        let block_bytes = self.arena.geometry().block_bytes();
        let progress = ExpectedProgress {
            missing: blocks.iter().map(|held| (held.block, block_bytes)).collect(),
            ..ExpectedProgress::default()
        };
        let now = Instant::now();
        let state = ExpectedState {
            id,
            blocks: blocks.iter().map(|held| (held.block, held.content)).collect(),
            corrupts: AtomicBool::new(corrupts),
            started: now,
            progress: Mutex::new(progress),
        };
        lock(&self.expected).insert(request.clone(), Arc::new(state));
        let (is_empty, has_room) = (blocks.is_empty(), self.has_room(&blocks));
        let pending = Pending {
            peer: peer.to_string(),
            direction: Direction::Read,
            blocks,
            deadline: now + timeout,
            is_over: Arc::default(),
            expected: Some(request),
        };
        self.insert(id, pending);
        if !has_room {
            self.finish(id, Err(self.arena.no_room()));
        } else if is_empty {
            self.finish(id, Ok(Moved::default()));
        }
    }

    pub(super) fn expected(&self, request: &str) -> Option<Arc<ExpectedState>> {
        lock(&self.expected).get(request).cloned()
    }

    /// Counts bytes that a peer has written and that are right. The last ones end the transfer.
    pub(super) fn wrote(&self, state: &ExpectedState, spans: &[crate::arena::Span], began: Instant) {
        let is_complete = {
            let mut progress = lock(&state.progress);
            progress.first.get_or_insert(began);
            for span in spans {
                let bytes = u64::from(span.bytes);
                if let Some(missing) = progress.missing.get_mut(&span.block) {
                    // A peer that repeats parts may write more than a page's bytes.
                    *missing = missing.saturating_sub(bytes);
                    progress.moved.bytes += bytes;
                    progress.moved.pages += 1;
                }
            }
            let is_complete = progress.missing.values().all(|missing| *missing == 0);
            is_complete.then(|| {
                let first = progress.first.unwrap_or(began);
                let queue_ns = nanoseconds(first - state.started);
                Moved { queue_ns, move_ns: nanoseconds(first.elapsed()), ..progress.moved }
            })
        };
        if let Some(moved) = is_complete {
            self.finish(state.id, Ok(moved));
        }
    }

    fn remove(&self, id: u64) -> Option<Pending> {
        let pending = {
            let mut transfers = lock(&self.transfers);
            let pending = transfers.by_id.remove(&id)?;
            transfers.deadlines.remove(&(pending.deadline, id));
            pending
        };
        pending.is_over.store(true, Ordering::Release);
        if let Some(request) = &pending.expected {
            let mut expected = lock(&self.expected);
            if expected.get(request).is_some_and(|state| state.id == id) {
                expected.remove(request);
            }
        }
        Some(pending)
    }

    /// Ends a transfer, and reports its outcome as an event. Returns `false` if the transfer had ended already.
    pub(super) fn finish(&self, id: u64, outcome: Result<Moved, TransferError>) -> bool {
        let Some(pending) = self.remove(id) else { return false };
        self.take_back(id, &pending, outcome.is_ok());
        match &outcome {
            Ok(moved) => self.statistics().complete(&pending.peer, pending.direction, moved),
            Err(error) => self.statistics().fail(&pending.peer, error.kind),
        }
        self.push_event(PlaneEvent::Finished { id, outcome });
        true
    }

    pub(super) fn cancel(&self, id: u64) {
        lock(&self.events).retain(|event| !matches!(event, PlaneEvent::Finished { id: ended, .. } if *ended == id));
        if let Some(pending) = self.remove(id) {
            self.take_back(id, &pending, false);
            self.statistics().fail(&pending.peer, ErrorKind::Cancelled);
        }
    }

    fn take_back(&self, id: u64, pending: &Pending, is_whole: bool) {
        if pending.direction == Direction::Read {
            for held in &pending.blocks {
                self.arena.take_back(held.block, id, is_whole.then_some(held.content));
            }
        }
    }

    /// Works in the background until the plane is stopped: writes the pattern into held blocks, and ends transfers
    /// whose deadline has passed.
    pub(super) fn keep_house(&self) {
        while !self.is_stopped() {
            let now = Instant::now();
            let next = self.expire(now);
            let hold = {
                let mut background_work = lock(&self.background_work);
                if background_work.holds.is_empty() && !background_work.has_news {
                    let wait = next.map_or(Duration::from_secs(3600), |next| next.saturating_duration_since(now));
                    let waited = self.has_background_work.wait_timeout(background_work, wait);
                    background_work = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                background_work.has_news = false;
                background_work.holds.pop_front()
            };
            if let Some(hold) = hold {
                let mut blocks: Vec<u32> = hold.blocks.keys().copied().collect();
                blocks.sort_unstable();
                for block in blocks.into_iter().take_while(|_| !hold.is_over() && !self.is_stopped()) {
                    self.arena.materialize(block);
                    // Yield to steps, as threads do that send bytes.
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Ends transfers whose deadline has passed, and returns the next deadline.
    fn expire(&self, now: Instant) -> Option<Instant> {
        loop {
            let (deadline, id, peer) = {
                let transfers = lock(&self.transfers);
                let &(deadline, id) = transfers.deadlines.first()?;
                if deadline > now {
                    return Some(deadline);
                }
                let pending = transfers.by_id.get(&id);
                (deadline, id, pending.map_or_else(String::new, |pending| pending.peer.clone()))
            };
            let message = format!("KV peer {peer}: the transfer was not complete by its deadline");
            if !self.finish(id, Err(TransferError::new(ErrorKind::TimedOut, message))) {
                lock(&self.transfers).deadlines.remove(&(deadline, id));
            }
        }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
