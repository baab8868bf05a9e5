//! The connection of a request, so that an engine fault can reset it.

use std::future::Future;

use crate::http::ConnectionControl;

tokio::task_local! {
    static CONNECTION: ConnectionControl;
}

/// Runs `handling` for a request from `connection`.
pub(crate) fn with_connection<F: Future>(
    connection: ConnectionControl,
    handling: F,
) -> impl Future<Output = F::Output> {
    CONNECTION.scope(connection, handling)
}

/// The connection of the request that this task handles.
pub(crate) fn current_connection() -> Option<ConnectionControl> {
    CONNECTION.try_with(Clone::clone).ok()
}
