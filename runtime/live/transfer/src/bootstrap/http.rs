//! HTTP between workers: the server at a bootstrap port, and a client.

use std::net::TcpListener as BoundListener;
use std::sync::Arc;
use std::time::Duration;

use crate::{ErrorKind, TransferError};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::DefaultBodyLimit;
use hyper::client::conn::http1 as client;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::server::conn::http1 as server;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::bootstrap::listen::ACCEPT_PAUSE;
use crate::bootstrap::peer::{Place, Reply};

/// Maximum number of connections; further ones wait.
const MAX_CONNECTIONS: usize = 256;
/// Time limit of a request and its answer.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Maximum length of a request and of an answer.
pub(crate) const MAX_BODY_BYTES: usize = 4 << 20;

/// Serves HTTP at a bootstrap port as long as the runtime exists.
pub(crate) async fn accept_http(listener: BoundListener, routes: Router) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("cannot serve a bootstrap port: {error}"),
    };
    let routes = routes.layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = TowerToHyperService::new(routes.clone());
                tokio::spawn(async move {
                    let mut answers = server::Builder::new();
                    answers.keep_alive(false);
                    // The client causes these failures and sees them.
                    _ = timeout(CONNECTION_TIME, answers.serve_connection(TokioIo::new(stream), service)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("a bootstrap port cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends a request to a bootstrap port. Status 404 or 503 means that the answer is not known yet.
pub(crate) async fn send_request(place: &Place, method: Method, path: &str, body: Option<String>) -> Reply<Vec<u8>> {
    let stream = match place.connect().await {
        Reply::Answer(stream) => stream,
        Reply::NotYet(why) => return Reply::NotYet(why),
        Reply::Never(error) => return Reply::Never(error),
    };
    let never = |kind, what: &dyn std::fmt::Display| {
        Reply::Never(TransferError::new(kind, format!("KV rendezvous: the prefill worker at {place}: {what}")))
    };
    match exchange(stream, place, method.clone(), path, body).await {
        Ok((StatusCode::OK, answer)) => Reply::Answer(answer),
        Ok((status @ (StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE), answer)) => {
            Reply::NotYet(format!("{status}: {}", excerpt(&answer)))
        }
        Ok((status, answer)) => {
            never(ErrorKind::Refused, &format!("it answers {method} {path} with {status}: {}", excerpt(&answer)))
        }
        Err(problem) => never(ErrorKind::Protocol, &format!("it does not answer {method} {path} over HTTP: {problem}")),
    }
}

/// The beginning of a text from another process.
fn excerpt(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(200).collect()
}

async fn exchange(
    stream: TcpStream,
    place: &Place,
    method: Method,
    path: &str,
    body: Option<String>,
) -> Result<(StatusCode, Vec<u8>), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, place.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(body.map_or_else(Body::empty, Body::from))
        .map_err(|error| text(&error))?;
    let exchanged = async {
        let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), MAX_BODY_BYTES).await.map_err(|error| text(&error))?;
        Ok((status, body.to_vec()))
    };
    let exchanged = exchanged.await;
    connection.abort();
    exchanged
}
