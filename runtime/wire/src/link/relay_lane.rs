//! The sockets that stand between one engine and its frontend.

use zmq::Socket;

use super::error::LinkError;
use super::handshake::DataAddress;
use super::inputs::{Inlet, Watch};
use super::relay::{Passed, RelayNotice, RelayPath, RelayTap};
use super::relay_pump::{Envelope, Fate, Head, pump};
use super::transport::{Linger, Transport, bind, connect};
use super::wait::monotonic_ns;
use crate::handshake::Addresses;

/// Messages moved from one socket before the others get their turn.
const TURN: usize = 64;

/// One engine's way to its frontend, from its HELLO on.
pub(super) struct Lane {
    pub(super) identity: Vec<u8>,
    pub(super) rank: u32,
    /// Bears the engine's identity, and goes to the frontend's handshake.
    pub(super) handshake: Option<Inlet>,
    /// From INIT on.
    pub(super) data: Option<Data>,
}

/// Where requests and outputs pass.
pub(super) struct Data {
    clients: Vec<Client>,
    coordinator: Option<Coordinator>,
    /// Whether the engine is still there.
    engine: Watch,
}

/// For one API server. What faces the engine listens, what faces the frontend
/// connects.
struct Client {
    /// ROUTER.
    engine_input: Inlet,
    /// DEALER with the engine's identity.
    frontend_input: Inlet,
    /// PULL.
    engine_output: Inlet,
    /// PUSH.
    frontend_output: Socket,
    /// Whether the API server is still there.
    frontend: Watch,
}

/// For the coordinator, which counts subscriptions: one for each engine.
struct Coordinator {
    /// XPUB.
    engine_input: Inlet,
    /// XSUB.
    frontend_input: Inlet,
    /// PULL.
    engine_output: Inlet,
    /// PUSH.
    frontend_output: Socket,
}

impl Lane {
    /// A way that ends at the frontend's handshake for now.
    pub(super) fn open(transport: &Transport, identity: Vec<u8>, frontend_handshake: &str) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::DEALER, Linger::Handshake)?;
        socket.set_identity(&identity).map_err(LinkError::socket("set an identity"))?;
        connect(&socket, frontend_handshake)?;
        let rank = identity.iter().rev().fold(0_u32, |rank, byte| rank << 8 | u32::from(*byte));
        Ok(Self { identity, rank, handshake: Some(Inlet::new(socket)?), data: None })
    }

    /// Everything to be watched, in an order that stays as long as the lane.
    pub(super) fn inlets(&mut self) -> impl Iterator<Item = &mut Inlet> {
        self.handshake.iter_mut().chain(self.data.iter_mut().flat_map(Data::inlets))
    }

    /// Moves what has come in, or some of it if that is much.
    pub(super) fn pump(&mut self, head: &mut Head, tap: &mut impl RelayTap) -> Result<(), LinkError> {
        let Some(data) = &mut self.data else { return Ok(()) };
        let (rank, identity) = (self.rank, self.identity.as_slice());
        let mut turn = Turn { rank, head, tap };
        for (index, client) in data.clients.iter_mut().enumerate() {
            client.pump(index, identity, &mut turn)?;
        }
        if let Some(coordinator) = &mut data.coordinator {
            coordinator.pump(&mut turn)?;
        }
        for (client, connection) in data.clients.iter_mut().enumerate() {
            if connection.frontend.is_lost()? {
                tap.noticed(rank, monotonic_ns(), RelayNotice::FrontendLost { client });
            }
        }
        if data.engine.is_lost()? {
            tap.noticed(rank, monotonic_ns(), RelayNotice::EngineLost);
        }
        Ok(())
    }
}

impl Data {
    /// Connects to everything that the frontend names and listens for the
    /// engine in its place. Returns where.
    pub(super) fn open(
        transport: &Transport,
        identity: &[u8],
        theirs: &Addresses,
        at: &DataAddress,
        name: &str,
    ) -> Result<(Self, Addresses), LinkError> {
        let (inputs, outputs) = (theirs.inputs.len(), theirs.outputs.len());
        if inputs != outputs || inputs == 0 {
            return Err(LinkError::UnpairedAddresses { inputs, outputs });
        }
        let mut ours = Addresses::default();
        let mut clients = Vec::new();
        for (index, (input, output)) in theirs.inputs.iter().zip(&theirs.outputs).enumerate() {
            let own = [at.of(&format!("{name}-i"), index), at.of(&format!("{name}-o"), index)];
            let (client, input, output) = Client::open(transport, identity, [input, output], &own)?;
            clients.push(client);
            ours.inputs.push(input);
            ours.outputs.push(output);
        }
        let engine = Watch::new(transport.monitor(&clients[0].engine_input.socket)?)?;
        let mut coordinator = None;
        if let (Some(input), Some(output)) = (&theirs.coordinator_input, &theirs.coordinator_output) {
            let own = [at.of(&format!("{name}-ci"), 0), at.of(&format!("{name}-co"), 0)];
            let (opened, input, output) = Coordinator::open(transport, [input, output], &own)?;
            coordinator = Some(opened);
            (ours.coordinator_input, ours.coordinator_output) = (Some(input), Some(output));
        }
        Ok((Self { clients, coordinator, engine }, ours))
    }

    /// How many API servers there are.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Whether there is a coordinator.
    pub(super) fn has_coordinator(&self) -> bool {
        self.coordinator.is_some()
    }

    fn inlets(&mut self) -> impl Iterator<Item = &mut Inlet> {
        let clients = self.clients.iter_mut().flat_map(|client| {
            let Client { engine_input, frontend_input, engine_output, frontend, .. } = client;
            [engine_input, frontend_input, engine_output, &mut frontend.monitor]
        });
        let coordinator = self.coordinator.iter_mut().flat_map(|coordinator| {
            let Coordinator { engine_input, frontend_input, engine_output, .. } = coordinator;
            [engine_input, frontend_input, engine_output]
        });
        clients.chain(coordinator).chain([&mut self.engine.monitor])
    }
}

impl Client {
    fn open(
        transport: &Transport,
        identity: &[u8],
        theirs: [&String; 2],
        own: &[String; 2],
    ) -> Result<(Self, String, String), LinkError> {
        let engine_input = transport.socket(zmq::ROUTER, Linger::Output)?;
        // A request that reaches no engine is to be seen.
        engine_input.set_router_mandatory(true).map_err(LinkError::socket("make requests mandatory"))?;
        engine_input.set_router_handover(true).map_err(LinkError::socket("take an engine back"))?;
        let engine_output = transport.socket(zmq::PULL, Linger::None)?;
        let input = bind(&engine_input, &own[0])?;
        let output = bind(&engine_output, &own[1])?;
        let frontend_input = transport.socket(zmq::DEALER, Linger::Output)?;
        frontend_input.set_identity(identity).map_err(LinkError::socket("set an identity"))?;
        let frontend_output = transport.socket(zmq::PUSH, Linger::Output)?;
        let frontend = Watch::new(transport.monitor(&frontend_output)?)?;
        connect(&frontend_input, theirs[0])?;
        connect(&frontend_output, theirs[1])?;
        let client = Self {
            engine_input: Inlet::new(engine_input)?,
            frontend_input: Inlet::new(frontend_input)?,
            engine_output: Inlet::new(engine_output)?,
            frontend_output,
            frontend,
        };
        Ok((client, input, output))
    }

    fn pump<T: RelayTap>(&mut self, client: usize, identity: &[u8], turn: &mut Turn<'_, T>) -> Result<(), LinkError> {
        let (to, from) = (Envelope::To(identity), Envelope::From(identity));
        let Self { engine_input, frontend_input, engine_output, frontend_output, .. } = self;
        let registered = turn.take(engine_input, &frontend_input.socket, &from, RelayPath::Registration { client })?;
        let requested = turn.take(frontend_input, &engine_input.socket, &to, RelayPath::Request { client })?;
        turn.take(engine_output, frontend_output, &Envelope::None, RelayPath::Outputs { client })?;
        // Sending may have eaten the sign that something has come in.
        frontend_input.may_have_message |= registered;
        engine_input.may_have_message |= requested;
        Ok(())
    }
}

impl Coordinator {
    fn open(
        transport: &Transport,
        theirs: [&String; 2],
        own: &[String; 2],
    ) -> Result<(Self, String, String), LinkError> {
        let engine_input = transport.socket(zmq::XPUB, Linger::Output)?;
        // Every subscription counts, not only the first.
        engine_input.set_xpub_verbose(true).map_err(LinkError::socket("count subscriptions"))?;
        let engine_output = transport.socket(zmq::PULL, Linger::None)?;
        let input = bind(&engine_input, &own[0])?;
        let output = bind(&engine_output, &own[1])?;
        let frontend_input = transport.socket(zmq::XSUB, Linger::None)?;
        let frontend_output = transport.socket(zmq::PUSH, Linger::Output)?;
        connect(&frontend_input, theirs[0])?;
        connect(&frontend_output, theirs[1])?;
        let coordinator = Self {
            engine_input: Inlet::new(engine_input)?,
            frontend_input: Inlet::new(frontend_input)?,
            engine_output: Inlet::new(engine_output)?,
            frontend_output,
        };
        Ok((coordinator, input, output))
    }

    fn pump<T: RelayTap>(&mut self, turn: &mut Turn<'_, T>) -> Result<(), LinkError> {
        let Self { engine_input, frontend_input, engine_output, frontend_output } = self;
        let none = Envelope::None;
        let subscribed = turn.take(engine_input, &frontend_input.socket, &none, RelayPath::Subscription)?;
        let told = turn.take(frontend_input, &engine_input.socket, &none, RelayPath::Wave)?;
        turn.take(engine_output, frontend_output, &none, RelayPath::Control)?;
        frontend_input.may_have_message |= subscribed;
        engine_input.may_have_message |= told;
        Ok(())
    }
}

/// One engine's turn to have its messages moved.
struct Turn<'a, T> {
    rank: u32,
    head: &'a mut Head,
    tap: &'a mut T,
}

impl<T: RelayTap> Turn<'_, T> {
    /// Moves messages of one socket. Whether there was any.
    fn take(
        &mut self,
        from: &mut Inlet,
        to: &Socket,
        envelope: &Envelope<'_>,
        path: RelayPath,
    ) -> Result<bool, LinkError> {
        let mut moved = false;
        for _ in 0..TURN {
            let Some(fate) = pump(from, to, envelope, self.head)? else { break };
            moved = true;
            // Told after it was handed on: whoever listens may take his time.
            let at_ns = monotonic_ns();
            let (frames, head) = (self.head.frames(), self.head.bytes());
            match fate {
                Fate::Passed => self.tap.passed(Passed { at_ns, rank: self.rank, path, frames, head }),
                Fate::Undeliverable => self.tap.noticed(self.rank, at_ns, RelayNotice::Undeliverable { path }),
                Fate::Stray => self.tap.noticed(self.rank, at_ns, RelayNotice::Stray),
            }
        }
        Ok(moved)
    }
}
