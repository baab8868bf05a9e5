//! `--capacity`: measures how long each limit kept requests waiting, for `vcr inspect pressure`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use vcr_cluster::observe::StepRecord;
use vcr_cluster::{EngineReport, Report};
use vcr_report::RunEvents;
use vcr_scenario::timeline_of;
use vcr_steplog::{settings_of, stop_word};

/// Waiting times summed over the steps of each engine.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    /// Sums by engine index over all engines of the run.
    engines: BTreeMap<u32, EngineCapacity>,
}

#[derive(Clone, Debug, Default)]
struct EngineCapacity {
    settings: Map<String, Value>,
    /// Time of steps while requests waited.
    queued_ns: u64,
    /// Time of steps with the maximum number of running requests.
    full_ns: u64,
    peak_queued: u64,
    peak_active: u64,
    /// Time of steps while requests waited, by the reason that ended admission.
    bound_ns: BTreeMap<&'static str, u64>,
}

impl Capacity {
    pub(super) fn started(&mut self, step: &StepRecord<'_>) {
        let engine = self.engines.entry(step.worker).or_insert_with(|| EngineCapacity {
            settings: settings_of(&step.engine.kind()),
            ..EngineCapacity::default()
        });
        let duration_ns = step.end_ns - step.start_ns;
        let queued = step.plan.shape.waiting_requests;
        let active = step.plan.scheduled.len() as u64 + u64::from(step.plan.steady_decode_requests);
        engine.peak_queued = engine.peak_queued.max(queued);
        engine.peak_active = engine.peak_active.max(active);
        if queued > 0 {
            engine.queued_ns += duration_ns;
            *engine.bound_ns.entry(stop_word(step.plan.admission_stop)).or_default() += duration_ns;
        }
        if active >= u64::from(step.engine.max_num_seqs()) {
            engine.full_ns += duration_ns;
        }
    }

    /// The sums as part of the report.
    pub(super) fn json(&self, run: &Report) -> Value {
        let mut pools: BTreeMap<&str, EngineCapacity> = BTreeMap::new();
        for EngineReport { pool, worker, .. } in &run.engines {
            let pool = pools.entry(pool).or_default();
            pool.extend(self.engines.get(worker));
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        let pools = pools.into_iter().map(|(name, pool)| {
            let bound_ms: BTreeMap<&str, f64> = pool.bound_ns.iter().map(|(why, ns)| (*why, ms(*ns))).collect();
            json!({"pool": name, "settings": pool.settings, "queued_ms": ms(pool.queued_ns),
                "full_ms": ms(pool.full_ns), "peak_queued": pool.peak_queued, "peak_active": pool.peak_active,
                "bound_ms": bound_ms})
        });
        let engine = |engine: &EngineReport| json!({"pool": engine.pool, "kv_peak_usage": engine.kv_peak_usage});
        let mut events = RunEvents::default();
        run.request_rows().for_each(|row| events.add(&row));
        json!({
            "pools": pools.collect::<Vec<_>>(),
            "engines": run.engines.iter().map(engine).collect::<Vec<_>>(),
            "timeline": run.series.as_ref().map(|series| timeline_of(run, series, 1)),
            "events": events,
        })
    }
}

impl<'a> Extend<&'a EngineCapacity> for EngineCapacity {
    fn extend<T: IntoIterator<Item = &'a EngineCapacity>>(&mut self, engines: T) {
        for engine in engines {
            self.settings.clone_from(&engine.settings);
            self.queued_ns += engine.queued_ns;
            self.full_ns += engine.full_ns;
            self.peak_queued = self.peak_queued.max(engine.peak_queued);
            self.peak_active = self.peak_active.max(engine.peak_active);
            for (why, ns) in &engine.bound_ns {
                *self.bound_ns.entry(why).or_default() += ns;
            }
        }
    }
}
