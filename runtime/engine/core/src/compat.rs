//! Rules of other engines and mockers that differ from vLLM's scheduler.
//!
//! vLLM's rules are in the scheduler itself. Each other rule is a predicate here that names its source:
//! TensorRT-LLM, or the mockers of Dynamo, which are `dynamo-mocker` 1.4 and `aisimulate-core` of Dynamo 1.6.
//! Under vLLM's settings every predicate is false.

/// KV blocks that an admission guarantees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapacityPolicy {
    /// Blocks are allocated when tokens need them, and requests are preempted if none are left: vLLM.
    #[default]
    Preempt,
    /// A request is admitted only if its whole prompt and output fit, in addition to all blocks that
    /// the admitted requests may still need. No request is ever preempted. This is TensorRT-LLM's
    /// `GUARANTEED_NO_EVICT`, as in Dynamo's mocker. For a completely cached prompt, only the last token is
    /// recomputed, not the last block.
    GuaranteedNoEvict,
}

/// The preemption victim under [`Policy::Fcfs`](crate::Policy::Fcfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Victim {
    /// The request admitted last: vLLM.
    #[default]
    Newest,
    /// The request admitted first: `fifo` of Dynamo's mocker. If the victim has N running requests before it,
    /// the scan then skips N later requests in this step, as the mocker does.
    Oldest,
}

/// When an engine allocates blocks for a prompt that another engine computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservations {
    /// While the engine decides a step, like any waiting request: vLLM.
    #[default]
    InSteps,
    /// Between two steps, whenever the driver calls
    /// [`reserve`](crate::ServingEngine::reserve_remote): Dynamo's replay. Requests that wait for
    /// such blocks go before all other requests that hold no blocks.
    BetweenSteps,
}

/// Deviations from vLLM's rules that an engine's settings ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quirks {
    capacity: CapacityPolicy,
    victim: Victim,
    reservations: Reservations,
    burst_tokens: u32,
}

impl Quirks {
    pub(crate) fn new(capacity: CapacityPolicy, victim: Victim, reservations: Reservations, burst_tokens: u32) -> Self {
        Self { capacity, victim, reservations, burst_tokens }
    }

    /// Extra tokens that a sampling request may emit in a step, each in its own slot. 0 for vLLM.
    /// Source: multi-token prediction of Dynamo's mockers.
    #[inline]
    pub(crate) fn burst_tokens(self) -> u32 {
        self.burst_tokens
    }

    /// Whether the last cached block of a prompt is recomputed. Source: multi-token prediction of
    /// Dynamo's mockers.
    #[inline]
    pub(crate) fn recomputes_last_cached_block(self) -> bool {
        self.burst_tokens > 0
    }

    /// Whether an admission reserves the blocks of the whole output, so that no request is preempted.
    /// Source: `GUARANTEED_NO_EVICT` of TensorRT-LLM, as Dynamo's mockers model it.
    #[inline]
    pub(crate) fn reserves_whole_output(self) -> bool {
        self.capacity == CapacityPolicy::GuaranteedNoEvict
    }

    /// Whether a prompt may be cached as a whole. Then only its last token is computed, not its last block.
    /// Source: TensorRT-LLM, as Dynamo's mockers model it.
    #[inline]
    pub(crate) fn caches_whole_prompts(self) -> bool {
        self.capacity == CapacityPolicy::GuaranteedNoEvict
    }

    /// Whether FCFS preempts the oldest running request. The scan of the running list keeps its index when
    /// the victim is removed, so it skips as many requests as there were before the victim. The scan also continues
    /// after a request preempts itself. Source: `preemption_mode` `fifo` of Dynamo's mockers.
    #[inline]
    pub(crate) fn preempts_oldest(self) -> bool {
        self.victim == Victim::Oldest
    }

    /// Whether blocks for remote KV are allocated between steps. Requests that wait for these blocks
    /// then go before all other requests that hold no blocks. Source: disaggregated serving in Dynamo's replay.
    #[inline]
    pub(crate) fn reserves_between_steps(self) -> bool {
        self.reservations == Reservations::BetweenSteps
    }

    /// Whether a request whose KV has arrived is admitted without token budget, because no prompt token
    /// is recomputed. Source: disaggregated serving in Dynamo's replay.
    #[inline]
    pub(crate) fn admits_arrived_kv_free(self) -> bool {
        self.reservations == Reservations::BetweenSteps
    }

    /// Whether other requests can hit transferred KV as soon as it arrives. In vLLM they can when the scheduler
    /// reaches the request that loaded the KV. Source: Dynamo's mockers, including the TensorRT-LLM one.
    #[inline]
    pub(crate) fn takes_over_on_arrival(self) -> bool {
        self.reservations == Reservations::BetweenSteps || self.capacity == CapacityPolicy::GuaranteedNoEvict
    }

    /// Whether requests are admitted in the order in which their KV arrives. Otherwise they are admitted in the
    /// order in which their loads began, as in vLLM and in Dynamo's disaggregated serving. Source: Dynamo's mocker of
    /// TensorRT-LLM.
    #[inline]
    pub(crate) fn admits_in_order_of_arrival(self) -> bool {
        self.reservations == Reservations::InSteps && self.capacity == CapacityPolicy::GuaranteedNoEvict
    }

    /// Whether preempted requests go before requests whose KV has arrived, while no request waits for
    /// blocks for its KV. Source: Dynamo's mockers, which keep both kinds in one queue.
    #[inline]
    pub(crate) fn resumes_preempted_first(self) -> bool {
        self.reservations == Reservations::BetweenSteps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_has_no_quirks() {
        let quirks = Quirks::new(CapacityPolicy::default(), Victim::default(), Reservations::default(), 0);
        assert_eq!(quirks.burst_tokens(), 0);
        let predicates = [
            quirks.recomputes_last_cached_block(),
            quirks.reserves_whole_output(),
            quirks.caches_whole_prompts(),
            quirks.preempts_oldest(),
            quirks.reserves_between_steps(),
            quirks.admits_arrived_kv_free(),
            quirks.takes_over_on_arrival(),
            quirks.admits_in_order_of_arrival(),
            quirks.resumes_preempted_first(),
        ];
        assert_eq!(predicates, [false; 9]);
    }
}
