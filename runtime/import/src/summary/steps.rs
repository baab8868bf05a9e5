//! The summary of the step lines of a capture.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use vcr_trace::capture::StepRecord;

use super::quantiles::{Quantiles, Samples};

/// The summary of the steps of a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSummary {
    /// Step lines.
    pub count: u64,
    /// Between the steps of one engine, by its own clock if known.
    pub interval_ns: Option<Quantiles>,
    /// Tokens of a step.
    pub tokens: Option<Quantiles>,
    /// Requests with output in a step.
    pub outputs: Option<Quantiles>,
    /// Requests that were running, by the scheduler's account.
    pub running: Option<Quantiles>,
    /// Requests that were waiting, by the scheduler's account.
    pub waiting: Option<Quantiles>,
    /// Highest use of the KV cache, 0 to 1.
    pub max_kv_usage: Option<f64>,
}

/// A number of the scheduler's statistics.
pub(crate) fn scheduler_number(step: &StepRecord, field: &str) -> Option<f64> {
    step.scheduler.as_ref()?.get(field).and_then(Value::as_f64)
}

#[derive(Default)]
pub(super) struct StepTally {
    count: u64,
    interval_ns: Samples,
    tokens: Samples,
    outputs: Samples,
    running: Samples,
    waiting: Samples,
    max_kv_usage: Option<f64>,
    /// Of each engine: its time at the last step, on both clocks.
    last: BTreeMap<u32, (u64, Option<u64>)>,
}

impl StepTally {
    pub(super) fn add(&mut self, step: &StepRecord) {
        self.count += 1;
        self.tokens.add(u64::from(step.tokens));
        self.outputs.add(u64::from(step.outputs));
        if let Some((at_ns, engine_ns)) = self.last.insert(step.rank, (step.at_ns, step.engine_ns)) {
            let (now, before) = step.engine_ns.zip(engine_ns).unwrap_or((step.at_ns, at_ns));
            self.interval_ns.add(now.saturating_sub(before));
        }
        let number = |field| scheduler_number(step, field);
        number("num_running_reqs").into_iter().for_each(|running| self.running.add(running as u64));
        number("num_waiting_reqs").into_iter().for_each(|waiting| self.waiting.add(waiting as u64));
        let usage = number("kv_cache_usage");
        self.max_kv_usage = match (self.max_kv_usage, usage) {
            (Some(most), Some(usage)) => Some(most.max(usage)),
            (most, usage) => most.or(usage),
        };
    }

    pub(super) fn finish(self) -> Option<StepSummary> {
        (self.count > 0).then(|| StepSummary {
            count: self.count,
            interval_ns: self.interval_ns.quantiles(),
            tokens: self.tokens.quantiles(),
            outputs: self.outputs.quantiles(),
            running: self.running.quantiles(),
            waiting: self.waiting.quantiles(),
            max_kv_usage: self.max_kv_usage,
        })
    }
}
