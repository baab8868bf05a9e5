//! Ends of steps: their outputs, and requests that end with them.

use vcr_core::{FinishReason, ServingEngine};

use crate::config::PoolRole;
use crate::error::{MakeError, SimError, make_error};
use crate::in_flight::Stage;
use crate::ledger::record::Outcome;
use crate::observe::Observer;
use crate::simulation::Simulation;

impl<O: Observer> Simulation<'_, O> {
    pub(in crate::simulation) fn end_step(&mut self, index: u32) -> Result<(), SimError> {
        let now_ns = self.clock.now_ns();
        let worker = self.fleet.worker(index);
        let role = worker.role();
        let mut refused = std::mem::take(&mut self.buffers.refused);
        refused.clear();
        refused.extend_from_slice(&worker.plan().refused);
        let start_ns = self.apply_step(index)?;
        self.expect_loads_of_others(index);
        self.go_on_between_steps(index)?;
        let worker = self.fleet.worker_mut(index);
        self.observation.applied(index, [start_ns, now_ns], worker.engine());
        self.routing.show_kv_events(now_ns, worker);
        worker.clear_kv_events();
        self.enter_left_steady_decode(index);
        let ended = self.fleet.worker(index).engine().outputs();
        self.ledger.end_steady_decode_step(index, ended, now_ns);
        let mut outputs = std::mem::take(&mut self.buffers.outputs);
        outputs.clear();
        outputs.extend_from_slice(&ended.outputs);
        for output in &outputs {
            if output.finish == Some(FinishReason::Error) {
                self.reject_without_grammar(output.tag);
                continue;
            }
            match (role, output.finish.is_some()) {
                (PoolRole::Prefill, true) => self.end_prefill(index, output)?,
                (PoolRole::Prefill, false) => {}
                (_, has_finished) => {
                    self.emit(output.tag, output.num_tokens, role);
                    if has_finished {
                        self.keep_answer(index, output.tag);
                        self.end(output.tag, Outcome::Completed);
                    }
                }
            }
        }
        for tag in refused.drain(..) {
            // Its client may have given it up since.
            if self.in_flight.find(tag).is_some_and(|live| live.stage == Stage::Refused) {
                self.reject_in_queue(tag, role);
            }
        }
        self.buffers.refused = refused;
        self.inject(index, &outputs)?;
        self.buffers.outputs = outputs;
        self.fleet.note_change(index);
        Ok(())
    }

    /// Applies the result of a worker's step to its engine. Gives when the step started.
    fn apply_step(&mut self, index: u32) -> Result<u64, SimError> {
        let now_ns = self.clock.now_ns();
        let (pools, worker) = self.fleet.split(index);
        let config = pools[worker.role().index()].config();
        let start_ns = worker.step_start_ns();
        self.ledger.end_step(now_ns - start_ns, worker.plan().shape.batch_requests());
        let num_output_tokens = |tag: u64| self.ledger.record(tag).output_tokens;
        worker
            .update(now_ns, self.traffic.output_seeds(), &config.acceptance_rates, num_output_tokens)
            .map_err(|reason| make_error(config, worker.index(), now_ns, MakeError::Tokens(reason)))?;
        Ok(start_ns)
    }

    /// Output tokens become visible to the client.
    fn emit(&mut self, tag: u64, num_tokens: u32, pool: PoolRole) {
        self.observation.tokens(tag, num_tokens, self.clock.now_ns());
        let needs = self.routing.needs(pool);
        if needs.queue {
            self.release_first(pool);
        }
        if self.ledger.emit(tag, num_tokens, self.clock.now_ns()) {
            self.routing.prefilled(pool, self.clock.now_ns(), tag);
        }
        if needs.outputs {
            self.routing.generated(pool, self.clock.now_ns(), tag, self.ledger.record(tag).output_tokens);
        }
    }

    /// Keeps the chosen output of a request that is about to be complete, if the
    /// next turn of its session needs it.
    fn keep_answer(&mut self, index: u32, tag: u64) {
        if let Some(answer) = self.fleet.worker_mut(index).take_chosen(tag)
            && self.in_flight.get(tag).follow_up.needs_answer()
        {
            self.traffic.keep_answer(tag, answer);
        }
    }
}
