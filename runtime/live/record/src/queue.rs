//! The queue between the relay and the recorder.
//!
//! The relay must never wait for the recorder, so the queue is bounded. Once it is full, all items are dropped and
//! counted until the recorder has taken the rest. Then an [`ItemKind::Lost`] marks the gap.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vcr_wire::{Passed, RelayNotice, RelayPath, RelayTap};

use crate::http::Exchange;

/// Capacity that an empty batch keeps.
const SPARE_BYTES: usize = 1 << 20;

/// An item from the relay, or from a subscriber of KV events.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The time on the system's monotonic clock.
    pub(crate) at_ns: u64,
    pub(crate) rank: u32,
    pub(crate) what: ItemKind,
}

#[derive(Clone, Debug)]
pub(crate) enum ItemKind {
    /// A message, with the lengths of its first two frames.
    Passed { path: RelayPath, lengths: [usize; 2] },
    /// A change of a connection.
    Noticed(RelayNotice),
    /// A batch of KV events: its sequence number from the publisher, and the length of its payload.
    Kv { sequence: u64, length: usize },
    /// An HTTP exchange.
    Http(Box<Exchange>),
    /// The number and size of the messages dropped up to this time.
    Lost { messages: u64, bytes: u64 },
}

impl Item {
    /// The number of messages that the item represents.
    pub(crate) fn messages(&self) -> u64 {
        match self.what {
            ItemKind::Passed { .. } | ItemKind::Kv { .. } | ItemKind::Http(_) => 1,
            ItemKind::Lost { messages, .. } => messages,
            ItemKind::Noticed(_) => 0,
        }
    }
}

/// Items in order of arrival, and the concatenated bytes of their messages.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    items: Vec<Item>,
    /// Memory that the items themselves own.
    held_bytes: usize,
}

impl Batch {
    /// Iterates over the items, each with the bytes of its frames.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Item, [&[u8]; 2])> {
        let mut rest = self.bytes.as_slice();
        self.items.iter().map(move |item| {
            let lengths = match item.what {
                ItemKind::Passed { lengths, .. } => lengths,
                ItemKind::Kv { length, .. } => [length, 0],
                ItemKind::Noticed(_) | ItemKind::Http(_) | ItemKind::Lost { .. } => [0, 0],
            };
            let mut take = |length| rest.split_off(..length).expect("all frames were copied");
            (item, [take(lengths[0]), take(lengths[1])])
        })
    }

    fn clear(&mut self) {
        self.held_bytes = 0;
        self.items.clear();
        self.items.shrink_to(SPARE_BYTES / size_of::<Item>());
        self.bytes.clear();
        self.bytes.shrink_to(SPARE_BYTES);
    }

    fn size_bytes(&self) -> usize {
        self.bytes.len() + self.held_bytes + self.items.len() * size_of::<Item>()
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: Batch,
    /// Bytes that the recorder has taken and is still working on.
    taken_bytes: usize,
    lost: Lost,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Lost {
    messages: u64,
    bytes: u64,
    rank: u32,
    at_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Wakes the recorder before its pause is over.
    changed: Condvar,
    limit_bytes: usize,
}

impl Queue {
    /// Creates a queue. The limit includes the items that the recorder is working on.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limit_bytes }
    }

    /// Swaps `batch` with the contents of the queue. Waits at most `pause`, and less if the queue is long or
    /// closed. Returns `false` for the last batch.
    pub(crate) fn take(&self, batch: &mut Batch, pause: Duration) -> bool {
        batch.clear();
        let mut state = self.lock();
        state.taken_bytes = 0;
        let is_calm = |state: &mut State| {
            !state.is_closed && state.lost.messages == 0 && state.waiting.size_bytes() < self.limit_bytes / 4
        };
        let waited = self.changed.wait_timeout_while(state, pause, is_calm);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        std::mem::swap(&mut state.waiting, batch);
        let lost = std::mem::take(&mut state.lost);
        if lost.messages > 0 {
            let what = ItemKind::Lost { messages: lost.messages, bytes: lost.bytes };
            batch.items.push(Item { at_ns: lost.at_ns, rank: lost.rank, what });
        }
        state.taken_bytes = batch.size_bytes();
        !state.is_closed
    }

    /// Marks the end of the input.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn push(&self, item: Item, frames: [&[u8]; 2]) {
        let mut state = self.lock();
        let held_bytes = if let ItemKind::Http(exchange) = &item.what { exchange.size_bytes() } else { 0 };
        let bytes = frames[0].len() + frames[1].len() + held_bytes;
        let size_bytes = bytes + size_of::<Item>();
        let in_use_bytes = state.waiting.size_bytes() + state.taken_bytes;
        if state.lost.messages > 0 || in_use_bytes + size_bytes > self.limit_bytes {
            state.lost.messages += 1;
            state.lost.bytes += bytes as u64;
            (state.lost.rank, state.lost.at_ns) = (item.rank, item.at_ns);
            self.changed.notify_one();
            return;
        }
        state.waiting.items.push(item);
        state.waiting.held_bytes += held_bytes;
        state.waiting.bytes.extend_from_slice(frames[0]);
        state.waiting.bytes.extend_from_slice(frames[1]);
        if in_use_bytes + size_bytes > self.limit_bytes / 4 {
            drop(state);
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push_kv(&self, at_ns: u64, rank: u32, sequence: u64, payload: &[u8]) {
        self.push(Item { at_ns, rank, what: ItemKind::Kv { sequence, length: payload.len() } }, [payload, &[]]);
    }

    pub(crate) fn push_exchange(&self, exchange: Exchange) {
        let at_ns = exchange.arrived_ns.saturating_add(exchange.end_ns);
        self.push(Item { at_ns, rank: 0, what: ItemKind::Http(Box::new(exchange)) }, [&[], &[]]);
    }
}

/// The relay's end of the queue.
pub(crate) struct Tap<'a>(pub(crate) &'a Queue);

impl RelayTap for Tap<'_> {
    fn passed(&mut self, message: Passed<'_>) {
        let Passed { at_ns, rank, path, mut head, .. } = message;
        match path {
            // The first frame is enough to decode these messages.
            RelayPath::Outputs { .. } | RelayPath::Registration { .. } => head[1] = &[],
            RelayPath::Request { .. } => {}
        }
        let lengths = head.map(<[u8]>::len);
        self.0.push(Item { at_ns, rank, what: ItemKind::Passed { path, lengths } }, head);
    }

    fn noticed(&mut self, rank: u32, at_ns: u64, notice: RelayNotice) {
        self.0.push(Item { at_ns, rank, what: ItemKind::Noticed(notice) }, [&[], &[]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: RelayPath = RelayPath::Request { client: 0 };

    fn pass(queue: &Queue, at_ns: u64, head: [&[u8]; 2]) {
        Tap(queue).passed(Passed { at_ns, rank: 1, path: PATH, frames: 2, head });
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let queue = Queue::new(1 << 20);
        pass(&queue, 1, [b"a", b"bc"]);
        Tap(&queue).noticed(0, 2, RelayNotice::Ready);
        queue.push_kv(3, 0, 7, b"def");
        queue.close();
        let mut batch = Batch::default();
        assert!(!queue.take(&mut batch, Duration::ZERO), "it was the last");
        let frames: Vec<_> = batch.iter().map(|(item, frames)| (item.at_ns, frames)).collect();
        assert_eq!(frames, [(1, [&b"a"[..], b"bc"]), (2, [b"", b""]), (3, [b"def", b""])]);
    }

    #[test]
    fn exchanges_count_by_what_they_hold() {
        let queue = Queue::new(10_000);
        for body_bytes in [5_000, 6_000, 10] {
            queue.push_exchange(Exchange { request_body: vec![0; body_bytes], end_ns: 3, ..Exchange::default() });
        }
        let mut batch = Batch::default();
        assert!(queue.take(&mut batch, Duration::ZERO));
        let items: Vec<_> = batch.iter().map(|(item, _)| item.messages()).collect();
        assert_eq!(items, [1, 2], "all behind a lost one are lost");
    }

    #[test]
    fn a_full_queue_counts_what_it_drops() {
        let queue = Queue::new(3 * (size_of::<Item>() + 10));
        for at_ns in 0..10 {
            pass(&queue, at_ns, [b"", &[0; 10]]);
        }
        let mut batch = Batch::default();
        assert!(queue.take(&mut batch, Duration::from_secs(60)), "it does not sleep when much waits");
        let items: Vec<_> = batch.iter().map(|(item, _)| item.clone()).collect();
        assert_eq!(items.len(), 4);
        assert!(
            matches!(items[3], Item { at_ns: 9, what: ItemKind::Lost { messages: 7, bytes: 70 }, .. }),
            "{items:?}"
        );

        // The limit includes taken items until the recorder calls `take` again.
        pass(&queue, 10, [b"", &[0; 10]]);
        assert!(queue.take(&mut batch, Duration::from_secs(60)));
        assert!(matches!(batch.iter().next(), Some((Item { what: ItemKind::Lost { messages: 1, .. }, .. }, _))));
        pass(&queue, 11, [b"", &[0; 10]]);
        assert!(queue.take(&mut batch, Duration::ZERO));
        assert!(matches!(batch.iter().next(), Some((Item { what: ItemKind::Passed { .. }, at_ns: 11, .. }, _))));
    }
}
