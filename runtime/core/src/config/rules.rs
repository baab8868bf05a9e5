//! The releases of vLLM whose rules an engine follows, and what they decide differently.
//!
//! Every difference is one predicate here, so that a rule is read without the releases that had another.

/// The minor release of vLLM whose scheduler rules apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SchedulerRules {
    /// vLLM 0.27.
    V0_27,
    /// vLLM 0.28.
    V0_28,
    /// vLLM 0.29.
    V0_29,
    /// vLLM 0.30.
    V0_30,
    /// vLLM 0.31.
    V0_31,
    /// vLLM 0.32.
    V0_32,
    /// vLLM 0.33.
    #[default]
    V0_33,
}

/// Queues, victims and caps.
impl SchedulerRules {
    /// Requests that were skipped wait in a queue of their own, which is tried before the others
    /// (up to 0.30), instead of in their place.
    pub(crate) fn queues_skipped_apart(self) -> bool {
        self < Self::V0_31
    }

    /// `long_prefill_token_threshold` caps a prompt even if it is the only request (up to 0.30).
    pub(crate) fn caps_lone_prefills(self) -> bool {
        self < Self::V0_31
    }

    /// Requests that have loaded their KV are admitted while new ones are paused (since 0.32).
    pub(crate) fn admits_loaded_under_pause(self) -> bool {
        self >= Self::V0_32
    }

    /// A priority victim that this step has not scheduled and that runs before the one that needs
    /// room moves the scan back, too (since 0.28); before, the request after the one that needed
    /// room is passed over.
    pub(crate) fn follows_moved_requests(self) -> bool {
        self >= Self::V0_28
    }

    /// A request that is its own priority victim leaves others to schedule (since 0.33).
    pub(crate) fn scans_on_after_own_preemption(self) -> bool {
        self >= Self::V0_33
    }

    /// Adapters of all running requests count against `max_loras` (since 0.33), not those alone of
    /// requests that got tokens in this step.
    pub(crate) fn counts_adapters_of_all_running(self) -> bool {
        self >= Self::V0_33
    }

    /// A waiting request of which nothing can be computed now is stepped over (since 0.33) instead
    /// of ending the admissions.
    pub(crate) fn steps_over_empty_chunks(self) -> bool {
        self >= Self::V0_33
    }
}

/// Drafts and outputs.
impl SchedulerRules {
    /// A draft model costs its slots for `max_num_seqs` requests in each step (0.27), not for those
    /// that are scheduled.
    pub(crate) fn reserves_slots_of_all_seqs(self) -> bool {
        self < Self::V0_28
    }

    /// Chunks leave the tokens that a drafter reads ahead, of which each module for multi-token
    /// prediction has one (since 0.28).
    pub(crate) fn spares_lookahead(self) -> bool {
        self >= Self::V0_28
    }

    /// A request with one token left that finds no room for all drafts below the longest sequence
    /// ends the admissions (up to 0.28), instead of being admitted without drafts.
    pub(crate) fn waits_for_drafts_at_the_end(self) -> bool {
        self < Self::V0_29
    }

    /// A request with one token left is padded with drafts even if nothing else decodes in this
    /// step (since 0.30).
    pub(crate) fn pads_without_decodes(self) -> bool {
        self >= Self::V0_30
    }

    /// Tokens after a stop are taken back from what is computed (since 0.33), and their
    /// placeholders resolved.
    pub(crate) fn takes_back_after_stops(self) -> bool {
        self >= Self::V0_33
    }

    /// The output of a step commits full blocks with drafts, too (since 0.33), not under async
    /// scheduling alone.
    pub(crate) fn commits_outputs_with_drafts(self) -> bool {
        self >= Self::V0_33
    }

    /// Blocks of EAGLE and MTP are told apart by the tokens after them (since 0.33).
    pub(crate) fn has_lookahead_hashes(self) -> bool {
        self >= Self::V0_33
    }
}

/// Blocks and prefix hits.
impl SchedulerRules {
    /// Without prefix caching free blocks are taken in the order of their release (0.27), not the
    /// last one first.
    pub(crate) fn queues_uncached_blocks(self) -> bool {
        self < Self::V0_28
    }

    /// The ends of prompts that are kept for a drafter that drops a block lie a block before (since
    /// 0.30).
    pub(crate) fn keeps_ends_for_dropped_blocks(self) -> bool {
        self >= Self::V0_30
    }

    /// Of a group that drops a block, the block before the end of a shared prefix is kept as well
    /// (since 0.33).
    pub(crate) fn keeps_before_junctions(self) -> bool {
        self >= Self::V0_33
    }

    /// The block that is dropped may hold the last known token (since 0.32); before, a lookup ends
    /// with the one before it.
    pub(crate) fn drops_last_known_block(self) -> bool {
        self >= Self::V0_32
    }

    /// A block of full attention that is larger than the hashed length is announced again at the
    /// end of a whole prompt (up to 0.31); later at the last place from which the same prompt can
    /// go on.
    pub(crate) fn announces_whole_prompts(self) -> bool {
        self < Self::V0_32
    }

    /// The state at the end of a prompt is offered again in each step in which it is held (0.32).
    pub(crate) fn offers_prompt_states_again(self) -> bool {
        self == Self::V0_32
    }
}

/// Multimodal items.
impl SchedulerRules {
    /// `disable_chunked_mm_input` keeps an item whole that a chunk begins with (since 0.33).
    pub(crate) fn keeps_first_item_whole(self) -> bool {
        self >= Self::V0_33
    }

    /// A drafter that reads ahead of an item that is not computed takes it as text (since 0.33).
    pub(crate) fn reads_uncomputed_items_as_text(self) -> bool {
        self >= Self::V0_33
    }

    /// An item is computed with the chunk whose drafter reads it ahead (since 0.28), not with the
    /// chunk that has it.
    pub(crate) fn computes_items_read_ahead(self) -> bool {
        self >= Self::V0_28
    }

    /// `disable_chunked_mm_input` is looked at before the cache (since 0.32), so that a chunk ends
    /// before an item that is cached, too.
    pub(crate) fn keeps_cached_items_whole(self) -> bool {
        self >= Self::V0_32
    }

    /// A request refers to an item at every place that it has it at (since 0.32), not at the first
    /// place in a chunk alone.
    pub(crate) fn refers_at_every_place(self) -> bool {
        self >= Self::V0_32
    }

    /// The reference of a request ends with the last of its places (since 0.29), not with the
    /// first.
    pub(crate) fn refers_until_last_place(self) -> bool {
        self >= Self::V0_29
    }

    /// An item that was evicted and computed again in one step is not listed as evicted (since
    /// 0.28).
    pub(crate) fn lists_lasting_evictions_alone(self) -> bool {
        self >= Self::V0_28
    }
}
