//! The clock of a run in real time, and a precise timer.

use tokio::io::unix::AsyncFd;
use vcr_wire::{Timer, monotonic_ns};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        monotonic_ns() - self.origin_ns
    }

    /// Converts a time of the run to the system's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic_ns(self, at_ns: u64) -> u64 {
        self.origin_ns.saturating_add(at_ns)
    }

    /// Converts nanoseconds on the system's monotonic clock to a time of the run.
    pub(crate) fn of_monotonic_ns(self, ns: u64) -> u64 {
        ns.saturating_sub(self.origin_ns)
    }

    /// Converts seconds on the system's monotonic clock to a time of the run.
    pub(crate) fn of_monotonic_s(self, seconds: f64) -> u64 {
        self.of_monotonic_ns((seconds * 1e9) as u64)
    }
}

/// A timer with nanosecond resolution. The runtime's own timers round to milliseconds.
pub(crate) struct Alarm {
    clock: Clock,
    timer: AsyncFd<Timer>,
}

impl Alarm {
    #[expect(deprecated, reason = "what replaces it is unsafe; a Timer has its descriptor as long as it lives")]
    pub(crate) fn new(clock: Clock) -> std::io::Result<Self> {
        Ok(Self { clock, timer: AsyncFd::new(Timer::new()?)? })
    }

    /// Waits until a time of the run. Returns at once if it has passed.
    pub(crate) async fn until(&self, at_ns: u64) -> std::io::Result<()> {
        if at_ns <= self.clock.now_ns() {
            return Ok(());
        }
        self.timer.get_ref().set(self.clock.origin_ns + at_ns)?;
        loop {
            let mut ready = self.timer.readable().await?;
            if self.timer.get_ref().take_alarm()? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}
