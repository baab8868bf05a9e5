//! Waiting with sockets, a sleeping thread, and poll(2).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::super::monotonic_ns;
use super::Interest;

/// A pair of connected non-blocking sockets.
fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

/// Reads all available bytes; returns whether there were any.
fn drain(mut stream: &UnixStream) -> io::Result<bool> {
    let (mut was_any, mut buffer) = (false, [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(was_any),
            Ok(_) => was_any = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(was_any),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A descriptor that becomes readable at a time of the monotonic clock.
#[derive(Debug)]
pub struct Timer {
    shown: UnixStream,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    alarm: Mutex<Alarm>,
    changed: Condvar,
}

#[derive(Debug)]
struct Alarm {
    /// `None` if no alarm is set, or after it has gone off.
    at_ns: Option<u64>,
    is_closed: bool,
    show: UnixStream,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Alarm> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals alarms at their time, until the timer is dropped.
    fn show(&self) {
        let mut alarm = self.lock();
        while !alarm.is_closed {
            let left_ns = alarm.at_ns.map(|at_ns| at_ns.saturating_sub(monotonic_ns()));
            alarm = match left_ns {
                Some(0) => {
                    alarm.at_ns = None;
                    // Fails if the alarm is signalled already.
                    _ = (&alarm.show).write(&[1]);
                    alarm
                }
                Some(left_ns) => {
                    let left = self.changed.wait_timeout(alarm, Duration::from_nanos(left_ns));
                    left.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(alarm).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Timer {
    /// A timer without an alarm.
    pub fn new() -> io::Result<Self> {
        let (shown, show) = pair()?;
        let alarm = Mutex::new(Alarm { at_ns: None, is_closed: false, show });
        let shared = Arc::new(Shared { alarm, changed: Condvar::new() });
        let own = Arc::clone(&shared);
        thread::Builder::new().name("timer".to_owned()).spawn(move || own.show())?;
        Ok(Self { shown, shared })
    }

    /// Sets the alarm, in nanoseconds of [`monotonic_ns`](crate::monotonic_ns). It replaces an earlier alarm.
    pub fn set(&self, at_ns: u64) -> io::Result<()> {
        let mut alarm = self.shared.lock();
        drain(&self.shown)?;
        alarm.at_ns = Some(at_ns);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Whether the alarm has gone off since the last call.
    pub fn take_alarm(&self) -> io::Result<bool> {
        drain(&self.shown)
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.shown.as_raw_fd()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

/// A descriptor that is readable after a signal.
#[derive(Debug)]
pub(in crate::link) struct WakeEvent {
    receiver: UnixStream,
    sender: UnixStream,
}

impl WakeEvent {
    pub(in crate::link) fn new() -> io::Result<Self> {
        let (receiver, sender) = pair()?;
        Ok(Self { receiver, sender })
    }

    pub(in crate::link) fn fd(&self) -> RawFd {
        self.receiver.as_raw_fd()
    }

    /// Takes the signal. Returns whether there was one since the last call.
    pub(in crate::link) fn take_signal(&self) -> bool {
        drain(&self.receiver).unwrap_or(false)
    }

    pub(in crate::link) fn signal(&self) {
        // Fails if the buffer is full of signals, when another one is not needed.
        _ = (&self.sender).write(&[1]);
    }
}

/// Watches descriptors, each under a key.
#[derive(Debug)]
pub(in crate::link) struct Poller {
    watched: BTreeMap<u64, (RawFd, Interest)>,
}

impl Poller {
    pub(in crate::link) fn new() -> io::Result<Self> {
        Ok(Self { watched: BTreeMap::new() })
    }

    /// Poll items that are ready when a watched descriptor is.
    pub(in crate::link) fn items(&self) -> Vec<zmq::PollItem<'static>> {
        let events = |interest: Interest| match (interest.read, interest.write) {
            (true, true) => zmq::POLLIN | zmq::POLLOUT,
            (true, false) => zmq::POLLIN,
            (false, true) => zmq::POLLOUT,
            (false, false) => zmq::PollEvents::empty(),
        };
        self.watched.values().map(|(fd, interest)| zmq::PollItem::from_fd(*fd, events(*interest))).collect()
    }

    pub(in crate::link) fn add(&mut self, what: impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        self.watched.insert(key, (what.as_fd().as_raw_fd(), interest));
        Ok(())
    }

    pub(in crate::link) fn change(&mut self, what: impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        self.add(what, key, interest)
    }

    pub(in crate::link) fn remove(&mut self, _what: impl AsFd, key: u64) -> io::Result<()> {
        self.watched.remove(&key);
        Ok(())
    }

    /// Forgets a key whose descriptor is about to be closed.
    pub(in crate::link) fn forget(&mut self, key: u64) {
        self.watched.remove(&key);
    }

    /// Adds up to `most` keys of descriptors that are ready now.
    pub(in crate::link) fn ready(&self, keys: &mut Vec<u64>, most: usize) -> io::Result<()> {
        let mut items = self.items();
        match zmq::poll(&mut items, 0) {
            Ok(_) | Err(zmq::Error::EINTR) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        let ready = self.watched.keys().zip(&items).filter(|(_, item)| !item.get_revents().is_empty());
        keys.extend(ready.map(|(key, _)| *key).take(most));
        Ok(())
    }
}
