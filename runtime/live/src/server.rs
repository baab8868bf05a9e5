//! One engine while it serves: everything it owns, and its loop.
//!
//! One thread does all of it: it takes what frontends send, lets the engine
//! core decide steps, waits until their ends, and sends what they gave. A step
//! starts at the instant at which the one before it ended, not when this
//! thread noticed, so that delays of the thread never add up.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vcr_core::fault::FailureInjector;
use vcr_core::latency::LatencyModel;
use vcr_core::policy::SchedulingPolicy;
use vcr_core::{Engine, PauseState, RequestId};
use vcr_trace::capture::PromptChain;
use vcr_wire::{EngineInputs, Line, Received, Transport, Waiter, monotonic_ns};

use crate::adapters::Adapters;
use crate::config::LiveConfig;
use crate::error::LiveError;
use crate::faults::Faults;
use crate::handle::{Command, Counters, Shared};
use crate::kv_events::KvEvents;
use crate::outputs::Outputs;
use crate::pause::Pauses;
use crate::player::Player;
use crate::rank::seat;
use crate::requests::Requests;
use crate::routed::Routes;
use crate::stats::StatsKeeper;
use crate::tokens::Tokens;
use crate::transfer::Transfers;
use crate::waves::Waves;

/// Behind by more than this, the loop does not catch up but starts anew: the
/// process was stopped, and nobody wants the steps that it missed.
const CATCH_UP_NS: u64 = 1_000_000_000;
/// Messages taken at once while a step is due.
const MESSAGES_PER_STEP: u32 = 256;

/// Why an engine serves no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was told to stop.
    ShutDown,
    /// Its frontends are gone.
    FrontendLost,
    /// A fault: it is gone, and comes back after so long, if at all.
    Crashed { restart_ns: Option<u64> },
}

/// How far a shutdown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    Running,
    /// Requests under way are waited for until then.
    Draining {
        until_ns: u64,
    },
}

/// A step on the imagined GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// One engine with its links.
pub(crate) struct Server {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) transport: Transport,
    pub(crate) shared: Arc<[Shared]>,
    /// Place among the engines of this process.
    pub(crate) index: usize,
    pub(crate) rank: u16,
    pub(crate) line: Line,
    /// Whether the frontend has shown its line.
    pub(crate) line_is_known: bool,
    /// Why this frontend cannot be served, if it cannot.
    pub(crate) refuses_all: Option<String>,
    pub(crate) engine: Engine,
    pub(crate) policy: Option<Box<dyn SchedulingPolicy>>,
    pub(crate) latency: Box<dyn LatencyModel>,
    pub(crate) latency_name: String,
    pub(crate) time_scale: f64,
    pub(crate) tokens: Tokens,
    pub(crate) requests: Requests,
    pub(crate) stats: StatsKeeper,
    pub(crate) outputs: Outputs,
    pub(crate) kv_events: Option<KvEvents>,
    pub(crate) adapters: Adapters,
    pub(crate) pauses: Pauses,
    pub(crate) waves: Option<Arc<Waves>>,
    /// Its part in routing, if a router decides who computes what.
    pub(crate) routes: Option<Routes>,
    pub(crate) transfers: Transfers,
    /// Transfers under way: when they end, and for whom.
    pub(crate) loads: BinaryHeap<Reverse<(u64, u64)>>,
    pub(crate) faults: Faults,
    pub(crate) injector: Option<Box<dyn FailureInjector>>,
    pub(crate) happened: Vec<crate::injector::Happened>,
    /// Requests that are answered at recorded times.
    pub(crate) player: Player,
    /// The hashes of the latest prompt, kept for its memory.
    pub(crate) prompt_chain: PromptChain,
    /// Steps that were decided, oldest first.
    pub(crate) pipeline: VecDeque<Flight>,
    /// When the step that was applied last has ended, if the next one follows
    /// it at once.
    pub(crate) follows_ns: Option<u64>,
    /// Whether something has changed since no step could be decided.
    pub(crate) may_decide: bool,
    /// Whether a last message must say that nothing is left.
    pub(crate) owes_stats: bool,
    pub(crate) stalled_until_ns: u64,
    pub(crate) shutdown: Shutdown,
    pub(crate) end: Option<End>,
    /// What former incarnations have counted.
    pub(crate) base: Counters,
    pub(crate) counters: Counters,
    /// Waiting and running requests, as the coordinator was told.
    pub(crate) told_counts: (usize, usize),
    pub(crate) is_full: bool,
    /// When it began to serve: zero on the clock of faults and models.
    pub(crate) origin_ns: u64,
    pub(crate) snapshot_ns: u64,
    /// Whether others see it as it is.
    pub(crate) is_shown: bool,
    pub(crate) released: Vec<(RequestId, bool)>,
}

impl Server {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared[self.index]
    }

    /// Nanoseconds since it began to serve.
    pub(crate) fn since_start_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.origin_ns)
    }

    /// Serves until something ends it.
    pub(crate) fn run(&mut self, inputs: &mut EngineInputs, waiter: &Waiter) -> Result<End, LiveError> {
        loop {
            let now_ns = monotonic_ns();
            self.receive(inputs, now_ns)?;
            self.obey(now_ns)?;
            self.read_mail(now_ns)?;
            self.fire_timers(now_ns)?;
            self.apply_due(now_ns)?;
            self.play_due(now_ns)?;
            if let Some(end) = self.end {
                return Ok(end);
            }
            self.decide_steps(now_ns)?;
            self.settle(now_ns)?;
            if let Some(end) = self.end {
                return Ok(end);
            }
            let events = self.kv_events.as_ref().map(KvEvents::publisher);
            let (board, until_ns) = (self.transfers.board(), self.next_wake_ns(now_ns));
            // A message that nobody takes would end every wait at once.
            waiter.wait(inputs, !self.is_holding_back(), events, board, until_ns)?;
        }
    }

    /// Takes what has come in, as long as no step is due.
    fn receive(&mut self, inputs: &mut EngineInputs, now_ns: u64) -> Result<(), LiveError> {
        let mut left = MESSAGES_PER_STEP;
        while left > 0 && !self.holds_back() {
            let Some(received) = inputs.try_receive_message()? else { break };
            self.handle(received, inputs, now_ns)?;
            left -= 1;
        }
        // Looked for when there is nothing else: a lost frontend sends nothing.
        if left == MESSAGES_PER_STEP {
            while let Some(received) = inputs.try_receive_loss()? {
                self.handle(received, inputs, now_ns)?;
            }
        }
        Ok(())
    }

    /// Whether the limit of requests is reached, so that further ones wait at
    /// their sender. While it is paused nothing would ever end, and what is to
    /// resume it comes the same way: then requests are refused instead.
    fn holds_back(&mut self) -> bool {
        let is_full = self.is_at_limit();
        if is_full && !self.is_full {
            self.counters.full += 1;
            tracing::warn!(
                rank = self.rank,
                requests = self.requests.len(),
                prompt_tokens = self.requests.prompt_tokens(),
                "the limit of requests is reached; further messages wait until some have ended"
            );
        }
        self.is_full = is_full;
        self.is_holding_back()
    }

    fn is_holding_back(&self) -> bool {
        self.is_at_limit() && self.engine.pause_state() == PauseState::Unpaused
    }

    pub(crate) fn is_at_limit(&self) -> bool {
        let limits = &self.config.limits;
        self.requests.len() >= limits.max_requests || self.requests.prompt_tokens() >= limits.max_prompt_tokens
    }

    fn handle(&mut self, received: Received, inputs: &EngineInputs, now_ns: u64) -> Result<(), LiveError> {
        self.is_shown = false;
        match received {
            Received::Request { source, request, aux: _ } => {
                if !self.line_is_known {
                    self.learn_line(inputs)?;
                }
                self.handle_request(source, request, now_ns)
            }
            Received::Malformed { source, error, request_id } => {
                self.handle_malformed(source, &error, request_id.as_deref(), now_ns)
            }
            Received::FrontendLost { client } => self.handle_loss(client),
        }
    }

    /// Does what other threads want.
    fn obey(&mut self, now_ns: u64) -> Result<(), LiveError> {
        if self.shutdown == Shutdown::Running && self.shared().stop.load(Ordering::Relaxed) {
            self.begin_shutdown(now_ns)?;
        }
        while let Some(command) = self.shared().next_command() {
            self.show_soon();
            match command {
                Command::SetLatency { factory, name } => match factory(&seat(self.config.seed, "latency", self.rank)) {
                    Ok(model) => (self.latency, self.latency_name) = (model, name),
                    Err(error) => tracing::error!(rank = self.rank, "the latency model stays as it is: {error}"),
                },
                Command::SetTimeScale(scale) => self.time_scale = scale,
                Command::AddFault(rule) => self.faults.add(rule),
                Command::ClearFaults => self.faults.clear(),
                Command::SetPaused(true) => self.engine.set_pause_state(PauseState::PausedAll),
                Command::SetPaused(false) => self.resume(),
                Command::ResetPrefixCache => _ = self.reset_prefix_cache(true),
            }
        }
        Ok(())
    }

    /// What is due by the clock, besides steps.
    fn fire_timers(&mut self, now_ns: u64) -> Result<(), LiveError> {
        while let Some(&Reverse((due_ns, tag))) = self.loads.peek()
            && due_ns <= now_ns
        {
            self.loads.pop();
            self.finish_load(tag);
        }
        self.release_fetched(now_ns)?;
        let since_start_ns = self.since_start_ns(now_ns);
        self.outputs.send_delayed(since_start_ns)?;
        if let Some(events) = &self.kv_events {
            events.publisher().serve_replays()?;
        }
        while let Some(due) = self.faults.due(since_start_ns, false) {
            self.suffer(due, now_ns)?;
        }
        Ok(())
    }

    /// What follows from everything else.
    fn settle(&mut self, now_ns: u64) -> Result<(), LiveError> {
        self.send_owed_stats(now_ns)?;
        self.finish_pauses()?;
        self.tell_coordinator_counts()?;
        self.end_shutdown(now_ns)?;
        self.send_home();
        self.tell_switchboard();
        if !self.is_shown && now_ns >= self.snapshot_ns {
            self.publish_snapshot(now_ns);
        }
        Ok(())
    }

    /// When the loop must go on although nothing comes in; at once if a step
    /// could be decided now.
    fn next_wake_ns(&self, now_ns: u64) -> Option<u64> {
        let since_start = |at_ns: u64| self.origin_ns.saturating_add(at_ns);
        let step_ns = self.pipeline.front().map(|flight| flight.end_ns.max(self.stalled_until_ns));
        let stall_ns = (self.stalled_until_ns > now_ns).then_some(self.stalled_until_ns);
        let drain_ns = match self.shutdown {
            Shutdown::Draining { until_ns } => Some(until_ns.max(now_ns + 1)),
            Shutdown::Running => None,
        };
        let snapshot_ns = (!self.is_shown).then_some(self.snapshot_ns);
        let times = [
            step_ns,
            self.player.next_due_ns().map(|due_ns| due_ns.max(self.stalled_until_ns)),
            stall_ns,
            drain_ns,
            snapshot_ns,
            self.loads.peek().map(|Reverse((due_ns, _))| *due_ns),
            self.transfers.next_lease_end_ns(),
            self.outputs.next_delayed_ns().map(since_start),
            self.faults.next_due_ns(self.since_start_ns(now_ns)).map(since_start),
        ];
        times.into_iter().flatten().min()
    }

    /// Where a step that ended at `end_ns` lets the next one start.
    pub(crate) fn follow(&mut self, end_ns: u64, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(end_ns);
        if late_ns > 1_000_000 {
            self.counters.late_steps += 1;
        }
        self.counters.max_late_ns = self.counters.max_late_ns.max(late_ns);
        self.follows_ns = (late_ns <= CATCH_UP_NS).then_some(end_ns);
    }
}
