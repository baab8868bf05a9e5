//! The port of rooms, where decode engines connect and wait for their prompts.

use std::io;
use std::net::TcpListener as BoundListener;
use std::sync::Arc;
use std::time::Duration;

use crate::Room;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::bootstrap::rooms::{Entered, Prompt};
use crate::bootstrap::shared::Shared;
use crate::bootstrap::wire::{self, RoomKind, WireError};

/// Maximum number of decode engines at one port; more are refused.
const MAX_CONNECTIONS: usize = 4096;
/// Time limit for a decode engine to name its room, and to take its description.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which a decode engine may stay connected after its own deadline, so that its deadline comes first.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after a failed accept. The usual reason is a lack of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Serves decode engines as long as the runtime exists.
pub(crate) async fn accept_rooms(listener: BoundListener, shared: Arc<Shared>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("cannot serve a KV rendezvous: {error}"),
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let (shared, place) = (Arc::clone(&shared), Arc::clone(&places).try_acquire_owned());
                tokio::spawn(async move {
                    let served = match &place {
                        Ok(_) => serve(stream, &shared).await,
                        Err(_) => refuse(stream, &format!("{MAX_CONNECTIONS} decode engines wait here")).await,
                    };
                    if let Err(error) = served {
                        tracing::debug!(%address, "a decode engine disconnected: {error}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("a decode engine cannot come: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    _ = stream.set_nodelay(true);
    let room = match timeout(PATIENCE, read_room(&mut stream, shared.settings.protocol.room_kind())).await {
        Ok(Ok(room)) => room,
        Ok(Err(ReadError::Io(error))) => return Err(error),
        Ok(Err(ReadError::Wire(error))) => {
            tracing::warn!("a decode engine is refused: {error}");
            return refuse(stream, &error.to_string()).await;
        }
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it names no room")),
    };
    match wait(&mut stream, shared, &room).await {
        Some(Ok(prompt)) => deliver(stream, shared, prompt).await,
        Some(Err(reason)) => {
            tracing::warn!("a decode engine is refused in room {room}: {reason}");
            refuse(stream, &reason).await
        }
        None => Ok(()),
    }
}

/// Waits for the prompt of a room; `None` if the decode engine disconnects.
async fn wait(stream: &mut TcpStream, shared: &Shared, room: &Room) -> Option<Result<Prompt, String>> {
    let mut answer = match shared.rooms.enter(room) {
        Ok(Entered::Ready(prompt)) => return Some(Ok(*prompt)),
        Ok(Entered::Waiting(answer)) => answer,
        Err(error) => return Some(Err(error.to_string())),
    };
    let mut byte = [0];
    let has_gone = tokio::select! {
        answered = &mut answer => return Some(answered.unwrap_or_else(|_| Err("the prefill engine ends".to_owned()))),
        // A decode engine sends nothing before it is answered.
        _ = stream.read(&mut byte) => true,
        () = sleep(shared.settings.timeout.saturating_add(GRACE)) => false,
    };
    answer.close();
    let late = answer.try_recv();
    shared.rooms.leave(room);
    match (late, has_gone) {
        (Ok(answered), false) => Some(answered),
        (Ok(answered), true) => {
            if let Ok(prompt) = answered {
                shared.taken(prompt);
            }
            None
        }
        (Err(_), true) => None,
        (Err(_), false) => Some(Err(format!("its prompt was not finished within {:?} there", shared.settings.timeout))),
    }
}

async fn deliver(mut stream: TcpStream, shared: &Shared, prompt: Prompt) -> io::Result<()> {
    let body = wire::encode_description(&prompt.description);
    let answer = [&[wire::READY][..], &wire::envelope(&body)].concat();
    let handed_over = async {
        stream.write_all(&answer).await?;
        stream.read_u8().await
    };
    let taken = timeout(PATIENCE, handed_over).await;
    if !matches!(taken, Ok(Ok(wire::READY))) {
        // A Dynamo engine, or one that has disconnected, will send no notice.
        shared.taken(prompt);
    }
    Ok(())
}

async fn refuse(mut stream: TcpStream, reason: &str) -> io::Result<()> {
    let answer = [&[wire::REFUSED][..], &wire::envelope(reason.as_bytes())].concat();
    timeout(PATIENCE, async {
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        // Read what else the engine has sent; otherwise a reset could cut off the answer.
        let mut rest = [0; 256];
        while stream.read(&mut rest).await? > 0 {}
        Ok(())
    })
    .await
    .unwrap_or(Ok(()))
}

async fn read_room(stream: &mut TcpStream, kind: RoomKind) -> Result<Room, ReadError> {
    match kind {
        RoomKind::Number => Ok(Room::Number(stream.read_u64_le().await?)),
        RoomKind::Name => {
            let mut length = [0; 2];
            stream.read_exact(&mut length).await?;
            let mut name = vec![0; wire::name_bytes(length)?];
            stream.read_exact(&mut name).await?;
            Ok(wire::named_room(name)?)
        }
    }
}
