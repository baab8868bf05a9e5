//! The API with all that stands around it.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn;
use tokio::net::TcpListener;

use crate::api;
use crate::faults::{FaultLayer, inject};
use crate::http::{self, Around, ListenOptions};
use crate::server::App;
use crate::traces::propagate;

/// The settings of a whole server, without its API.
#[derive(Clone, Debug)]
pub struct Front {
    /// Layers around the routes.
    pub around: Around,
    /// Faults that clients meet.
    pub faults: FaultLayer,
    /// Sockets.
    pub listen: ListenOptions,
    /// Whether requests have spans, so that those of their callers are kept.
    pub is_traced: bool,
}

impl Front {
    /// All routes with all layers around them.
    pub fn router(&self, app: Arc<App>) -> Router {
        let faults = self.faults.clone();
        let routes = api::router(app);
        let routes = if self.is_traced { routes.layer(from_fn(propagate)) } else { routes };
        self.around.routes(routes, move |request, next| inject(State(faults.clone()), request, next))
    }

    /// Serves until `shutdown`, and then until requests under way have ended.
    pub async fn serve(self, listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) {
        let router = self.router(app);
        http::serve(listener, router, self.listen, shutdown).await;
    }
}
