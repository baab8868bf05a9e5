//! The vLLM releases an engine can follow, and the rules in which they differ.
//!
//! Each difference is one predicate, so code can ask for a rule without naming releases.

use crate::version::{VllmMinor, versions};

/// The scheduler rules of a minor release of vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulerRules {
    minor: u8,
    /// Number of the rule to invert; no rule is inverted if the number is out of range.
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

    /// Whether the offloading connector of this release is simulated.
    #[must_use]
    pub fn knows_offloading(self) -> bool {
        self.minor >= 32
    }

    /// Whether Mamba states may be kept at the ends of all blocks (`mamba_cache_mode` `all`).
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

    /// Whether a padded admission keeps all of its drafts even if `long_prefill_token_threshold` leaves room for fewer.
    /// No model runner accepts such a request. Later releases fail an assertion here.
    #[must_use]
    pub fn keeps_cut_drafts(self) -> bool {
        self.minor <= 28
    }

    /// These rules with the named rule of [`SchedulerRules::RULES`] inverted, for tests: a recording verifies a rule
    /// only if it fails with the inverted rule. None if no rule has this name.
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
    /// Skipped requests wait in a separate queue, which is tried before the waiting queue (up to 0.30).
    /// Later they keep their place in the waiting queue.
    queues_skipped_apart: 27..=30,
    /// `long_prefill_token_threshold` caps a prompt even if it is the only request (up to 0.30).
    caps_lone_prefills: 27..=30,
    /// While new requests are paused, requests whose KV has been loaded are still admitted (since 0.32).
    admits_loaded_under_pause: 32..,
    /// Under the priority policy, a victim that this step has not scheduled may stand before the request that needs
    /// blocks. Its removal then also moves the scan back (since 0.28). Before, the scan skips the next request.
    follows_moved_requests: 28..,
    /// After a request preempts itself as the priority victim, the scan continues (since 0.33).
    scans_on_after_own_preemption: 33..,
    /// Adapters of all running requests count against `max_loras` (since 0.33), not only those of
    /// requests with tokens in this step.
    counts_adapters_of_all_running: 33..,
    /// A waiting request with no computable token is skipped (since 0.33) instead of ending admission.
    steps_over_empty_chunks: 33..,
    /// A single engine defers prefills for `prefill_schedule_interval` (since 0.33). Before, only ranks that step
    /// together do so.
    spaces_own_prefills: 33..,

    // Resumable requests (streaming inputs).
    /// Resumable requests are simulated (since 0.32; earlier rules are not implemented).
    has_sessions: 32..,
    /// The next part of a prompt is appended after all known tokens except the last one (since 0.33). Before, it is
    /// appended after the computed tokens.
    keeps_known_of_sessions: 33..,

    // Drafts and outputs.
    /// With a draft model, each step reserves slots for `max_num_seqs` requests (0.27). Later it reserves slots
    /// for the scheduled requests.
    reserves_slots_of_all_seqs: 27,
    /// Chunks end before the tokens that a drafter reads ahead (since 0.28). Multi-token prediction reads one token
    /// per module.
    spares_lookahead: 28..,
    /// If a request with one token left has no room for all drafts below `max_model_len`, admission ends (up to 0.28).
    /// Later the request is admitted without drafts.
    waits_for_drafts_at_the_end: 27..=28,
    /// A request with one token left is padded with drafts even if no other request decodes in this
    /// step (since 0.30).
    pads_without_decodes: 30..,
    /// Tokens after a stop are subtracted from the computed tokens (since 0.33), and their output
    /// placeholders are removed.
    takes_back_after_stops: 33..,
    /// Full blocks are committed with the step's output also if there are drafts (since 0.33). Before, only
    /// async scheduling does this.
    commits_outputs_with_drafts: 33..,
    /// The hash of a block covers the tokens after the block, with EAGLE and MTP (since 0.33).
    has_lookahead_hashes: 33..,

    // Blocks and prefix hits.
    /// Without prefix caching, the block freed first is reused first (0.27). Later the block freed last is
    /// reused first.
    queues_uncached_blocks: 27,
    /// If a drafter drops the last block of a hit, the prompt end that is kept lies one block earlier (since
    /// 0.30).
    keeps_ends_for_dropped_blocks: 30..,
    /// In a group that drops a block, the block before the end of a shared prefix is kept as well
    /// (since 0.33).
    keeps_before_junctions: 33..,
    /// The dropped block may contain the last known token (since 0.32). Before, a lookup ends
    /// with the block before it.
    drops_last_known_block: 32..,
    /// In full attention, a block larger than the hashed length is announced again at the
    /// end of a whole prompt (up to 0.31). Later releases announce it at the last position that the
    /// same prompt can resume from.
    announces_whole_prompts: 27..=31,
    /// Only the first kind of full attention is cut to the common hit of all groups (up to 0.28). Later every kind is.
    cuts_first_full_attention_alone: 27..=28,
    /// The state at the end of a prompt is offered again in each step that holds it (0.32).
    offers_prompt_states_again: 32,

    // Mamba and linear-attention states that are kept at block boundaries.
    /// A chunk can leave a state at a block boundary within the chunk (since 0.29), in addition to the state at its
    /// end.
    has_checkpoints: 29..,
    /// Every chunk that begins at a block boundary leaves a state inside the chunk, wherever the chunk ends, unless a
    /// drafter drops a block (0.29). Later, only the last chunk of a prompt leaves one, if the layer's kernel supports
    /// it.
    leaves_any_checkpoint: 29,
    /// Blocks for states inside a chunk are allocated for all chunks (up to 0.30), even if only the states at the ends
    /// of prompts are kept.
    checkpoints_sparse_chunks: 27..=30,
    /// Chunks end at the last block boundary within the known tokens (up to 0.31), even if no later request
    /// can resume there.
    stops_at_known_end: 27..=31,
    /// The block that a drafter drops may end with the last token of a prompt (since 0.32), so the state before that
    /// block is kept.
    drops_from_whole_prompts: 32..,
    /// Admission assumes that each growing table needs the maximum number of blocks (up to 0.29), not its actual need.
    assumes_most_states: 27..=29,
    /// If a chunk leaves a state inside it, the boundaries before that state count as blocks (0.30).
    counts_passed_boundaries: 30,
    /// If a chunk leaves a state inside it, blocks for drafts are allocated again (0.31). Existing draft blocks keep
    /// their places in the table (0.30 and 0.31).
    keeps_drafts_at_checkpoints: 30 | 31,
    /// Draft blocks before the latest state move to the end of the table, including a draft block in whose place the
    /// chunk leaves a state (up to 0.29).
    moves_all_drafts: 27..=29,
    /// A state left inside a chunk is cached even if it is not one of the states to keep (0.30 and 0.31).
    caches_any_checkpoint: 30 | 31,
    /// The state at the end of a prompt is uncached again if only such states are kept (0.30).
    forgets_prompt_checkpoints: 30,
    /// If no chunk ended at a boundary, the states before it stay allocated while the request runs, except the state
    /// before the latest one (up to 0.29).
    keeps_states_before_gaps: 27..=29,

    // Multimodal items.
    /// The block with the end of the prompt, completed by outputs, is hashed with only the last item of the
    /// prompt (up to 0.30). Later it is hashed with all items that it touches.
    hashes_last_item_alone: 27..=30,
    /// With `disable_chunked_mm_input`, an item at the start of a chunk is kept whole, too (since 0.33).
    keeps_first_item_whole: 33..,
    /// A drafter that reads ahead treats an uncomputed item as text (since 0.33).
    reads_uncomputed_items_as_text: 33..,
    /// An item is computed with the first chunk whose drafter reads it ahead (since 0.28). Before, it is computed with
    /// the chunk that contains it.
    computes_items_read_ahead: 28..,
    /// `disable_chunked_mm_input` is applied before the lookup in the encoder cache (since 0.32), so a chunk also ends
    /// before a cached item.
    keeps_cached_items_whole: 32..,
    /// A request references an item at each of its places (since 0.32), not only at the first place in a chunk.
    refers_at_every_place: 32..,
    /// A request releases an item after the last of its places (since 0.29), not after the first.
    refers_until_last_place: 29..,
    /// An item that was evicted and recomputed in one step is not listed as evicted (since 0.28).
    lists_lasting_evictions_alone: 28..,

    // Offloading to the host (since 0.32). Rules that all supported releases share are listed as well.
    /// After a preemption, the blocks of a prompt are offered to the host again (since 0.33).
    offers_blocks_again: 33..,
    /// In the LRU order, all blocks that a request stores or uses share one rank until it ends, and those with later
    /// tokens are evicted first (since 0.33). Before, each stored block is a separate use, in token order.
    ranks_blocks_by_request: 33..,
    /// Either all blocks that a step computed for a request are stored, or none.
    stores_all_or_none: 32..,
    /// If a block is still being copied to the host, the scheduler skips the request. Otherwise the hit would end
    /// there.
    waits_for_blocks_on_their_way: 32..,
    /// If another request is loading a block, the scheduler skips the request, too.
    waits_for_loads_of_others: 32..,
    /// If the request's own blocks are still being copied, the scheduler skips the request, too.
    waits_for_own_copies: 32..,
    /// When a request ends, all blocks that it stored or found are touched, the last one first.
    uses_blocks_at_ends: 32..,
    /// Blocks that were not stored are offered once more when their request ends.
    offers_blocks_of_ended: 32..,
    /// Blocks that are offered together do not evict each other.
    keeps_offered_blocks: 32..,
    /// Copies of a preempted request's blocks are finished at once. Copies of an ended request's blocks are finished
    /// when these blocks are reused.
    flushes_copies: 32..,
}
