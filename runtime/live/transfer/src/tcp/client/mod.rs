//! The side that connects: a queue for each peer, and streams that work on it.
//!
//! A stream is a thread with a connection. It takes batches of pages from the transfers in rotation, requests a few
//! batches ahead, and checks the received pages. So one large transfer uses all streams, and many small ones share
//! them.

mod active;
mod stream;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use self::active::{Active, BatchPages};
use self::stream::Stream;
use crate::error::{ErrorKind, TransferError};
use crate::plane::{Held, Peer, Transfer};
use crate::statistics::Direction;
use crate::tcp::frame::{MAX_NAME_BYTES, MAX_NOTICE_BYTES, PeerInfo};
use crate::tcp::shared::Shared;
use crate::tcp::spawn;

/// Maximum number of notices that wait for a peer; more are dropped.
const MAX_NOTICES: usize = 65_536;

enum Job {
    Batch { active: Arc<Active>, number: u64, pages: BatchPages },
    Notice(Vec<u8>),
}

#[derive(Default)]
struct QueueState {
    transfers: VecDeque<Arc<Active>>,
    notices: VecDeque<Vec<u8>>,
    streams: usize,
    idle_streams: usize,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.transfers.is_empty() && self.notices.is_empty()
    }
}

/// The queue of one peer.
pub(super) struct PeerQueue {
    host: String,
    port: u16,
    name: String,
    state: Mutex<QueueState>,
    has_jobs: Condvar,
}

impl PeerQueue {
    pub(super) fn new(peer: &Peer) -> Self {
        Self {
            host: peer.host.clone(),
            port: peer.port,
            name: peer.to_string(),
            state: Mutex::default(),
            has_jobs: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no work waits and no stream is open.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.is_empty() && state.streams == 0
    }

    /// Ends the waits of all streams.
    pub(super) fn wake_all(&self) {
        self.has_jobs.notify_all();
    }

    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>, transfer: Transfer) {
        let now = Instant::now();
        let deadline = now + transfer.timeout;
        let held = transfer.blocks.iter().map(|pair| Held { block: pair.local, content: pair.content }).collect();
        let is_over = shared.register(transfer.id, &self.name, transfer.direction, held, deadline);
        let corrupts = AtomicBool::new(transfer.corrupts);
        if transfer.request.len() > MAX_NAME_BYTES {
            let message = format!("the request's name is longer than {MAX_NAME_BYTES} bytes");
            shared.finish(transfer.id, Err(TransferError::new(ErrorKind::Local, message)));
            return;
        }
        let progress = Mutex::default();
        let active = Arc::new(Active { transfer, started: now, deadline, is_over, progress, corrupts });
        let mut state = self.lock();
        state.transfers.push_back(active);
        self.ensure_stream(state, shared);
    }

    pub(super) fn notify(self: &Arc<Self>, shared: &Arc<Shared>, notice: Vec<u8>) {
        if notice.len() > MAX_NOTICE_BYTES {
            tracing::warn!(peer = self.name, bytes = notice.len(), "a KV notice is too long and is dropped");
            return;
        }
        let mut state = self.lock();
        if state.notices.len() < MAX_NOTICES {
            state.notices.push_back(notice);
        }
        self.ensure_stream(state, shared);
    }

    /// Makes a stream work on the queue.
    fn ensure_stream(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState>, shared: &Arc<Shared>) {
        if state.idle_streams > 0 || state.streams >= shared.settings.streams {
            self.has_jobs.notify_one();
            return;
        }
        state.streams += 1;
        drop(state);
        let (queue, for_thread) = (Arc::clone(self), Arc::clone(shared));
        if let Err(error) = spawn("kv-stream", move || Stream::new(&queue, &for_thread).run()) {
            let is_last = {
                let mut state = self.lock();
                state.streams -= 1;
                state.streams == 0
            };
            if is_last {
                self.fail_all(shared, &error);
            }
        }
    }

    /// Waits for work. Returns `false` after a long time without work, or if the plane is stopped: then the stream
    /// must end.
    fn wait(&self, shared: &Shared) -> bool {
        let until = Instant::now() + shared.settings.idle_timeout;
        let mut state = self.lock();
        while state.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || shared.is_stopped() {
                state.streams -= 1;
                return false;
            }
            state.idle_streams += 1;
            state = self.has_jobs.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.idle_streams -= 1;
        }
        if shared.is_stopped() {
            state.streams -= 1;
            return false;
        }
        true
    }

    fn front(&self) -> Option<Arc<Active>> {
        self.lock().transfers.front().cloned()
    }

    /// The next job for a stream that is connected to `peer`. Writes are left in the queue unless `takes_writes`.
    fn take(self: &Arc<Self>, shared: &Arc<Shared>, peer: &PeerInfo, takes_writes: bool) -> Option<Job> {
        loop {
            let mut state = self.lock();
            if let Some(notice) = state.notices.pop_front() {
                return Some(Job::Notice(notice));
            }
            let active = state.transfers.front()?;
            if active.transfer.direction == Direction::Write && !takes_writes {
                return None;
            }
            let active = state.transfers.pop_front()?;
            if active.is_over.load(Ordering::Acquire) {
                continue;
            }
            match active.next_batch(shared, peer) {
                Ok(Some((number, pages, is_last))) => {
                    if !is_last {
                        // Other transfers get their turn, and other streams help with this one.
                        state.transfers.push_back(Arc::clone(&active));
                        self.ensure_stream(state, shared);
                    }
                    return Some(Job::Batch { active, number, pages });
                }
                Ok(None) => {
                    drop(state);
                    self.complete(shared, &active);
                }
                Err(error) => {
                    drop(state);
                    shared.finish(active.transfer.id, Err(error));
                }
            }
        }
    }

    /// Ends a transfer whose pages have all arrived, and sends its notice.
    fn complete(&self, shared: &Shared, active: &Active) {
        let moved = active.moved();
        if shared.finish(active.transfer.id, Ok(moved))
            && let Some(notice) = &active.transfer.notice
        {
            self.lock().notices.push_back(notice.clone());
        }
    }

    /// Ends all waiting transfers and drops the notices, because the peer cannot be reached.
    fn fail_all(&self, shared: &Shared, error: &TransferError) {
        let (transfers, notices) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.transfers), std::mem::take(&mut state.notices))
        };
        for active in transfers {
            shared.finish(active.transfer.id, Err(error.clone()));
        }
        if !notices.is_empty() {
            shared.statistics().fail(&self.name, error.kind);
            tracing::warn!(peer = self.name, notices = notices.len(), "KV notices were lost: {error}");
        }
    }
}
