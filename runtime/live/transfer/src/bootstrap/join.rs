//! The decode engine's side: it finds the prefill engine of a request and waits in the room.

use std::io;
use std::time::Duration;

use crate::{Description, ErrorKind, Meeting, Room, TransferError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::bootstrap::peer::{Place, retry_until};
use crate::bootstrap::shared::{Inbox, Shared};
use crate::bootstrap::wire::{self, WireError};
use crate::bootstrap::{Protocol, mooncake, sglang};

/// Time limit for the rest of a description, once it has begun to arrive.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Waits in the room of a request, and returns where the KV is, if the prefill engine says so.
pub(crate) async fn meet(
    shared: &Shared,
    inbox: &Inbox,
    meeting: &Meeting,
) -> Result<Option<Description>, TransferError> {
    let timeout = shared.settings.timeout;
    let limit = (Instant::now() + timeout, timeout);
    let place = match shared.settings.protocol {
        Protocol::Dynamo => Place { host: meeting.host.clone(), port: meeting.port },
        Protocol::Sglang => {
            retry_until(limit, &format!("no peer answers for {meeting}"), || sglang::find(shared, inbox, meeting))
                .await?
        }
        Protocol::Mooncake => {
            retry_until(limit, &format!("no peer answers for {meeting}"), || mooncake::find(inbox, meeting)).await?
        }
    };
    place.wait(&meeting.room, limit).await
}

impl Place {
    async fn wait(&self, room: &Room, limit: (Instant, Duration)) -> Result<Option<Description>, TransferError> {
        let error = |kind, what: &dyn std::fmt::Display| {
            TransferError::new(kind, format!("KV rendezvous: the prefill worker at {self}, room {room}: {what}"))
        };
        let mut stream =
            retry_until(limit, &format!("no prefill worker came to {self}, for room {room},"), || self.connect())
                .await?;
        _ = stream.set_nodelay(true);
        let first = async {
            stream.write_all(&wire::encode_room(room)).await?;
            stream.read_u8().await
        };
        let (deadline, timeout) = limit;
        match timeout_at(deadline, first).await {
            Ok(Ok(wire::READY)) => {}
            Ok(Ok(wire::REFUSED)) => {
                let reason = match timeout_at(Instant::now() + LAST_PATIENCE, read_body(&mut stream)).await {
                    Ok(Ok(Some(body))) => String::from_utf8_lossy(&body).chars().take(500).collect(),
                    _ => "it gives no reason".to_owned(),
                };
                return Err(error(ErrorKind::Refused, &format!("refused: {reason}")));
            }
            Ok(Ok(other)) => return Err(error(ErrorKind::Protocol, &WireError::Answer(other))),
            Ok(Err(_)) => {
                return Err(error(ErrorKind::PeerLost, &"it closed the connection before the prompt was finished"));
            }
            Err(_) => {
                let what = format!("the prompt was not finished within {timeout:?}");
                return Err(error(ErrorKind::TimedOut, &what));
            }
        }
        let body = match timeout_at(deadline.max(Instant::now() + LAST_PATIENCE), read_body(&mut stream)).await {
            Ok(Ok(Some(body))) => body,
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(problem)) => return Err(error(ErrorKind::Protocol, &problem)),
            Err(_) => return Err(error(ErrorKind::TimedOut, &"its description does not come to its end")),
        };
        let description = wire::decode_description(&body).map_err(|problem| error(ErrorKind::Protocol, &problem))?;
        // Without this byte, the prefill engine frees the KV at once.
        stream.write_u8(wire::READY).await.map_err(|problem| error(ErrorKind::PeerLost, &problem))?;
        _ = stream.shutdown().await;
        Ok(Some(description))
    }
}

#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("its description was cut off: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Reads the body of an envelope; `None` if the peer closes the connection instead.
async fn read_body(stream: &mut TcpStream) -> Result<Option<Vec<u8>>, BodyError> {
    let mut envelope = [0; wire::ENVELOPE_BYTES];
    // A Dynamo engine closes the connection, whether or not it has read the message.
    match stream.read(&mut envelope[..1]).await {
        Ok(0) | Err(_) => return Ok(None),
        Ok(_) => {}
    }
    stream.read_exact(&mut envelope[1..]).await?;
    let length = wire::body_bytes(envelope)?;
    let mut body = Vec::new();
    // Memory grows with the received bytes, not with the announced length.
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(BodyError::Io(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{} of {length} bytes came", body.len()),
        )));
    }
    Ok(Some(body))
}
