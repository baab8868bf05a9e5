//! The connection that a request came by, for faults of its engine that end it.

use std::future::Future;

use crate::http::ConnectionControl;

tokio::task_local! {
    static CONNECTION: Option<ConnectionControl>;
}

/// Handles a request that came by `connection`.
pub(crate) async fn with_connection<T>(connection: Option<ConnectionControl>, handling: impl Future<Output = T>) -> T {
    CONNECTION.scope(connection, handling).await
}

/// The connection of the request that this task handles.
pub(super) fn current() -> Option<ConnectionControl> {
    CONNECTION.try_with(Clone::clone).ok().flatten()
}
