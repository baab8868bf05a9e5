//! Requests with large bodies: their memory, and the time that they take.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::block_in_place;
use tokio::time::{Instant, Sleep, sleep};

/// Bodies from this length on are large: a millisecond or more of work.
const LARGE_BYTES: u64 = 128 * 1024;
/// The unit in which memory is reserved.
const UNIT_BYTES: usize = 1024;
/// Time for a large body to come whole, and more for each of its bytes.
const LONGEST: Pace = Pace { start: Duration::from_secs(30), per_byte: Duration::from_micros(10) };
/// The same for what has come of it, while it keeps others waiting: who stops sending goes.
const WITH_OTHERS: Pace = Pace { start: Duration::from_secs(5), per_byte: Duration::from_micros(1) };
/// Time between two looks at how much of a body has come.
const LOOK: Duration = Duration::from_secs(1);

/// The time that bytes may take.
#[derive(Clone, Copy, Debug)]
struct Pace {
    start: Duration,
    per_byte: Duration,
}

impl Pace {
    fn of(self, bytes: u64) -> Duration {
        let more = self.per_byte.as_nanos().saturating_mul(u128::from(bytes));
        self.start + Duration::from_nanos(u64::try_from(more).unwrap_or(u64::MAX))
    }
}

/// Memory limit of all large bodies together. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct BodyMemory {
    units: Arc<Semaphore>,
    /// All units.
    total: u32,
    /// The limit of one body, in bytes.
    longest: usize,
    /// Bodies that wait.
    waiting: Arc<AtomicUsize>,
}

/// A body that waits for room, until it is dropped.
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

type Acquired = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

impl BodyMemory {
    /// Large bodies take `bytes` together at most, and at least one of `longest` fits.
    pub(super) fn new(bytes: usize, longest: usize) -> Self {
        let units = bytes.max(longest).div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        let total = u32::try_from(units).unwrap_or(u32::MAX);
        Self { units: Arc::new(Semaphore::new(total as usize)), total, longest, waiting: Arc::default() }
    }

    /// Waits for room for a body of `bytes`, of which no more are read than the longest has.
    fn wait(&self, bytes: usize) -> Phase {
        let bytes = bytes.min(self.longest);
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.total);
        let (semaphore, waiting) = (Arc::clone(&self.units), Arc::clone(&self.waiting));
        let acquired = async move {
            match Arc::clone(&semaphore).try_acquire_many_owned(units) {
                Ok(permit) => Some(permit),
                Err(_) => {
                    let _in_queue = InQueue::new(&waiting);
                    semaphore.acquire_many_owned(units).await.ok()
                }
            }
        };
        Phase::Waits(Box::pin(acquired), bytes)
    }
}

/// The room of one body, from its first bytes until they have become a request for an engine.
#[derive(Debug, Default)]
struct Room(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    permit: Option<OwnedSemaphorePermit>,
    /// Whether its handler has read it.
    is_read: bool,
}

impl Room {
    fn change(&self, change: impl FnOnce(&mut Held)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The handler waits for something: what it has read of a body is no longer a body.
    fn leave_if_read(&self) {
        self.change(|held| drop(held.permit.take_if(|_| held.is_read)));
    }
}

/// A body that comes once there is room for it.
struct Admitted {
    body: Body,
    memory: BodyMemory,
    room: Arc<Room>,
    /// Bytes so far.
    received: u64,
    phase: Phase,
}

/// A body on its way, with room.
struct Coming {
    since: Instant,
    /// The time for all of it.
    longest: Duration,
    next_look: Pin<Box<Sleep>>,
}

impl Coming {
    fn new(bytes: usize) -> Self {
        Self { since: Instant::now(), longest: LONGEST.of(bytes as u64), next_look: Box::pin(sleep(LOOK)) }
    }

    /// Its time, with this much of it here and `waiting` others.
    fn allowed(&self, received: u64, waiting: usize) -> Duration {
        if waiting > 0 { self.longest.min(WITH_OTHERS.of(received)) } else { self.longest }
    }

    /// Whether it takes too long, with this much of it here; looked at from time to time.
    fn is_late(&mut self, received: u64, waiting: &AtomicUsize, context: &mut Context<'_>) -> bool {
        while self.next_look.as_mut().poll(context).is_ready() {
            let (elapsed, allowed) = (self.since.elapsed(), self.allowed(received, waiting.load(Ordering::Relaxed)));
            if elapsed >= allowed {
                return true;
            }
            self.next_look.as_mut().reset(Instant::now() + LOOK.min(allowed - elapsed));
        }
        false
    }
}

enum Phase {
    /// A body that does not say its length, which may be short.
    Unknown,
    Waits(Acquired, usize),
    Comes(Coming),
}

impl HttpBody for Admitted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Phase::Waits(acquired, bytes) = &mut this.phase {
            let permit = ready!(acquired.as_mut().poll(context));
            this.room.change(|held| held.permit = permit);
            this.phase = Phase::Comes(Coming::new(*bytes));
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            // The sender is what this waits for.
            if let Phase::Comes(coming) = &mut this.phase
                && coming.is_late(this.received, &this.memory.waiting, context)
            {
                return Poll::Ready(Some(Err(axum::Error::new("the body took too long"))));
            }
            return Poll::Pending;
        };
        if let Some(Ok(frame)) = &frame {
            this.received += frame.data_ref().map_or(0, Bytes::len) as u64;
            if matches!(this.phase, Phase::Unknown) && this.received >= LARGE_BYTES {
                this.phase = this.memory.wait(usize::MAX);
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

/// Handles a request, and a large one once there is room for it, so that its thread's other
/// work goes on.
pub(super) async fn beside_others<F: Future<Output = Response>>(
    memory: &BodyMemory,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match length.map_or(request.body().is_end_stream(), |bytes| bytes < LARGE_BYTES) {
        true => next(request).await,
        // In a box, so that small requests have no room for it.
        false => Box::pin(admitted(memory, length, request, next)).await,
    }
}

/// Handles a request whose body is large, or may be.
async fn admitted<F: Future<Output = Response>>(
    memory: &BodyMemory,
    length: Option<u64>,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    // One that does not say its length, in chunks, may have any.
    let takes_long = length.is_some() || request.headers().contains_key(header::TRANSFER_ENCODING);
    let may_block = takes_long && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    let phase = length.map_or(Phase::Unknown, |bytes| memory.wait(usize::try_from(bytes).unwrap_or(usize::MAX)));
    let room = Arc::<Room>::default();
    let (memory, of_body) = (memory.clone(), Arc::clone(&room));
    let request = request.map(|body| Body::new(Admitted { body, memory, room: of_body, received: 0, phase }));
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

    const BODY_BYTES: usize = 1 << 20;

    /// A sender that stops has its time as long as nobody waits for its room, and one that
    /// goes on has more of it.
    #[tokio::test]
    async fn a_body_that_keeps_others_waiting_has_less_time() {
        let (coming, all) = (Coming::new(BODY_BYTES), BODY_BYTES as u64);
        assert_eq!(coming.allowed(0, 0), LONGEST.of(all));
        assert_eq!(coming.allowed(0, 1), WITH_OTHERS.start);
        assert_eq!(coming.allowed(all, 1), WITH_OTHERS.start + Duration::from_nanos(1000 * all));
        assert!(coming.allowed(all * 1000, 1) <= LONGEST.of(all));
    }

    /// Only bodies without room count as waiting, also after they have given up.
    #[tokio::test]
    async fn bodies_without_room_are_counted() {
        let memory = BodyMemory::new(BODY_BYTES, BODY_BYTES);
        let waiting = || memory.waiting.load(Ordering::Relaxed);
        let wait = || match memory.wait(BODY_BYTES) {
            Phase::Waits(acquired, _) => acquired,
            _ => unreachable!("it waits first"),
        };
        let permit = wait().await.expect("there is room");
        assert_eq!(waiting(), 0);
        let (mut second, mut third) = (wait(), wait());
        for acquired in [&mut second, &mut third] {
            assert!(poll_immediate(acquired).await.is_none());
        }
        assert_eq!(waiting(), 2);
        drop(third);
        assert_eq!(waiting(), 1);
        drop(permit);
        assert!(second.await.is_some());
        assert_eq!(waiting(), 0);
    }
}
