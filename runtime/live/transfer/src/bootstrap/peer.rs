//! Requests to a peer that may not be there yet.

use std::time::Duration;

use crate::{ErrorKind, TransferError};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

/// Pause before a peer that is not there yet is asked again.
const RETRY: Duration = Duration::from_millis(50);

/// Result of asking a peer.
pub(crate) enum Reply<T> {
    Answer(T),
    /// It is not there, or does not know yet, because of this.
    NotYet(String),
    Never(TransferError),
}

/// Repeats a request until there is an answer, or until the deadline of `timeout` passes; `what`
/// names the missing answer.
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

/// A port of a prefill worker.
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
    /// A connection to it.
    pub(crate) async fn connect(&self) -> Reply<TcpStream> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        match TcpStream::connect((host, self.port)).await {
            Ok(stream) => Reply::Answer(stream),
            Err(error) => Reply::NotYet(error.to_string()),
        }
    }
}
