//! Waiting for messages, for other threads and for an instant.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

use super::error::LinkError;
use super::inputs::EngineInputs;
use super::kv_publisher::KvEventPublisher;
use super::notices::NoticeBoard;

/// The system's monotonic clock in nanoseconds: the clock of vLLM's timestamps.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Waits on behalf of one engine.
///
/// The library's own timeouts are whole milliseconds, and those of the
/// system's `poll` may be late by the slack of timers; a timer of the system
/// is neither.
pub struct Waiter {
    timer: OwnedFd,
    waker: Waker,
}

/// Ends the waiting of a [`Waiter`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the present waiting, or the next one if there is none.
    pub fn wake(&self) {
        // Fails only when it was woken 2^64 times without looking.
        _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Waiter {
    /// Makes the timer and the bell.
    ///
    /// # Errors
    ///
    /// When the system has no more descriptors.
    pub fn new() -> Result<Self, LinkError> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(LinkError::system::<Errno>("make a timer"))?;
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let bell = eventfd(0, flags).map_err(LinkError::system::<Errno>("make a bell"))?;
        Ok(Self { timer, waker: Waker(Arc::new(bell)) })
    }

    /// What other threads end the waiting with.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until something may have come in on any of these, someone calls
    /// [`Waker::wake`], a signal comes, or [`monotonic_ns`] has reached
    /// `until_ns`. `true` if it was someone's call.
    ///
    /// # Errors
    ///
    /// When the library or the system fails.
    pub fn wait(
        &self,
        inputs: &EngineInputs,
        events: Option<&KvEventPublisher>,
        notices: Option<&NoticeBoard>,
        until_ns: Option<u64>,
    ) -> Result<bool, LinkError> {
        let mut items = vec![
            zmq::PollItem::from_fd(self.waker.0.as_raw_fd(), zmq::POLLIN),
            zmq::PollItem::from_fd(self.timer.as_raw_fd(), zmq::POLLIN),
        ];
        let others = events.and_then(KvEventPublisher::socket).into_iter().chain(notices.map(NoticeBoard::socket));
        items.extend(inputs.sockets().chain(others).map(|socket| socket.as_poll_item(zmq::POLLIN)));
        if let Some(until_ns) = until_ns {
            self.set_timer(until_ns)?;
        }
        match zmq::poll(&mut items, -1) {
            Ok(_) | Err(zmq::Error::EINTR) => {}
            Err(source) => return Err(LinkError::Socket { doing: "wait for a message", source }),
        }
        if until_ns.is_some() {
            // Nobody looks at an old alarm again.
            self.set_timer(0)?;
        }
        Ok(rustix::io::read(&*self.waker.0, &mut [0; 8]).is_ok())
    }

    /// Sets the alarm to an instant of the monotonic clock; 0 takes it away.
    fn set_timer(&self, at_ns: u64) -> Result<(), LinkError> {
        let at = Timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
        let alarm = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &alarm)
            .map(|_| ())
            .map_err(LinkError::system::<Errno>("set a timer"))
    }
}
