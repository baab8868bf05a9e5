//! The engine's end of the plane, which passes everything on to the agent's thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use vcr_transfer::{
    Arena, Direction, ErrorKind, Expected, Held, Hold, MOVER_NICENESS, Peer, Plane, PlaneContext, PlaneEvent,
    Statistics, Transfer, TransferError, lower_priority,
};
use vcr_wire::{NixlQuery, NoticeBoard, Transport};

use crate::NixlSettings;
use crate::agent::NixlAgent;
use crate::filler::{Filler, Finish};
use crate::layout::own_handshake;
use crate::shared::{Command, Shared, locked};
use crate::worker::Worker;

/// The NIXL plane of one engine.
pub struct NixlPlane {
    port: u16,
    arena: Arc<Arena>,
    shared: Arc<Shared>,
    commands: Sender<Command>,
    filler: Filler,
    thread: Option<JoinHandle<()>>,
}

impl NixlPlane {
    /// Starts the agent and its thread. The library must be open.
    ///
    /// # Errors
    /// The side channel's port is in use, or NIXL fails.
    pub fn start(settings: &Arc<NixlSettings>, context: PlaneContext) -> Result<Self, TransferError> {
        let error = |reason: String| TransferError::new(ErrorKind::Local, reason);
        let port = settings.side_channel_port.checked_add(context.rank).ok_or_else(|| {
            error(format!(
                "invalid side channel port {} for engine {}: there is no port {}",
                settings.side_channel_port,
                context.rank,
                u32::from(settings.side_channel_port) + u32::from(context.rank)
            ))
        })?;
        let transport = Transport::new();
        let address = format!("tcp://{}:{port}", settings.side_channel_host);
        let mut board = NoticeBoard::bind(&transport, &address)
            .map_err(|reason| error(format!("the side channel cannot listen: {reason}")))?;
        let (shared, arena) = (Arc::new(Shared::new(context.arena.geometry().blocks())), Arc::clone(&context.arena));
        let filler = Filler::start(&arena, &shared, &context.wake)?;
        let (commands, inbox): (_, Receiver<Command>) = channel();
        let (begin, begun) = channel();
        let (settings, for_worker) = (Arc::clone(settings), Arc::clone(&shared));
        let run = move || {
            // This comes first, because threads of NIXL and UCX inherit the priority of the thread that starts
            // them.
            lower_priority(MOVER_NICENESS);
            let started = start_agent(&settings, &context, &mut board);
            let (agent, outcome) = match started {
                Ok(agent) => (Some(agent), Ok(())),
                Err(error) => (None, Err(error)),
            };
            _ = begin.send(outcome);
            if let Some(agent) = agent {
                Worker::new(settings, context, transport, board, agent, for_worker).run(&inbox);
            }
        };
        let thread = std::thread::Builder::new()
            .name("vcr-nixl".to_owned())
            .spawn(run)
            .map_err(|reason| error(format!("cannot start the thread of a NIXL agent: {reason}")))?;
        begun.recv().unwrap_or_else(|_| Err(error("the thread of a NIXL agent has ended at its start".to_owned())))?;
        Ok(Self { port, arena, shared, commands, filler, thread: Some(thread) })
    }

    /// Opens a transfer and passes it on to the thread.
    fn pass(&self, id: u64, command: Command) {
        locked(&self.shared.open).insert(id);
        if self.commands.send(command).is_err() {
            let error = TransferError::new(ErrorKind::Local, "the thread of the NIXL agent has ended");
            self.shared.report(PlaneEvent::Finished { id, outcome: Err(error) });
        }
    }
}

/// Starts an agent, and gives its metadata to peers that ask the side channel.
fn start_agent(
    settings: &NixlSettings,
    context: &PlaneContext,
    board: &mut NoticeBoard,
) -> Result<NixlAgent, TransferError> {
    // Agents that connect must have different names.
    let name = format!("{}-{:016x}-{}", context.engine_id, context.generation, context.rank);
    let agent = NixlAgent::new(&name, &context.arena)?;
    let metadata = agent.metadata()?;
    for rank in 0..context.arena.geometry().ranks() {
        let handshake = own_handshake(settings, context, &metadata, rank);
        board.set_metadata(NixlQuery { pp_rank: 0, tp_rank: rank }, &handshake);
    }
    Ok(agent)
}

impl Plane for NixlPlane {
    fn name(&self) -> &'static str {
        "nixl"
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare(&mut self, blocks: Vec<Held>) {
        // If NIXL may still write to a block, the block gets its pattern when the prompt is finished.
        let free = blocks.iter().filter(|held| !self.shared.is_busy(held.block));
        let missing = free.filter(|held| !self.arena.want(held.block, held.content));
        self.filler.prepare(missing.map(|held| held.block).collect());
    }

    fn write(&mut self, id: u64, blocks: &[Held]) -> bool {
        let (mut missing, mut busy) = (Vec::new(), Vec::new());
        for held in blocks {
            if self.shared.is_busy(held.block) {
                busy.push(*held);
            } else if !self.arena.want(held.block, held.content) {
                missing.push(held.block);
            }
        }
        let is_written = missing.is_empty() && busy.is_empty();
        if !is_written {
            locked(&self.shared.open).insert(id);
            self.filler.finish(Finish { id, missing, busy });
        }
        is_written
    }

    fn hold(&mut self, _hold: Hold) {
        // Readers need no permission.
    }

    fn release(&mut self, _request: &str) {
        // Readers need no permission.
    }

    fn start(&mut self, transfer: Transfer) {
        if transfer.direction == Direction::Read {
            self.shared.occupy(transfer.blocks.iter().map(|pair| pair.local));
        }
        self.pass(transfer.id, Command::Start(transfer, Instant::now()));
    }

    fn expect(&mut self, expected: Expected) {
        self.pass(expected.id, Command::Expect(expected, Instant::now()));
    }

    fn cancel(&mut self, id: u64) {
        self.shared.close(id);
        _ = self.commands.send(Command::Cancel(id));
    }

    fn notify(&mut self, peer: &Peer, notice: Vec<u8>) {
        _ = self.commands.send(Command::Notify(peer.clone(), notice));
    }

    fn poll(&mut self, events: &mut Vec<PlaneEvent>) {
        events.append(&mut locked(&self.shared.events));
    }

    fn statistics(&self) -> Statistics {
        locked(&self.shared.statistics).clone()
    }
}

impl Drop for NixlPlane {
    fn drop(&mut self) {
        _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            _ = thread.join();
        }
    }
}
