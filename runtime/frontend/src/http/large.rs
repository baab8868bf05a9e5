//! Requests with large bodies: their memory, and the time that they take.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
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
use tokio::time::{Sleep, sleep};

/// Bodies from this length on are large: a millisecond or more of work.
const LARGE_BYTES: u64 = 128 * 1024;
/// The unit in which memory is reserved.
const UNIT_BYTES: usize = 1024;
/// Time for a large body to come whole, and more for each of its bytes: while it comes, it
/// keeps others waiting.
const LONGEST: Duration = Duration::from_secs(30);
const LONGEST_PER_BYTE: Duration = Duration::from_micros(10);

/// Memory limit of all large bodies together. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct BodyMemory {
    units: Arc<Semaphore>,
    /// All units.
    total: u32,
    /// The limit of one body, in bytes.
    longest: usize,
}

type Acquired = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

impl BodyMemory {
    /// Large bodies take `bytes` together at most, and at least one of `longest` fits.
    pub(super) fn new(bytes: usize, longest: usize) -> Self {
        let units = bytes.max(longest).div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        let total = u32::try_from(units).unwrap_or(u32::MAX);
        Self { units: Arc::new(Semaphore::new(total as usize)), total, longest }
    }

    /// Waits for room for a body of `bytes`, of which no more are read than the longest has.
    fn wait(&self, bytes: usize) -> Phase {
        let bytes = bytes.min(self.longest);
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.total);
        let semaphore = Arc::clone(&self.units);
        Phase::Waits(Box::pin(async move { semaphore.acquire_many_owned(units).await.ok() }), bytes)
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

    /// The handler waits for something: what it has read of a body is no body any more.
    fn leave_if_read(&self) {
        self.change(|held| drop(held.permit.take_if(|_| held.is_read)));
    }
}

/// A body that comes once there is room for it.
struct Admitted {
    body: Body,
    memory: BodyMemory,
    room: Arc<Room>,
    /// Bytes of a body of unknown length so far.
    received: u64,
    phase: Phase,
}

enum Phase {
    /// A body that does not say its length, which may be short.
    Unknown,
    Waits(Acquired, usize),
    Comes(Pin<Box<Sleep>>),
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
            let more = LONGEST_PER_BYTE * u32::try_from(*bytes).unwrap_or(u32::MAX);
            this.phase = Phase::Comes(Box::pin(sleep(LONGEST + more)));
        }
        if let Phase::Comes(longest) = &mut this.phase
            && longest.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(axum::Error::new("the body took too long"))));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let (Phase::Unknown, Some(Ok(frame))) = (&this.phase, &frame) {
            this.received += frame.data_ref().map_or(0, Bytes::len) as u64;
            if this.received >= LARGE_BYTES {
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
