//! Steps of ranks that wait for each other.
//!
//! The ranks of an engine are fast-forwarded together while nothing from outside reaches them and all ranks with
//! work decode. Each step is priced when the previous one has ended on the slowest rank, so latency models see the
//! starts of single steps.

use std::ops::Range;

use vcr_core::{Engine, ServingEngine};

use crate::error::SimError;
use crate::observe::Observer;
use crate::simulation::Simulation;

impl<O: Observer> Simulation<'_, O> {
    /// Starts a step of an engine with the ranks `ranks`, and simulates the following steps unless they are
    /// observed. Only the ranks in `together` have work. `is_last` is false if other workers have yet to start at
    /// this instant.
    pub(super) fn start_together(
        &mut self,
        ranks: Range<u32>,
        together: &[u32],
        is_last: bool,
    ) -> Result<(), SimError> {
        let mut durations_ns = std::mem::take(&mut self.buffers.durations_ns);
        durations_ns.clear();
        let now_ns = self.clock.now_ns();
        let mut end_ns = self.book_together(&ranks, together, now_ns, 0)?;
        durations_ns.push(end_ns - now_ns);
        let horizon_ns = self.horizon_together_ns(&ranks, together, is_last);
        if end_ns < horizon_ns {
            let most = self.predict_together(together, (horizon_ns - end_ns).div_ceil(durations_ns[0].max(1)));
            while durations_ns.len() <= most && end_ns < horizon_ns {
                let start_ns = end_ns;
                end_ns = self.book_together(&ranks, together, start_ns, durations_ns.len())?;
                durations_ns.push(end_ns - start_ns);
            }
        }
        self.ledger.start_steps((durations_ns.len() * together.len()) as u64);
        self.fleet.end_passes(ranks, together, durations_ns.len() as u32);
        for &index in together {
            self.show_events_at_step_end(index, now_ns.saturating_add(durations_ns[0]));
            if durations_ns.len() > 1 {
                self.fast_forward(index, &durations_ns);
            }
            self.expect_step_end(index, end_ns);
        }
        self.buffers.durations_ns = durations_ns;
        Ok(())
    }

    /// Prices and records the step of all ranks that starts at `start_ns`. `step` is its index in the fast-forward.
    /// Returns the end on the slowest rank.
    fn book_together(
        &mut self,
        ranks: &Range<u32>,
        together: &[u32],
        start_ns: u64,
        step: usize,
    ) -> Result<u64, SimError> {
        let mut end_ns = start_ns;
        for &index in together {
            let worker = self.fleet.worker_mut(index);
            let priced = match step {
                // With a horizon of now, only one step is priced.
                0 => worker.price(start_ns, start_ns, false),
                _ => worker.price_predicted(start_ns),
            };
            match priced {
                Ok(range) => end_ns = end_ns.max(worker.book(start_ns, range)),
                Err(reason) => return Err(self.pricing_error(index, reason)),
            }
        }
        for rank in ranks.clone() {
            self.fleet.worker_mut(rank).wait(start_ns, end_ns);
        }
        Ok(end_ns)
    }

    /// The time until which nothing from outside can reach any rank of an engine. The current time if steps must be
    /// simulated one by one.
    fn horizon_together_ns(&mut self, ranks: &Range<u32>, together: &[u32], is_last: bool) -> u64 {
        let decodes_alone = |index: u32| {
            let worker = self.fleet.worker(index);
            // This also covers prompts that wait for a later pass of the ranks.
            let may_prefill = self.fleet.counts_passes(index) && worker.engine().load().outstanding_prefill_tokens > 0;
            worker.plan().shape.prefill_requests == 0
                && worker.has_plain_prices()
                && !may_prefill
                && !self.must_single_step(index)
        };
        // A rank without a step may find room for a waiting remote prompt when a step of another rank ends.
        let rests = |rank: u32| {
            let worker = self.fleet.worker(rank);
            together.contains(&rank) || !worker.can_step() && !worker.may_reserve()
        };
        if !together.iter().all(|&index| decodes_alone(index)) || !ranks.clone().all(rests) {
            return self.clock.now_ns();
        }
        ranks.clone().map(|rank| self.horizon_ns(rank, is_last)).min().unwrap_or(self.clock.now_ns())
    }

    /// Lets each of these ranks predict up to `most` steps. Returns how many steps every rank predicted.
    fn predict_together(&mut self, together: &[u32], most: u64) -> usize {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Engine::MAX_PREDICTED_STEPS);
        together.iter().fold(most, |most, &index| match most {
            0 => 0,
            _ => self.fleet.worker_mut(index).predict(most).min(most),
        })
    }
}
