//! Rules of an offloading connector: the rules of vLLM's releases, and of Dynamo's mocker.

use crate::config::rules::SchedulerRules;

/// The rules that a connector follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectorRules {
    /// vLLM's connector of a release.
    Vllm(SchedulerRules),
    /// Dynamo 1.6's mocker (`aisimulate-core` 0.13.0, its `native_host_offload`).
    Dynamo {
        /// Engines share the host.
        is_shared: bool,
    },
}

impl ConnectorRules {
    /// vLLM's rules; none for Dynamo's mocker.
    fn vllm(self) -> Option<SchedulerRules> {
        match self {
            Self::Vllm(rules) => Some(rules),
            Self::Dynamo { .. } => None,
        }
    }

    fn is_dynamo(self) -> bool {
        self.vllm().is_none()
    }

    // Rules that both have.

    /// Blocks of a prompt are offered again when the request is back after a preemption.
    pub(super) fn offers_blocks_again(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::offers_blocks_again)
    }

    /// Blocks that a request stores or uses share its place in the order of uses until it ends.
    pub(super) fn ranks_blocks_by_request(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::ranks_blocks_by_request)
    }

    /// Whether all blocks that a step computed for a request are stored, or none.
    pub(super) fn stores_all_or_none(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::stores_all_or_none)
    }

    /// Whether a block in transfer to the host makes the request wait, instead of ending the hit.
    pub(super) fn waits_for_blocks_on_their_way(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::waits_for_blocks_on_their_way)
    }

    /// Whether a block that another request of the engine loads also has this effect.
    pub(super) fn waits_for_loads_of_others(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::waits_for_loads_of_others)
    }

    /// Whether copies of the request's own blocks in progress make the request wait, too.
    pub(super) fn waits_for_own_copies(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::waits_for_own_copies)
    }

    /// Only the latest copy counts.
    pub(super) fn waits_for_latest_copy(self) -> bool {
        self.is_dynamo()
    }

    /// The end of a request is a use of all the blocks that it stored or found.
    pub(super) fn uses_blocks_at_ends(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::uses_blocks_at_ends)
    }

    /// Blocks that were not stored before are offered once more when their request has ended.
    pub(super) fn offers_blocks_of_ended(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::offers_blocks_of_ended)
    }

    /// Whether blocks offered together do not evict each other.
    pub(super) fn keeps_offered_blocks(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::keeps_offered_blocks)
    }

    /// Whether copies of reused blocks, and the latest copies of a preempted request, end before the step
    /// begins. In Dynamo, blocks cannot be reused before that if engines share the host.
    pub(super) fn flushes_copies(self) -> bool {
        match self {
            Self::Vllm(rules) => rules.flushes_copies(),
            Self::Dynamo { is_shared } => !is_shared,
        }
    }

    // Rules of Dynamo's mocker alone.

    /// Blocks of outputs are never looked up, not even after a preemption.
    pub(super) fn finds_prompts_alone(self) -> bool {
        self.is_dynamo()
    }

    /// Whether a lookup or a store uses all blocks of the prompt, last one first, and the end of a transfer
    /// uses the blocks that it moved.
    pub(super) fn uses_blocks_at_lookups(self) -> bool {
        self.is_dynamo()
    }

    /// Whether a load into blocks that are being copied begins when the copy ends. The step that computes
    /// behind them does not wait.
    pub(crate) fn loads_after_copies(self) -> bool {
        self.is_dynamo()
    }

    /// Whether a request offers its blocks with its next step if other requests' copies of them are
    /// in progress.
    pub(super) fn puts_stores_off(self) -> bool {
        self == Self::Dynamo { is_shared: false }
    }

    /// Blocks are in use until they are copied, even if their request has ended.
    pub(crate) fn holds_copied_blocks(self) -> bool {
        self == Self::Dynamo { is_shared: true }
    }
}
