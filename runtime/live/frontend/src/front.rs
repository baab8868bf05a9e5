//! The API with all its layers.

use std::future::Future;
use std::sync::Arc;

use axum::middleware::from_fn;
use futures_util::future::{join, join_all};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::api;
use crate::faults::FaultLayer;
use crate::http::{self, Around, ListenOptions, Service};
use crate::server::App;
use crate::server::frontend_kind::FrontendKind;
use crate::traces::propagate;

/// The settings of a server, without its API.
#[derive(Clone, Debug)]
pub struct HttpServer {
    /// The layers around the routes.
    pub around: Around,
    /// The client faults.
    pub faults: FaultLayer,
    /// Socket options.
    pub listen: ListenOptions,
    /// Whether requests are traced, so that the trace context of their callers is kept.
    pub is_traced: bool,
}

impl HttpServer {
    /// Builds all routes with their layers.
    fn site(&self, app: Arc<App>) -> Arc<dyn Service> {
        let is_python = app.options.frontend == FrontendKind::Python;
        let has_document = app.options.has_document && is_python;
        let routes = api::routes(app);
        let routes = if has_document { routes.with_document() } else { routes };
        let routes = if is_python { routes.with_details() } else { routes };
        let routes = if self.is_traced { routes.map(|router| router.layer(from_fn(propagate))) } else { routes };
        self.around.site(routes, self.faults.clone())
    }

    /// Serves until `shutdown`, then until the requests in progress have ended.
    pub async fn serve(self, listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) {
        self.serve_ranks(vec![listener], None, app, shutdown).await;
    }

    /// Like [`serve`](Self::serve), with one socket for all engines or one per engine in order of rank, and
    /// optionally a socket for the page. A request goes to the engine of its socket, unless it selects another.
    pub async fn serve_ranks(
        self,
        listeners: Vec<TcpListener>,
        page: Option<TcpListener>,
        app: Arc<App>,
        shutdown: impl Future<Output = ()>,
    ) {
        let site = self.site(app);
        let (ending, ends) = watch::channel(());
        let serve = |(listener, options)| {
            let mut ends = ends.clone();
            http::serve(listener, Arc::clone(&site), options, async move { drop(ends.changed().await) })
        };
        let has_ranks = listeners.len() > 1;
        let of_rank = |rank| ListenOptions { rank: has_ranks.then_some(rank), ..self.listen.clone() };
        let refuses: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(|| false);
        let of_page = |listener| (listener, ListenOptions { is_at_page: true, refuses, ..self.listen.clone() });
        let ranks = listeners.into_iter().zip(0..).map(|(listener, rank)| (listener, of_rank(rank)));
        let servers = join_all(ranks.chain(page.map(of_page)).map(serve));
        let until_shutdown = async move {
            shutdown.await;
            drop(ending);
        };
        join(servers, until_shutdown).await;
    }
}
