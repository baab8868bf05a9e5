//! Time series of a run: the state of every engine at equal intervals of virtual time.
//!
//! The duration of a run is not known when it begins. The first samples are taken a millisecond apart. When there
//! are too many, every second sample is dropped and the interval doubles. The remaining samples are exact, not
//! averaged.

use super::Incident;

/// Virtual time between samples at the beginning of a run.
const FIRST_INTERVAL_NS: u64 = 1_000_000;
const MAX_SAMPLES: usize = 512;

/// An engine at one instant. Totals include the engine's earlier incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSample {
    /// Number of requests in the running list.
    pub running: u32,
    /// Number of requests that wait for admission or for a KV transfer.
    pub waiting: u32,
    /// Share of the KV blocks in use.
    pub kv_usage: f64,
    /// Total of computed prompt tokens, including recomputed ones.
    pub prefill_tokens: u64,
    /// Total of tokens computed by decode.
    pub decode_tokens: u64,
    /// Total of preemptions.
    pub preemptions: u64,
}

/// The engines of a run over time.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSeries {
    interval_ns: u64,
    /// Samples by engine. Sample `i` is the state after all events until `i * interval_ns`.
    engines: Vec<Vec<EngineSample>>,
    incidents: Vec<(u64, u32, Incident)>,
    router_queue_ns: Option<u64>,
}

impl RunSeries {
    /// Empty series for this many engines.
    #[must_use]
    pub fn new(engines: usize) -> Self {
        Self {
            interval_ns: FIRST_INTERVAL_NS,
            engines: vec![Vec::new(); engines],
            incidents: Vec::new(),
            router_queue_ns: None,
        }
    }

    /// Virtual time between two samples.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// The samples of all engines, by their index over all engines of the run.
    #[must_use]
    pub fn engines(&self) -> &[Vec<EngineSample>] {
        &self.engines
    }

    /// Changes of engines' health: time, engine and incident.
    #[must_use]
    pub fn incidents(&self) -> &[(u64, u32, Incident)] {
        &self.incidents
    }

    /// Total time in which at least one request waited in a router or for an engine to start; None if unknown.
    #[must_use]
    pub fn router_queue_ns(&self) -> Option<u64> {
        self.router_queue_ns
    }

    /// Adds time in which requests waited in a router or for an engine to start; may be 0.
    pub fn add_router_queue(&mut self, ns: u64) {
        *self.router_queue_ns.get_or_insert(0) += ns;
    }

    /// The time of the next sample.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        let taken = self.engines.first().map_or(0, Vec::len) as u64;
        taken.saturating_mul(self.interval_ns)
    }

    /// Takes the sample that is due. `engines` must be all engines of the run, in order.
    pub fn sample(&mut self, engines: impl Iterator<Item = EngineSample>) {
        for (samples, sample) in self.engines.iter_mut().zip(engines) {
            samples.push(sample);
        }
        if self.engines.first().is_some_and(|samples| samples.len() > MAX_SAMPLES) {
            self.interval_ns *= 2;
            for samples in &mut self.engines {
                let mut index = 0;
                samples.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
        }
    }

    /// Records a change of an engine's health.
    pub fn incident(&mut self, at_ns: u64, worker: u32, incident: Incident) {
        self.incidents.push((at_ns, worker, incident));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_their_distance_and_become_no_more() {
        let mut series = RunSeries::new(2);
        let mut now_ns = 0;
        while now_ns < 10_000_000_000 {
            now_ns = series.due_ns();
            let at = |engine: u64| EngineSample { decode_tokens: now_ns + engine, ..EngineSample::default() };
            series.sample([at(0), at(1)].into_iter());
        }
        assert_eq!(series.interval_ns(), 32_000_000);
        for (engine, samples) in (0..).zip(series.engines()) {
            assert!((MAX_SAMPLES / 2..=MAX_SAMPLES).contains(&samples.len()), "{} samples", samples.len());
            for (index, sample) in (0..).zip(samples) {
                assert_eq!(sample.decode_tokens, index * series.interval_ns() + engine);
            }
        }
    }
}
