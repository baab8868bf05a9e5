//! The cost of adapters: loads into the host and the device, and the time that they add to each step.
//!
//! As in vLLM's workers, the host and the slots of the device each keep the most recently used adapters.
//! An adapter that a step needs and that is in neither is loaded before the step computes, so all requests of the
//! step wait.

use crate::config::AdapterCosts;
use crate::plan::StepPlan;

/// The adapters of an engine; the most recently used one is at the end of each list.
#[derive(Debug)]
pub(super) struct Adapters {
    costs: AdapterCosts,
    device_slots: usize,
    host: Vec<u32>,
    device: Vec<u32>,
}

impl Adapters {
    pub(super) fn new(costs: AdapterCosts, max_loras: u32) -> Self {
        Self { costs, device_slots: max_loras as usize, host: Vec::new(), device: Vec::new() }
    }

    /// Loads the adapters of a step onto the device and adds their time to the step. Returns the number of loads into
    /// the host.
    #[cold]
    pub(super) fn price(&mut self, loras: &[u32], plan: &mut StepPlan) -> u64 {
        let AdapterCosts { host_slots, load_ns, copy_ns, step_ns, token_ns } = self.costs;
        let loads = bring(&mut self.host, loras, self.device_slots.max(host_slots as usize));
        let copies = bring(&mut self.device, loras, self.device_slots);
        let terms = [
            (load_ns, loads),
            (copy_ns, copies),
            (step_ns, plan.shape.adapter_count),
            (token_ns, plan.shape.adapter_tokens),
        ];
        plan.adapter_ns = terms.into_iter().fold(0, |sum, (ns, count)| ns.saturating_mul(count).saturating_add(sum));
        loads
    }
}

/// Marks adapters as most recently used. Missing adapters replace the least recently used ones. Returns the number
/// of missing adapters.
fn bring(places: &mut Vec<u32>, used: &[u32], slots: usize) -> u64 {
    let before = places.len();
    places.retain(|adapter| !used.contains(adapter));
    let present = before - places.len();
    places.extend_from_slice(used);
    places.drain(..places.len().saturating_sub(slots));
    (used.len() - present) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adapters_used_last_stay() {
        let mut places = Vec::new();
        assert_eq!(bring(&mut places, &[1, 2], 2), 2);
        assert_eq!(bring(&mut places, &[1], 2), 0);
        // Adapter 2 was used before adapter 1.
        assert_eq!((bring(&mut places, &[3], 2), places.clone()), (1, vec![1, 3]));
        assert_eq!((bring(&mut places, &[3, 2], 2), places), (1, vec![3, 2]));
    }

    #[test]
    fn loads_copies_and_steps_have_their_times() {
        let costs = AdapterCosts { host_slots: 3, load_ns: 1000, copy_ns: 100, step_ns: 10, token_ns: 1 };
        let mut adapters = Adapters::new(costs, 2);
        let mut ns = |loras: &[u32], tokens: u64| {
            let mut plan = StepPlan::default();
            (plan.shape.adapter_count, plan.shape.adapter_tokens) = (loras.len() as u64, tokens);
            let _ = adapters.price(loras, &mut plan);
            plan.adapter_ns
        };
        assert_eq!(ns(&[1, 2], 7), 2 * 1000 + 2 * 100 + 2 * 10 + 7);
        assert_eq!(ns(&[1], 1), 11, "it is there");
        assert_eq!(ns(&[3], 0), 1110, "it takes the slot of 2");
        assert_eq!(ns(&[2], 0), 110, "the host still has it");
        assert_eq!(ns(&[], 0), 0);
    }
}
