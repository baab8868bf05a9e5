//! Connections.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Time for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections of `listener` until `stop` becomes true; requests under way
/// are then waited for.
pub async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>) {
    // Every connection holds a sender: the channel closes with the last of them.
    let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Tokens are to be seen when they are sent.
        _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let (mut stop, alive) = (stop.clone(), alive.clone());
        tokio::spawn(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
            let served = tokio::select! {
                served = &mut connection => served,
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = served {
                tracing::debug!("a connection ended: {error}");
            }
            drop(alive);
        });
    }
    drop(listener);
    drop(alive);
    // Nothing is ever sent.
    _ = ended.recv().await;
}

/// Waits until `stop` becomes true, or can no longer do so.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The value is locked while the result lives.
    drop(stop.wait_for(|stop| *stop).await);
}
