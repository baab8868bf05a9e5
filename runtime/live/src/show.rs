//! What other threads see of an engine.

use vcr_core::PauseState;
use vcr_wire::monotonic_ns;

use crate::handle::{Counters, EngineState};
use crate::server::{Server, Shutdown};
use crate::stats::usage;

/// How old what others see of this engine may be.
const SNAPSHOT_NS: u64 = 50_000_000;

impl Server {
    /// What this incarnation and the ones before it have counted.
    pub(crate) fn all_counters(&self) -> Counters {
        let stats = self.engine.stats();
        let own = Counters {
            preemptions: stats.preemptions,
            prefix_queries: stats.prefix.queried_tokens,
            prefix_hits: stats.prefix.hit_tokens,
            draft_tokens: stats.spec_decode.num_draft_tokens,
            accepted_tokens: stats.spec_decode.num_accepted_tokens,
            messages: self.outputs.messages,
            message_bytes: self.outputs.bytes,
            ..self.counters
        };
        // Faults and the publisher of KV events outlive an incarnation.
        Counters {
            kv_events: self.kv_events.as_ref().map_or(0, |events| events.published),
            kv_events_lost: self.kv_events.as_ref().map_or(0, |events| events.lost),
            faults: self.faults.injected,
            ..self.base.plus(&own)
        }
    }

    /// Shows others how things are at the end.
    pub(crate) fn snapshot_now(&mut self) {
        self.publish_snapshot(monotonic_ns());
    }

    /// Lets others see at once what has changed.
    pub(crate) fn show_soon(&mut self) {
        self.snapshot_ns = 0;
        self.is_shown = false;
    }

    pub(crate) fn publish_snapshot(&mut self, now_ns: u64) {
        self.snapshot_ns = now_ns + SNAPSHOT_NS;
        self.is_shown = true;
        let counters = self.all_counters();
        let state = match self.shutdown {
            Shutdown::Draining { .. } => EngineState::Draining,
            Shutdown::Running if self.stalled_until_ns > now_ns => EngineState::Stalled,
            Shutdown::Running => EngineState::Serving,
        };
        self.shared().update(|snapshot| {
            snapshot.state = state;
            snapshot.line = self.line_is_known.then_some(self.line);
            let (silent, playing) = self.player.counts();
            snapshot.num_running = self.engine.num_running() + playing;
            snapshot.num_waiting = self.engine.num_waiting() + silent;
            snapshot.is_paused = self.engine.pause_state() != PauseState::Unpaused;
            snapshot.is_sleeping = self.pauses.is_asleep();
            snapshot.kv_cache_usage = usage(&self.engine);
            snapshot.num_held_prompts = self.transfers.num_held();
            snapshot.latency.clone_from(&self.latency_name);
            snapshot.time_scale = self.time_scale;
            snapshot.faults.clear();
            snapshot.faults.extend(self.faults.rules().map(ToString::to_string));
            snapshot.counters = counters;
        });
    }
}
