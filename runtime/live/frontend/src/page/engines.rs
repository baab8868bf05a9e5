//! Samples of engines over the last minutes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use vcr_live::{EnginesHandle, Snapshot};
use vcr_wire::monotonic_ns;

use super::steps::StepRing;

/// The interval of samples, and how many are kept.
const INTERVAL: Duration = Duration::from_secs(1);
const SAMPLES: usize = 300;

/// Samples of engines, one per second.
pub struct EngineWatch {
    engines: EnginesHandle,
    steps: Arc<StepRing>,
    /// Samples, each with its time on the system's monotonic clock.
    samples: Mutex<VecDeque<(u64, Vec<Value>)>>,
}

impl std::fmt::Debug for EngineWatch {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("EngineWatch").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl EngineWatch {
    /// Samples engines until the returned value is dropped.
    pub fn start(engines: EnginesHandle, steps: Arc<StepRing>) -> std::io::Result<Arc<Self>> {
        let watch = Arc::new(Self { engines, steps, samples: Mutex::default() });
        let own = Arc::downgrade(&watch);
        std::thread::Builder::new().name("page".to_owned()).spawn(move || sample(&own))?;
        Ok(watch)
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<(u64, Vec<Value>)>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current state of the engines, and all samples after this time, in milliseconds on the system's monotonic
    /// clock.
    pub(super) fn json(&self, after_ms: f64) -> Value {
        let after_ns = (after_ms.max(0.0) * 1e6) as u64;
        let snapshots = self.engines.snapshots();
        let steps = |snapshot: &Snapshot| {
            let steps = self.steps.since(snapshot.rank, after_ns).into_iter();
            steps.map(|step| json!([ms(step.end_ns), step])).collect::<Vec<_>>()
        };
        let engines: Vec<Value> = snapshots
            .iter()
            .map(|snapshot| {
                let mut engine = sampled(snapshot);
                engine["state"] = snapshot.state.name().into();
                engine["paused"] = snapshot.is_paused.into();
                engine["sleeping"] = snapshot.is_sleeping.into();
                engine["latency"] = snapshot.latency.clone().into();
                engine["time_scale"] = snapshot.time_scale.into();
                engine["faults"] = snapshot.faults.clone().into();
                engine["held_prompts"] = snapshot.num_held_prompts.into();
                engine["steps"] = steps(snapshot).into();
                engine
            })
            .collect();
        let samples: Vec<Value> = self
            .samples()
            .iter()
            .filter(|(at_ns, _)| *at_ns > after_ns)
            .map(|(at_ns, engines)| json!({"ms": ms(*at_ns), "engines": engines}))
            .collect();
        json!({"now_ms": ms(monotonic_ns()), "engines": engines, "samples": samples})
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The values that change. Counts are totals.
fn sampled(snapshot: &Snapshot) -> Value {
    let counters = &snapshot.counters;
    // Requests cannot use the null block.
    let blocks = snapshot.num_gpu_blocks.saturating_sub(1);
    let used = (snapshot.kv_cache_usage * f64::from(blocks)).round() as u32;
    json!({
        "rank": snapshot.rank,
        "running": snapshot.num_running,
        "waiting": snapshot.num_waiting,
        "kv_usage": snapshot.kv_cache_usage,
        "used_blocks": used,
        "cached_blocks": snapshot.num_cached_blocks,
        "free_blocks": blocks.saturating_sub(used + snapshot.num_cached_blocks),
        "requests": counters.requests,
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generation_tokens,
        "prefix_queries": counters.prefix_queries,
        "prefix_hits": counters.prefix_hits,
        "preemptions": counters.preemptions,
        "steps_total": counters.steps,
        "faults_injected": counters.faults,
    })
}

/// Takes samples until the watch is dropped.
fn sample(watch: &Weak<EngineWatch>) {
    while let Some(watch) = watch.upgrade() {
        let engines = watch.engines.snapshots().iter().map(sampled).collect();
        let mut samples = watch.samples();
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back((monotonic_ns(), engines));
        drop(samples);
        drop(watch);
        std::thread::sleep(INTERVAL);
    }
}
