//! Limits of request bodies: size, and time to send.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Additional time for each byte that has arrived.
const PER_BYTE: Duration = Duration::from_micros(10);

#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    pub max_bytes: usize,
    /// The time in which a client must send a body. Each byte that arrives extends it.
    pub timeout: Duration,
}

/// The reason why a body is not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    TooLarge,
    TooSlow,
}

/// The reason why the body of one request was cut, if it was. Clones share it. A request without a body has no verdict.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict(Option<Arc<OnceLock<Cut>>>);

impl Verdict {
    fn of(body: &impl HttpBody) -> Self {
        Self((!body.is_end_stream()).then(Arc::default))
    }

    /// Records the reason. Returns the error for the reader of the body.
    pub(super) fn cut(&self, why: Cut) -> axum::Error {
        if let Some(verdict) = &self.0 {
            _ = verdict.set(why);
        }
        axum::Error::new(match why {
            Cut::TooLarge => "the request body is too large",
            Cut::TooSlow => "the request body took too long",
        })
    }

    pub(super) fn has_body(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn get(&self) -> Option<Cut> {
        self.0.as_ref()?.get().copied()
    }
}

/// A body that fails if it is too long or the client is too slow. Only the time that the server waits for the
/// client counts.
pub(super) struct LimitedBody<B> {
    body: B,
    limits: BodyLimits,
    verdict: Verdict,
    received_bytes: u64,
    /// The total of earlier waits for the client.
    waited: Duration,
    /// The start of the current wait.
    since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<B> LimitedBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
{
    /// Limits the body of a request. The verdict tells whether the limits cut it.
    pub(super) fn of(request: Request<B>, limits: BodyLimits) -> (Request<Body>, Verdict) {
        let verdict = Verdict::of(request.body());
        let request = request.map(|body| match verdict.has_body() {
            true => Body::new(Self::new(body, limits, verdict.clone())),
            false => Body::empty(),
        });
        (request, verdict)
    }
}

impl<B> LimitedBody<B> {
    fn new(body: B, limits: BodyLimits, verdict: Verdict) -> Self {
        Self { body, limits, verdict, received_bytes: 0, waited: Duration::ZERO, since: None, alarm: None }
    }

    /// The time that the client has for the bytes received so far.
    fn allowed(&self) -> Duration {
        let more = PER_BYTE.as_nanos().saturating_mul(u128::from(self.received_bytes));
        self.limits.timeout.saturating_add(Duration::from_nanos(u64::try_from(more).unwrap_or(u64::MAX)))
    }

    fn end_wait(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
    }

    /// Whether the client's time is over. The alarm is not moved when bytes arrive, so it may fire early and is
    /// then set again.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = self.allowed().saturating_sub(self.waited);
        // If the clock cannot represent the deadline, there is no limit.
        let Some(deadline) = since.checked_add(left) else { return false };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        while alarm.as_mut().poll(context).is_ready() {
            if alarm.deadline() >= deadline {
                return true;
            }
            alarm.as_mut().reset(deadline);
        }
        false
    }
}

impl<B> HttpBody for LimitedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => {
                this.end_wait();
                let frame = frame.map(|frame| frame.map_err(axum::Error::new));
                if let Some(Ok(frame)) = &frame {
                    this.received_bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
                    if this.received_bytes > this.limits.max_bytes as u64 {
                        return Poll::Ready(Some(Err(this.verdict.cut(Cut::TooLarge))));
                    }
                }
                Poll::Ready(frame)
            }
            Poll::Pending if this.is_late(context) => Poll::Ready(Some(Err(this.verdict.cut(Cut::TooSlow)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::future::poll_immediate;
    use tokio::sync::mpsc;

    use super::*;

    const MAX_BYTES: usize = 1_000_000;

    /// A body whose client sends what the channel contains.
    fn sent(timeout: Duration) -> (mpsc::UnboundedSender<Bytes>, LimitedBody<Body>, Verdict) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let pieces = futures_util::stream::unfold(receiver, async |mut receiver: mpsc::UnboundedReceiver<Bytes>| {
            Some((Ok::<_, std::io::Error>(receiver.recv().await?), receiver))
        });
        let body = Body::from_stream(pieces);
        let verdict = Verdict::of(&body);
        let limits = BodyLimits { max_bytes: MAX_BYTES, timeout };
        (sender, LimitedBody::new(body, limits, verdict.clone()), verdict)
    }

    async fn next(body: &mut LimitedBody<Body>) -> Option<Result<Frame<Bytes>, axum::Error>> {
        poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    }

    #[tokio::test]
    async fn a_body_that_stops_is_cut() {
        for timeout in [Duration::ZERO, Duration::from_millis(5)] {
            let (sender, mut body, verdict) = sent(timeout);
            sender.send(Bytes::from_static(b"a")).expect("it is read");
            assert!(next(&mut body).await.is_some_and(|frame| frame.is_ok()));
            assert_eq!(verdict.get(), None);
            assert!(next(&mut body).await.is_some_and(|frame| frame.is_err()));
            assert_eq!(verdict.get(), Some(Cut::TooSlow));
        }
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_is_cut_at_the_limit() {
        let (sender, mut body, verdict) = sent(Duration::MAX);
        for (bytes, is_read) in [(MAX_BYTES, true), (1, false)] {
            sender.send(Bytes::from(vec![0; bytes])).expect("it is read");
            assert_eq!(next(&mut body).await.is_some_and(|frame| frame.is_ok()), is_read);
        }
        assert_eq!(verdict.get(), Some(Cut::TooLarge));
    }

    /// While the server waits for memory it does not read, and this time does not count.
    #[tokio::test]
    async fn only_waits_for_the_client_count() {
        let (sender, mut body, _) = sent(Duration::MAX);
        assert!(poll_immediate(next(&mut body)).await.is_none());
        assert!(body.since.is_some());
        sender.send(Bytes::from_static(b"a")).expect("it is read");
        assert!(next(&mut body).await.is_some_and(|frame| frame.is_ok()));
        assert!(body.since.is_none());
    }

    #[test]
    fn bytes_that_arrived_give_more_time() {
        let limits = BodyLimits { max_bytes: MAX_BYTES, timeout: Duration::from_secs(30) };
        let mut body = LimitedBody::new(Body::empty(), limits, Verdict::default());
        body.received_bytes = 1_000_000;
        assert_eq!(body.allowed(), Duration::from_secs(40));
        body.received_bytes = u64::MAX;
        assert!(body.allowed() > Duration::from_secs(1_000_000_000));
    }
}
