//! Ends calls that take too long in real time.
//!
//! Only live engines need this, because their frontends wait for the guest. Runs in virtual time are limited only by
//! fuel: a time limit would be hit on some machines and not on others.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wasmtime::Engine;

/// Resolution of time limits.
const TICK: Duration = Duration::from_millis(5);

/// A deadline that is never reached, in ticks from now.
pub(crate) const NEVER_TICKS: u64 = u64::MAX / 2;

/// Number of ticks after which `limit` has passed. One tick is added, because the first may come immediately.
pub(crate) fn ticks(limit: Duration) -> u64 {
    let whole = limit.as_nanos().div_ceil(TICK.as_nanos());
    u64::try_from(whole).unwrap_or(NEVER_TICKS).saturating_add(1).min(NEVER_TICKS)
}

/// Starts the thread that counts ticks for all instances of `engine`, until the process ends.
pub(crate) fn watch(engine: &'static Engine, watched: &Mutex<bool>) -> std::io::Result<()> {
    let tick = move || {
        loop {
            std::thread::sleep(TICK);
            engine.increment_epoch();
        }
    };
    // With two watchdog threads, deadlines would be reached too soon.
    let mut is_watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_watched {
        std::thread::Builder::new().name("vcr-guest-watchdog".to_owned()).spawn(tick)?;
        *is_watched = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_never_cut_short_and_never_overflows() {
        assert_eq!(ticks(Duration::ZERO), 1);
        assert_eq!(ticks(Duration::from_millis(1)), 2);
        assert_eq!(ticks(Duration::from_millis(500)), 101);
        assert_eq!(ticks(Duration::MAX), NEVER_TICKS);
    }
}
