//! Requests to a peer that may not be reachable yet.

use std::time::Duration;

use crate::{ErrorKind, TransferError};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

/// Pause before the next attempt to reach a peer.
const RETRY: Duration = Duration::from_millis(50);

pub(crate) enum Reply<T> {
    Answer(T),
    /// The peer is unreachable or does not know the answer yet, for this reason.
    NotYet(String),
    Never(TransferError),
}

/// Repeats a request until there is an answer, or until the deadline, which is `timeout` after the start. `what` is
/// the expected answer, for the error.
pub(crate) async fn retry_until<T, F: Future<Output = Reply<T>>>(
    (deadline, timeout): (Instant, Duration),
    what: &str,
    mut ask: impl FnMut() -> F,
) -> Result<T, TransferError> {
    let mut reason = "no answer".to_owned();
    loop {
        match timeout_at(deadline, ask()).await {
            Ok(Reply::Answer(answer)) => return Ok(answer),
            Ok(Reply::Never(error)) => return Err(error),
            Ok(Reply::NotYet(why)) => reason = why,
            Err(_) => {}
        }
        if Instant::now() + RETRY >= deadline {
            let message = format!("KV rendezvous: {what} within {timeout:?} ({reason})");
            return Err(TransferError::new(ErrorKind::TimedOut, message));
        }
        sleep(RETRY).await;
    }
}

/// Host and port of a prefill worker.
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

impl Place {
    pub(crate) async fn connect(&self) -> Reply<TcpStream> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        match TcpStream::connect((host, self.port)).await {
            Ok(stream) => Reply::Answer(stream),
            Err(error) => Reply::NotYet(error.to_string()),
        }
    }
}
