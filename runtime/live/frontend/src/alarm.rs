//! Waiting until an instant.

use tokio::io::unix::AsyncFd;
use vcr_wire::{Timer, monotonic_ns};

/// A timer with nanosecond resolution. The runtime's own timers round to milliseconds.
#[derive(Debug)]
pub struct Alarm(AsyncFd<Timer>);

impl Alarm {
    /// A timer on the runtime that this is called in.
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    #[expect(deprecated, reason = "what replaces it is unsafe; a Timer has its descriptor as long as it lives")]
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(AsyncFd::new(Timer::new()?)?))
    }

    /// Waits until this time of [`monotonic_ns`]; not at all if it has passed.
    ///
    /// # Errors
    /// If the timer cannot be set or read.
    pub async fn until(&self, at_ns: u64) -> std::io::Result<()> {
        if at_ns <= monotonic_ns() {
            return Ok(());
        }
        self.0.get_ref().set(at_ns)?;
        loop {
            let mut ready = self.0.readable().await?;
            if self.0.get_ref().take_alarm()? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}
