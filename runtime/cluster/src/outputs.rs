//! Output tokens become visible to clients: what that is worth is noted here.

use vcr_core::ServingEngine;

use crate::metrics::Trend;
use crate::sim::Simulation;

impl Simulation<'_> {
    /// Keeps the chosen output of a request that is about to be complete, if the
    /// next turn of its session needs it.
    pub(crate) fn keep_answer(&mut self, index: u32, tag: u64) {
        let Some(tokens) = &mut self.workers[index as usize].tokens else { return };
        let answer = tokens.end(tag);
        if self.live_mut(tag).follow_up.needs_answer() {
            self.answers.insert(tag, answer);
        }
    }

    /// Output tokens become visible to the client.
    pub(crate) fn emit(&mut self, tag: u64, num_tokens: u32, pool: u32) {
        self.release_first(pool as usize);
        if self.give_tokens(tag, num_tokens) {
            self.tell_first_token(tag, pool);
        }
        self.tell_output(tag, pool);
    }

    /// Notes output tokens. Gives whether they are the first.
    pub(crate) fn give_tokens(&mut self, tag: u64, num_tokens: u32) -> bool {
        let record = &mut self.records[tag as usize];
        let now_ns = self.now_ns;
        let first = record.prefill_end_ns.is_none();
        if num_tokens > 0 {
            let metrics = &mut self.metrics[record.workload as usize];
            // What is answered as recorded has no engine.
            let is_served = record.prefill_worker.is_some();
            match record.last_token_ns {
                None => {
                    record.first_token_ns = Some(now_ns);
                    if is_served {
                        self.tally.first_token(now_ns - record.arrival_ns);
                    }
                }
                Some(last_ns) => {
                    metrics.sample(Trend::Itl, now_ns - last_ns);
                    if is_served {
                        self.tally.token_gaps(now_ns - last_ns, 1);
                    }
                }
            }
            if is_served {
                self.tally.token_gaps(0, u64::from(num_tokens - 1));
            }
            if record.output_tokens < 2 && record.output_tokens + num_tokens >= 2 {
                record.detail.second_token_ns = Some(now_ns);
            }
            for _ in 1..num_tokens {
                // Tokens of one burst arrive together.
                metrics.sample(Trend::Itl, 0);
            }
            record.last_token_ns = Some(now_ns);
            record.output_tokens += num_tokens;
        }
        record.prefill_end_ns.get_or_insert(now_ns);
        first
    }

    /// The tokens of all steps of a stretch but the last, which is under way.
    pub(crate) fn emit_stretch(&mut self, index: u32, batch_requests: u64, durations_ns: &[u64]) {
        let ended_ns = &durations_ns[..durations_ns.len() - 1];
        let first_end_ns = self.now_ns.saturating_add(durations_ns[0]);
        let second_end_ns = first_end_ns.saturating_add(durations_ns[1]);
        let ends_ns = ended_ns.iter().fold(self.now_ns, |end_ns, duration_ns| end_ns.saturating_add(*duration_ns));
        if self.config.samples_steps {
            for &duration_ns in ended_ns {
                self.step_metrics.sample(Trend::StepTime, duration_ns);
            }
            self.step_metrics.sample_times(Trend::BatchSize, batch_requests, ended_ns.len() as u64);
        }
        self.decoding.clear();
        self.decoding.resize(self.metrics.len(), 0);
        for output in &self.workers[index as usize].engine.outputs().outputs {
            let record = &mut self.records[output.tag as usize];
            match record.last_token_ns {
                None => {
                    record.first_token_ns = Some(first_end_ns);
                    self.tally.first_token(first_end_ns - record.arrival_ns);
                }
                Some(last_ns) => {
                    self.metrics[record.workload as usize].sample(Trend::Itl, first_end_ns - last_ns);
                    self.tally.token_gaps(first_end_ns - last_ns, 1);
                }
            }
            // One token a step.
            if record.output_tokens == 1 {
                record.detail.second_token_ns = Some(first_end_ns);
            } else if record.output_tokens == 0 && output.num_tokens > 1 {
                record.detail.second_token_ns = Some(second_end_ns);
            }
            record.prefill_end_ns.get_or_insert(first_end_ns);
            record.last_token_ns = Some(ends_ns);
            record.output_tokens += output.num_tokens;
            self.decoding[record.workload as usize] += 1;
        }
        self.tell_outputs_of_stretch(index);
        self.emit_bulk_stretch(index, first_end_ns, ends_ns);
        let gaps_ns = &ended_ns[1..];
        for (metrics, &requests) in self.metrics.iter_mut().zip(&self.decoding).filter(|(_, requests)| **requests > 0) {
            self.tally.token_gaps_sum(ends_ns - first_end_ns, gaps_ns.len() as u64, requests);
            metrics.sample_each(Trend::Itl, gaps_ns, requests);
        }
    }
}
