//! When an engine that waits is woken for new requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use vcr_wire::WakeUp;

/// How long a wake-up waits at most while requests come: a thread reads some thirty meanwhile. With
/// a third of it, an engine faster than its clients was woken for every fifth of 64.
const LONGEST_WAIT: Duration = Duration::from_micros(300);

/// Collects requests that come together, so that one wake-up of the engine serves all.
#[derive(Clone, Debug, Default)]
pub(super) struct WakeUps(Arc<Mutex<Option<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Wakes the engine when it is dropped.
    _wake_up: WakeUp,
}

impl WakeUps {
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a posted request with the result of [`vcr_wire::LocalLink::post`]. The engine is
    /// woken once this thread has done all other ready work.
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
