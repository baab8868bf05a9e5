//! The vLLM releases an engine can follow, and the rules in which they differ.
//!
//! Every difference is one predicate here, so that a rule is read without the releases that had another.

use crate::version::{VllmMinor, versions};

/// The scheduler rules of a minor release of vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulerRules {
    /// The release is 0 and this.
    minor: u8,
    /// Number of the rule that differs from this release; none if no rule has this number.
    #[cfg(feature = "mutated-rules")]
    mutated: u8,
}

macro_rules! declare_rules {
    ($($version:ident = $minor:literal, $name:literal;)*) => {
        impl SchedulerRules {
            $(
                #[doc = concat!("The rules of vLLM ", $name, ".")]
                pub const $version: Self = Self::of(VllmMinor::$version);
            )*

            /// Rules of all releases by name, oldest first.
            pub(super) const BY_NAME: &'static [(&'static str, Self)] = &[$(($name, Self::$version)),*];
        }
    };
}

versions!(declare_rules);

impl Default for SchedulerRules {
    fn default() -> Self {
        Self::of(VllmMinor::NEWEST)
    }
}

impl SchedulerRules {
    /// The rules of a release.
    #[must_use]
    pub const fn of(version: VllmMinor) -> Self {
        Self {
            minor: version.number(),
            #[cfg(feature = "mutated-rules")]
            mutated: u8::MAX,
        }
    }

    /// Whether the connector for offloading is known of this release.
    #[must_use]
    pub fn knows_offloading(self) -> bool {
        self.minor >= 32
    }

    /// Whether states of Mamba may be kept at the ends of all blocks (`mamba_cache_mode` `all`).
    #[must_use]
    pub fn keeps_all_states(self) -> bool {
        self.minor <= 31
    }

    /// Whether vLLM recognises the groups of layers that belong to a drafter.
    #[must_use]
    pub fn finds_groups_of_drafters(self) -> bool {
        self.minor >= 33
    }

    /// Whether vLLM recognises the groups of layers of multi-token-prediction modules. Up to 0.30 it does so
    /// only for DeepSeek V4.
    #[must_use]
    pub fn finds_groups_of_modules(self) -> bool {
        self.minor >= 31
    }

    /// Whether a padded admission keeps all of its drafts where `long_prefill_token_threshold` leaves it fewer tokens: no
    /// model runner takes these. Later releases stop with an assertion.
    #[must_use]
    pub fn keeps_cut_drafts(self) -> bool {
        self.minor <= 28
    }

    /// These rules with one of [`SchedulerRules::RULES`] inverted, for tests: a recording proves a rule only if it
    /// notices that. None if there is no such rule.
    #[cfg(feature = "mutated-rules")]
    #[must_use]
    pub fn with_inverted(self, rule: &str) -> Option<Self> {
        let number = Self::RULES.iter().position(|name| *name == rule)?;
        Some(Self { mutated: number as u8, ..self })
    }
}

/// Defines one predicate per rule from the releases that have the rule.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $minors:pat,)*) => {
        impl SchedulerRules {
            /// The names of all rules that differ between releases.
            #[cfg(feature = "mutated-rules")]
            pub const RULES: &[&str] = &[$(stringify!($name),)*];

            $($(#[$doc])*
            #[inline]
            pub(crate) fn $name(self) -> bool {
                let holds = matches!(self.minor, $minors);
                #[cfg(feature = "mutated-rules")]
                let holds = holds != (Self::RULES.get(self.mutated as usize) == Some(&stringify!($name)));
                holds
            })*
        }
    };
}

rules! {
    // Queues, victims and caps.
    /// Requests that were skipped wait in a queue of their own, which is tried before the others
    /// (up to 0.30), instead of in their place.
    queues_skipped_apart: 27..=30,
    /// `long_prefill_token_threshold` caps a prompt even if it is the only request (up to 0.30).
    caps_lone_prefills: 27..=30,
    /// Requests that have loaded their KV are admitted while new ones are paused (since 0.32).
    admits_loaded_under_pause: 32..,
    /// A priority victim that this step has not scheduled and that runs before the one that needs
    /// room moves the scan back, too (since 0.28); before, the request after the one that needed
    /// room is passed over.
    follows_moved_requests: 28..,
    /// A request that is its own priority victim leaves others to schedule (since 0.33).
    scans_on_after_own_preemption: 33..,
    /// Adapters of all running requests count against `max_loras` (since 0.33), not only those of
    /// requests with tokens in this step.
    counts_adapters_of_all_running: 33..,
    /// A waiting request with no computable token is skipped (since 0.33) instead of ending admission.
    steps_over_empty_chunks: 33..,
    /// A single engine defers prefills for `prefill_schedule_interval` (since 0.33); before, only
    /// ranks that step together did.
    spaces_own_prefills: 33..,

    // Resumable requests (streaming inputs).
    /// They are known here as these releases have them (since 0.32).
    has_sessions: 32..,
    /// The next part of a prompt follows all known tokens but the last one (since 0.33), not only
    /// the computed tokens.
    keeps_known_of_sessions: 33..,

    // Drafts and outputs.
    /// A draft model reserves slots for `max_num_seqs` requests in each step (0.27), not for the
    /// scheduled ones.
    reserves_slots_of_all_seqs: 27,
    /// Chunks leave out the tokens that a drafter reads ahead, one for each module for multi-token prediction
    /// (since 0.28).
    spares_lookahead: 28..,
    /// A request with one token left that finds no room for all drafts below the longest sequence
    /// ends the admissions (up to 0.28), instead of being admitted without drafts.
    waits_for_drafts_at_the_end: 27..=28,
    /// A request with one token left is padded with drafts even if nothing else decodes in this
    /// step (since 0.30).
    pads_without_decodes: 30..,
    /// Tokens after a stop are subtracted from the computed tokens (since 0.33), and their
    /// placeholders are resolved.
    takes_back_after_stops: 33..,
    /// The output of a step commits full blocks with drafts, too (since 0.33), not only under async
    /// scheduling.
    commits_outputs_with_drafts: 33..,
    /// Blocks of EAGLE and MTP are distinguished by the tokens after them (since 0.33).
    has_lookahead_hashes: 33..,

    // Blocks and prefix hits.
    /// Without prefix caching free blocks are taken in the order of their release (0.27), not the
    /// last one first.
    queues_uncached_blocks: 27,
    /// The ends of prompts that are kept for a drafter that drops a block lie a block before (since
    /// 0.30).
    keeps_ends_for_dropped_blocks: 30..,
    /// In a group that drops a block, the block before the end of a shared prefix is kept as well
    /// (since 0.33).
    keeps_before_junctions: 33..,
    /// The block that is dropped may hold the last known token (since 0.32); before, a lookup ends
    /// with the one before it.
    drops_last_known_block: 32..,
    /// A block of full attention that is larger than the hashed length is announced again at the
    /// end of a whole prompt (up to 0.31). Later releases announce it at the last position that the
    /// same prompt can resume from.
    announces_whole_prompts: 27..=31,
    /// Only the first kind of full attention is cut to the hit of all groups (up to 0.28); later every kind is.
    cuts_first_full_attention_alone: 27..=28,
    /// The state at the end of a prompt is offered again in each step that holds it (0.32).
    offers_prompt_states_again: 32,

    // States of Mamba and linear attention that are kept where blocks end.
    /// A chunk can leave a state at a boundary inside it (since 0.29), in addition to the state at its end.
    has_checkpoints: 29..,
    /// Every chunk that begins at a block boundary leaves such a state, wherever it ends, unless a
    /// drafter drops a block (0.29). Later only the last chunk of a prompt leaves one, if the
    /// layer's kernel supports it.
    leaves_any_checkpoint: 29,
    /// Blocks are taken for states within all chunks (up to 0.30), even where the states at the ends of prompts alone
    /// are kept.
    checkpoints_sparse_chunks: 27..=30,
    /// Chunks end at the last boundary of all known tokens (up to 0.31), even if no later request
    /// can resume there.
    stops_at_known_end: 27..=31,
    /// The block that a drafter drops may end with the last token of a prompt (since 0.32), so that the state before it
    /// is kept.
    drops_from_whole_prompts: 32..,
    /// Each table that grows is taken to need all blocks that one can take (up to 0.29), whatever it takes.
    assumes_most_states: 27..=29,
    /// Boundaries that a chunk passes over count as blocks where it leaves a state (0.30).
    counts_passed_boundaries: 30,
    /// Draft blocks are allocated again where a chunk leaves a state (0.31); existing ones keep
    /// their places (0.30 and 0.31).
    keeps_drafts_at_checkpoints: 30 | 31,
    /// Blocks for drafts before the latest state move on, even onto the place of a state that the chunk
    /// leaves (up to 0.29).
    moves_all_drafts: 27..=29,
    /// A state left inside a chunk is cached even if it is not one of the states to keep (0.30 and 0.31).
    caches_any_checkpoint: 30 | 31,
    /// The state at the end of a prompt is forgotten again where only such are kept (0.30).
    forgets_prompt_checkpoints: 30,
    /// States before a boundary that no chunk ended at are not freed while a request runs, but for the one before the
    /// latest (up to 0.29).
    keeps_states_before_gaps: 27..=29,

    // Multimodal items.
    /// The block that contains the prompt's end, and that outputs complete, is distinguished only
    /// by the last item of the prompt (up to 0.30), not by all items that it touches.
    hashes_last_item_alone: 27..=30,
    /// `disable_chunked_mm_input` keeps an item whole that a chunk begins with (since 0.33).
    keeps_first_item_whole: 33..,
    /// A drafter that reads ahead of an item that is not computed takes it as text (since 0.33).
    reads_uncomputed_items_as_text: 33..,
    /// An item is computed with the chunk whose drafter reads it ahead (since 0.28), not with the
    /// chunk that has it.
    computes_items_read_ahead: 28..,
    /// `disable_chunked_mm_input` is applied before the cache (since 0.32), so a chunk ends even
    /// before a cached item.
    keeps_cached_items_whole: 32..,
    /// A request references an item at every one of its places (since 0.32), not only at the first
    /// place in a chunk.
    refers_at_every_place: 32..,
    /// The reference of a request ends with the last of its places (since 0.29), not with the
    /// first.
    refers_until_last_place: 29..,
    /// An item that was evicted and recomputed in one step is not listed as evicted (since 0.28).
    lists_lasting_evictions_alone: 28..,

    // Offloading to the host (since 0.32). Rules that all of these releases have are listed as well.
    /// Blocks of a prompt are offered to the host again when the request is back after a preemption (since 0.33).
    offers_blocks_again: 33..,
    /// Blocks that a request stores or uses share its place in the order of uses until it ends, later tokens first (since
    /// 0.33); before, each block that is stored is a use of its own, in the order of tokens.
    ranks_blocks_by_request: 33..,
    /// Either all blocks that a step computed for a request are stored, or none.
    stores_all_or_none: 32..,
    /// A block in transfer to the host makes the scheduler skip the request, instead of ending the
    /// hit.
    waits_for_blocks_on_their_way: 32..,
    /// A block that another request loads makes the scheduler skip the request, too.
    waits_for_loads_of_others: 32..,
    /// Copies of the request's own blocks in progress make the scheduler skip the request, too.
    waits_for_own_copies: 32..,
    /// The end of a request is a use of all the blocks that it stored or found, the last one first.
    uses_blocks_at_ends: 32..,
    /// Blocks that were not stored before are offered once more when their request has ended.
    offers_blocks_of_ended: 32..,
    /// Blocks offered together do not evict each other.
    keeps_offered_blocks: 32..,
    /// Copies of the blocks of a preempted request are finished at once; so are copies of an ended request's
    /// blocks when these are reused.
    flushes_copies: 32..,
}
