//! JSON views of engines.

use crate::{CountUnit, Counters, EngineState, Snapshot};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::control::metrics::seconds;

/// Engines, in the order of their ranks.
#[derive(Serialize)]
pub(crate) struct Engines<T> {
    pub(crate) engines: Vec<T>,
}

impl<T> Engines<T> {
    pub(crate) fn of(snapshots: &[Snapshot], view: impl Fn(&Snapshot) -> T) -> Self {
        Self { engines: snapshots.iter().map(view).collect() }
    }
}

#[derive(Serialize)]
pub(crate) struct StateView {
    engine: u16,
    state: &'static str,
}

impl StateView {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self { engine: snapshot.rank, state: snapshot.state.name() }
    }
}

#[derive(Serialize)]
pub(crate) struct FaultsView {
    engine: u16,
    faults: Vec<String>,
}

impl FaultsView {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self { engine: snapshot.rank, faults: snapshot.faults.clone() }
    }
}

#[derive(Serialize)]
pub(crate) struct EngineView {
    engine: u16,
    state: &'static str,
    vllm_minor: Option<&'static str>,
    requests_running: usize,
    requests_waiting: usize,
    paused: bool,
    sleeping: bool,
    kv_cache_usage_ratio: f64,
    kv_cache_blocks: u32,
    prompts_held: usize,
    latency: String,
    time_scale: f64,
    faults: Vec<String>,
    step_lateness_max_seconds: f64,
    requests_finished: Map<String, Value>,
    /// Named as in the metrics, without `vcr_` and `_total`.
    counters: Map<String, Value>,
}

impl EngineView {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let finished = snapshot.counters.finished_by_reason().into_iter();
        let counters = Counters::COUNTS.iter().map(|count| {
            let amount = (count.amount)(&snapshot.counters);
            (count.full_name(), if count.unit == CountUnit::Seconds { seconds(amount).into() } else { amount.into() })
        });
        Self {
            engine: snapshot.rank,
            state: snapshot.state.name(),
            vllm_minor: snapshot.version.map(|version| version.name()),
            requests_running: snapshot.num_running,
            requests_waiting: snapshot.num_waiting,
            paused: snapshot.is_paused,
            sleeping: snapshot.is_sleeping,
            kv_cache_usage_ratio: snapshot.kv_cache_usage,
            kv_cache_blocks: snapshot.num_gpu_blocks,
            prompts_held: snapshot.num_held_prompts,
            latency: snapshot.latency.clone(),
            time_scale: snapshot.time_scale,
            faults: snapshot.faults.clone(),
            step_lateness_max_seconds: seconds(snapshot.counters.max_late_ns),
            requests_finished: finished.map(|(reason, amount)| (reason.to_owned(), amount.into())).collect(),
            counters: counters.collect(),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Health {
    status: &'static str,
    reasons: Vec<String>,
    engines: Vec<StateView>,
}

impl Health {
    /// An engine without a frontend is healthy: it waits for one, and a restart by a probe would not help.
    pub(crate) fn of(snapshots: &[Snapshot]) -> Self {
        let is_well = |state| matches!(state, EngineState::Serving | EngineState::Connecting);
        let unwell = snapshots.iter().filter(|snapshot| !is_well(snapshot.state));
        let reasons: Vec<_> =
            unwell.map(|snapshot| format!("engine {} is {}", snapshot.rank, snapshot.state.name())).collect();
        Self {
            status: if reasons.is_empty() { "ok" } else { "unhealthy" },
            reasons,
            engines: snapshots.iter().map(StateView::of).collect(),
        }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.reasons.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engines_that_serve_or_wait_for_a_frontend_are_well() {
        for state in EngineState::ALL {
            let snapshots = [0, 1].map(|rank| Snapshot {
                rank,
                state: if rank == 1 { state } else { EngineState::Serving },
                ..Snapshot::default()
            });
            let health = Health::of(&snapshots);
            let is_well = ["connecting", "serving"].contains(&state.name());
            assert_eq!(health.is_ok(), is_well, "{state:?}");
            assert_eq!(health.reasons.first(), (!is_well).then(|| format!("engine 1 is {}", state.name())).as_ref());
        }
    }
}
