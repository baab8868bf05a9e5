//! The API with all that stands around it.

use std::future::Future;
use std::sync::Arc;

use axum::middleware::from_fn;
use tokio::net::TcpListener;

use crate::api;
use crate::faults::FaultLayer;
use crate::http::{self, Around, ListenOptions, Site};
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
    fn site(&self, app: Arc<App>) -> Arc<dyn Site> {
        let routes = api::routes(app);
        let routes = if self.is_traced { routes.map(|router| router.layer(from_fn(propagate))) } else { routes };
        self.around.site(routes, self.faults.clone())
    }

    /// Serves until `shutdown`, and then until requests under way have ended.
    pub async fn serve(self, listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) {
        let site = self.site(app);
        http::serve(listener, site, self.listen, shutdown).await;
    }
}
