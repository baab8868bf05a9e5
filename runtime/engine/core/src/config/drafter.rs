//! Drafters: how drafts are proposed, and which scheduler and KV-cache rules they change.
//!
//! Sources: vLLM's `vllm/config/{speculative,vllm}.py` and `vllm/v1/core/kv_cache_coordinator.py`.

use super::{ConfigError, EngineConfigInput};
use crate::compat::Reservations;
use crate::kv::groups::{KvCacheGroup, KvCacheKind};

/// The method that proposes drafts (vLLM's `method` of `speculative_config`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drafter {
    /// A drafter without KV, such as n-grams.
    #[default]
    Ngram,
    /// EAGLE or EAGLE-3.
    Eagle,
    /// One multi-token-prediction module, which proposes all drafts.
    Mtp,
    /// One multi-token-prediction module per draft.
    MultiModuleMtp,
    /// A separate draft model.
    DraftModel,
}

impl Drafter {
    /// Whether the drafter's KV for a token depends on the token after it (vLLM's `use_eagle`).
    #[must_use]
    pub fn is_eagle_like(self) -> bool {
        matches!(self, Self::Eagle | Self::Mtp | Self::MultiModuleMtp)
    }

    /// Whether the drafter keeps KV.
    #[must_use]
    pub fn has_kv(self) -> bool {
        self != Self::Ngram
    }
}

/// Settings that follow from the drafter. All are zero without a drafter, or if the drafter has no KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafting {
    /// Slots that a step reserves beyond its tokens (vLLM's `num_lookahead_tokens`).
    pub lookahead_tokens: u32,
    /// Budget tokens that each scheduled request costs in addition (`max_num_new_slots_for_drafting`).
    pub draft_slots: u32,
    /// Budget tokens that no step may use (in 0.27, slots for the maximum number of running requests).
    pub withheld_tokens: u32,
    /// Number of known tokens after a chunk that the drafter reads, if the prompt continues
    /// (`num_prefill_lookahead_tokens`).
    pub prefill_lookahead_tokens: u32,
    /// Number of tokens after a block that its hash covers (`num_hash_lookahead_tokens`).
    pub hash_lookahead_tokens: u32,
    /// Whether the last block of a prefix hit is recomputed (`use_eagle_block_drop`).
    pub drops_block: bool,
}

impl Drafting {
    pub(super) fn of(input: &EngineConfigInput) -> Self {
        let (drafter, tokens) = (input.drafter, input.num_speculative_tokens);
        if tokens == 0 || !drafter.has_kv() {
            return Self::default();
        }
        let prefill_lookahead_tokens = match drafter {
            Drafter::MultiModuleMtp if input.rules.spares_lookahead() => tokens,
            Drafter::Eagle | Drafter::Mtp | Drafter::MultiModuleMtp => 1,
            Drafter::Ngram | Drafter::DraftModel => 0,
        };
        // Connectors use block hashes that cover only the block's own tokens.
        let hashes_ahead = input.rules.has_lookahead_hashes()
            && input.enable_prefix_caching
            && !input.disable_lookahead_block_hashes
            && input.kv_connector.is_none();
        let hash_lookahead_tokens = if hashes_ahead { prefill_lookahead_tokens } else { 0 };
        // The input of a draft model is one token longer than the target model's.
        let slots = u32::from(drafter == Drafter::DraftModel);
        let (draft_slots, withheld_tokens) =
            if input.rules.reserves_slots_of_all_seqs() { (0, slots * input.max_num_seqs) } else { (slots, 0) };
        Self {
            lookahead_tokens: tokens,
            draft_slots,
            withheld_tokens,
            prefill_lookahead_tokens,
            hash_lookahead_tokens,
            drops_block: drafter.is_eagle_like() && hash_lookahead_tokens == 0,
        }
    }

    /// Number of last computed tokens whose KV the drafter may rewrite once it knows the following tokens
    /// (vLLM's `num_reprefillable_tokens`).
    #[must_use]
    pub fn unsettled_tokens(&self) -> u32 {
        self.prefill_lookahead_tokens.saturating_sub(1)
    }

    /// The group's kind for the decision which blocks to hold: a sliding window also keeps the blocks of
    /// unsettled tokens (vLLM's `extra_retained_tokens`).
    pub(crate) fn held_kind(&self, kind: KvCacheKind) -> KvCacheKind {
        match kind {
            KvCacheKind::SlidingWindow { window_tokens } => {
                KvCacheKind::SlidingWindow { window_tokens: window_tokens.saturating_add(self.unsettled_tokens()) }
            }
            other => other,
        }
    }

    /// Whether the group `index` drops the last block of a hit: groups with layers of the drafter do, or all
    /// groups if no group is marked.
    pub(crate) fn drops_in(&self, groups: &[KvCacheGroup], index: usize) -> bool {
        self.drops_block && (groups[index].has_drafter || groups.iter().all(|group| !group.has_drafter))
    }

    /// Checks for settings that vLLM refuses with a drafter that has KV, or that are undefined with one here.
    pub(super) fn check(input: &EngineConfigInput, aligned_tokens: u32, errors: &mut Vec<ConfigError>) {
        let field = "drafter";
        let groups = &input.kv_cache_groups;
        if input.drafter.has_kv() && input.num_speculative_tokens == 0 {
            let reason = "a drafter proposes at least one token";
            errors.push(ConfigError::Needs { field, needed: "num_speculative_tokens", reason });
        }
        if groups.iter().any(|group| group.has_drafter) && !input.drafter.is_eagle_like() {
            let reason = "the last block of a hit is dropped in groups with layers of EAGLE or MTP".to_owned();
            errors.push(ConfigError::Groups { reason });
        }
        if !input.drafter.has_kv() {
            return;
        }
        let mut exclude = |other_field, reason| errors.push(ConfigError::Exclusive { field, other_field, reason });
        if input.kv_tiers.is_some() {
            exclude("kv_tiers", "the KV of a drafter is not offloaded here");
        }
        if input.reservations == Reservations::BetweenSteps {
            exclude("reservations", "Dynamo's mocker has no drafter with KV");
        }
        let drafting = Self::of(input);
        let (field, value, withheld) =
            ("max_num_batched_tokens", input.max_num_batched_tokens, drafting.withheld_tokens);
        if value <= withheld {
            errors.push(ConfigError::TooSmall { field, value, least: withheld + 1 });
        }
        let drops = |index: usize| drafting.drops_in(groups, index);
        let is_local = |index: usize| matches!(groups[index].kind, KvCacheKind::ChunkedLocal { .. });
        if input.enable_prefix_caching && (0..groups.len()).any(|index| drops(index) && is_local(index)) {
            let reason = "vLLM drops no block of chunked local attention: say which other groups have layers of the \
                          drafter (`+drafter`)";
            errors.push(ConfigError::Groups { reason: reason.to_owned() });
        }
        let has_volatile = drafting.drops_block || groups.iter().any(|group| group.has_drafter);
        let (tokens, ahead) = (aligned_tokens, drafting.prefill_lookahead_tokens);
        if input.enable_prefix_caching && has_volatile && tokens < ahead {
            errors.push(ConfigError::TooSmall { field: "block_size", value: tokens, least: ahead });
        }
    }
}
