//! What goes to frontends: one message a step to each that has something in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use vcr_wire::{
    EngineCoreOutput, EngineCoreOutputs, EngineOutputs, FinishReason, LineRules, LinkError, RequestError,
    SchedulerStats, StepEncoder, StepEnd, UtilityOutput,
};

use crate::faults::Faults;
use crate::switchboard::{Mail, Switchboard};

/// A message to be sent later: when, in which order, to whom.
type Delayed = Reverse<(u64, u64, usize, Vec<u8>)>;

/// The outputs of one engine.
///
/// A *lane* is what leads to an API server. Those of this engine's own link come
/// first and have the servers' numbers; where there is a router, those of the
/// other engines' links follow, and what is put on them goes there by mail.
pub(crate) struct Outputs {
    link: EngineOutputs,
    /// The other engines, if there is a router, and the place among them.
    board: Option<Arc<Switchboard>>,
    index: usize,
    first_rank: u16,
    rules: &'static LineRules,
    /// By lane.
    encoders: Vec<StepEncoder>,
    /// API servers that are gone.
    lost: Vec<bool>,
    frame: Vec<u8>,
    delayed: BinaryHeap<Delayed>,
    num_delayed: u64,
    pub(crate) weight_version: Option<String>,
    tells_weight_version: bool,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Outputs {
    pub(crate) fn new(
        link: EngineOutputs,
        (first_rank, index): (u16, usize),
        rules: &'static LineRules,
        board: Option<Arc<Switchboard>>,
    ) -> Self {
        let clients = link.clients();
        let lanes = clients * board.as_ref().map_or(1, |board| board.engines());
        Self {
            board,
            index,
            first_rank,
            rules,
            encoders: (0..lanes).map(|_| StepEncoder::new(rules)).collect(),
            lost: vec![false; clients],
            frame: Vec::new(),
            delayed: BinaryHeap::new(),
            num_delayed: 0,
            weight_version: None,
            tells_weight_version: true,
            messages: 0,
            bytes: 0,
            link,
        }
    }

    /// Says nothing of the version of the weights: the frontend may be of a
    /// line that takes no message with it.
    pub(crate) fn leave_weight_version_out(&mut self) {
        self.tells_weight_version = false;
    }

    pub(crate) fn tells_weight_version(&self) -> bool {
        self.tells_weight_version
    }

    /// The lane to an API server of the engine `home`, if there is one.
    pub(crate) fn lane(&self, home: usize, client: u32) -> Option<u32> {
        let engines = self.board.as_ref().map_or(1, |board| board.engines());
        let (home, clients) = ((home + engines - self.index) % engines, self.link.clients());
        ((client as usize) < clients).then(|| (home * clients) as u32 + client)
    }

    /// The engine by whose link a lane leads.
    pub(crate) fn home_of(&self, lane: u32) -> usize {
        let (lane, clients) = (lane as usize, self.link.clients());
        match &self.board {
            Some(board) if lane >= clients => (lane / clients + self.index) % board.engines(),
            _ => self.index,
        }
    }

    /// The number of that engine.
    fn engine_index(&self, lane: u32) -> u32 {
        u32::from(self.first_rank) + self.home_of(lane) as u32
    }

    /// Speaks as another line from now on. Nothing has been gathered.
    pub(crate) fn set_line(&mut self, rules: &'static LineRules) {
        self.rules = rules;
        for encoder in &mut self.encoders {
            *encoder = StepEncoder::new(rules);
        }
    }

    pub(crate) fn has_coordinator(&self) -> bool {
        self.link.has_coordinator()
    }

    /// Whether a request may name this API server.
    pub(crate) fn has_client(&self, client: u32) -> bool {
        (client as usize) < self.link.clients()
    }

    /// Gathers outputs for a lane.
    #[inline]
    pub(crate) fn encoder(&mut self, lane: u32) -> &mut StepEncoder {
        &mut self.encoders[lane as usize]
    }

    /// Sends to nobody there any more. `true` if all are gone.
    pub(crate) fn lose_client(&mut self, client: usize) -> bool {
        self.lost[client] = true;
        self.lost.iter().all(|lost| *lost)
    }

    /// Sends what was gathered, with the counts to one of this engine's own API
    /// servers that get something, or to the first if none does.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn send_step(
        &mut self,
        stats: Option<&SchedulerStats>,
        now_ns: u64,
        faults: &mut Faults,
        fault_now_ns: u64,
    ) -> Result<(), LinkError> {
        let first = self.encoders[..self.link.clients()].iter().position(|encoder| !encoder.is_empty());
        let stats_for = stats.map(|_| first.unwrap_or(0));
        for lane in 0..self.encoders.len() {
            if self.encoders[lane].is_empty() && stats_for != Some(lane) {
                continue;
            }
            let end = StepEnd {
                engine_index: self.engine_index(lane as u32),
                scheduler_stats: stats.filter(|_| stats_for == Some(lane)),
                timestamp: now_ns as f64 / 1e9,
                weight_version: self.weight_version.as_deref().filter(|_| self.tells_weight_version),
            };
            let mut frame = std::mem::take(&mut self.frame);
            frame.clear();
            self.encoders[lane].finish(end, &mut frame);
            let sent = self.send(lane, &frame, faults, fault_now_ns);
            self.frame = frame;
            sent?;
        }
        Ok(())
    }

    /// Ends requests apart from any step, as vLLM does at a shutdown, a pause
    /// or a refusal.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn send_finish(
        &mut self,
        lane: u32,
        ids: &[&str],
        reason: FinishReason,
        error: Option<&RequestError>,
        now_ns: u64,
    ) -> Result<(), LinkError> {
        let output = |id: &&str| EngineCoreOutput {
            request_id: (*id).to_owned(),
            finish_reason: Some(reason),
            error: error.cloned(),
            ..EngineCoreOutput::default()
        };
        let message = EngineCoreOutputs {
            outputs: ids.iter().map(output).collect(),
            finished_requests: Some(ids.iter().map(|id| (*id).to_owned()).collect()),
            timestamp: now_ns as f64 / 1e9,
            ..self.message(lane)
        };
        self.send_message(lane, &message)
    }

    /// Answers a utility call.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn send_utility(&mut self, client: u32, output: UtilityOutput) -> Result<(), LinkError> {
        let message = EngineCoreOutputs { utility_output: Some(output), ..self.message(client) };
        self.send_message(client, &message)
    }

    fn message(&self, lane: u32) -> EngineCoreOutputs {
        EngineCoreOutputs { engine_index: self.engine_index(lane), ..EngineCoreOutputs::default() }
    }

    fn send_message(&mut self, lane: u32, message: &EngineCoreOutputs) -> Result<(), LinkError> {
        let mut frame = Vec::new();
        message.encode(&mut frame, self.rules);
        self.deliver(lane as usize, &frame)
    }

    /// Sends what another engine computed for this one's frontend.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn pass_on(
        &mut self,
        client: u32,
        frame: &[u8],
        faults: &mut Faults,
        fault_now_ns: u64,
    ) -> Result<(), LinkError> {
        self.send(client as usize, frame, faults, fault_now_ns)
    }

    /// Tells the coordinator.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn tell_coordinator(&self, message: EngineCoreOutputs) -> Result<(), LinkError> {
        let mut frame = Vec::new();
        EngineCoreOutputs { engine_index: self.engine_index(0), ..message }.encode(&mut frame, self.rules);
        self.link.send_to_coordinator(&frame)
    }

    /// Says that the engine is dead.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn send_dead(&self) -> Result<(), LinkError> {
        self.link.send_dead()
    }

    fn send(&mut self, lane: usize, frame: &[u8], faults: &mut Faults, fault_now_ns: u64) -> Result<(), LinkError> {
        if lane >= self.link.clients() {
            // The faults of links are those of the other one's.
            return self.deliver(lane, frame);
        }
        let fate = faults.message(frame.len(), fault_now_ns);
        if fate.is_dropped {
            return Ok(());
        }
        let mut changed;
        let mut frame = frame;
        if fate.is_corrupt {
            changed = frame.to_vec();
            let at = faults.corrupt_byte(changed.len());
            changed[at] ^= 0x55;
            frame = &changed;
        }
        for _ in 0..1 + u32::from(fate.is_duplicated) {
            match fate.at_ns {
                Some(at_ns) => {
                    self.num_delayed += 1;
                    self.delayed.push(Reverse((at_ns, self.num_delayed, lane, frame.to_vec())));
                }
                None => self.deliver(lane, frame)?,
            }
        }
        Ok(())
    }

    fn deliver(&mut self, lane: usize, frame: &[u8]) -> Result<(), LinkError> {
        let clients = self.link.clients();
        if lane >= clients {
            if let Some(board) = &self.board {
                let client = (lane % clients) as u32;
                // An engine that is gone has no frontend that would wait.
                _ = board.post(self.home_of(lane as u32), Mail::Outputs { client, frame: frame.to_vec() });
            }
            return Ok(());
        }
        if self.lost[lane] {
            return Ok(());
        }
        self.messages += 1;
        self.bytes += frame.len() as u64;
        self.link.send(lane, frame)
    }

    /// When the next delayed message is due, on the clock of faults.
    pub(crate) fn next_delayed_ns(&self) -> Option<u64> {
        self.delayed.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Sends delayed messages whose time has come.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn send_delayed(&mut self, fault_now_ns: u64) -> Result<(), LinkError> {
        while self.next_delayed_ns().is_some_and(|at_ns| at_ns <= fault_now_ns) {
            if let Some(Reverse((_, _, client, frame))) = self.delayed.pop() {
                self.deliver(client, &frame)?;
            }
        }
        Ok(())
    }
}
