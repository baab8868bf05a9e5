//! What waiting needs from the operating system: an alarm with nanosecond resolution, a wake-up by other threads,
//! and finding the ready descriptors among many.
//!
//! On Linux, `linux` uses a system call for each. For every other Unix, `portable` does the same with sockets, a
//! thread and poll(2). The feature `portable` selects it on Linux too, where the same tests run with it.

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
mod portable;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
use linux as chosen;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
use portable as chosen;

pub use chosen::Timer;
pub(super) use chosen::{Poller, WakeEvent};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    pub(super) const READ: Self = Self { read: true, write: false };

    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::super::monotonic_ns;
    use super::*;

    /// Whether a descriptor is readable: within ten seconds if `waits`, otherwise now.
    fn is_readable(fd: std::os::fd::RawFd, waits: bool) -> bool {
        let mut items = [zmq::PollItem::from_fd(fd, zmq::POLLIN)];
        zmq::poll(&mut items, if waits { 10_000 } else { 0 }).expect("it waits");
        items[0].is_readable()
    }

    #[test]
    fn an_alarm_goes_off_at_its_time_and_not_before() {
        let timer = Timer::new().expect("the system has one");
        for wait_ns in [0, 1_500_000, 20_000_000] {
            let at_ns = monotonic_ns() + wait_ns;
            timer.set(at_ns).expect("it can be set");
            assert!(is_readable(timer.as_raw_fd(), true));
            assert!(monotonic_ns() >= at_ns);
            assert!(timer.take_alarm().expect("it can be read"));
            assert!(!timer.take_alarm().expect("it can be read"), "once");
            assert!(!is_readable(timer.as_raw_fd(), false));
        }
    }

    /// A later alarm replaces the previous one, whether it is set to an earlier or a later time.
    #[test]
    fn only_the_last_alarm_counts() {
        let timer = Timer::new().expect("the system has one");
        let hour_ns = 3_600_000_000_000;
        timer.set(monotonic_ns() + hour_ns).expect("it can be set");
        timer.set(monotonic_ns() + 1_000_000).expect("it can be set");
        assert!(is_readable(timer.as_raw_fd(), true));
        timer.set(monotonic_ns() + hour_ns).expect("it can be set");
        assert!(!is_readable(timer.as_raw_fd(), false));
    }

    #[test]
    fn a_bell_rings_until_it_is_heard() {
        let event = WakeEvent::new().expect("the system has one");
        assert!(!event.take_signal());
        // More signals than any buffer can hold.
        for _ in 0..1_000_000 {
            event.signal();
        }
        assert!(is_readable(event.fd(), false));
        assert!(event.take_signal());
        assert!(!event.take_signal() && !is_readable(event.fd(), false));
    }

    #[test]
    fn descriptors_are_shown_for_what_they_are_watched_for() {
        let mut poller = Poller::new().expect("the system has one");
        let (mut one, mut other) = UnixStream::pair().expect("the system has sockets");
        poller.add(&one, 6, Interest::READ).expect("it can be watched");
        let ready = |poller: &Poller| {
            let mut keys = Vec::new();
            poller.ready(&mut keys, 8).expect("it looks");
            keys
        };
        assert!(ready(&poller).is_empty());
        other.write_all(b"x").expect("there is room");
        for _ in 0..2 {
            assert_eq!(ready(&poller), [6], "as long as it is readable");
        }
        assert!(
            poller
                .items()
                .into_iter()
                .any(|mut item| { zmq::poll(std::slice::from_mut(&mut item), 0).expect("it looks") == 1 })
        );
        one.read_exact(&mut [0]).expect("it came");
        poller.change(&one, 6, Interest { read: true, write: true }).expect("it is watched");
        assert_eq!(ready(&poller), [6]);
        poller.remove(&one, 6).expect("it is watched");
        assert!(ready(&poller).is_empty());
        poller.add(&one, 8, Interest::READ).expect("it can be watched again");
        drop(other);
        assert_eq!(ready(&poller), [8], "the end shows");
        let since = Instant::now();
        poller.forget(8);
        drop(one);
        assert!(ready(&poller).is_empty() && since.elapsed() < Duration::from_secs(60));
    }
}
