//! Steps in a row whose requests get several tokens each.
//!
//! Their number is drawn at the end of a step, so such steps cannot be predicted. While nothing
//! from outside reaches the engine and no request can end, they are taken one after another
//! without going through the event queue.

use vcr_core::{Engine, ServingEngine};

use crate::config::PoolRole;
use crate::error::SimError;
use crate::observe::Observer;
use crate::simulation::Simulation;

impl<O: Observer> Simulation<'_, O> {
    /// Goes on from the step of a worker that ends at `end_ns` to the last one that starts before
    /// `horizon_ns` and must follow, or to one before it. Gives when that ends.
    pub(super) fn decode_bursts(&mut self, index: u32, mut end_ns: u64, horizon_ns: u64) -> Result<u64, SimError> {
        let role = self.fleet.worker(index).role();
        let needs = self.routing.needs(role);
        // Blocks for other engines are taken between steps, and events of the cache told in them.
        if role != PoolRole::Aggregated || needs.kv_events {
            return Ok(end_ns);
        }
        // As for steps that are predicted, the observer is asked now and then.
        for _ in 0..Engine::MAX_PREDICTED_STEPS {
            if end_ns >= horizon_ns || !self.fleet.worker(index).decodes_bursts_on() {
                break;
            }
            let (pools, worker) = self.fleet.split(index);
            let batch_requests = worker.plan().shape.batch_requests();
            self.ledger.end_step(end_ns - worker.step_start_ns(), batch_requests);
            worker.decode_bursts(self.traffic.output_seeds(), &pools[role.index()].config().acceptance_rates);
            for output in &worker.engine().outputs().outputs {
                if self.ledger.emit(output.tag, output.num_tokens, end_ns) {
                    self.routing.prefilled(role, end_ns, output.tag);
                }
                if needs.outputs {
                    let output_tokens = self.ledger.record(output.tag).output_tokens;
                    self.routing.generated(role, end_ns, output.tag, output_tokens);
                }
            }
            self.ledger.start_steps(1);
            end_ns = match worker.price(end_ns, end_ns, false) {
                Ok(range) => worker.book(end_ns, range),
                Err(reason) => return Err(self.pricing_error(index, reason)),
            };
        }
        Ok(end_ns)
    }
}
