//! Samples of engines for time series and for observers.

use vcr_core::ServingEngine;

use crate::fleet::Worker;
use crate::observe::EngineSample;

pub(in crate::simulation) fn engine_sample(worker: &Worker) -> EngineSample {
    let (load, totals) = (worker.engine().load(), worker.totals());
    EngineSample {
        running: load.num_running as u32,
        waiting: load.num_waiting as u32,
        kv_usage: f64::from(load.num_active_blocks) / f64::from(load.num_usable_blocks.max(1)),
        prefill_tokens: totals.prefill_tokens,
        decode_tokens: totals.computed_tokens - totals.prefill_tokens,
        preemptions: worker.engine_stats().preemptions,
    }
}
