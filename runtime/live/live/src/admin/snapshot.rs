//! Snapshots of an engine for other threads.

use vcr_wire::VllmMinor;

use crate::admin::Admin;
use crate::counters::Counters;
use crate::egress::stats::usage;
use crate::handle::{EngineState, PlaneTotals};
use crate::serving::Serving;

impl Admin {
    /// Counts of this frontend and of earlier ones.
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
        // Faults and the publisher of KV events outlive a frontend.
        let (kv_events, kv_events_lost) = serving.egress.kv_event_counts();
        Counters { kv_events, kv_events_lost, faults: serving.faults.injected(), ..self.base.plus(&own) }
    }

    /// Publishes a snapshot; `version` once it is known.
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
            snapshot.num_running = stepper.engine().num_running() + playing;
            snapshot.num_waiting = stepper.engine().num_waiting() + waiting;
            snapshot.is_paused = stepper.is_paused();
            snapshot.is_sleeping = self.pauses.is_asleep();
            snapshot.kv_cache_usage = usage(stepper.engine());
            snapshot.num_held_prompts = serving.transfers.num_held();
            snapshot.plane = serving.transfers.statistics().map(|(name, totals)| PlaneTotals { name, totals });
            stepper.latency_name().clone_into(&mut snapshot.latency);
            snapshot.time_scale = stepper.time_scale();
            snapshot.faults.clear();
            snapshot.faults.extend(serving.faults.rules().map(ToString::to_string));
            snapshot.counters = counters;
        });
    }
}
