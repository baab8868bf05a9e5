//! The clock of all links.

use rustix::time::{ClockId, clock_gettime};

/// The system's monotonic clock in nanoseconds: the clock of vLLM's timestamps.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
