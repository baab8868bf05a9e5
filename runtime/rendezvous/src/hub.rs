//! What the engines of a process share: rooms, listeners, and the thread that serves them.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;
use vcr_transfer::{ErrorKind, TransferError};

use crate::RendezvousSettings;
use crate::listen::accept_rooms;
use crate::shared::{Desk, Shared};

/// The engines' common part.
pub(crate) struct Hub {
    pub(crate) shared: Arc<Shared>,
    handle: Handle,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

impl Hub {
    /// Binds all listeners, and serves them from now on.
    pub(crate) fn start(settings: RendezvousSettings) -> Result<Self, TransferError> {
        let local = |error: std::io::Error| TransferError::new(ErrorKind::Local, format!("KV rendezvous: {error}"));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kv-rendezvous")
            .enable_io()
            .enable_time()
            .build()
            .map_err(local)?;
        let shared = Arc::new(Shared::new(settings));
        let hub = Self { shared, handle: runtime.handle().clone(), runtime: Some(runtime) };
        if hub.shared.settings.serves {
            hub.listen()?;
        }
        Ok(hub)
    }

    fn listen(&self) -> Result<(), TransferError> {
        let RendezvousSettings { host, port, first_rank, num_ranks, protocol, .. } = &self.shared.settings;
        let ranks = *first_rank..first_rank.saturating_add(*num_ranks);
        let bound = ranks.map(|rank| Ok((rank, bind(host, numbered(*port, rank)?)?)));
        for (rank, (listener, address)) in bound.collect::<Result<Vec<_>, TransferError>>()? {
            tracing::info!(rank, %address, %protocol, "decode engines may come");
            let shared = Arc::clone(&self.shared);
            self.spawn(async move { accept_rooms(listener, shared).await });
        }
        Ok(())
    }

    /// Runs a task on the thread of all engines.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(task).abort_handle()
    }

    /// An engine serves from now on.
    pub(crate) fn add(&self, rank: u16, desk: Arc<Desk>) {
        self.shared.add(rank, desk);
    }

    /// An engine serves no longer.
    pub(crate) fn remove(&self, rank: u16, desk: &Arc<Desk>) {
        self.shared.remove(rank, desk);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting is not allowed on threads of other runtimes, and nothing here needs an end.
            runtime.shutdown_background();
        }
    }
}

/// The port of an engine; 0 is any.
fn numbered(port: u16, rank: u16) -> Result<u16, TransferError> {
    if port == 0 {
        return Ok(0);
    }
    port.checked_add(rank).ok_or_else(|| {
        let message = format!("KV rendezvous: port {port} + rank {rank} exceeds 65535");
        TransferError::new(ErrorKind::Local, message)
    })
}

fn bind(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), TransferError> {
    let error = |cause: std::io::Error| {
        let message = format!("cannot listen at {host}:{port} for a KV rendezvous: {cause}");
        TransferError::new(ErrorKind::Local, message)
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<_> = (bare, port).to_socket_addrs().map_err(error)?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    let address = listener.local_addr().map_err(error)?;
    Ok((listener, address))
}
