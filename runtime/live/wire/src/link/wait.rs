//! Waiting for messages, for other threads and for points in time.

pub(super) mod reminders;
pub(super) mod waker;

use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;

use self::waker::Waker;
use super::error::LinkError;
use super::inputs::EngineInputs;
use super::monotonic_ns;
use super::notices::NoticeBoard;
use super::system::Timer;
use crate::link::kv_events::publisher::KvEventPublisher;

/// Minimum time between two checks of all descriptors. Steps of zero duration follow each other within
/// microseconds, and a check after each would cost as much as the step.
const LOOK_INTERVAL_NS: u64 = 50_000;

/// Waits on behalf of one engine.
///
/// ZeroMQ's timeouts are whole milliseconds, and timeouts of the system's `poll` may be late by the timer slack. A
/// system timer has neither problem.
pub struct Waiter {
    timer: Timer,
    /// The last setting of the timer.
    timer_ns: Cell<u64>,
    /// When the descriptors were checked last.
    looked_ns: Cell<u64>,
    waker: Waker,
}

impl Waiter {
    /// Makes the timer and the wake-up event.
    pub fn new() -> Result<Self, LinkError> {
        let timer = Timer::new().map_err(LinkError::system::<io::Error>("make a timer"))?;
        Ok(Self { timer, timer_ns: Cell::new(0), looked_ns: Cell::new(0), waker: Waker::new()? })
    }

    /// A handle with which other threads end the wait.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until input may have arrived on any of these sockets, another thread calls [`Waker::wake`], a signal
    /// comes, or [`monotonic_ns`] reaches `until_ns`. If that time has passed, the call only checks the sockets,
    /// and skips even that within 50 microseconds of the last check. Without `messages`, messages of frontends and
    /// coordinators do not end the wait. Returns `true` after a call of [`Waker::wake`].
    ///
    /// Inputs that were not fully received end the wait at once. `events` and `notices` must have been fully
    /// received: only later messages are noticed.
    pub fn wait(
        &self,
        inputs: &mut EngineInputs,
        messages: bool,
        events: Option<&KvEventPublisher>,
        notices: Option<&NoticeBoard>,
        until_ns: Option<u64>,
    ) -> Result<bool, LinkError> {
        // No descriptor shows messages that ZeroMQ has already taken from the system.
        let is_left = inputs.inlets(messages).any(|inlet| inlet.may_have_message) || (messages && inputs.has_waiting());
        let now_ns = monotonic_ns();
        let is_over = is_left || until_ns.is_some_and(|until_ns| until_ns <= now_ns);
        if is_over && now_ns < self.looked_ns.get() + LOOK_INTERVAL_NS {
            return Ok(false);
        }
        self.looked_ns.set(now_ns);
        // Poll descriptors instead of ZeroMQ's sockets, because ZeroMQ would query each socket twice for each wait.
        let readable = |fd| zmq::PollItem::from_fd(fd, zmq::POLLIN);
        let mut items = vec![readable(self.waker.fd())];
        items.extend(inputs.inlets(messages).map(|inlet| readable(inlet.fd)));
        let others = events.and_then(KvEventPublisher::socket).into_iter().chain(notices.map(NoticeBoard::socket));
        for socket in others {
            items.push(readable(socket.get_fd().map_err(LinkError::socket("watch a socket"))?));
        }
        if let Some(until_ns) = until_ns.filter(|_| !is_over) {
            self.set_timer(until_ns)?;
            // Without a time, an old alarm does no harm, because the timer is not polled.
            items.push(readable(self.timer.as_raw_fd()));
        }
        if !is_over && messages && !inputs.await_messages() {
            return Ok(false);
        }
        let polled = zmq::poll(&mut items, if is_over { 0 } else { -1 });
        if !is_over {
            inputs.stop_waiting();
            // The check counts as of now, however long the wait took, so a due step needs no further check.
            self.looked_ns.set(monotonic_ns());
        }
        match polled {
            Ok(0) | Err(zmq::Error::EINTR) => return Ok(false),
            Ok(_) => {}
            Err(source) => return Err(LinkError::Socket { doing: "wait for a message", source }),
        }
        for (inlet, item) in inputs.inlets(messages).zip(&items[1..]) {
            inlet.may_have_message |= item.is_readable();
        }
        Ok(items[0].is_readable() && self.waker.take_call())
    }

    fn set_timer(&self, at_ns: u64) -> Result<(), LinkError> {
        if self.timer_ns.replace(at_ns) == at_ns {
            // This alarm is still set: if it had gone off, the time would have passed.
            return Ok(());
        }
        self.timer.set(at_ns).map_err(LinkError::system::<io::Error>("set a timer"))
    }
}
