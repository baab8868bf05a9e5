//! The latest steps of engines.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use vcr_core::{AnyEngine, ServingEngine};
use vcr_live::StepObserver;

/// Steps of an engine that are kept.
const STEPS: usize = 512;

/// The latest steps, by engine.
#[derive(Debug)]
pub struct StepRing {
    first_rank: u16,
    ranks: Vec<Mutex<VecDeque<Step>>>,
}

/// A step. Times are nanoseconds of the system's monotonic clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Step {
    #[serde(skip)]
    pub(super) end_ns: u64,
    #[serde(rename = "duration")]
    ms: f64,
    prefill_requests: u64,
    prefill_tokens: u64,
    decode_requests: u64,
    waiting: u64,
    active_blocks: u32,
    cached_blocks: u32,
    total_blocks: u32,
}

impl StepRing {
    /// Of this many engines from the first one on.
    #[must_use]
    pub fn new(first_rank: u16, num_ranks: u16) -> Arc<Self> {
        Arc::new(Self { first_rank, ranks: (0..num_ranks).map(|_| Mutex::default()).collect() })
    }

    fn steps(&self, rank: u16) -> Option<MutexGuard<'_, VecDeque<Step>>> {
        let steps = self.ranks.get(usize::from(rank.checked_sub(self.first_rank)?))?;
        Some(steps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Steps of an engine that ended later than this.
    pub(super) fn since(&self, rank: u16, ns: u64) -> Vec<Step> {
        let steps = self.steps(rank);
        steps.map_or_else(Vec::new, |steps| steps.iter().filter(|step| step.end_ns > ns).copied().collect())
    }
}

impl StepObserver for StepRing {
    fn sees_engines(&self) -> bool {
        false
    }

    fn submitted(&self, _: u16, _: u64, _: &str) {}

    fn aborted(&self, _: u16, _: u64) {}

    fn scheduled(&self, _: u16, _: &dyn ServingEngine) {}

    fn ended(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &AnyEngine) {
        let (shape, load) = (&engine.oldest_plan().shape, engine.load());
        let step = Step {
            end_ns,
            ms: end_ns.saturating_sub(start_ns) as f64 / 1e6,
            prefill_requests: shape.prefill_requests,
            prefill_tokens: shape.prefill_tokens,
            decode_requests: shape.decode_requests,
            waiting: shape.waiting_requests,
            active_blocks: load.num_active_blocks,
            // SGLang's cache is not shown.
            cached_blocks: engine.as_vllm().map_or(0, |engine| engine.pool().num_free_cached()),
            total_blocks: load.num_usable_blocks,
        };
        if let Some(mut steps) = self.steps(rank) {
            if steps.len() == STEPS {
                steps.pop_front();
            }
            steps.push_back(step);
        }
    }

    fn applied(&self, _: u16, _: u64, _: u64, _: &dyn ServingEngine) {}

    fn cache_changed(&self, _: u16, _: &dyn ServingEngine) {}

    fn stalled(&self, _: u16, _: u64, _: u64) {}

    fn closed(&self, _: u16) {}
}
