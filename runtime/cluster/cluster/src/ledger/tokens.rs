//! Adds output tokens to records, and the gaps between them to samples.
//!
//! This is the only place that adds tokens, whether a step lists them, a fast-forward sums them up, or a steady
//! decode counts them by workload.

use vcr_core::plan::StepOutputs;

use super::Ledger;
use super::metrics::Trend;
use super::record::TokenTimes;
use super::steady_decode::SteadyDecode;

impl Ledger {
    /// Adds output tokens that reach the client together. Returns whether they are the request's first.
    pub(crate) fn emit(&mut self, tag: u64, num_tokens: u32, now_ns: u64) -> bool {
        let is_first = self.record(tag).prefill_end_ns.is_none();
        if let Some(kept) = &mut self.kept {
            kept.emit(tag, num_tokens, now_ns);
        }
        let times = TokenTimes { first_ns: now_ns, second_ns: now_ns, last_ns: now_ns };
        let (workload, is_served) = self.enter_tokens(tag, num_tokens, times);
        if num_tokens > 1 {
            let gaps = u64::from(num_tokens - 1);
            self.metrics[workload].sample_times(Trend::Itl, 0, gaps);
            self.note_gaps(now_ns, &[0], gaps);
            if is_served {
                self.tally.add_gaps(0, gaps);
            }
        }
        is_first
    }

    /// Records the tokens of all steps of a fast-forward except the last, which is in flight. The engine lists some
    /// of these tokens; the others belong to its steady decode. Returns the end of these steps.
    pub(crate) fn fast_forward(
        &mut self,
        worker: u32,
        outputs: &StepOutputs,
        batch_requests: u64,
        start_ns: u64,
        durations_ns: &[u64],
    ) {
        let ended_ns = &durations_ns[..durations_ns.len() - 1];
        let first_ns = start_ns.saturating_add(durations_ns[0]);
        let times = TokenTimes {
            first_ns,
            second_ns: first_ns.saturating_add(durations_ns[1]),
            last_ns: ended_ns.iter().fold(start_ns, |end_ns, duration_ns| end_ns.saturating_add(*duration_ns)),
        };
        if self.samples_steps {
            for &duration_ns in ended_ns {
                self.step_metrics.sample(Trend::StepTime, duration_ns);
            }
            self.step_metrics.sample_times(Trend::BatchSize, batch_requests, ended_ns.len() as u64);
        }
        self.decoding.fill(0);
        self.first_two.fill(0);
        for output in &outputs.outputs {
            let gets_first_two = output.num_tokens > 1 && self.record(output.tag).output_tokens == 0;
            let (workload, _) = self.enter_tokens(output.tag, output.num_tokens, times);
            self.decoding[workload] += 1;
            self.first_two[workload] += u64::from(gets_first_two);
        }
        self.emit_steady_decode(worker, &outputs.steady_decode_groups, first_ns, times.last_ns);
        for (decoding, &requests) in self.decoding.iter_mut().zip(&outputs.steady_decode_groups) {
            *decoding += u64::from(requests);
        }
        for workload in 0..self.decoding.len() {
            let (requests, first_gaps) = (self.decoding[workload], self.first_two[workload]);
            self.sample_gaps(workload, times.second_ns, &ended_ns[1..], requests, first_gaps);
        }
    }

    /// Records the tokens of a worker's steady decode in the step that was just applied.
    pub(crate) fn end_steady_decode_step(&mut self, worker: u32, outputs: &StepOutputs, now_ns: u64) {
        self.emit_steady_decode(worker, &outputs.steady_decode_groups, now_ns, now_ns);
        self.steady_decodes[worker as usize].join(&outputs.joined);
    }

    /// Removes a request from a worker's steady decode, where it got this many tokens. The latest token came at the
    /// end of the engine's latest step.
    pub(crate) fn leave_steady_decode(&mut self, worker: u32, tag: u64, num_tokens: u32) {
        let steady_decode = &mut self.steady_decodes[worker as usize];
        if num_tokens > 0 {
            self.records[tag as usize].add_tokens(num_tokens, steady_decode.last_end_ns());
        } else {
            steady_decode.leave(tag);
        }
    }

    pub(crate) fn forget_steady_decode(&mut self, worker: u32) {
        self.steady_decodes[worker as usize] = SteadyDecode::default();
    }

    /// Adds output tokens to a record, and samples the gap before the first of them. The caller samples the gaps
    /// between them. Returns the workload, and whether an engine serves the request.
    fn enter_tokens(&mut self, tag: u64, num_tokens: u32, times: TokenTimes) -> (usize, bool) {
        let record = &mut self.records[tag as usize];
        let workload = record.workload as usize;
        let mut gap = None;
        // A request that is answered as recorded has no engine.
        let is_served = record.prefill_worker.is_some();
        if num_tokens > 0 {
            match record.last_token_ns {
                None if is_served => {
                    let way_ns = self.overheads.answer_ns(1);
                    self.tally.add_first_token((times.first_ns - record.arrival_ns).saturating_add(way_ns));
                }
                None => {}
                Some(last_ns) => {
                    let gap_ns = times.first_ns - last_ns;
                    let is_first_gap = is_served && record.output_tokens == 1;
                    let gap_ns = if is_first_gap { self.overheads.first_gap_ns(gap_ns) } else { gap_ns };
                    self.metrics[workload].sample(Trend::Itl, gap_ns);
                    if is_served {
                        self.tally.add_gaps(gap_ns, 1);
                    }
                    gap = Some(gap_ns);
                }
            }
        }
        record.give_tokens(num_tokens, times);
        if let Some(gap_ns) = gap {
            self.note_gaps(times.first_ns, &[gap_ns], 1);
        }
        (workload, is_served)
    }

    /// Gives every request in a worker's steady decode a token at `first_ns`, and perhaps further tokens until
    /// `last_ns`. `groups` has the number of requests by workload.
    fn emit_steady_decode(&mut self, worker: u32, groups: &[u32], first_ns: u64, last_ns: u64) {
        let steady_decode = &mut self.steady_decodes[worker as usize];
        for tag in steady_decode.take_with_one_token() {
            let record = &mut self.records[tag as usize];
            record.detail.second_token_ns = Some(first_ns);
            self.second_tokens[record.workload as usize] += 1;
        }
        let gap_ns = first_ns - steady_decode.advance(last_ns);
        for (workload, &requests) in groups.iter().enumerate() {
            let seconds = std::mem::take(&mut self.second_tokens[workload]);
            self.sample_gaps(workload, first_ns, &[gap_ns], u64::from(requests), seconds);
        }
    }

    /// Samples the gaps between tokens of `requests` requests of a workload. The first gap ends at `end_ns`. For
    /// `first_gaps` requests, it precedes the second token.
    #[inline]
    fn sample_gaps(&mut self, workload: usize, end_ns: u64, gaps_ns: &[u64], requests: u64, first_gaps: u64) {
        if requests == 0 || gaps_ns.is_empty() {
            return;
        }
        self.note_gaps(end_ns, gaps_ns, requests);
        let metrics = &mut self.metrics[workload];
        let (sum_ns, gaps) = (gaps_ns.iter().sum::<u64>(), gaps_ns.len() as u64);
        if first_gaps == 0 || self.overheads.first_token_ns == 0 {
            match gaps_ns {
                [gap_ns] => metrics.sample_times(Trend::Itl, *gap_ns, requests),
                _ => metrics.sample_each(Trend::Itl, gaps_ns, requests),
            }
            self.tally.add_gap_sum(sum_ns, gaps, requests);
            return;
        }
        let first_ns = self.overheads.first_gap_ns(gaps_ns[0]);
        metrics.sample_times(Trend::Itl, first_ns, first_gaps);
        self.tally.add_gap_sum(sum_ns - gaps_ns[0] + first_ns, gaps, first_gaps);
        let others = requests - first_gaps;
        if others > 0 {
            metrics.sample_times(Trend::Itl, gaps_ns[0], others);
            self.tally.add_gap_sum(sum_ns, gaps, others);
        }
        metrics.sample_each(Trend::Itl, &gaps_ns[1..], requests);
    }
}
