//! The series of one engine. Each is looked up once, because a lookup by labels costs more than counting.

use std::sync::{Mutex, OnceLock, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::page::Metrics;
use super::table::{Name, TABLE};

/// The value of an additional label, and its counter.
type Labelled = (Box<str>, Counter);

/// The series of one engine. Each is created at its first use.
#[derive(Debug)]
pub(super) struct EngineSeries {
    metrics: Metrics,
    engine: u32,
    /// Counters by [`Name`].
    counters: Box<[OnceLock<Counter>]>,
    histograms: Box<[OnceLock<Histogram>]>,
    /// Counters with an additional label, by [`Name`]. Each label has few values.
    labelled: Box<[Mutex<Vec<Labelled>>]>,
}

impl EngineSeries {
    pub(super) fn new(metrics: &Metrics, engine: u32) -> Self {
        Self {
            metrics: metrics.clone(),
            engine,
            counters: (0..TABLE.len()).map(|_| OnceLock::new()).collect(),
            histograms: (0..TABLE.len()).map(|_| OnceLock::new()).collect(),
            labelled: TABLE.iter().map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn counter(&self, name: Name) -> &Counter {
        let create = || self.metrics.counter(name, &self.metrics.engine_labels(self.engine));
        self.counters[name as usize].get_or_init(create)
    }

    pub(super) fn histogram(&self, name: Name) -> &Histogram {
        let create = || self.metrics.histogram(name, &self.metrics.engine_labels(self.engine));
        self.histograms[name as usize].get_or_init(create)
    }

    /// Returns the counter with this additional label.
    pub(super) fn counter_by(&self, name: Name, label: &'static str, value: &str) -> Counter {
        let mut labelled = self.labelled[name as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = labelled.iter().find(|(known, _)| &**known == value) {
            return counter.clone();
        }
        let counter = self.metrics.counter(name, &self.metrics.engine_labels_and(self.engine, label, value));
        labelled.push((value.into(), counter.clone()));
        counter
    }
}
