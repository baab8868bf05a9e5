//! Tokens of requests that decode in bulk.
//!
//! An engine does not list them ([`vcr_core::DrawnOutputs`]). All requests of a
//! bulk got their latest token at the end of the engine's latest step, so a step
//! counts them by workload; what a request got is entered into its record when it
//! leaves the bulk.

use vcr_core::{DrawnOutputs, ServingEngine};

use crate::metrics::Trend;
use crate::sim::{PoolRouter, Simulation};

/// What is known of an engine's bulk beside its engine.
#[derive(Debug, Default)]
pub(crate) struct BulkTimes {
    /// End of the engine's latest step.
    last_end_ns: u64,
    /// Requests that have one token and get the second one in bulk.
    with_one_token: Vec<u64>,
}

impl Simulation<'_> {
    /// Whether and how the outputs of a request are drawn at a worker: not where
    /// somebody wants to see them, or chooses them.
    pub(crate) fn drawn_outputs(&self, tag: u64, worker: u32) -> Option<DrawnOutputs> {
        let worker = &self.workers[worker as usize];
        let router = &self.pools[worker.pool as usize].router;
        let wants_outputs = matches!(router, PoolRouter::Kv(router) if router.needs_outputs());
        if self.wants_steps || worker.injector.is_some() || worker.tokens.is_some() || wants_outputs {
            return None;
        }
        let record = &self.records[tag as usize];
        Some(DrawnOutputs { seed: self.output_seeds[tag as usize], group: record.workload })
    }

    /// The tokens of the bulk in a step that has just been applied, before those of
    /// other requests.
    pub(crate) fn emit_bulk_step(&mut self, index: u32) {
        let now_ns = self.now_ns;
        self.hear_untold(index);
        self.hear_second_tokens(index, now_ns);
        let worker = &mut self.workers[index as usize];
        let outputs = worker.engine.outputs();
        worker.bulk.with_one_token.extend_from_slice(&outputs.joined);
        let gap_ns = now_ns - std::mem::replace(&mut worker.bulk.last_end_ns, now_ns);
        for (metrics, &requests) in self.metrics.iter_mut().zip(&outputs.bulk_groups) {
            if requests > 0 {
                metrics.sample_times(Trend::Itl, gap_ns, u64::from(requests));
                self.tally.token_gaps(gap_ns, u64::from(requests));
            }
        }
    }

    /// The first tokens of the bulk in a stretch. Counts its requests among those
    /// that decode in it.
    pub(crate) fn emit_bulk_stretch(&mut self, index: u32, first_end_ns: u64, ends_ns: u64) {
        self.hear_second_tokens(index, first_end_ns);
        let worker = &mut self.workers[index as usize];
        let gap_ns = first_end_ns - std::mem::replace(&mut worker.bulk.last_end_ns, ends_ns);
        let groups = &worker.engine.outputs().bulk_groups;
        for ((metrics, decoding), &requests) in self.metrics.iter_mut().zip(&mut self.decoding).zip(groups) {
            if requests > 0 {
                metrics.sample_times(Trend::Itl, gap_ns, u64::from(requests));
                self.tally.token_gaps(gap_ns, u64::from(requests));
                *decoding += u64::from(requests);
            }
        }
        self.hear_untold(index);
    }

    /// Requests with one token have got the next one.
    fn hear_second_tokens(&mut self, index: u32, at_ns: u64) {
        for tag in self.workers[index as usize].bulk.with_one_token.drain(..) {
            self.records[tag as usize].detail.second_token_ns = Some(at_ns);
        }
    }

    /// Enters the tokens of requests that have left the bulk; the latest came at the
    /// end of the engine's latest step.
    pub(crate) fn hear_untold(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        let bulk = &mut worker.bulk;
        worker.engine.take_untold(|tag, tokens| {
            if tokens > 0 {
                let record = &mut self.records[tag as usize];
                record.output_tokens += tokens;
                record.last_token_ns = Some(bulk.last_end_ns);
            } else {
                bulk.with_one_token.retain(|&other| other != tag);
            }
        });
    }

    /// Has an engine keep no bulk, and enters what it gave.
    pub(crate) fn dissolve_bulk(&mut self, index: u32) {
        self.workers[index as usize].engine.dissolve_bulk();
        self.hear_untold(index);
    }
}
