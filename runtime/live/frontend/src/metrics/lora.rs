//! Metrics of LoRA adapters that running or waiting requests use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::page::Metrics;
use super::table::Name;

/// Counts requests by adapter. Clones share the counts.
#[derive(Clone, Debug)]
pub struct LoraRecorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    metrics: Metrics,
    counts: Mutex<Counts>,
}

/// The number of requests per adapter. Adapters without requests have no entry.
#[derive(Debug, Default)]
struct Counts {
    waiting: BTreeMap<String, u64>,
    running: BTreeMap<String, u64>,
}

impl LoraRecorder {
    /// Starts without requests.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        Self(Arc::new(Inner { metrics: metrics.clone(), counts: Mutex::default() }))
    }

    /// Counts a request that was sent to an engine.
    pub fn queued(&self, adapter: &str, now_unix_s: f64) {
        self.change(now_unix_s, |counts| *counts.waiting.entry(adapter.to_owned()).or_default() += 1);
    }

    /// Counts a request that was admitted.
    pub fn running(&self, adapter: &str, now_unix_s: f64) {
        self.change(now_unix_s, |counts| {
            less(&mut counts.waiting, adapter);
            *counts.running.entry(adapter.to_owned()).or_default() += 1;
        });
    }

    /// Counts a request that ended, admitted or not.
    pub fn finished(&self, adapter: &str, was_running: bool, now_unix_s: f64) {
        self.change(now_unix_s, |counts| {
            less(if was_running { &mut counts.running } else { &mut counts.waiting }, adapter);
        });
    }

    /// Replaces the metric's only series. Its labels name the adapters, and its value is the time of the change.
    fn change(&self, now_unix_s: f64, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts);
        let names =
            |requests: &BTreeMap<String, u64>| requests.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        let (running, waiting) = (names(&counts.running), names(&counts.waiting));
        self.0.metrics.clear(Name::LoraRequestsInfo);
        if !(running.is_empty() && waiting.is_empty()) {
            let mut labels = vec![("running_lora_adapters", running), ("waiting_lora_adapters", waiting)];
            labels.extend(self.0.metrics.max_loras().map(|most| ("max_lora", most.to_string())));
            self.0.metrics.ratio(Name::LoraRequestsInfo, &labels).set(now_unix_s);
        }
    }
}

fn less(requests: &mut BTreeMap<String, u64>, adapter: &str) {
    if let Some(count) = requests.get_mut(adapter) {
        *count -= 1;
        if *count == 0 {
            requests.remove(adapter);
        }
    }
}
