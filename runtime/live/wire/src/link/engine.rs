//! The engine's end of a link.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zmq::Socket;

use super::address::unresolved_host;
use super::error::LinkError;
use super::inputs::{EngineInputs, Watch};
use super::local::{LocalLink, MessageDamage};
use super::transport::{Deadline, Linger, Transport, connect, send, try_receive};
use crate::handshake::{Addresses, EngineHandshake, EngineStatus, Init, ReadyResponse};
use crate::output::ENGINE_CORE_DEAD;
use crate::step_outputs::StepOutputs;

/// The settings of an engine's link.
#[derive(Clone, Debug)]
pub struct EngineLinkConfig {
    /// The frontend's handshake socket, `tcp://...` or `ipc://...`.
    pub handshake_address: String,
    /// The engine's rank in the deployment.
    pub rank: u16,
    /// Whether the frontend started this engine itself. A Python frontend refuses a wrong value.
    pub local: bool,
    /// False only if the frontend balances load itself.
    pub headless: bool,
    /// Hash that a Python frontend of a mixture of experts compares with its own.
    pub parallel_config_hash: Option<String>,
    /// Time limit of the wait for INIT, and of the wait for a coordinator.
    pub timeout: Duration,
    /// Another thread sets this to end the wait.
    pub stop: Arc<AtomicBool>,
    /// Called from time to time during a wait.
    pub on_wait: Option<WaitHook>,
}

/// The event that an engine waits for before it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The frontend's answer to HELLO.
    Init {
        /// Whether a ZeroMQ socket is at the other end.
        is_connected: bool,
    },
    /// The READY of the coordinator, which waits for all engines of the frontend.
    Gate,
}

/// Is called with what the engine waits for and how long it has waited. The call runs on the engine's thread, which
/// waits until the call returns.
#[derive(Clone)]
pub struct WaitHook(Arc<dyn Fn(WaitsFor, Duration) + Send + Sync>);

impl WaitHook {
    /// Calls `hear`.
    pub fn new(hear: impl Fn(WaitsFor, Duration) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }
}

impl fmt::Debug for WaitHook {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("WaitHook")
    }
}

impl EngineLinkConfig {
    /// An engine that its frontend did not start, with the real engine's timeout of five minutes.
    #[must_use]
    pub fn new(handshake_address: impl Into<String>, rank: u16) -> Self {
        Self {
            handshake_address: handshake_address.into(),
            rank,
            local: false,
            headless: true,
            parallel_config_hash: None,
            timeout: Duration::from_secs(300),
            stop: Arc::default(),
            on_wait: None,
        }
    }

    fn handshake(&self, status: EngineStatus) -> Vec<u8> {
        let parallel_config_hash = self.parallel_config_hash.clone().filter(|_| status == EngineStatus::Ready);
        let handshake = EngineHandshake { status, local: self.local, headless: self.headless, parallel_config_hash };
        let mut frame = Vec::new();
        handshake.encode(&mut frame);
        frame
    }
}

/// An engine that has received INIT and is starting.
pub struct EngineGreeting {
    transport: Transport,
    config: EngineLinkConfig,
    handshake: Socket,
    init: Init,
}

impl EngineGreeting {
    /// Sends HELLO and waits for INIT.
    ///
    /// # Errors
    ///
    /// The address cannot be used, no answer comes in time, the wait is stopped, or the answer is no INIT.
    pub fn hello(transport: &Transport, config: EngineLinkConfig) -> Result<Self, LinkError> {
        let handshake = transport.socket(zmq::DEALER, Linger::Handshake)?;
        let identity = config.rank.to_le_bytes();
        handshake.set_identity(&identity).map_err(LinkError::socket("set an identity"))?;
        let mut watch = Watch::new(transport.monitor(&handshake)?)?;
        connect(&handshake, &config.handshake_address)?;
        send(&handshake, [config.handshake(EngineStatus::Hello)]).map_err(LinkError::socket("say HELLO"))?;

        let address = &config.handshake_address;
        let deadline = Deadline::after(config.timeout);
        let mut is_connected = false;
        let look = || {
            is_connected = watch.is_connected()?;
            Ok(WaitsFor::Init { is_connected })
        };
        let received = receive(&handshake, deadline, &config, look);
        transport.end_monitor(&handshake)?;
        let silent = || {
            // HELLO must not be delivered to a frontend that starts later.
            _ = handshake.set_linger(0);
            let expected = match (is_connected, unresolved_host(address)) {
                (true, _) => format!(
                    "expected INIT; is it a frontend's handshake address, does the frontend have an engine {0}, and \
                     is this the only engine {0}?",
                    config.rank
                ),
                (false, Some(reason)) => reason,
                (false, None) => "nothing that speaks ZeroMQ listens there".to_owned(),
            };
            LinkError::Silent { address: address.clone(), expected, waited: config.timeout }
        };
        let frames = match received {
            Ok(Some(frames)) => frames,
            Ok(None) => return Err(silent()),
            Err(error) => {
                _ = handshake.set_linger(0);
                return Err(error);
            }
        };
        let decode_error =
            |source| LinkError::Decode { from: format!("the frontend at {address}"), source: Box::new(source) };
        let init = Init::decode(frames.first().map_or(&[], Vec::as_slice)).map_err(decode_error)?;
        let (inputs, outputs) = (init.addresses.inputs.len(), init.addresses.outputs.len());
        if inputs != outputs || inputs == 0 {
            return Err(LinkError::UnpairedAddresses { inputs, outputs });
        }
        Ok(Self { transport: transport.clone(), config, handshake, init })
    }

    /// The INIT that the frontend sent.
    #[must_use]
    pub fn init(&self) -> &Init {
        &self.init
    }

    /// Connects to all addresses in INIT, registers with every API server, waits for the coordinator and sends READY.
    ///
    /// `dp_stats_address` of `ready` is set from INIT.
    ///
    /// # Errors
    ///
    /// An address cannot be used, or the coordinator does not send READY in time.
    pub fn ready(self, ready: &ReadyResponse) -> Result<EngineLink, LinkError> {
        let addresses = &self.init.addresses;
        let ready =
            ReadyResponse { dp_stats_address: addresses.frontend_stats_publish_address.clone(), ..ready.clone() };
        let mut registration = Vec::new();
        ready.encode(&mut registration);

        // Connect outputs before the registration, because then requests arrive and cause outputs.
        let outputs = self.connect_outputs()?;
        let mut coordinator = None;
        if let Some(address) = &addresses.coordinator_input {
            let socket = self.transport.socket(zmq::XSUB, Linger::None)?;
            connect(&socket, address)?;
            // Subscribe to all topics.
            send(&socket, [[1]]).map_err(LinkError::socket("subscribe to the coordinator"))?;
            coordinator = Some(socket);
        }
        let mut inputs = Vec::new();
        for address in &addresses.inputs {
            let socket = self.transport.socket(zmq::DEALER, Linger::Output)?;
            let limit = i32::try_from(self.transport.max_waiting_requests).unwrap_or(i32::MAX);
            socket.set_rcvhwm(limit).map_err(LinkError::socket("limit waiting requests"))?;
            socket.set_identity(&self.config.rank.to_le_bytes()).map_err(LinkError::socket("set an identity"))?;
            let monitor = self.transport.monitor(&socket)?;
            connect(&socket, address)?;
            send(&socket, [&registration]).map_err(LinkError::socket("register"))?;
            inputs.push((socket, monitor));
        }
        if let Some(socket) = &coordinator {
            self.pass_gate(socket)?;
        }
        send(&self.handshake, [self.config.handshake(EngineStatus::Ready)]).map_err(LinkError::socket("say READY"))?;
        let inputs = EngineInputs::new(self.transport, inputs, coordinator)?;
        Ok(EngineLink { init: self.init, inputs, outputs })
    }

    fn connect_outputs(&self) -> Result<EngineOutputs, LinkError> {
        let push = |address: &String| {
            let socket = self.transport.socket(zmq::PUSH, Linger::Output)?;
            connect(&socket, address)?;
            Ok(socket)
        };
        let addresses = &self.init.addresses;
        let clients = addresses.outputs.iter().map(push).collect::<Result<_, _>>()?;
        let coordinator = addresses.coordinator_output.as_ref().map(push).transpose()?;
        Ok(EngineOutputs { clients, coordinator, local: None })
    }

    /// Waits for the coordinator's READY, which comes when all engines have subscribed.
    fn pass_gate(&self, socket: &Socket) -> Result<(), LinkError> {
        let deadline = Deadline::after(self.config.timeout);
        while let Some(frames) = receive(socket, deadline, &self.config, || Ok(WaitsFor::Gate))? {
            if frames == [b"READY"] {
                return Ok(());
            }
        }
        Err(LinkError::Silent {
            address: self.init.addresses.coordinator_input.clone().unwrap_or_default(),
            expected: "expected the coordinator's READY; it comes when all engines have subscribed".to_owned(),
            waited: self.config.timeout,
        })
    }
}

/// Interval at which a waiting thread checks whether it must stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for the next message; returns `None` at the timeout. Signals do not end the wait. `look` returns what is
/// waited for.
fn receive(
    socket: &Socket,
    deadline: Deadline,
    config: &EngineLinkConfig,
    mut look: impl FnMut() -> Result<WaitsFor, LinkError>,
) -> Result<Option<Vec<Vec<u8>>>, LinkError> {
    let started = Instant::now();
    loop {
        if let Some(frames) = try_receive(socket)? {
            return Ok(Some(frames));
        }
        if config.stop.load(Ordering::Relaxed) {
            return Err(LinkError::Stopped);
        }
        let waits_for = look()?;
        if let Some(WaitHook(hear)) = &config.on_wait {
            hear(waits_for, started.elapsed());
        }
        let pause = deadline.at_most(STOP_INTERVAL);
        if !pause.wait(std::iter::once(socket))? && deadline.is_over() {
            return Ok(None);
        }
    }
}

/// An engine that serves. Inputs and outputs may be used by two threads.
pub struct EngineLink {
    /// The frontend's INIT.
    pub init: Init,
    /// The input sockets.
    pub inputs: EngineInputs,
    /// The output sockets.
    pub outputs: EngineOutputs,
}

impl EngineLink {
    /// The engine's end of a link within its process. Opens the mailbox of the link.
    #[must_use]
    pub fn local(link: &LocalLink, ready: &ReadyResponse) -> Self {
        link.open(ready);
        Self {
            init: Init { addresses: Addresses::default(), ..Init::default() },
            inputs: EngineInputs::local(link.clone()),
            outputs: EngineOutputs::local(link.clone()),
        }
    }
}

/// The output sockets of an engine.
pub struct EngineOutputs {
    clients: Vec<Socket>,
    coordinator: Option<Socket>,
    /// Set if the frontend is in this process, instead of sockets.
    local: Option<LocalLink>,
}

impl EngineOutputs {
    pub(super) fn local(link: LocalLink) -> Self {
        Self { clients: Vec::new(), coordinator: None, local: Some(link) }
    }

    /// The number of API servers.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len() + usize::from(self.local.is_some())
    }

    /// Whether there is a coordinator.
    #[must_use]
    pub fn has_coordinator(&self) -> bool {
        self.coordinator.is_some()
    }

    /// Sends a message of one frame to an API server, without blocking. Frames for a slow server are queued without
    /// a limit, so stop sending to a server that is [lost](super::Received::FrontendLost).
    ///
    /// # Errors
    ///
    /// There is no such API server, or ZeroMQ fails.
    pub fn send(&self, client: usize, frame: &[u8]) -> Result<(), LinkError> {
        if let (Some(link), 0) = (&self.local, client) {
            link.send_message(frame);
            return Ok(());
        }
        self.send_frames(client, &[frame])
    }

    /// Whether the frontend is in this process.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Gives the outputs of a step to a frontend in this process. [`EngineOutputs::send`] sends outputs to other
    /// frontends.
    pub fn hand_over(&self, step: StepOutputs<'_>) {
        if let Some(link) = &self.local {
            link.send_step(step);
        }
    }

    /// Tells a frontend in this process about a message that a fault damages. Returns `false` for a frontend in
    /// another process, whose messages are damaged in transit.
    pub fn damage(&self, frame: &[u8], damage: MessageDamage) -> bool {
        if let Some(link) = &self.local {
            link.send_damaged(frame, damage);
        }
        self.local.is_some()
    }

    /// Sends a message, and the bytes of its large tensors as further frames.
    ///
    /// # Errors
    ///
    /// There is no such API server, or ZeroMQ fails.
    pub fn send_frames(&self, client: usize, frames: &[impl AsRef<[u8]>]) -> Result<(), LinkError> {
        if let (Some(link), 0, [frame]) = (&self.local, client, frames) {
            // Engines of this process put all tensors into the message itself.
            link.send_message(frame.as_ref());
            return Ok(());
        }
        let clients = self.clients();
        let socket = self.clients.get(client).ok_or(LinkError::NoSuchClient { client, clients })?;
        send(socket, frames).map_err(LinkError::socket("send outputs"))
    }

    /// Sends statistics, or the start or end of a wave, to the coordinator.
    pub fn send_to_coordinator(&self, frame: &[u8]) -> Result<(), LinkError> {
        let socket = self.coordinator.as_ref().ok_or(LinkError::NoCoordinator)?;
        send(socket, [frame]).map_err(LinkError::socket("tell the coordinator"))
    }

    /// Tells every API server that this engine is dead.
    pub fn send_dead(&self) -> Result<(), LinkError> {
        if let Some(link) = &self.local {
            link.send_message(ENGINE_CORE_DEAD);
        }
        for socket in &self.clients {
            send(socket, [ENGINE_CORE_DEAD]).map_err(LinkError::socket("say that the engine is dead"))?;
        }
        Ok(())
    }
}
