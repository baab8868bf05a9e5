//! Requests in progress by id, for `Abort`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

type Table = HashMap<String, Vec<Arc<Notify>>>;

/// Requests that can be aborted. Several may have the same id.
#[derive(Clone, Debug, Default)]
pub(super) struct Aborts(Arc<Mutex<Table>>);

/// Keeps a request in the table until it is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    aborts: Aborts,
    id: String,
    notify: Arc<Notify>,
}

impl Aborts {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic cannot leave the table inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, id: &str) -> Registration {
        let notify = Arc::new(Notify::new());
        self.table().entry(id.to_owned()).or_default().push(Arc::clone(&notify));
        Registration { aborts: self.clone(), id: id.to_owned(), notify }
    }

    /// Aborts all requests in progress with this id.
    pub(super) fn abort(&self, id: &str) {
        self.table().get(id).into_iter().flatten().for_each(|notify| notify.notify_one());
    }
}

impl Registration {
    /// Waits until the request is aborted.
    pub(super) async fn aborted(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut table = self.aborts.table();
        if let Some(same) = table.get_mut(&self.id) {
            same.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            if same.is_empty() {
                table.remove(&self.id);
            }
        }
    }
}
