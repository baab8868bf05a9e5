//! The thread that serves HTTP.
//!
//! Each connection carries one request within a limited time, and the number of connections is limited. So a client
//! that is slow, or that leaves its connection open, costs little.

use std::io;
use std::net::TcpListener as BoundListener;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::EnginesHandle;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::control::LatencyReader;
use crate::control::listen::{Listeners, Part};
use crate::control::routes::{admin_routes, gpu_routes, metrics_routes};

/// Maximum number of connections of one part; further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// Time limit of a request and its answer. Building the model of a large guest takes seconds.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Time limit of the answers in progress at the end.
const END_TIME: Duration = Duration::from_secs(1);
/// Pause after a failed accept. The usual reason is a lack of file descriptors, which other connections must free
/// first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of latency models that are built at once.
const MAX_BLOCKING: usize = 2;

/// A running control plane. When dropped, it ends once the answers in progress are complete, after a second at most.
#[derive(Debug)]
pub struct ControlPlane {
    /// Dropped to end the thread.
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listeners {
    /// Serves `engines` until the result is dropped.
    pub fn serve(self, engines: EnginesHandle, latency: LatencyReader) -> io::Result<ControlPlane> {
        ControlPlane::start(self, engines, latency)
    }

    /// The routes of the admin part, for a caller with a server of its own.
    pub fn admin_routes(&self, engines: EnginesHandle, latency: LatencyReader) -> Router {
        admin_routes(self.context(engines, latency))
    }
}

impl ControlPlane {
    fn start(listeners: Listeners, engines: EnginesHandle, latency: LatencyReader) -> io::Result<Self> {
        if listeners.bound.is_empty() {
            return Ok(Self { stop: None, thread: None });
        }
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .thread_name("control-model")
            .max_blocking_threads(MAX_BLOCKING)
            .build()?;
        let context = listeners.context(engines, latency);
        let (stop, stopped) = watch::channel(());
        let mut parts = JoinSet::new();
        for (part, listener) in listeners.bound {
            let address = listener.local_addr()?;
            let routes = match part {
                Part::Metrics => {
                    tracing::info!("metrics are at http://{address}/metrics");
                    metrics_routes(context.clone())
                }
                Part::Admin => {
                    tracing::info!("the control plane is at http://{address}");
                    let page = listeners.page.clone();
                    if page.is_some() {
                        tracing::info!("the page is at http://{address}/_vcr/");
                    }
                    admin_routes(context.clone()).merge(page.unwrap_or_default())
                }
                Part::Gpus => {
                    tracing::info!("metrics of GPUs are at http://{address}/metrics");
                    gpu_routes(context.clone())
                }
            };
            parts.spawn_on(accept(listen_on(&runtime, listener)?, routes, stopped.clone()), runtime.handle());
        }
        let run = move || {
            runtime.block_on(async { while parts.join_next().await.is_some() {} });
            // Nobody waits for a model that is still being built.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            _ = thread.join();
        }
    }
}

fn listen_on(runtime: &Runtime, listener: BoundListener) -> io::Result<TcpListener> {
    let _context = runtime.enter();
    TcpListener::from_std(listener)
}

/// Serves one address until the sender of `stopped` is dropped.
async fn accept(listener: TcpListener, routes: Router, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let is_full = connections.len() >= MAX_CONNECTIONS;
        tokio::select! {
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if !is_full => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(answer(stream, routes.clone()));
                }
                Err(error) => {
                    tracing::warn!("the control plane cannot accept a connection: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    _ = timeout(END_TIME, async { while connections.join_next().await.is_some() {} }).await;
}

async fn answer(stream: TcpStream, routes: Router) {
    let service = TowerToHyperService::new(routes);
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    // The client causes these failures and sees them.
    _ = timeout(CONNECTION_TIME, connection).await;
}
