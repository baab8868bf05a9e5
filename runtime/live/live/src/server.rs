//! The loop of one engine while it serves a frontend.
//!
//! One thread takes messages, lets the engine core decide steps, waits until the steps end, and sends their outputs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vcr_core::fault::FailureInjector;
use vcr_core::latency::LatencyModel;
use vcr_core::policy::SchedulingPolicy;
use vcr_core::sglang::SglangEngine;
use vcr_core::{AnyEngine, Engine, EngineConfig, ServingEngine as _};
use vcr_wire::{EngineInputs, EngineOutputs, Received, Request, Source, Transport, Waiter, monotonic_ns};

use crate::admin::{Admin, shutdown};
use crate::context::Context;
use crate::counters::Counters;
use crate::egress::kv_events::KvEvents;
use crate::egress::outputs::Outputs;
use crate::egress::waves::Waves;
use crate::egress::{Egress, SnapshotTimer};
use crate::error::LiveError;
use crate::faults::active::Faults;
use crate::faults::injector::Injector;
use crate::handle::Shared;
use crate::intake::frontend::Intake;
use crate::kv_transfer::meetings::Meetings;
use crate::kv_transfer::mover::Mover;
use crate::kv_transfer::transfers::Transfers;
use crate::lifecycle::{End, Lifecycle};
use crate::playback::capture::CaptureLookup;
use crate::playback::player::Player;
use crate::requests::Requests;
use crate::routing::dispatcher::Dispatcher;
use crate::routing::routes::Routes;
use crate::serving::Serving;
use crate::stepping::stepper::Stepper;
use crate::stepping::watch::StepWatch;
use crate::tokens::Tokens;

/// Maximum number of messages taken before a due step is handled.
const MESSAGES_PER_STEP: u32 = 256;

/// The plugins of one engine, made anew for each frontend.
pub(crate) struct Plugins {
    pub(crate) latency: Box<dyn LatencyModel>,
    pub(crate) tokens: Tokens,
    pub(crate) policy: Option<Box<dyn SchedulingPolicy>>,
    pub(crate) injector: Option<Box<dyn FailureInjector>>,
}

pub(crate) struct Links {
    pub(crate) outputs: EngineOutputs,
    pub(crate) transport: Transport,
    /// Used only for connections to the side channels of other engines.
    pub(crate) peer_transport: Transport,
    pub(crate) shared: Arc<[Shared]>,
    pub(crate) dispatcher: Option<Arc<Dispatcher>>,
    pub(crate) routes: Option<Routes>,
    /// Set for a mixture of experts behind a coordinator.
    pub(crate) waves: Option<Arc<Waves>>,
    pub(crate) mover: Option<Mover>,
    pub(crate) meetings: Option<Meetings>,
}

/// State of an engine that outlives its frontends.
pub(crate) struct PersistentState {
    pub(crate) kv_events: Option<KvEvents>,
    pub(crate) faults: Faults,
    pub(crate) counters: Counters,
}

/// The links of an engine that no longer serves.
pub(crate) struct OpenLinks {
    outputs: Outputs,
    _transfers: Transfers,
}

impl OpenLinks {
    pub(crate) fn flush(&mut self) -> Result<(), LiveError> {
        Ok(self.outputs.flush()?)
    }
}

pub(crate) struct Server {
    serving: Serving,
    intake: Intake,
    admin: Admin,
}

impl Server {
    pub(crate) fn new(context: Context, links: Links, plugins: Plugins, lasting: PersistentState) -> Self {
        let Plugins { latency, tokens, policy, injector } = plugins;
        let Links { outputs, transport, peer_transport, shared, dispatcher, routes, waves, mover, meetings } = links;
        let PersistentState { kv_events, faults, counters: base } = lasting;
        let config = Arc::clone(&context.config);
        let mut engine = match &config.sglang {
            Some(settings) => AnyEngine::Sglang(SglangEngine::new(settings.clone())),
            None => AnyEngine::Vllm(Engine::new(EngineConfig::clone(&config.engine))),
        };
        let needs_overlap = dispatcher.as_ref().is_some_and(|dispatcher| dispatcher.needs_overlap());
        let watch = StepWatch::new(config.steps.as_ref(), context.rank);
        engine.record_kv_events(kv_events.is_some() || needs_overlap || watch.sees_engines());
        if let Some(lookahead_tokens) = kv_events.as_ref().and_then(KvEvents::recorded_lookahead)
            && let Some(engine) = engine.as_vllm_mut()
        {
            engine.pool_mut().record_events_with_places(lookahead_tokens);
        }
        let serving = Serving {
            shared,
            lifecycle: Lifecycle::default(),
            requests: Requests::default(),
            tokens,
            stepper: Stepper::new(
                engine,
                policy,
                latency,
                config.latency_name.clone(),
                (config.overheads, config.time_scale),
                watch,
            ),
            player: Player::default(),
            captures: CaptureLookup::default(),
            transfers: Transfers::new(&context, transport, peer_transport, (mover, meetings), monotonic_ns()),
            routes,
            faults,
            injector: Injector::new(injector),
            egress: Egress::new(&context, outputs, kv_events, waves, dispatcher),
            counters: Counters::default(),
            snapshot: SnapshotTimer::default(),
            context,
        };
        Self { serving, intake: Intake::default(), admin: Admin::new(&config, base) }
    }

    /// Serves until there is a reason to end.
    pub(crate) fn run(&mut self, inputs: &mut EngineInputs, waiter: &Waiter) -> Result<End, LiveError> {
        loop {
            let now_ns = monotonic_ns();
            self.receive(inputs, now_ns)?;
            self.handle_commands(now_ns)?;
            self.intake.handle_peer_messages(&mut self.serving, &mut self.admin, now_ns)?;
            self.fire_timers(now_ns)?;
            self.serving.apply_due(now_ns)?;
            self.serving.play_due(now_ns)?;
            if let Some(end) = self.serving.lifecycle.ended() {
                return Ok(end);
            }
            self.serving.decide_steps(now_ns)?;
            self.finish_turn(now_ns)?;
            if let Some(end) = self.serving.lifecycle.ended() {
                return Ok(end);
            }
            let serving = &self.serving;
            let (events, notices) = (serving.egress.publisher(), serving.transfers.notices());
            // A message that is held back would end every wait at once.
            let takes_messages = !self.intake.is_at_limit(serving) || serving.stepper.is_paused();
            waiter.wait(inputs, takes_messages, events, notices, self.next_wake_ns(now_ns))?;
        }
    }

    /// Takes waiting messages, up to a limit, unless they are held back.
    fn receive(&mut self, inputs: &mut EngineInputs, now_ns: u64) -> Result<(), LiveError> {
        let mut left = MESSAGES_PER_STEP;
        while left > 0 && !self.intake.holds_back(&mut self.serving) {
            let Some(received) = inputs.try_receive_message()? else { break };
            self.handle(received, inputs, now_ns)?;
            left -= 1;
        }
        // This is checked only if there are no messages, because a lost frontend sends none.
        if left == MESSAGES_PER_STEP {
            while let Some(received) = inputs.try_receive_loss()? {
                self.handle(received, inputs, now_ns)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, received: Received, inputs: &EngineInputs, now_ns: u64) -> Result<(), LiveError> {
        self.serving.snapshot.mark_stale();
        match received {
            Received::Request { source, request, aux: _ } => {
                self.intake.detect_version(&mut self.serving, inputs);
                self.handle_request(source, request, now_ns)
            }
            Received::Malformed { source, error, request_id } => {
                self.intake.handle_malformed(&mut self.serving, source, &error, request_id.as_deref(), now_ns)
            }
            Received::FrontendLost { client } => {
                self.intake.handle_loss(&mut self.serving, &mut self.admin, client);
                Ok(())
            }
        }
    }

    fn handle_request(&mut self, source: Source, request: Request, now_ns: u64) -> Result<(), LiveError> {
        let serving = &mut self.serving;
        match request {
            Request::Add(request) => self.intake.arrive(serving, &mut self.admin, request, now_ns)?,
            Request::Abort(ids) => self.intake.abort(serving, &ids),
            Request::Utility(call) => self.admin.handle_utility(serving, call, now_ns)?,
            Request::StartDpWave(wave) if source == Source::Coordinator => {
                serving.egress.start_wave(wave.wave, wave.exclude_engine_index);
            }
            Request::StartDpWave(_) => {
                serving.counters.malformed += 1;
                tracing::warn!(
                    rank = serving.context.rank,
                    "START_DP_WAVE came from an API server; only a coordinator may"
                );
            }
        }
        Ok(())
    }

    /// Handles the commands of other threads, including a shutdown.
    fn handle_commands(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let serving = &mut self.serving;
        if serving.lifecycle.is_running() && serving.shared().stop.load(Ordering::Acquire) {
            shutdown::begin(serving, now_ns)?;
        }
        self.admin.handle_commands(serving);
        Ok(())
    }

    /// Handles due timers, except steps and playback.
    fn fire_timers(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let serving = &mut self.serving;
        self.intake.add_arrived(serving, &mut self.admin, now_ns)?;
        serving.finish_transfers(now_ns)?;
        let since_start_ns = serving.context.since_start_ns(now_ns);
        serving.egress.outputs.send_delayed(&mut serving.faults, since_start_ns)?;
        if let Some(publisher) = serving.egress.publisher() {
            publisher.serve_replays()?;
        }
        while let Some(fault) = serving.faults.due(since_start_ns, false) {
            serving.apply_fault(fault, now_ns)?;
        }
        Ok(())
    }

    fn finish_turn(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let serving = &mut self.serving;
        serving.send_owed_stats(now_ns)?;
        self.admin.finish_pauses(serving)?;
        serving.egress.report_counts(serving.stepper.engine(), serving.player.counts())?;
        shutdown::advance(serving, now_ns)?;
        if let Some(routes) = &mut serving.routes {
            routes.notify_origins();
        }
        self.admin.report_load(serving);
        if self.serving.snapshot.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.publish_snapshot(now_ns);
        }
        Ok(())
    }

    /// When the loop must continue even if no message comes; now if a step could be decided.
    fn next_wake_ns(&self, now_ns: u64) -> Option<u64> {
        let Serving { context, stepper, player, lifecycle, snapshot, transfers, egress, faults, .. } = &self.serving;
        let stalled_until_ns = stepper.stalled_until_ns();
        let next_fault_ns = faults.next_due_ns(context.since_start_ns(now_ns));
        let times = [
            stepper.next_step_ns(),
            stepper.next_token_ns(),
            stepper.next_tier_load_ns(),
            stepper.next_grammar_ns(),
            player.next_due_ns().map(|due_ns| due_ns.max(stalled_until_ns)),
            (stalled_until_ns > now_ns).then_some(stalled_until_ns),
            lifecycle.drain_until_ns().map(|until_ns| until_ns.max(now_ns + 1)),
            snapshot.due_ns(),
            self.intake.next_arrival_ns(),
            transfers.next_load_ns(),
            transfers.next_lease_end_ns(),
            transfers.next_heartbeat_ns(),
            egress.outputs.next_delayed_ns().map(|due_ns| context.at_ns(due_ns)),
            next_fault_ns.map(|due_ns| context.at_ns(due_ns)),
        ];
        times.into_iter().flatten().min()
    }

    fn publish_snapshot(&mut self, now_ns: u64) {
        let version = self.intake.version().is_known().then(|| self.serving.egress.version());
        self.admin.publish_snapshot(&mut self.serving, version, now_ns);
    }

    /// Leaves the other engines. Must follow [`Server::run`].
    pub(crate) fn close_routes(&mut self) {
        self.serving.close_routes();
    }

    pub(crate) fn send_dead(&mut self) -> Result<(), LiveError> {
        Ok(self.serving.egress.outputs.send_dead()?)
    }

    /// Publishes a last snapshot. Returns the state for the next frontend, and the links, which stay open until
    /// they are dropped.
    pub(crate) fn finish(mut self) -> (PersistentState, OpenLinks) {
        self.publish_snapshot(monotonic_ns());
        self.serving.stepper.close();
        let counters = self.admin.all_counters(&self.serving);
        let block_size = self.serving.context.config.engine.block_size();
        let (outputs, kv_events) = self.serving.egress.into_parts(block_size);
        let links = OpenLinks { outputs, _transfers: self.serving.transfers };
        (PersistentState { kv_events, faults: self.serving.faults, counters }, links)
    }
}
