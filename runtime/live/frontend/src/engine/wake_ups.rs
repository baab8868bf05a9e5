//! Delays the wake-up of an idle engine, so that it sees several requests at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use vcr_wire::WakeUp;

/// The longest delay of a wake-up while requests arrive. A thread parses about thirty requests in this time. With a
/// third of it, an engine faster than its clients woke up for every fifth of 64 requests.
const LONGEST_WAIT: Duration = Duration::from_micros(300);

/// Collects requests that arrive together, so that one wake-up serves all.
#[derive(Clone, Debug, Default)]
pub(super) struct WakeUps(Arc<Mutex<Option<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Wakes the engine when dropped.
    _wake_up: WakeUp,
}

impl WakeUps {
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the result of [`vcr_wire::LocalLink::post`] for a request. The engine wakes up when this thread has no
    /// other work.
    pub(super) fn posted(&self, wake_up: Option<WakeUp>) {
        let Some(wake_up) = wake_up else { return self.wake_if_late() };
        let Ok(runtime) = Handle::try_current() else { return };
        *self.waiting() = Some(Waiting { since: Instant::now(), _wake_up: wake_up });
        let wake_ups = self.clone();
        runtime.spawn(async move {
            tokio::task::yield_now().await;
            wake_ups.wake();
        });
    }

    fn wake_if_late(&self) {
        let mut waiting = self.waiting();
        if waiting.as_ref().is_some_and(|waiting| waiting.since.elapsed() >= LONGEST_WAIT) {
            *waiting = None;
        }
    }

    fn wake(&self) {
        self.waiting().take();
    }
}
