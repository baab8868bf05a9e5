//! State shared by the engines of a process: rooms, listeners, and the thread that serves them.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use crate::{ErrorKind, TransferError};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::bootstrap::http::accept_http;
use crate::bootstrap::listen::accept_rooms;
use crate::bootstrap::shared::{Inbox, Shared};
use crate::bootstrap::{Protocol, RendezvousSettings, mooncake, sglang};

pub(crate) struct Hub {
    pub(crate) shared: Arc<Shared>,
    /// Ports of the rooms, by the engines' ranks.
    ports: HashMap<u16, u16>,
    handle: Handle,
    /// Taken on drop.
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
        let handle = runtime.handle().clone();
        let mut hub = Self { shared, ports: HashMap::new(), handle, runtime: Some(runtime) };
        if hub.shared.settings.serves {
            hub.listen()?;
        }
        Ok(hub)
    }

    fn listen(&mut self) -> Result<(), TransferError> {
        let RendezvousSettings { host, port, first_rank, num_ranks, protocol, .. } = self.shared.settings.clone();
        let has_ports = protocol == Protocol::Dynamo;
        let server = if has_ports { None } else { Some(bind(&host, numbered(port, first_rank)?)?) };
        let ranks = first_rank..first_rank.saturating_add(num_ranks);
        let port_of = |rank| if has_ports { numbered(port, rank) } else { Ok(0) };
        let bound = ranks.map(|rank| Ok((rank, bind(&host, port_of(rank)?)?)));
        for (rank, (listener, address)) in bound.collect::<Result<Vec<_>, TransferError>>()? {
            tracing::info!(rank, %address, %protocol, "decode engines may come");
            self.ports.insert(rank, address.port());
            let shared = Arc::clone(&self.shared);
            self.spawn(async move { accept_rooms(listener, shared).await });
        }
        if let Some((listener, address)) = server {
            tracing::info!(%address, %protocol, "the bootstrap server is there");
            let shared = Arc::clone(&self.shared);
            let routes = match protocol {
                Protocol::Mooncake => mooncake::routes(shared),
                Protocol::Sglang | Protocol::Dynamo => sglang::routes(shared),
            };
            self.spawn(async move { accept_http(listener, routes).await });
        }
        Ok(())
    }

    /// Runs a task on the thread that all engines share.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(task).abort_handle()
    }

    pub(crate) fn add(&self, rank: u16, engine_id: &str, inbox: Arc<Inbox>) {
        self.shared.add(rank, inbox);
        let Some(port) = self.ports.get(&rank) else { return };
        match self.shared.settings.protocol {
            Protocol::Dynamo => {}
            Protocol::Sglang => self.shared.register_with_sglang(rank, *port),
            Protocol::Mooncake => self.shared.register_with_mooncake(rank, engine_id, *port),
        }
    }

    pub(crate) fn remove(&self, rank: u16, inbox: &Arc<Inbox>) {
        self.shared.remove(rank, inbox);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Blocking is not allowed on threads of other runtimes, and no task needs to end.
            runtime.shutdown_background();
        }
    }
}

/// The port of an engine, or 0 for any free port.
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
