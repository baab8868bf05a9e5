//! The TCP plane: pages over connections with its own protocol, between processes, hosts and containers.
//!
//! Each engine listens at one port. The engine that starts a transfer connects to its peer, and reads or writes
//! batches of pages over a few streams. Notices use the same connections. The messages are in [`frame`].

mod client;
pub mod frame;
mod link;
#[cfg(not(feature = "tls"))]
mod no_tls;
mod server;
mod shared;
mod socket;
#[cfg(feature = "tls")]
mod tls;

use std::collections::HashMap;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{ErrorKind, TransferError};
use crate::plane::{Expected, Hold, Peer, Plane, PlaneContext, PlaneEvent, Transfer};
use crate::priority::{MOVER_NICENESS, lower_priority};
use crate::statistics::Statistics;
use crate::tcp::client::PeerQueue;
use crate::tcp::server::Server;
use crate::tcp::shared::Shared;
#[cfg(not(feature = "tls"))]
use no_tls as tls;

pub use tls::TcpTls;
#[cfg(feature = "tls")]
pub use tls::{TlsError, TlsFiles};

/// Maximum number of peers with open streams; idle streams are closed for other peers.
const MAX_PEERS: usize = 256;

/// Settings of a TCP plane.
#[derive(Clone, Debug)]
pub struct TcpSettings {
    /// The host to listen at.
    pub host: String,
    /// Port of rank 0; an engine adds its rank. 0 means any free port.
    pub port: u16,
    /// Maximum number of connections to each peer.
    pub streams: usize,
    /// Time limit for a connection and its first messages.
    pub connect_timeout: Duration,
    /// Maximum wait for a peer that makes no progress.
    pub patience: Duration,
    /// Time after which an idle connection is closed.
    pub idle_timeout: Duration,
    /// Additional niceness of threads that move bytes, so that an engine's own thread takes precedence.
    pub niceness: u8,
    /// TLS settings. Without TLS, bytes are not encrypted and any peer is served.
    pub tls: Option<TcpTls>,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            streams: 2,
            connect_timeout: Duration::from_secs(5),
            patience: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            niceness: MOVER_NICENESS,
            tls: None,
        }
    }
}

/// The TCP plane of one engine.
pub struct TcpPlane {
    shared: Arc<Shared>,
    port: u16,
    peers: HashMap<(String, u16), Arc<PeerQueue>>,
    server: Server,
    housekeeper: Option<JoinHandle<()>>,
}

impl TcpPlane {
    /// Listens and starts the threads.
    ///
    /// # Errors
    /// The address cannot be used, or the system has no more threads.
    pub fn new(context: PlaneContext, settings: TcpSettings) -> Result<Self, TransferError> {
        let port = match settings.port {
            0 => 0,
            port => port.checked_add(context.rank).ok_or_else(|| {
                let message = format!("KV transfer port {port} + rank {} exceeds 65535", context.rank);
                TransferError::new(ErrorKind::Local, message)
            })?,
        };
        let address = format!("{}:{port}", settings.host);
        let error = |error: &dyn std::fmt::Display| {
            TransferError::new(ErrorKind::Local, format!("cannot listen at {address} for KV transfers: {error}"))
        };
        let host = settings.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(|cause| error(&cause))?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(|cause| error(&cause))?;
        listener.set_nonblocking(true).map_err(|cause| error(&cause))?;
        let port = listener.local_addr().map_err(|cause| error(&cause))?.port();
        let shared = Arc::new(Shared::new(context, settings));
        let server = Server::start(listener, &shared)?;
        let for_thread = Arc::clone(&shared);
        let keep_house = move || {
            lower_priority(for_thread.settings.niceness);
            for_thread.keep_house();
        };
        let mut plane = Self { shared, port, peers: HashMap::new(), server, housekeeper: None };
        plane.housekeeper = Some(spawn("kv-house", keep_house)?);
        Ok(plane)
    }

    fn queue(&mut self, peer: &Peer) -> Arc<PeerQueue> {
        let key = (peer.host.clone(), peer.port);
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&key) {
            self.peers.retain(|_, queue| !queue.is_idle());
        }
        Arc::clone(self.peers.entry(key).or_insert_with(|| Arc::new(PeerQueue::new(peer))))
    }
}

impl Plane for TcpPlane {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn hold(&mut self, hold: Hold) {
        self.shared.hold(hold);
    }

    fn release(&mut self, request: &str) {
        self.shared.release(request);
    }

    fn start(&mut self, transfer: Transfer) {
        self.queue(&transfer.peer).start(&self.shared, transfer);
    }

    fn expect(&mut self, expected: Expected) {
        self.shared.expect(expected);
    }

    fn cancel(&mut self, id: u64) {
        self.shared.cancel(id);
    }

    fn notify(&mut self, peer: &Peer, notice: Vec<u8>) {
        self.queue(peer).notify(&self.shared, notice);
    }

    fn poll(&mut self, events: &mut Vec<PlaneEvent>) {
        self.shared.take_events(events);
    }

    fn statistics(&self) -> Statistics {
        self.shared.statistics().clone()
    }
}

impl Drop for TcpPlane {
    fn drop(&mut self) {
        self.shared.stop();
        self.peers.values().for_each(|queue| queue.wake_all());
        self.server.join();
        if let Some(thread) = self.housekeeper.take() {
            _ = thread.join();
        }
    }
}

/// Stack size of a thread. There may be many threads, and their calls are not deep.
const STACK_BYTES: usize = 512 << 10;

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, TransferError> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run).map_err(|error| {
        TransferError::new(ErrorKind::Local, format!("cannot start a thread for KV transfers: {error}"))
    })
}
