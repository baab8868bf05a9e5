//! Rules of an offloading connector: the rules of vLLM's releases, and of Dynamo's mocker.

use crate::config::rules::SchedulerRules;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectorRules {
    /// vLLM's connector of a release.
    Vllm(SchedulerRules),
    /// The rules of Dynamo 1.6's mocker (`aisimulate-core` 0.13.0, `native_host_offload`).
    Dynamo {
        /// Whether engines share the host.
        is_shared: bool,
    },
}

impl ConnectorRules {
    /// vLLM's rules. None for Dynamo's mocker.
    fn vllm(self) -> Option<SchedulerRules> {
        match self {
            Self::Vllm(rules) => Some(rules),
            Self::Dynamo { .. } => None,
        }
    }

    fn is_dynamo(self) -> bool {
        self.vllm().is_none()
    }

    // Rules of vLLM that Dynamo's mocker may also have. `SchedulerRules` documents them.

    pub(super) fn offers_blocks_again(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::offers_blocks_again)
    }

    pub(super) fn ranks_blocks_by_request(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::ranks_blocks_by_request)
    }

    pub(super) fn stores_all_or_none(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::stores_all_or_none)
    }

    pub(super) fn waits_for_blocks_on_their_way(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::waits_for_blocks_on_their_way)
    }

    pub(super) fn waits_for_loads_of_others(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::waits_for_loads_of_others)
    }

    pub(super) fn waits_for_own_copies(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::waits_for_own_copies)
    }

    /// Whether a request waits only for the latest copy of its own blocks.
    pub(super) fn waits_for_latest_copy(self) -> bool {
        self.is_dynamo()
    }

    pub(super) fn uses_blocks_at_ends(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::uses_blocks_at_ends)
    }

    pub(super) fn offers_blocks_of_ended(self) -> bool {
        self.vllm().is_some_and(SchedulerRules::offers_blocks_of_ended)
    }

    pub(super) fn keeps_offered_blocks(self) -> bool {
        self.vllm().is_none_or(SchedulerRules::keeps_offered_blocks)
    }

    /// Whether a step begins only after copies of blocks that it reuses, and the latest copies of preempted requests.
    /// In Dynamo, if engines share the host, blocks are not reused before their copies end.
    pub(super) fn flushes_copies(self) -> bool {
        match self {
            Self::Vllm(rules) => rules.flushes_copies(),
            Self::Dynamo { is_shared } => !is_shared,
        }
    }

    // Rules of Dynamo's mocker only.

    /// Whether blocks of outputs are never looked up, even after a preemption.
    pub(super) fn finds_prompts_alone(self) -> bool {
        self.is_dynamo()
    }

    /// Whether a lookup or a store counts as a use of all blocks of the prompt, the last one first, and the end of a
    /// transfer counts as a use of the blocks that it moved.
    pub(super) fn uses_blocks_at_lookups(self) -> bool {
        self.is_dynamo()
    }

    /// Whether a load into blocks that are being copied begins only when the copy ends. The step that computes the
    /// tokens after the load does not wait for the copy.
    pub(crate) fn loads_after_copies(self) -> bool {
        self.is_dynamo()
    }

    /// Whether a request delays the offer of its blocks by a step if copies of these blocks for other requests are
    /// in progress.
    pub(super) fn puts_stores_off(self) -> bool {
        self == Self::Dynamo { is_shared: false }
    }

    /// Whether blocks are held until they are copied, even if their request has ended.
    pub(crate) fn holds_copied_blocks(self) -> bool {
        self == Self::Dynamo { is_shared: true }
    }
}
