//! The threads of a recorder: one relays, one writes, and one per publisher receives KV events.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use vcr_trace::capture::{CAPTURE_FORMAT, CAPTURE_VERSION, CaptureMeta, HashScheme, Holds, PromptHasher};
use vcr_wire::{
    DataAddress, Relay, RelayConfig, Transport, Waker, check_own_address, check_peer_address, is_same_place,
    monotonic_ns,
};

use crate::counts::{Counts, RecordSummary};
use crate::error::RecordError;
use crate::kv::subscribe;
use crate::parts::{Parts, Rotation};
use crate::peers::{PeerWatch, PeerWatchTap};
use crate::queue::{Batch, Queue, Tap};
use crate::request::Detail;
use crate::writer::Writer;

/// Messages may wait this long to be written, so that the recorder does not wake up for each.
const PAUSE: Duration = Duration::from_millis(10);

/// Settings of a [`Recorder`].
#[derive(Clone, Debug)]
pub struct RecordConfig {
    /// The handshake address of the real frontend.
    pub frontend_handshake: String,
    /// The handshake address for the engines. Port `*` means a free port.
    pub engine_handshake: String,
    /// Timeout for the first engine to connect, and for each answer of the frontend. `None` waits forever.
    pub connect_timeout: Option<Duration>,
    /// The host where the data sockets for engines listen. With `None` they are files in a temporary folder.
    pub bind_host: Option<String>,
    /// Endpoints of KV event publishers, in order of engine ranks.
    pub kv_events: Vec<String>,
    /// The capture's first file.
    pub out: PathBuf,
    /// Whether files of these names may be replaced.
    pub replace: bool,
    /// When to start a new file.
    pub rotation: Rotation,
    /// The model's name.
    pub model: Option<String>,
    /// The accelerator's name.
    pub gpu: Option<String>,
    /// The number of prompt tokens per hash.
    pub block_size_tokens: u32,
    /// Whether to record the tokens of outputs.
    pub output_tokens: bool,
    /// Whether to record the tokens of prompts.
    pub prompt_tokens: bool,
    /// Limit of the data waiting to be written, in bytes.
    pub queue_bytes: usize,
}

impl RecordConfig {
    fn meta(&self) -> CaptureMeta {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        CaptureMeta {
            format: CAPTURE_FORMAT.to_owned(),
            version: CAPTURE_VERSION,
            source: Some("record".to_owned()),
            started_unix_ns: since_1970.as_nanos().try_into().ok(),
            model: self.model.clone(),
            gpu: self.gpu.clone(),
            block_size_tokens: Some(self.block_size_tokens),
            hash: HashScheme::Xxh3,
            holds: Holds {
                output_tokens: self.output_tokens,
                prompt_tokens: self.prompt_tokens,
                steps: true,
                kv_events: !self.kv_events.is_empty(),
                mm_items: true,
                http: false,
            },
            ..CaptureMeta::default()
        }
    }

    fn detail(&self) -> Detail {
        let hasher = PromptHasher::new(self.block_size_tokens);
        Detail { hasher, prompts: self.prompt_tokens, tokens: self.output_tokens }
    }

    fn check(&self) -> Result<(), RecordError> {
        if self.block_size_tokens == 0 {
            return Err(RecordError::Setting { setting: "block size", expected: "at least 1 token" });
        }
        check_peer_address(&self.frontend_handshake)?;
        check_own_address(&self.engine_handshake)?;
        for publisher in &self.kv_events {
            check_peer_address(publisher)?;
        }
        if is_same_place(&self.engine_handshake, &self.frontend_handshake) {
            let (engines, frontend) = (self.engine_handshake.clone(), self.frontend_handshake.clone());
            return Err(RecordError::SameAddress { engines, frontend });
        }
        Ok(())
    }
}

/// A running recorder.
pub struct Recorder {
    relay: JoinHandle<Result<(), RecordError>>,
    writer: JoinHandle<Result<(), RecordError>>,
    subscribers: Vec<JoinHandle<()>>,
    peers: Arc<PeerWatch>,
    watcher: JoinHandle<Result<(), RecordError>>,
    queue: Arc<Queue>,
    handle: RecorderHandle,
    engine_handshake: String,
    /// Holds the sockets if they are files.
    _folder: Option<TempDir>,
}

/// Observes and stops a recorder, from any thread.
#[derive(Clone, Debug)]
pub struct RecorderHandle {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl RecorderHandle {
    /// Stops the relay. The capture is then completed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Counts of the recording so far.
    #[must_use]
    pub fn summary(&self) -> RecordSummary {
        self.counts.summary()
    }
}

impl Recorder {
    /// Listens for engines and starts relaying and recording.
    pub fn start(config: &RecordConfig) -> Result<Self, RecordError> {
        config.check()?;
        let parts = Parts::new(&config.out, config.rotation, config.replace, config.meta())?;
        let (folder, data) = match &config.bind_host {
            Some(host) => (None, DataAddress::Tcp { host: host.clone() }),
            None => {
                let folder = tempfile::Builder::new().prefix("vcr-").tempdir().map_err(RecordError::Folder)?;
                let path = folder.path().to_owned();
                (Some(folder), DataAddress::Ipc { folder: path })
            }
        };
        let transport = Transport::new();
        let relay_config = RelayConfig {
            frontend_handshake: config.frontend_handshake.clone(),
            engine_handshake: config.engine_handshake.clone(),
            data,
        };
        let mut relay = Relay::bind(&transport, relay_config)?;
        let engine_handshake = relay.engine_handshake().to_owned();
        tracing::info!(engines = engine_handshake, frontend = config.frontend_handshake, "waiting for engines");
        let counts = Arc::<Counts>::default();
        let handle = RecorderHandle { counts: Arc::clone(&counts), stop: Arc::default(), waker: relay.waker() };
        let queue = Arc::new(Queue::new(config.queue_bytes));

        let writer = Writer::new(parts, config.detail(), monotonic_ns(), Arc::clone(&counts));
        let source = Arc::clone(&queue);
        let writer = spawn("writer", move || write_down(&source, writer, &counts))?;
        let mut subscribers = Vec::new();
        for (endpoint, rank) in config.kv_events.iter().zip(0..) {
            subscribers.push(subscribe(&transport, endpoint, rank, Arc::clone(&queue), Arc::clone(&handle.stop))?);
        }
        let peers = Arc::new(PeerWatch::new(&config.frontend_handshake, &engine_handshake, config.connect_timeout));
        let (watched, stopping) = (Arc::clone(&peers), handle.clone());
        let watcher = spawn("peers", move || watched.watch().inspect_err(|_| stopping.stop()))?;
        let (tapped, greeted, stop) = (Arc::clone(&queue), Arc::clone(&peers), Arc::clone(&handle.stop));
        let relay = spawn("relay", move || {
            let mut greeter = PeerWatchTap { tap: Tap(&tapped), peers: &greeted };
            Ok(relay.run(&mut greeter, &stop)?)
        })?;
        Ok(Self { relay, writer, subscribers, peers, watcher, queue, handle, engine_handshake, _folder: folder })
    }

    /// The handshake address for the engines, with the actual port.
    #[must_use]
    pub fn engine_handshake(&self) -> &str {
        &self.engine_handshake
    }

    /// Returns a handle to observe and stop the recorder.
    #[must_use]
    pub fn handle(&self) -> RecorderHandle {
        self.handle.clone()
    }

    /// Waits until the relay ends, then completes the capture.
    ///
    /// # Errors
    /// When a socket failed, no peer connected in time, or the capture could not be written. A capture that could
    /// not be written did not stop the relay.
    pub fn wait(self) -> Result<RecordSummary, RecordError> {
        let relayed = self.relay.join().unwrap_or(Err(RecordError::Panicked("relay")));
        self.handle.stop();
        self.peers.close();
        let came = self.watcher.join().unwrap_or(Err(RecordError::Panicked("peers")));
        for subscriber in self.subscribers {
            subscriber.join().map_err(|_| RecordError::Panicked("subscriber"))?;
        }
        self.queue.close();
        let written = self.writer.join().unwrap_or(Err(RecordError::Panicked("recorder")));
        relayed.and(written).and(came).map(|()| self.handle.summary())
    }
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, RecordError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(RecordError::Thread)
}

/// Writes the queue's items until the queue is closed.
pub(crate) fn write_down(queue: &Queue, mut writer: Writer, counts: &Counts) -> Result<(), RecordError> {
    let mut batch = Batch::default();
    let mut goes_on = true;
    while goes_on {
        goes_on = queue.take(&mut batch, PAUSE);
        let mut things = batch.iter();
        let noted = things.try_for_each(|(item, frames)| writer.note(item, frames)).and_then(|()| writer.flush());
        if let Err(error) = noted {
            tracing::error!("the capture ends here, but relaying continues: {error}");
            counts.lost_messages.add(1 + things.map(|(item, _)| item.messages()).sum::<u64>());
            while goes_on {
                goes_on = queue.take(&mut batch, PAUSE);
                counts.lost_messages.add(batch.iter().map(|(item, _)| item.messages()).sum());
            }
            return Err(error);
        }
    }
    writer.end(monotonic_ns())
}
