//! Messages to frontends: each step sends one to each API server with new outputs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use vcr_wire::{
    EngineCoreOutput, EngineCoreOutputs, EngineOutputs, FinishReason, LinkError, MessageDamage, ProtocolRules,
    RequestError, SchedulerStats, StepEncoder, StepEnd, StepKeeper, UtilityOutput,
};

use crate::egress::first_tokens::FirstTokens;
use crate::egress::gather::Gather;
use crate::faults::active::Faults;
use crate::routing::dispatcher::{Dispatcher, PeerMessage};

/// A delayed message: send time, sequence number, channel, whether later messages wait for it, and its bytes.
type Delayed = Reverse<(u64, u64, usize, bool, Vec<u8>)>;

/// The delayed messages that later ones to the same API server must not overtake.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Number of these messages.
    waiting: u64,
    /// Send time of the last of these messages, counted from the start of serving.
    until_ns: u64,
}

/// The outputs of one engine.
///
/// A *channel* leads to an API server. The channels of this engine's own link come first and have the servers'
/// numbers. With a router, the channels of the other engines' links follow. Frames for them go to those engines as
/// peer messages.
pub(crate) struct Outputs {
    link: EngineOutputs,
    /// All engines, if there is a router, and this engine's index among them.
    dispatcher: Option<Arc<Dispatcher>>,
    index: usize,
    first_rank: u16,
    rules: &'static ProtocolRules,
    /// Encoders, one for each channel to a frontend.
    encoders: Vec<StepEncoder>,
    /// Replaces the first encoder if the frontend is in this process: outputs are delivered at once, without a frame.
    keeper: Option<StepKeeper>,
    /// Whether each API server is lost.
    lost: Vec<bool>,
    frame: Vec<u8>,
    delayed: BinaryHeap<Delayed>,
    num_delayed: u64,
    /// By API server, the delayed messages that later ones must not overtake.
    held: Vec<Held>,
    /// Delay of the outputs of a step.
    delay_ns: u64,
    /// Set if first tokens have a longer delay.
    first_tokens: Option<FirstTokens>,
    weight_version: Option<String>,
    sends_weight_version: bool,
    messages: u64,
    bytes: u64,
}

impl Outputs {
    pub(crate) fn new(
        link: EngineOutputs,
        (first_rank, index): (u16, usize),
        rules: &'static ProtocolRules,
        dispatcher: Option<Arc<Dispatcher>>,
        (delay_ns, first_token_ns): (u64, u64),
    ) -> Self {
        let clients = link.clients();
        let channels = clients * dispatcher.as_ref().map_or(1, |dispatcher| dispatcher.engines());
        Self {
            dispatcher,
            index,
            first_rank,
            rules,
            encoders: (0..channels).map(|_| StepEncoder::new(rules)).collect(),
            keeper: (link.is_local() && delay_ns == 0 && first_token_ns == 0).then(StepKeeper::default),
            lost: vec![false; clients],
            frame: Vec::new(),
            delayed: BinaryHeap::new(),
            num_delayed: 0,
            held: vec![Held::default(); clients],
            delay_ns,
            first_tokens: (first_token_ns > 0).then(|| FirstTokens::new(channels, first_token_ns, rules)),
            weight_version: None,
            sends_weight_version: true,
            messages: 0,
            bytes: 0,
            link,
        }
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn weight_version(&self) -> Option<&str> {
        self.weight_version.as_deref()
    }

    pub(crate) fn set_weight_version(&mut self, version: Option<String>) {
        self.weight_version = version;
    }

    /// Omits the weight version from messages, because some vLLM versions reject it.
    pub(crate) fn omit_weight_version(&mut self) {
        self.sends_weight_version = false;
    }

    pub(crate) fn sends_weight_version(&self) -> bool {
        self.sends_weight_version
    }

    /// The channel to an API server of the engine `origin`, if there is one.
    pub(crate) fn channel(&self, origin: usize, client: u32) -> Option<u32> {
        let engines = self.dispatcher.as_ref().map_or(1, |dispatcher| dispatcher.engines());
        let (origin, clients) = ((origin + engines - self.index) % engines, self.link.clients());
        ((client as usize) < clients).then(|| (origin * clients) as u32 + client)
    }

    /// The engine whose link a channel uses.
    pub(crate) fn origin_of(&self, channel: u32) -> usize {
        let (channel, clients) = (channel as usize, self.link.clients());
        match &self.dispatcher {
            Some(dispatcher) if channel >= clients => (channel / clients + self.index) % dispatcher.engines(),
            _ => self.index,
        }
    }

    /// The rank of the engine whose link a channel uses.
    fn engine_index(&self, channel: u32) -> u32 {
        u32::from(self.first_rank) + self.origin_of(channel) as u32
    }

    /// Changes the protocol version. Nothing may have been gathered yet.
    pub(crate) fn set_version(&mut self, rules: &'static ProtocolRules) {
        self.rules = rules;
        for encoder in &mut self.encoders {
            *encoder = StepEncoder::new(rules);
        }
        if let Some(first_tokens) = &mut self.first_tokens {
            first_tokens.set_version(rules);
        }
    }

    pub(crate) fn has_coordinator(&self) -> bool {
        self.link.has_coordinator()
    }

    /// Whether a request may name this API server.
    pub(crate) fn has_client(&self, client: u32) -> bool {
        (client as usize) < self.link.clients()
    }

    /// Where outputs for a channel are gathered. Outputs with a request's first token may be gathered separately.
    #[inline]
    pub(crate) fn gather(&mut self, channel: u32, is_first_token: bool) -> Gather<'_> {
        match (&mut self.keeper, &mut self.first_tokens) {
            (Some(keeper), _) if channel == 0 => Gather::Keep(keeper),
            (_, Some(first_tokens)) if is_first_token => Gather::Encode(first_tokens.encoder(channel)),
            _ => Gather::Encode(&mut self.encoders[channel as usize]),
        }
    }

    /// Stops sending to an API server. Returns whether all are lost.
    pub(crate) fn lose_client(&mut self, client: usize) -> bool {
        self.lost[client] = true;
        self.lost.iter().all(|lost| *lost)
    }

    /// Sends the gathered outputs. The statistics go to the first of this engine's own API servers with outputs, or
    /// to the first one if none has any.
    pub(crate) fn send_step(
        &mut self,
        stats: Option<&SchedulerStats>,
        now_ns: u64,
        faults: &mut Faults,
        fault_now_ns: u64,
    ) -> Result<(), LinkError> {
        let stats = if self.hand_over(stats, now_ns, faults) { None } else { stats };
        self.hold_first_tokens(now_ns, faults, fault_now_ns)?;
        let first = self.encoders[..self.link.clients()].iter().position(|encoder| !encoder.is_empty());
        let stats_for = stats.map(|_| first.unwrap_or(0));
        for channel in 0..self.encoders.len() {
            if self.encoders[channel].is_empty() && stats_for != Some(channel) {
                continue;
            }
            let mut frame = std::mem::take(&mut self.frame);
            frame.clear();
            let stats = stats.filter(|_| stats_for == Some(channel));
            let engine_index = self.engine_index(channel as u32);
            let weight_version = self.weight_version.as_deref().filter(|_| self.sends_weight_version);
            let timestamp = now_ns as f64 / 1e9;
            let end = StepEnd { engine_index, scheduler_stats: stats, timestamp, weight_version };
            self.encoders[channel].finish(end, &mut frame);
            let sent = self.send(channel, &frame, faults, fault_now_ns);
            self.frame = frame;
            sent?;
        }
        Ok(())
    }

    /// Delivers outputs and statistics to a frontend in this process. Returns `false` if there is nothing to
    /// deliver, or if a fault may affect their message.
    fn hand_over(&mut self, stats: Option<&SchedulerStats>, now_ns: u64, faults: &Faults) -> bool {
        let Some(mut keeper) = self.keeper.take() else { return false };
        let leaves_now = self.held[0].waiting == 0 && !self.lost[0] && !faults.may_meet_messages();
        let is_handed_over = leaves_now && !(keeper.is_empty() && stats.is_none());
        if is_handed_over {
            let weight_version = self.weight_version.as_deref().filter(|_| self.sends_weight_version);
            let timestamp = now_ns as f64 / 1e9;
            let end = StepEnd { engine_index: self.engine_index(0), scheduler_stats: stats, timestamp, weight_version };
            self.messages += 1;
            self.link.hand_over(keeper.step(end));
            keeper.clear();
        } else {
            keeper.encode(&mut self.encoders[0]);
        }
        self.keeper = Some(keeper);
        is_handed_over
    }

    /// Holds the first tokens of a step until their time. If the previous step's first tokens are still held and this
    /// step has more outputs for their channel, they are sent now, because second tokens must not overtake them.
    fn hold_first_tokens(&mut self, now_ns: u64, faults: &mut Faults, fault_now_ns: u64) -> Result<(), LinkError> {
        let Some(mut first_tokens) = self.first_tokens.take() else { return Ok(()) };
        let mut sent = Ok(());
        for channel in 0..self.encoders.len() {
            while let Some(frame) = first_tokens.next_of(channel).filter(|_| !self.encoders[channel].is_empty()) {
                sent = sent.and(self.send(channel, &frame, faults, fault_now_ns));
            }
            let weight_version = self.weight_version.as_deref().filter(|_| self.sends_weight_version);
            let engine_index = self.engine_index(channel as u32);
            let end = StepEnd { engine_index, scheduler_stats: None, timestamp: now_ns as f64 / 1e9, weight_version };
            first_tokens.hold(channel, end, fault_now_ns);
        }
        self.first_tokens = Some(first_tokens);
        sent
    }

    /// Ends requests outside of any step, as vLLM does at a shutdown, a pause or a refusal.
    pub(crate) fn send_finish(
        &mut self,
        channel: u32,
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
            ..self.message(channel)
        };
        self.send_message(channel, &message)
    }

    pub(crate) fn send_utility(&mut self, client: u32, output: UtilityOutput) -> Result<(), LinkError> {
        let message = EngineCoreOutputs { utility_output: Some(output), ..self.message(client) };
        self.send_message(client, &message)
    }

    fn message(&self, channel: u32) -> EngineCoreOutputs {
        EngineCoreOutputs { engine_index: self.engine_index(channel), ..EngineCoreOutputs::default() }
    }

    fn send_message(&mut self, channel: u32, message: &EngineCoreOutputs) -> Result<(), LinkError> {
        let mut frame = Vec::new();
        message.encode(&mut frame, self.rules);
        self.deliver_first_tokens(channel as usize)?;
        self.deliver(channel as usize, &frame)
    }

    /// Sends outputs that another engine computed for this one's frontend.
    pub(crate) fn pass_on(
        &mut self,
        client: u32,
        frame: &[u8],
        faults: &mut Faults,
        fault_now_ns: u64,
    ) -> Result<(), LinkError> {
        self.send(client as usize, frame, faults, fault_now_ns)
    }

    pub(crate) fn send_to_coordinator(&self, message: EngineCoreOutputs) -> Result<(), LinkError> {
        let mut frame = Vec::new();
        EngineCoreOutputs { engine_index: self.engine_index(0), ..message }.encode(&mut frame, self.rules);
        self.link.send_to_coordinator(&frame)
    }

    /// Sends ENGINE_CORE_DEAD, after all earlier messages.
    pub(crate) fn send_dead(&mut self) -> Result<(), LinkError> {
        self.flush()?;
        self.link.send_dead()
    }

    /// Sends all delayed messages at once.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        let channels = if self.first_tokens.is_some() { self.encoders.len() } else { 0 };
        (0..channels).try_for_each(|channel| self.deliver_first_tokens(channel))?;
        self.send_due(u64::MAX)
    }

    fn send(&mut self, channel: usize, frame: &[u8], faults: &mut Faults, fault_now_ns: u64) -> Result<(), LinkError> {
        if channel >= self.link.clients() {
            // Another engine owns the channel and applies its own faults to the frame.
            return self.deliver(channel, frame);
        }
        let fate = faults.message(frame.len(), fault_now_ns);
        if fate.is_dropped {
            self.link.damage(frame, MessageDamage::Lost);
            return Ok(());
        }
        if fate.is_corrupt && self.link.damage(frame, MessageDamage::Unreadable) {
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
                Some(at_ns) => self.delay(channel, at_ns.saturating_add(self.delay_ns), !fate.is_overtaken, frame),
                None if self.delay_ns > 0 => self.delay(channel, fault_now_ns + self.delay_ns, true, frame),
                None => self.deliver(channel, frame)?,
            }
        }
        Ok(())
    }

    /// Sends `frame` at a given time; if `keeps_order`, not before messages that already wait.
    fn delay(&mut self, channel: usize, at_ns: u64, keeps_order: bool, frame: &[u8]) {
        let held = &mut self.held[channel];
        let mut at_ns = at_ns;
        if keeps_order {
            if held.waiting > 0 {
                at_ns = at_ns.max(held.until_ns);
            }
            *held = Held { waiting: held.waiting + 1, until_ns: at_ns };
        }
        self.num_delayed += 1;
        self.delayed.push(Reverse((at_ns, self.num_delayed, channel, keeps_order, frame.to_vec())));
    }

    /// Sends the first tokens that are held for a channel, before a message that does not wait.
    fn deliver_first_tokens(&mut self, channel: usize) -> Result<(), LinkError> {
        while let Some(frame) = self.first_tokens.as_mut().and_then(|first_tokens| first_tokens.next_of(channel)) {
            self.deliver(channel, &frame)?;
        }
        Ok(())
    }

    /// Sends `frame` after everything that was sent on this channel before.
    fn deliver(&mut self, channel: usize, frame: &[u8]) -> Result<(), LinkError> {
        let clients = self.link.clients();
        if channel >= clients {
            if let Some(dispatcher) = &self.dispatcher {
                let client = (channel % clients) as u32;
                // A stopped engine has no frontend that waits.
                _ = dispatcher
                    .send(self.origin_of(channel as u32), PeerMessage::Outputs { client, frame: frame.to_vec() });
            }
            return Ok(());
        }
        if self.held[channel].waiting > 0 {
            self.delay(channel, 0, true, frame);
            return Ok(());
        }
        self.transmit(channel, frame)
    }

    fn transmit(&mut self, channel: usize, frame: &[u8]) -> Result<(), LinkError> {
        if self.lost[channel] {
            return Ok(());
        }
        self.messages += 1;
        self.bytes += frame.len() as u64;
        self.link.send(channel, frame)
    }

    /// When the next delayed message is due, counted from the start of serving.
    pub(crate) fn next_delayed_ns(&self) -> Option<u64> {
        let first_tokens_ns = self.first_tokens.as_ref().and_then(FirstTokens::next_due_ns);
        self.next_message_ns().into_iter().chain(first_tokens_ns).min()
    }

    fn next_message_ns(&self) -> Option<u64> {
        self.delayed.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Sends the delayed messages that are due.
    pub(crate) fn send_delayed(&mut self, faults: &mut Faults, fault_now_ns: u64) -> Result<(), LinkError> {
        while let Some((channel, frame)) = self.first_tokens.as_mut().and_then(|held| held.due(fault_now_ns)) {
            self.send(channel, &frame, faults, fault_now_ns)?;
        }
        self.send_due(fault_now_ns)
    }

    fn send_due(&mut self, fault_now_ns: u64) -> Result<(), LinkError> {
        while self.next_message_ns().is_some_and(|at_ns| at_ns <= fault_now_ns) {
            let Some(Reverse((_, _, channel, keeps_order, frame))) = self.delayed.pop() else { break };
            self.held[channel].waiting -= u64::from(keeps_order);
            self.transmit(channel, &frame)?;
        }
        Ok(())
    }
}
