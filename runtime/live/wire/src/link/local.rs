//! A link within one process: the frontend and the engine share a mailbox for requests and a callback for outputs,
//! and no socket.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::handshake::ReadyResponse;
use crate::link::wait::waker::Waker;
use crate::request::Request;
use crate::step_outputs::StepOutputs;

/// An event of an engine, for the frontend in its process.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and none is kept")]
pub enum LocalEvent<'a> {
    /// The engine serves, with these settings. Repeated after each restart.
    Ready(&'a ReadyResponse),
    /// The frame of a message; [`crate::EngineMessage::decode`] reads it.
    Message(&'a [u8]),
    /// The outputs of a step, without a frame.
    Step(StepOutputs<'a>),
    /// The frame of a message that a fault damages. There is no network that could lose it, so the frontend decides
    /// what its clients see instead.
    Damaged(&'a [u8], MessageDamage),
    /// The engine no longer serves: requests in progress get no answers.
    Lost,
}

/// The effect of a fault on a message within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDamage {
    /// The message is lost.
    Lost,
    /// The message cannot be read.
    Unreadable,
}

/// Is called with the engines' events and their ranks. The call runs on the engine's thread, which waits until it
/// returns.
#[derive(Clone)]
pub struct LocalSink(Arc<dyn Fn(u16, LocalEvent<'_>) + Send + Sync>);

impl LocalSink {
    /// Calls `hear`.
    pub fn new(hear: impl Fn(u16, LocalEvent<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }
}

impl fmt::Debug for LocalSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("LocalSink")
    }
}

/// The reason why a request cannot be sent to an engine in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum LocalLinkError {
    #[error("the engine's mailbox is full")]
    Full,
    #[error("the engine does not serve")]
    Lost,
}

/// The link between an engine and a frontend in one process. It outlives restarts of the engine.
#[derive(Clone, Debug)]
pub struct LocalLink(Arc<Shared>);

/// Wakes an engine that has requests, when this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct WakeUp(Arc<Shared>);

impl Drop for WakeUp {
    fn drop(&mut self) {
        self.0.waker.wake();
    }
}

#[derive(Debug)]
struct Shared {
    rank: u16,
    max_waiting: usize,
    mailbox: Mutex<Mailbox>,
    waker: Waker,
    sink: LocalSink,
}

#[derive(Debug, Default)]
struct Mailbox {
    is_open: bool,
    /// Whether the engine sleeps until a request wakes it; otherwise it checks the mailbox by itself.
    is_awaited: bool,
    requests: VecDeque<Request>,
}

impl LocalLink {
    /// A link of the engine `rank`, which waits with the [`super::Waiter`] of `waker`. At most `max_waiting`
    /// requests wait in the mailbox; 0 means no limit.
    #[must_use]
    pub fn new(rank: u16, waker: Waker, max_waiting: u32, sink: LocalSink) -> Self {
        let max_waiting = if max_waiting == 0 { usize::MAX } else { max_waiting as usize };
        Self(Arc::new(Shared { rank, max_waiting, mailbox: Mutex::default(), waker, sink }))
    }

    /// The engine's rank.
    #[must_use]
    pub fn rank(&self) -> u16 {
        self.0.rank
    }

    /// Maximum number of requests that wait in the mailbox.
    #[must_use]
    pub fn max_waiting(&self) -> usize {
        self.0.max_waiting
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        // A panic under this lock leaves the mailbox consistent.
        self.0.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the engine. Only new requests are subject to the limit of the mailbox, because aborts
    /// make room.
    ///
    /// # Errors
    ///
    /// The mailbox is full, or the engine does not serve.
    pub fn send(&self, request: Request) -> Result<(), LocalLinkError> {
        // Dropping the value wakes the engine.
        self.post(request).map(drop)
    }

    /// Like [`LocalLink::send`], but lets the caller decide when to wake a waiting engine: requests until then need
    /// no further wake-up. Returns `None` if the engine needs no wake-up for this request.
    pub fn post(&self, request: Request) -> Result<Option<WakeUp>, LocalLinkError> {
        let mut mailbox = self.mailbox();
        if !mailbox.is_open {
            return Err(LocalLinkError::Lost);
        }
        if matches!(request, Request::Add(_)) && mailbox.requests.len() >= self.0.max_waiting {
            return Err(LocalLinkError::Full);
        }
        mailbox.requests.push_back(request);
        let is_awaited = std::mem::take(&mut mailbox.is_awaited);
        drop(mailbox);
        Ok(is_awaited.then(|| WakeUp(Arc::clone(&self.0))))
    }

    /// Called before the engine waits: the next request must wake it. Returns `false` if a request waits already.
    pub(super) fn await_requests(&self) -> bool {
        let mut mailbox = self.mailbox();
        mailbox.is_awaited = mailbox.requests.is_empty();
        mailbox.is_awaited
    }

    /// Called when the engine no longer waits.
    pub(super) fn stop_waiting(&self) {
        self.mailbox().is_awaited = false;
    }

    /// Opens the mailbox and tells the frontend that the engine serves.
    pub(super) fn open(&self, ready: &ReadyResponse) {
        self.mailbox().is_open = true;
        (self.0.sink.0)(self.0.rank, LocalEvent::Ready(ready));
    }

    /// Closes the mailbox and tells the frontend, unless it is closed already.
    pub fn close(&self) {
        let was_open = {
            let mut mailbox = self.mailbox();
            mailbox.requests.clear();
            std::mem::take(&mut mailbox.is_open)
        };
        if was_open {
            (self.0.sink.0)(self.0.rank, LocalEvent::Lost);
        }
    }

    pub(super) fn take(&self) -> Option<Request> {
        self.mailbox().requests.pop_front()
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.mailbox().requests.is_empty()
    }

    pub(super) fn send_message(&self, frame: &[u8]) {
        (self.0.sink.0)(self.0.rank, LocalEvent::Message(frame));
    }

    pub(super) fn send_step(&self, step: StepOutputs<'_>) {
        (self.0.sink.0)(self.0.rank, LocalEvent::Step(step));
    }

    pub(super) fn send_damaged(&self, frame: &[u8], damage: MessageDamage) {
        (self.0.sink.0)(self.0.rank, LocalEvent::Damaged(frame, damage));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{EngineCoreRequest, EngineLink, Received, Source, StepEnd, StepKeeper, Waiter, monotonic_ns};

    fn add(id: &str) -> Request {
        Request::Add(Box::new(EngineCoreRequest { request_id: id.to_owned(), ..EngineCoreRequest::default() }))
    }

    fn link(max_waiting: u32) -> (LocalLink, Waiter, Arc<Mutex<Vec<String>>>) {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let of_sink = Arc::clone(&heard);
        let sink = LocalSink::new(move |rank, event| {
            let text = match event {
                LocalEvent::Ready(_) => format!("{rank} ready"),
                LocalEvent::Message(frame) => format!("{rank} {}", String::from_utf8_lossy(frame)),
                LocalEvent::Step(step) => format!("{rank} step at {}", step.message.timestamp),
                LocalEvent::Damaged(frame, damage) => format!("{rank} {damage:?} {}", String::from_utf8_lossy(frame)),
                LocalEvent::Lost => format!("{rank} lost"),
            };
            of_sink.lock().expect("no holder panicked").push(text);
        });
        let waiter = Waiter::new().expect("there are descriptors");
        (LocalLink::new(3, waiter.waker(), max_waiting, sink), waiter, heard)
    }

    /// If a wake-up were lost, a request would wait forever.
    #[test]
    fn requests_wake_the_engine_and_arrive_in_order() {
        let (link, waiter, heard) = link(0);
        assert_eq!(link.send(add("early")), Err(LocalLinkError::Lost));
        let mut engine = EngineLink::local(&link, &ReadyResponse::default());
        let sender = link.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(add("a")).and_then(|()| sender.send(Request::Abort(vec!["a".to_owned()])))
        });
        let mut ids = Vec::new();
        while ids.len() < 2 {
            waiter.wait(&mut engine.inputs, true, None, None, None).expect("it waits");
            while let Some(received) = engine.inputs.try_receive_message().expect("it is there") {
                let Received::Request { source: Source::Client(0), request, .. } = received else {
                    panic!("it is a request")
                };
                ids.push(request.kind());
            }
        }
        thread.join().expect("it ends").expect("it is sent");
        assert_eq!(ids, [0, 1]);
        engine.outputs.send(0, b"out").expect("there is a client");
        assert!(engine.outputs.damage(b"out", MessageDamage::Lost));
        assert!(engine.outputs.send(1, b"out").is_err());
        let end = StepEnd { timestamp: 1.5, ..StepEnd::default() };
        engine.outputs.hand_over(StepKeeper::default().step(end));
        link.close();
        link.close();
        assert_eq!(
            *heard.lock().expect("no holder panicked"),
            ["3 ready", "3 out", "3 Lost out", "3 step at 1.5", "3 lost"]
        );
    }

    /// Requests after the first one need no wake-up, and none is lost.
    #[test]
    fn a_wake_up_may_wait_for_further_requests() {
        let (link, waiter, _) = link(0);
        let engine = EngineLink::local(&link, &ReadyResponse::default());
        assert!(engine.inputs.await_messages());
        let wake_up = link.post(add("a")).expect("there is room").expect("the engine waits");
        assert!(link.post(add("b")).expect("there is room").is_none(), "it is being woken already");
        assert!(!waiter.waker().take_call());
        drop(wake_up);
        assert!(waiter.waker().take_call());
        engine.inputs.stop_waiting();
        assert!(link.post(add("c")).expect("there is room").is_none(), "it looks by itself");
    }

    /// Requests that were held back must end the wait as soon as messages are wanted again.
    #[test]
    fn a_mailbox_has_a_limit_and_keeps_what_is_held_back() {
        let (link, waiter, _) = link(1);
        let mut engine = EngineLink::local(&link, &ReadyResponse::default());
        link.send(add("a")).expect("there is room");
        assert_eq!(link.send(add("b")), Err(LocalLinkError::Full));
        link.send(Request::Abort(vec!["a".to_owned()])).expect("aborts have no limit");
        waiter.wait(&mut engine.inputs, true, None, None, None).expect("it was woken");
        // A wait for which no messages are wanted takes none and lasts until its deadline.
        waiter.wait(&mut engine.inputs, false, None, None, Some(monotonic_ns() + 1_000_000)).expect("the time passes");
        waiter.wait(&mut engine.inputs, true, None, None, None).expect("there is something");
        assert!(engine.inputs.try_receive_message().expect("it is there").is_some());
    }
}
