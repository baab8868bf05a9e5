//! Everything that leaves an engine: outputs for frontends, statistics, KV events, and reports to the coordinator.
//!
//! [`Egress`] owns the links and the latest reports. It reads the engine core but never changes it.

pub(crate) mod first_tokens;
pub(crate) mod gather;
pub(crate) mod kv_events;
pub(crate) mod outputs;
mod sequence_hashes;
pub(crate) mod stats;
pub(crate) mod waves;

use std::sync::Arc;

use vcr_core::plan::StepPlan;
use vcr_core::{AnyEngine, ServingEngine as _};
use vcr_wire::{
    EngineCoreOutputs, EngineOutputs, IterationDetails, KvEventPublisher, LinkError, Protocol, SchedulerStats,
    VllmMinor,
};

use crate::config::StatsSettings;
use crate::context::Context;
use crate::egress::kv_events::KvEvents;
use crate::egress::outputs::Outputs;
use crate::egress::stats::{StatsKeeper, usage};
use crate::egress::waves::Waves;
use crate::faults::active::Faults;
use crate::requests::Requests;
use crate::routing::dispatcher::Dispatcher;

/// Number of requests `(waiting, running)` in playback, which the engine core does not know.
pub(crate) type PlaybackLoad = (usize, usize);

pub(crate) struct Egress {
    pub(crate) outputs: Outputs,
    stats: StatsKeeper,
    settings: StatsSettings,
    kv_events: Option<KvEvents>,
    waves: Option<Arc<Waves>>,
    index: usize,
    version: VllmMinor,
    /// Waiting and running requests of the last report to the coordinator.
    reported_counts: (usize, usize),
    /// Whether one more message must report that no request is left.
    owes_stats: bool,
}

impl Egress {
    /// An egress for the frontend behind `link`; `waves` is given for a mixture of experts.
    pub(crate) fn new(
        context: &Context,
        link: EngineOutputs,
        kv_events: Option<KvEvents>,
        waves: Option<Arc<Waves>>,
        dispatcher: Option<Arc<Dispatcher>>,
    ) -> Self {
        let version = context.config.identity.default_version();
        let place = (context.config.identity.first_rank, context.index);
        Self {
            outputs: Outputs::new(link, place, version.rules(), dispatcher, context.output_delays_ns()),
            stats: StatsKeeper::new(
                version.rules(),
                context.config.transfer.plane.is_some(),
                context.config.stats.connector,
            ),
            settings: context.config.stats,
            kv_events,
            waves,
            index: context.index,
            version,
            reported_counts: (0, 0),
            owes_stats: false,
        }
    }

    pub(crate) fn version(&self) -> VllmMinor {
        self.version
    }

    /// Changes to the protocol of another version, while the first request is received and before anything is
    /// stored or gathered.
    pub(crate) fn set_version(&mut self, version: VllmMinor, block_size: u32) {
        if version == self.version {
            return;
        }
        self.version = version;
        self.outputs.set_version(version.rules());
        self.stats.set_version(version.rules());
        if let Some(events) = &mut self.kv_events {
            events.restart(version, block_size);
        }
    }

    pub(crate) fn stats(&mut self) -> &mut StatsKeeper {
        &mut self.stats
    }

    #[inline]
    pub(crate) fn sends_stats(&self) -> bool {
        self.settings.log_stats
    }

    /// Details of a step, if they are to be sent.
    pub(crate) fn iteration_details(&mut self, plan: &StepPlan, duration_ns: u64) -> Option<IterationDetails> {
        self.settings.iteration_details.then(|| self.stats.iteration(plan, duration_ns))
    }

    /// Sends the gathered outputs, with the statistics.
    pub(crate) fn send_step(
        &mut self,
        engine: &AnyEngine,
        playback: PlaybackLoad,
        details: Option<IterationDetails>,
        now_ns: u64,
        (faults, since_start_ns): (&mut Faults, u64),
    ) -> Result<(), LinkError> {
        let place = self.waves.as_ref().map(|waves| waves.place()).unwrap_or_default();
        let stats = self.settings.log_stats.then(|| self.stats.take(engine, playback, place, details));
        self.outputs.send_step(stats, now_ns, faults, since_start_ns)
    }

    /// Whether one more message must report that no request is left: vLLM's engine makes an empty step after its
    /// last request.
    pub(crate) fn owes_stats(&self) -> bool {
        self.owes_stats
    }

    /// Sets whether one more message must report that no request is left.
    pub(crate) fn set_owes_stats(&mut self, owes_stats: bool) {
        self.owes_stats = owes_stats;
    }

    #[inline]
    pub(crate) fn has_kv_events(&self) -> bool {
        self.kv_events.is_some()
    }

    /// Takes the prefix cache changes since the last call.
    pub(crate) fn gather_cache_events(&mut self, engine: &AnyEngine, requests: &Requests) {
        if let Some(events) = &mut self.kv_events {
            events.gather(engine, requests);
        }
    }

    /// Forgets a request that has ended; its prefix cache changes have been taken.
    pub(crate) fn forget_request(&mut self, tag: u64) {
        if let Some(events) = &mut self.kv_events {
            events.forget(tag);
        }
    }

    /// Publishes the gathered KV events, unless a fault loses them.
    pub(crate) fn publish_kv_events(&mut self, faults: &mut Faults, since_start_ns: u64) -> Result<(), LinkError> {
        let Some(events) = self.kv_events.as_mut().filter(|events| !events.is_empty()) else { return Ok(()) };
        let is_lost = faults.loses_kv_events(since_start_ns);
        events.publish(is_lost)
    }

    pub(crate) fn publisher(&self) -> Option<&KvEventPublisher> {
        self.kv_events.as_ref().map(KvEvents::publisher)
    }

    pub(crate) fn kv_event_counts(&self) -> (u64, u64) {
        self.kv_events.as_ref().map_or((0, 0), |events| (events.published, events.lost))
    }

    /// Returns the outputs, and the KV event publisher, which is ready for the next frontend.
    pub(crate) fn into_parts(self, block_size: u32) -> (Outputs, Option<KvEvents>) {
        let mut kv_events = self.kv_events;
        if let Some(events) = &mut kv_events {
            events.restart(self.version, block_size);
        }
        (self.outputs, kv_events)
    }

    /// Starts a wave in all engines except `excluded_engine`, as a coordinator requests.
    pub(crate) fn start_wave(&self, wave: u32, excluded_engine: Option<u32>) {
        if let Some(waves) = &self.waves {
            waves.start(self.index, wave, excluded_engine);
        }
    }

    /// Wakes the other engines of a mixture of experts for a new request, if they are between waves.
    pub(crate) fn announce_wave(&self, request_wave: u32) -> Result<(), LinkError> {
        let starts = self.version.rules().engine_starts_waves;
        let Some(waves) = &self.waves else { return Ok(()) };
        match waves.request(self.index, request_wave, starts) {
            Some(wave) => self
                .outputs
                .send_to_coordinator(EngineCoreOutputs { start_wave: Some(wave), ..EngineCoreOutputs::default() }),
            None => Ok(()),
        }
    }

    /// Reports the end of the wave if the step that has ended was its last one.
    pub(crate) fn finish_wave(&self, has_work: bool) -> Result<(), LinkError> {
        let Some(waves) = &self.waves else { return Ok(()) };
        match waves.stepped(self.index, has_work) {
            Some(wave) => self
                .outputs
                .send_to_coordinator(EngineCoreOutputs { wave_complete: Some(wave), ..EngineCoreOutputs::default() }),
            None => Ok(()),
        }
    }

    /// Reports the number of requests to the coordinator if it has changed.
    ///
    /// # Errors
    /// The link to the coordinator fails.
    pub(crate) fn report_counts(&mut self, engine: &AnyEngine, playback: PlaybackLoad) -> Result<(), LinkError> {
        if !self.outputs.has_coordinator() {
            return Ok(());
        }
        let load = engine.load();
        let counts = (load.num_waiting + playback.0, load.num_running + playback.1);
        if counts == self.reported_counts {
            return Ok(());
        }
        self.reported_counts = counts;
        let place = self.waves.as_ref().map(|waves| waves.place()).unwrap_or_default();
        let stats = SchedulerStats {
            num_waiting_reqs: counts.0 as u64,
            num_running_reqs: counts.1 as u64,
            kv_cache_usage: usage(engine),
            current_wave: place.wave,
            step_counter: place.step,
            ..SchedulerStats::of_version(self.version.rules())
        };
        let message = EngineCoreOutputs { scheduler_stats: Some(stats), ..EngineCoreOutputs::default() };
        self.outputs.send_to_coordinator(message)
    }
}

/// Maximum age of a snapshot, in nanoseconds.
const MAX_AGE_NS: u64 = 50_000_000;

/// Decides when the next snapshot of an engine is published.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTimer {
    due_ns: u64,
    is_current: bool,
}

impl SnapshotTimer {
    /// Records a change that may wait for the next regular snapshot.
    #[inline]
    pub(crate) fn mark_stale(&mut self) {
        self.is_current = false;
    }

    /// Records a change that others must see after this turn of the loop.
    pub(crate) fn expire(&mut self) {
        self.due_ns = 0;
        self.is_current = false;
    }

    pub(crate) fn restart(&mut self, now_ns: u64) {
        self.due_ns = now_ns + MAX_AGE_NS;
        self.is_current = true;
    }

    /// When the next snapshot is due; `None` while the last one is current.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        (!self.is_current).then_some(self.due_ns)
    }
}
