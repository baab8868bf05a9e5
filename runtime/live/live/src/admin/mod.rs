//! Administration of an engine: utility calls, pauses, shutdown, commands and snapshots.
//!
//! [`Admin`] owns the pauses and the loaded adapters; intake checks requests against both.

pub(crate) mod adapters;
pub(crate) mod pause;
pub(crate) mod shutdown;
mod utilities;

use crate::admin::adapters::Adapters;
use crate::admin::pause::Pauses;
use crate::config::LiveConfig;
use crate::context::latency_model;
use crate::counters::Counters;
use crate::egress::stats::usage;
use crate::handle::{Command, EngineState, PlaneTotals};
use crate::serving::Serving;
use vcr_core::{PauseState, ServingEngine as _};
use vcr_wire::VllmMinor;

/// Headers in which browsers name the requesting page. Web pages must not change engines: a browser on this machine
/// lets pages from anywhere send requests to loopback addresses.
pub const WEB_PAGE_HEADERS: [&str; 2] = ["origin", "sec-fetch-site"];

pub(crate) struct Admin {
    adapters: Adapters,
    pauses: Pauses,
    /// Counters of earlier frontends.
    base: Counters,
}

impl Admin {
    pub(crate) fn new(config: &LiveConfig, base: Counters) -> Self {
        let max_loras = config.engine.max_loras();
        // An engine that may run no adapters loads none.
        let max_loaded = config.limits.max_cpu_loras.unwrap_or(0).max(max_loras);
        let adapters = Adapters::new(if max_loras == 0 { 0 } else { max_loaded });
        Self { adapters, pauses: Pauses::default(), base }
    }

    pub(crate) fn rejects_new(&self) -> bool {
        self.pauses.rejects_new
    }

    pub(crate) fn load_adapter(&mut self, id: u64) -> Result<(), &'static str> {
        self.adapters.load(id)
    }

    /// Forgets the pending calls of a disconnected frontend.
    pub(crate) fn forget_client(&mut self, client: usize) {
        self.pauses.pending.retain(|call| call.client as usize != client);
    }

    /// Reports the load of the engine to the router, if there is one.
    pub(crate) fn report_load(&self, serving: &mut Serving) {
        if serving.routes.is_none() {
            return;
        }
        serving.gather_cache_events();
        let takes_requests = serving.lifecycle.is_running()
            && !serving.stepper.is_paused()
            && !self.pauses.rejects_new
            && !self.pauses.is_asleep()
            && !serving.is_at_limit();
        if let Some(routes) = &mut serving.routes {
            routes.report_load(serving.stepper.engine(), serving.stepper.last_step_ns(), takes_requests);
        }
    }
}

impl Admin {
    pub(crate) fn handle_commands(&mut self, serving: &mut Serving) {
        while let Some(command) = serving.shared().next_command() {
            serving.snapshot.expire();
            let rank = serving.context.rank;
            match command {
                Command::SetLatency { factory, name } => match latency_model(&serving.context.config, &factory, rank) {
                    Ok(model) => serving.stepper.set_latency(model, name),
                    Err(error) => tracing::error!(rank, "the latency model stays unchanged: {error}"),
                },
                Command::SetTimeScale(scale) => serving.stepper.set_time_scale(scale),
                Command::AddFault(rule) => serving.faults.add(rule),
                Command::RemoveFault(rule) => serving.faults.remove(&rule),
                Command::ClearFaults => serving.faults.clear(),
                Command::SetPaused(true) => serving.stepper.pause(PauseState::PausedAll),
                Command::SetPaused(false) => self.resume(serving),
                Command::ResetPrefixCache => _ = serving.reset_prefix_cache(true),
            }
        }
    }
}

impl Admin {
    /// Counters since the process started, over all its frontends.
    pub(crate) fn all_counters(&self, serving: &Serving) -> Counters {
        let stats = serving.stepper.engine().stats();
        let transfers = serving.transfers.counts();
        let own = Counters {
            preemptions: stats.preemptions,
            prefix_queries: stats.prefix.queried_tokens,
            prefix_hits: stats.prefix.hit_tokens,
            draft_tokens: stats.spec_decode.num_draft_tokens,
            accepted_tokens: stats.spec_decode.num_accepted_tokens,
            messages: serving.egress.outputs.messages(),
            message_bytes: serving.egress.outputs.bytes(),
            kv_loads: transfers.loads,
            kv_loads_failed: transfers.failures,
            kv_notices_stray: transfers.stray_notices,
            kv_rooms: transfers.meetings.rooms,
            kv_rooms_missed: transfers.meetings.missed,
            kv_rooms_waited_ns: transfers.meetings.waited_ns,
            ..serving.counters
        };
        // Faults and the publisher of KV events outlive a frontend, so their counts include earlier frontends.
        let (kv_events, kv_events_lost) = serving.egress.kv_event_counts();
        Counters { kv_events, kv_events_lost, faults: serving.faults.injected(), ..self.base.plus(&own) }
    }

    /// Publishes a snapshot; `version` is `None` until it is detected.
    pub(crate) fn publish_snapshot(&self, serving: &mut Serving, version: Option<VllmMinor>, now_ns: u64) {
        serving.snapshot.restart(now_ns);
        let counters = self.all_counters(serving);
        let stepper = &serving.stepper;
        let state = if !serving.lifecycle.is_running() {
            EngineState::Draining
        } else if stepper.stalled_until_ns() > now_ns {
            EngineState::Stalled
        } else {
            EngineState::Serving
        };
        serving.shared().update(|snapshot| {
            snapshot.state = state;
            snapshot.version = version;
            let (waiting, playing) = serving.player.counts();
            let load = stepper.engine().load();
            snapshot.num_running = load.num_running + playing;
            snapshot.num_waiting = load.num_waiting + waiting;
            snapshot.is_paused = stepper.is_paused();
            snapshot.is_sleeping = self.pauses.is_asleep();
            snapshot.kv_cache_usage = usage(stepper.engine());
            snapshot.num_cached_blocks = stepper.engine().as_vllm().map_or(0, |engine| engine.pool().num_free_cached());
            snapshot.num_held_prompts = serving.transfers.num_held();
            snapshot.plane = serving.transfers.statistics().map(|(name, totals)| PlaneTotals { name, totals });
            stepper.latency_name().clone_into(&mut snapshot.latency);
            snapshot.time_scale = stepper.time_scale();
            snapshot.faults.clear();
            snapshot.faults.extend(serving.faults.rules().map(ToString::to_string));
            snapshot.num_faults_in_force = serving.faults.num_in_force(serving.context.since_start_ns(now_ns));
            snapshot.counters = counters;
        });
    }
}
