//! The clock of a run in real time, and an alarm that is not late.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use vcr_wire::monotonic_ns;

/// Nanoseconds since the start of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        monotonic_ns() - self.origin_ns
    }

    /// Seconds on the system's monotonic clock as time of the run.
    pub(crate) fn of_monotonic_s(self, seconds: f64) -> u64 {
        ((seconds * 1e9) as u64).saturating_sub(self.origin_ns)
    }
}

/// Ends a wait at an instant. The runtime's own timers are whole milliseconds; requests
/// are due at any time.
pub(crate) struct Alarm {
    clock: Clock,
    timer: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// An alarm on the runtime that this is called in.
    #[expect(deprecated, reason = "what replaces it is unsafe; an OwnedFd is a descriptor as long as it lives")]
    pub(crate) fn new(clock: Clock) -> std::io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self { clock, timer: AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)? })
    }

    /// Waits until an instant of the run; not at all if it has passed.
    pub(crate) async fn until(&self, at_ns: u64) -> std::io::Result<()> {
        if at_ns <= self.clock.now_ns() {
            return Ok(());
        }
        let at_ns = self.clock.origin_ns + at_ns;
        let value = Timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as _ };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(
            self.timer.get_ref(),
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval: never, it_value: value },
        )?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut count = [0; 8];
            match rustix::io::read(self.timer.get_ref(), &mut count) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
