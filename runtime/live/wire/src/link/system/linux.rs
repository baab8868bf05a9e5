//! timerfd, eventfd and epoll.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec as Wait, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::Interest;

/// A descriptor that becomes readable at a time of the monotonic clock.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer without an alarm.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the alarm, in nanoseconds of [`monotonic_ns`](crate::monotonic_ns). It replaces an earlier alarm.
    pub fn set(&self, at_ns: u64) -> io::Result<()> {
        let at = Timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
        let alarm = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &alarm)?;
        Ok(())
    }

    /// Whether the alarm has gone off since the last call.
    pub fn take_alarm(&self) -> io::Result<bool> {
        match rustix::io::read(&self.0, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A descriptor that is readable after a signal.
#[derive(Debug)]
pub(in crate::link) struct WakeEvent(OwnedFd);

impl WakeEvent {
    pub(in crate::link) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub(in crate::link) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes the signal. Returns whether there was one since the last call.
    pub(in crate::link) fn take_signal(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    pub(in crate::link) fn signal(&self) {
        // Fails only after 2^64 signals that were not taken.
        _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Watches descriptors, each under a key.
#[derive(Debug)]
pub(in crate::link) struct Poller(OwnedFd);

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.read);
    flags.set(EventFlags::OUT, interest.write);
    flags
}

impl Poller {
    pub(in crate::link) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Poll items that are ready when a watched descriptor is.
    pub(in crate::link) fn items(&self) -> Vec<zmq::PollItem<'static>> {
        vec![zmq::PollItem::from_fd(self.0.as_raw_fd(), zmq::POLLIN)]
    }

    pub(in crate::link) fn add(&mut self, what: impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, what, EventData::new_u64(key), flags(interest))?)
    }

    pub(in crate::link) fn change(&mut self, what: impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, what, EventData::new_u64(key), flags(interest))?)
    }

    pub(in crate::link) fn remove(&mut self, what: impl AsFd, _key: u64) -> io::Result<()> {
        Ok(epoll::delete(&self.0, what)?)
    }

    /// Forgets a key whose descriptor is about to be closed. The system does that by itself.
    pub(in crate::link) fn forget(&mut self, _key: u64) {}

    /// Adds up to `most` keys of descriptors that are ready now.
    pub(in crate::link) fn ready(&self, keys: &mut Vec<u64>, most: usize) -> io::Result<()> {
        let now = Wait { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(most);
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&now)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        keys.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
