//! Requests with large bodies: limits of their memory and time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tokio::time::{Instant, Sleep, sleep};

use super::body::{Cut, Verdict};

/// Bodies of at least this length are large: they take a millisecond or more of work. Memory is reserved in parts
/// of this length.
const LARGE_BYTES: u64 = 128 * 1024;
/// A body that makes others wait for memory may take this time, plus [`PER_BYTE`] for each byte that has arrived.
const WITH_OTHERS: Duration = Duration::from_secs(5);
const PER_BYTE: Duration = Duration::from_micros(1);
/// The longest time without a byte from a body that makes others wait for memory.
const STALLED: Duration = Duration::from_secs(10);
/// Interval between checks of a body's progress.
const LOOK: Duration = Duration::from_secs(1);

/// Memory limit of all large bodies together. Clones share it.
///
/// Memory is reserved as bytes arrive, so a client that only announces a large body takes none. Bodies that each
/// hold some memory and need more could deadlock. So there is a reserve for one whole body, which one body at a
/// time may take.
#[derive(Clone, Debug)]
pub(super) struct BodyMemory {
    /// Free parts of the shared memory.
    shared: Arc<Semaphore>,
    last: Arc<Semaphore>,
    /// The number of bodies that wait for memory.
    waiting: Arc<AtomicUsize>,
}

/// Counts a waiting body until it is dropped.
struct InQueue(Arc<AtomicUsize>);

impl InQueue {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for InQueue {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory that was reserved for a body.
#[derive(Debug)]
enum Grant {
    /// One part of the shared memory.
    Part(OwnedSemaphorePermit),
    /// The reserve. It is enough for any body.
    Last(OwnedSemaphorePermit),
}

type Acquired = Pin<Box<dyn Future<Output = Option<Grant>> + Send>>;

impl BodyMemory {
    /// Creates memory of `bytes`, of which the reserve takes `longest`.
    pub(super) fn new(bytes: usize, longest: usize) -> Self {
        let parts = bytes.saturating_sub(longest) / LARGE_BYTES as usize;
        let shared = Arc::new(Semaphore::new(parts.min(Semaphore::MAX_PERMITS)));
        Self { shared, last: Arc::new(Semaphore::new(1)), waiting: Arc::default() }
    }

    /// Reserves a part without waiting.
    fn part(&self) -> Option<Grant> {
        Arc::clone(&self.shared).try_acquire_owned().ok().map(Grant::Part)
    }

    /// Waits for a part or for the reserve.
    fn wait(&self) -> Acquired {
        let Self { shared, last, waiting } = self.clone();
        Box::pin(async move {
            let _in_queue = InQueue::new(&waiting);
            tokio::select! {
                biased;
                permit = last.acquire_owned() => permit.ok().map(Grant::Last),
                permit = shared.acquire_owned() => permit.ok().map(Grant::Part),
            }
        })
    }
}

/// The memory of one body, from its first bytes until a request for an engine has been built.
#[derive(Debug, Default)]
struct Room(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// Parts of the shared memory, or the reserve.
    permit: Option<OwnedSemaphorePermit>,
    /// Whether the handler has read the whole body.
    is_read: bool,
}

impl Room {
    fn change<R>(&self, change: impl FnOnce(&mut Held) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, grant: Grant) {
        self.change(|held| match grant {
            Grant::Part(part) => match &mut held.permit {
                Some(parts) => parts.merge(part),
                None => held.permit = Some(part),
            },
            // The reserve is enough for any body, so the body's parts are released.
            Grant::Last(last) => held.permit = Some(last),
        });
    }

    /// Called when the handler waits: the memory of a body that was read is released.
    fn leave_if_read(&self) {
        self.change(|held| drop(held.permit.take_if(|_| held.is_read)));
    }
}

/// The progress of a body that has reserved memory.
struct Progress {
    since: Instant,
    /// Since when the body has sent no byte while others wait.
    stalled: Option<Instant>,
    next_look: Pin<Box<Sleep>>,
}

impl Progress {
    fn new() -> Self {
        Self { since: Instant::now(), stalled: None, next_look: Box::pin(sleep(LOOK)) }
    }

    fn resume(&mut self) {
        self.stalled = self.stalled.map(|_| Instant::now());
    }

    /// Whether the body must be cut, after `received` bytes.
    fn is_over(elapsed: Duration, stalled: Duration, received: u64) -> bool {
        let more = PER_BYTE.as_nanos().saturating_mul(u128::from(received));
        let allowed = WITH_OTHERS.saturating_add(Duration::from_nanos(u64::try_from(more).unwrap_or(u64::MAX)));
        stalled >= STALLED || elapsed >= allowed
    }

    /// Whether the body makes others wait too long. Checked once per [`LOOK`].
    fn is_late(&mut self, received: u64, waiting: &AtomicUsize, context: &mut Context<'_>) -> bool {
        while self.next_look.as_mut().poll(context).is_ready() {
            match waiting.load(Ordering::Relaxed) {
                0 => self.stalled = None,
                _ => {
                    let stalled = self.stalled.get_or_insert_with(Instant::now).elapsed();
                    if Self::is_over(self.since.elapsed(), stalled, received) {
                        return true;
                    }
                }
            }
            self.next_look.as_mut().reset(Instant::now() + LOOK);
        }
        false
    }
}

/// A body whose memory is reserved as it arrives.
struct Admitted {
    body: Body,
    memory: BodyMemory,
    room: Arc<Room>,
    verdict: Verdict,
    received: u64,
    /// Bytes for which memory is reserved. The first part needs no reservation.
    granted: u64,
    /// A wait for memory, and its start.
    waits: Option<(Acquired, Instant)>,
    progress: Option<Progress>,
}

impl Admitted {
    fn new(body: Body, memory: &BodyMemory, room: &Arc<Room>, verdict: Verdict) -> Self {
        let (memory, room) = (memory.clone(), Arc::clone(room));
        Self { body, memory, room, verdict, received: 0, granted: LARGE_BYTES, waits: None, progress: None }
    }

    /// Waits until memory is reserved for the next part.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.received > self.granted {
            let granted = match &mut self.waits {
                Some((acquired, since)) => {
                    let granted = ready!(acquired.as_mut().poll(context));
                    // This time must not count against the client.
                    if let Some(progress) = &mut self.progress {
                        progress.since += since.elapsed();
                        progress.resume();
                    }
                    self.waits = None;
                    granted
                }
                None => match self.memory.part() {
                    Some(part) => Some(part),
                    None => {
                        self.waits = Some((self.memory.wait(), Instant::now()));
                        continue;
                    }
                },
            };
            let has_all = matches!(granted, None | Some(Grant::Last(_)));
            self.granted = if has_all { u64::MAX } else { self.granted + LARGE_BYTES };
            self.progress.get_or_insert_with(Progress::new);
            if let Some(grant) = granted {
                self.room.add(grant);
            }
        }
        Poll::Ready(())
    }
}

impl HttpBody for Admitted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        ready!(this.poll_room(context));
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let is_late = this
                .progress
                .as_mut()
                .is_some_and(|progress| progress.is_late(this.received, &this.memory.waiting, context));
            return if is_late { Poll::Ready(Some(Err(this.verdict.cut(Cut::TooSlow)))) } else { Poll::Pending };
        };
        if let Some(Ok(frame)) = &frame {
            this.received += frame.data_ref().map_or(0, Bytes::len) as u64;
            if let Some(progress) = &mut this.progress {
                progress.resume();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.room.change(|held| held.is_read = true);
    }
}

/// Handles a request. A large body first waits for memory, and other tasks of this thread continue meanwhile.
pub(super) async fn beside_others<F: Future<Output = Response>>(
    memory: &BodyMemory,
    verdict: &Verdict,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let length = content_length(request.headers());
    match length.map_or(request.body().is_end_stream(), |bytes| bytes < LARGE_BYTES) {
        true => next(request).await,
        // Box the future, so that small requests need no space for it.
        false => Box::pin(admitted(memory, verdict, request, next)).await,
    }
}

/// The length of a body, if the headers state it.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

/// Handles a request whose body is large or has an unknown length.
async fn admitted<F: Future<Output = Response>>(
    memory: &BodyMemory,
    verdict: &Verdict,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let headers = request.headers();
    // A chunked body can have any length.
    let takes_long = headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING);
    let may_block = takes_long && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    let room = Arc::<Room>::default();
    let request = request.map(|body| Body::new(Admitted::new(body, memory, &room, verdict.clone())));
    let mut answered = pin!(next(request));
    poll_fn(|context| {
        let polled = match may_block {
            true => block_in_place(|| answered.as_mut().poll(context)),
            false => answered.as_mut().poll(context),
        };
        room.leave_if_read();
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use futures_util::future::poll_immediate;

    use super::*;

    const PART: usize = LARGE_BYTES as usize;
    const SECOND: Duration = Duration::from_secs(1);

    /// A body of `parts` parts that never ends, in frames of half a part.
    fn unending(memory: &BodyMemory, parts: usize) -> Admitted {
        let frames = std::iter::repeat_n(Bytes::from(vec![0; PART / 2]), 2 * parts).map(Ok::<_, std::io::Error>);
        let frames = futures_util::stream::iter(frames);
        let body = Body::from_stream(futures_util::StreamExt::chain(frames, futures_util::stream::pending()));
        Admitted::new(body, memory, &Arc::default(), Verdict::default())
    }

    /// Reads all bytes that have arrived and have memory. Returns the number of bytes.
    async fn read(body: &mut Admitted) -> usize {
        while poll_immediate(poll_fn(|context| Pin::new(&mut *body).poll_frame(context))).await.is_some() {}
        body.received as usize
    }

    #[test]
    fn a_body_that_keeps_others_waiting_has_less_time() {
        let mib = 1 << 20;
        assert!(!Progress::is_over(4 * SECOND, SECOND, 0));
        assert!(Progress::is_over(5 * SECOND, SECOND, 0));
        assert!(!Progress::is_over(6 * SECOND, SECOND, mib) && Progress::is_over(7 * SECOND, SECOND, mib));
        assert!(Progress::is_over(10 * SECOND, 10 * SECOND, u64::MAX), "no byte for ten seconds");
    }

    /// Neither a stated length nor the first part of a body takes memory.
    #[tokio::test]
    async fn memory_is_taken_as_bytes_arrive() {
        let memory = BodyMemory::new(3 * PART, PART);
        let mut begun: Vec<Admitted> = (0..8).map(|_| unending(&memory, 1)).collect();
        for body in &mut begun {
            read(body).await;
        }
        let mut whole = unending(&memory, 3);
        assert_eq!(read(&mut whole).await, 3 * PART);
        assert_eq!(memory.shared.available_permits(), 0);
    }

    /// Bodies that each hold a part and need another one must not deadlock.
    #[tokio::test]
    async fn one_body_at_a_time_takes_the_last_room() {
        let memory = BodyMemory::new(7 * PART, 5 * PART);
        let mut bodies: Vec<Admitted> = (0..3).map(|_| unending(&memory, 5)).collect();
        bodies[0].received = LARGE_BYTES + 1;
        bodies[1].received = LARGE_BYTES + 1;
        for body in &mut bodies[..2] {
            assert!(poll_immediate(poll_fn(|context| body.poll_room(context))).await.is_some());
        }
        assert_eq!(memory.shared.available_permits(), 0);
        assert_eq!(read(&mut bodies[0]).await, 6 * PART + 1, "it takes the last room");
        assert_eq!(memory.shared.available_permits(), 1, "and gives back its part");
        assert_eq!(read(&mut bodies[1]).await, 3 * PART + 1);
        assert_eq!(read(&mut bodies[2]).await, 3 * PART / 2);
        assert_eq!(memory.waiting.load(Ordering::Relaxed), 2);
    }

    /// A body counts as waiting until it gets memory or gives up.
    #[tokio::test]
    async fn bodies_without_room_are_counted() {
        let memory = BodyMemory::new(PART, PART);
        let waiting = || memory.waiting.load(Ordering::Relaxed);
        let last = memory.wait().await.expect("there is room");
        assert_eq!(waiting(), 0);
        let (mut second, mut third) = (memory.wait(), memory.wait());
        for acquired in [&mut second, &mut third] {
            assert!(poll_immediate(acquired).await.is_none());
        }
        assert_eq!(waiting(), 2);
        drop(third);
        assert_eq!(waiting(), 1);
        drop(last);
        assert!(second.await.is_some());
        assert_eq!(waiting(), 0);
    }
}
