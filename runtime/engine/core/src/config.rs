//! Engine settings: raw input with vLLM's names and defaults, and the checked form.

mod adapters;
mod budget;
mod connector;
mod draft_ranges;
mod drafter;
pub(crate) mod error;
mod groups;
pub(crate) mod options;
mod parallel;
pub(crate) mod rules;
#[cfg(test)]
mod tests;
mod tiers;

pub use adapters::AdapterCosts;
pub use connector::{KvConnector, LoadFailures};
pub use draft_ranges::DraftRange;
pub use drafter::{Drafter, Drafting};
pub use error::ConfigError;
pub use options::{
    ACCEPTANCE_RATES, Drivers, EngineOption, GroupsOption, KV_CACHE_GROUPS, NamedValue, OPTIONS, OptionValue,
    RatesOption, derived_settings, option,
};
pub use rules::SchedulerRules;

use options::checked_value;

use crate::compat::{CapacityPolicy, Quirks, Reservations, Victim};
use crate::kv::groups::kind::{self, EngineSizes, KvCacheGroup, KvCacheKind, MambaCacheMode};
use crate::kv::hash::HashedBlocks;
use crate::kv::tiers::{HostRules, KvTiersConfig};
use crate::plugins::latency::{EngineInfo, KvGroup};

/// Order of the waiting queue, and the rule that chooses the preemption victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served; the newest running request is preempted.
    #[default]
    Fcfs,
    /// The smallest (priority, arrival) is admitted first; the largest is preempted.
    Priority,
    /// Ordered by a [`crate::policy::SchedulingPolicy`], which the driver
    /// [applies](crate::Engine::apply_policy) before each step. vLLM has no such policy; the ranks replace its
    /// priorities.
    Ranked,
}

/// Settings as a user states them. Names and defaults are vLLM 0.33's, except `async_scheduling`, which is
/// off unless requested.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfigInput {
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks, including the reserved null block.
    pub num_gpu_blocks: u32,
    /// Maximum number of running requests.
    pub max_num_seqs: u32,
    /// Maximum number of tokens computed in one step.
    pub max_num_batched_tokens: u32,
    /// Maximum number of tokens scheduled in one step. None means `max_num_batched_tokens`.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Steps between two steps that compute prompts, while any request decodes.
    pub prefill_schedule_interval: u32,
    /// Longest sequence, prompt plus output, in tokens. None means that only the pool limits it.
    pub max_model_len: Option<u32>,
    /// Queue order and victim choice.
    pub policy: Policy,
    /// Whether full blocks are kept for later requests with the same prefix.
    pub enable_prefix_caching: bool,
    /// Whether a prompt may be computed over several steps.
    pub enable_chunked_prefill: bool,
    /// Maximum tokens of one request per step if there are other requests. 0 means no limit.
    pub long_prefill_token_threshold: u32,
    /// Raise `long_prefill_token_threshold` to the budget divided by the number of running and waiting requests, if
    /// this is larger.
    pub adaptive_long_prefill: bool,
    /// Fraction of the pool that admissions leave free for running requests.
    pub watermark: f64,
    /// Whether a request is admitted only when its whole known sequence fits, not just its first chunk.
    pub scheduler_reserve_full_isl: bool,
    /// Blocks that an admission guarantees.
    pub capacity: CapacityPolicy,
    /// The preemption victim, unless the policy chooses it.
    pub victim: Victim,
    /// When blocks for KV from other engines are allocated.
    pub reservations: Reservations,
    /// An additional cap on running requests, lower than `max_num_seqs`.
    pub max_num_active_seqs: Option<u32>,
    /// Maximum distinct adapters among running requests; 0 when adapters are off.
    pub max_loras: u32,
    /// Times that adapters cost; none if adapters cost no time.
    pub adapter_costs: Option<AdapterCosts>,
    /// Extra tokens that a sampling request may emit in a step (multi-token
    /// prediction as Dynamo's mocker models it). 0 means one token per step.
    pub max_extra_tokens_per_step: u32,
    /// Maximum embeddings of multimodal items that a step computes. None means `max_num_batched_tokens`, or the
    /// size of the largest item so far if that is more. (vLLM knows the largest item of its model.)
    pub max_num_encoder_input_tokens: Option<u32>,
    /// Capacity of the encoder cache in embeddings. None means the same default as for the encoder budget.
    pub encoder_cache_size: Option<u32>,
    /// Whether a chunk ends before an item that does not fit into it as a whole.
    pub disable_chunked_mm_input: bool,
    /// Draft tokens proposed for a request's next step; 0 for none.
    pub num_speculative_tokens: u32,
    /// Number of drafts by batch size, at most `num_speculative_tokens` each. Empty if the number does not depend
    /// on the batch (vLLM's `num_speculative_tokens_per_batch_size`).
    pub draft_ranges: Vec<DraftRange>,
    /// The method that proposes drafts.
    pub drafter: Drafter,
    /// For EAGLE and MTP since vLLM 0.33: drop the last block of a hit, as older releases do, and compute block hashes
    /// without the tokens after the block. With a KV connector, the engine always does both.
    pub disable_lookahead_block_hashes: bool,
    /// Whether each step is decided before the outputs of the previous step are known.
    pub async_scheduling: bool,
    /// Number of pipeline stages. This many steps can be in flight at once, plus one under
    /// `async_scheduling`.
    pub pipeline_parallel_size: u32,
    /// Ranks that share the KV of each sequence. A block holds `block_size` tokens on each rank.
    pub decode_context_parallel_size: u32,
    /// The vLLM version whose rules apply.
    pub rules: SchedulerRules,
    /// KV tiers below the device, if any.
    pub kv_tiers: Option<KvTiersConfig>,
    /// A KV connector whose lookups the driver answers, if any.
    pub kv_connector: Option<KvConnector>,
    /// Groups of layers with separate blocks; empty for one group of full attention.
    pub kv_cache_groups: Vec<KvCacheGroup>,
    /// The states of Mamba and linear attention that are kept. Without prefix caching, each sequence keeps one
    /// state, whatever is set here.
    pub mamba_cache_mode: MambaCacheMode,
    /// With sliding windows or Mamba: distance in tokens between the prefixes whose window blocks or states
    /// are kept for later requests. 0 keeps only the ends of prompts. None keeps every prefix that a later
    /// request may hit.
    pub prefix_cache_retention_interval: Option<u32>,
}

impl Default for EngineConfigInput {
    fn default() -> Self {
        Self {
            block_size: 16,
            num_gpu_blocks: 16_385,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            max_num_scheduled_tokens: None,
            prefill_schedule_interval: 1,
            max_model_len: None,
            policy: Policy::Fcfs,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            adaptive_long_prefill: false,
            watermark: 0.0,
            scheduler_reserve_full_isl: true,
            capacity: CapacityPolicy::Preempt,
            victim: Victim::Newest,
            reservations: Reservations::InSteps,
            max_num_active_seqs: None,
            max_loras: 0,
            adapter_costs: None,
            max_extra_tokens_per_step: 0,
            max_num_encoder_input_tokens: None,
            encoder_cache_size: None,
            disable_chunked_mm_input: false,
            num_speculative_tokens: 0,
            draft_ranges: Vec::new(),
            drafter: Drafter::default(),
            disable_lookahead_block_hashes: false,
            async_scheduling: false,
            pipeline_parallel_size: 1,
            decode_context_parallel_size: 1,
            rules: SchedulerRules::default(),
            kv_tiers: None,
            kv_connector: None,
            kv_cache_groups: Vec::new(),
            mamba_cache_mode: MambaCacheMode::default(),
            prefix_cache_retention_interval: None,
        }
    }
}

/// Checked settings of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// The checked settings. Here `block_size` counts the tokens of all context ranks.
    input: EngineConfigInput,
    watermark_blocks: u32,
    quirks: Quirks,
    drafting: Drafting,
    context_ranks: u32,
}

checked_value!(EngineConfig, policy: Policy, "order of the waiting queue and choice of the preemption victim");
checked_value!(EngineConfig, drafter: Drafter, "origin of the drafts");
checked_value!(EngineConfig, rules: SchedulerRules, "the vLLM version whose rules apply");
checked_value!(EngineConfig, capacity: CapacityPolicy, "blocks that an admission guarantees");
checked_value!(EngineConfig, reservations: Reservations, "when blocks for prompts of other engines are taken");
checked_value!(
    EngineConfig,
    prefix_cache_retention_interval: Option<u32>,
    "distance in tokens between prefixes whose window or state is kept; none for every prefix that may be hit"
);
checked_value!(EngineConfig, adapter_costs: Option<AdapterCosts>, "times of adapters, if they cost any");
checked_value!(EngineConfig, kv_connector: Option<KvConnector>, "a KV connector whose answers the driver gives, if any");

impl EngineConfig {
    /// Checks every field and reports all problems, not only the first.
    ///
    /// # Errors
    /// Each setting, or pair of settings, with which vLLM would not start or with which a request could wait
    /// forever.
    pub fn new(mut input: EngineConfigInput) -> Result<Self, Vec<ConfigError>> {
        if let [KvCacheGroup { kind, block_size, .. }] = input.kv_cache_groups[..]
            && kind.is_full()
            && block_size.is_none_or(|block_size| block_size == input.block_size)
        {
            input.kv_cache_groups.clear();
        }
        let context_ranks = parallel::share_blocks(&mut input);
        let mut errors: Vec<ConfigError> = OPTIONS.iter().filter_map(|option| option.problem(&input)).collect();
        if let Some(tiers) = &input.kv_tiers {
            tiers.check(&mut errors);
        }
        draft_ranges::check(&mut input, &mut errors);
        if errors.is_empty() {
            parallel::check(&input, context_ranks, &mut errors);
            budget::check(&input, &mut errors);
            Self::check_pairs(&input, &mut errors);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let watermark_blocks = (input.watermark * f64::from(input.num_gpu_blocks)) as u32;
        let quirks = Quirks::new(input.capacity, input.victim, input.reservations, input.max_extra_tokens_per_step);
        Ok(Self { watermark_blocks, quirks, drafting: Drafting::of(&input), context_ranks, input })
    }

    fn check_pairs(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
        if input.reservations == Reservations::BetweenSteps && !input.scheduler_reserve_full_isl {
            errors.push(ConfigError::Needs {
                field: "reservations",
                needed: "scheduler_reserve_full_isl",
                reason: "a preempted request that is resumed before requests with arrived KV, in less room than it \
                         needs, could be preempted without end",
            });
        }
        Self::check_bursts(input, errors);
        adapters::check(input, errors);
        tiers::check(input, errors);
        connector::check(input, errors);
        groups::check(input, errors);
        let aligned = kind::aligned_tokens(&input.kv_cache_groups, input.block_size);
        Drafting::check(
            input,
            aligned.filter(|_| !input.kv_cache_groups.is_empty()).unwrap_or(input.block_size),
            errors,
        );
        if input.capacity == CapacityPolicy::GuaranteedNoEvict && input.num_speculative_tokens > 0 {
            errors.push(ConfigError::Exclusive {
                field: "capacity",
                other_field: "num_speculative_tokens",
                reason: "drafts take blocks that no admission has reserved",
            });
        }
    }

    /// Dynamo's bursts are emitted with the last token of a step. They are undefined with drafts or with several
    /// steps in flight.
    fn check_bursts(input: &EngineConfigInput, errors: &mut Vec<ConfigError>) {
        if input.max_extra_tokens_per_step == 0 {
            return;
        }
        let field = "max_extra_tokens_per_step";
        let mut exclude = |other_field, reason| errors.push(ConfigError::Exclusive { field, other_field, reason });
        if input.num_speculative_tokens > 0 {
            exclude("num_speculative_tokens", "both say how many tokens a step may emit");
        }
        if input.async_scheduling {
            exclude("async_scheduling", "the next step would be decided before the burst is known");
        }
    }

    /// Checks that vLLM makes, or should make, when the whole engine starts: the pool holds one request of
    /// `max_model_len`, and a request fits into a step with its drafts. The scheduler alone, in vLLM and here,
    /// runs without these checks.
    pub fn check_start_up(&self) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        self.check_drafts(&mut errors);
        // A chunk may have to leave the tokens that the drafter reads ahead to the next chunk. With a lower threshold,
        // no token might be left to compute.
        let (field, least) = ("long_prefill_token_threshold", self.drafting.prefill_lookahead_tokens);
        let value = self.input.long_prefill_token_threshold;
        if value > 0 && value < least {
            errors.push(ConfigError::TooSmall { field, value, least });
        }
        if let Some(model_len) = self.input.max_model_len {
            let needed = u32::try_from(self.most_blocks(model_len)).unwrap_or(u32::MAX);
            let usable = self.input.num_gpu_blocks - 1;
            if needed > usable {
                errors.push(ConfigError::PoolBelowModelLen { model_len, needed, usable });
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Blocks that admissions leave free for running requests.
    #[must_use]
    pub fn watermark_blocks(&self) -> u32 {
        self.watermark_blocks
    }

    /// Whether requests may have structured outputs. Dynamo's mocker does not support them.
    #[must_use]
    pub fn simulates_structured_outputs(&self) -> bool {
        !self.quirks().reserves_between_steps() && !self.host_rules().sleeps_until_transfers()
    }

    #[inline]
    pub(crate) fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Settings that follow from the drafter.
    #[must_use]
    #[inline]
    pub fn drafting(&self) -> Drafting {
        self.drafting
    }

    /// Indices of the groups that recompute the last block of a prefix hit. An engine without
    /// groups counts as one group with index 0.
    #[must_use]
    pub fn groups_that_drop_a_block(&self) -> Vec<usize> {
        let groups = &self.input.kv_cache_groups;
        if groups.is_empty() {
            return if self.drafting.drops_block { vec![0] } else { Vec::new() };
        }
        (0..groups.len()).filter(|&index| self.drafting.drops_in(groups, index)).collect()
    }

    /// Tokens that the identity of a block covers.
    #[must_use]
    pub fn hashed_blocks(&self) -> HashedBlocks {
        let lookahead_tokens = self.drafting.hash_lookahead_tokens;
        HashedBlocks { size_tokens: self.input.block_size, lookahead_tokens }
    }

    /// Whether each step samples exactly one token per request, without drafts or rollbacks.
    pub(crate) fn decodes_plainly(&self) -> bool {
        !self.input.async_scheduling && self.decodes_by_single_tokens()
    }

    /// Whether each decode of a request yields one token, which is always known before the step after the next.
    pub(crate) fn decodes_by_single_tokens(&self) -> bool {
        self.input.num_speculative_tokens == 0
            && self.input.max_extra_tokens_per_step == 0
            && self.input.pipeline_parallel_size == 1
    }

    /// Whether the scan of running requests continues after a request preempts itself.
    pub(crate) fn scans_on_after_own_preemption(&self) -> bool {
        let by_rank = self.input.policy != Policy::Fcfs;
        by_rank && self.input.rules.scans_on_after_own_preemption() || self.quirks.preempts_oldest()
    }

    /// The maximum number of running requests: `max_num_active_seqs` if set, otherwise `max_num_seqs`.
    #[must_use]
    pub fn max_running(&self) -> usize {
        self.input.max_num_active_seqs.unwrap_or(self.input.max_num_seqs) as usize
    }

    /// Number of steps that may be scheduled before the oldest one is applied.
    #[must_use]
    pub fn max_steps_in_flight(&self) -> usize {
        self.input.pipeline_parallel_size as usize + usize::from(self.input.async_scheduling)
    }

    /// Whether the number of drafts depends on the number of requests in a batch.
    #[must_use]
    pub fn drafts_depend_on_batch(&self) -> bool {
        !self.input.draft_ranges.is_empty()
    }

    /// Number of drafts that each request of a batch of this size proposes for its next step.
    #[must_use]
    pub fn drafts_of_batch(&self, batch_requests: usize) -> u32 {
        draft_ranges::drafts_of(&self.input.draft_ranges, self.input.num_speculative_tokens, batch_requests as u32)
    }

    /// Number of steps from one decode of a request to its next (vLLM's `decode_stagger`).
    #[must_use]
    pub fn decode_stagger(&self) -> usize {
        if self.input.async_scheduling { self.input.pipeline_parallel_size as usize } else { 1 }
    }

    /// The settings as the user stated them: `block_size` counts the tokens of one rank.
    #[must_use]
    pub fn stated(&self) -> EngineConfigInput {
        let mut input = self.input.clone();
        parallel::unshare_blocks(&mut input, self.context_ranks);
        input
    }

    /// Ranks that share each block (vLLM's `decode_context_parallel_size`). After the check, `block_size` counts the
    /// tokens of all ranks, and the field `decode_context_parallel_size` is 1.
    #[must_use]
    pub fn context_ranks(&self) -> u32 {
        self.context_ranks
    }

    /// Whether blocks are freed only after the steps in flight have ended (vLLM's
    /// `defer_block_free`).
    #[must_use]
    pub fn defers_frees(&self) -> bool {
        let is_consumer = self.input.kv_connector.is_some_and(|connector| connector.is_consumer);
        (is_consumer || self.offloads_tiers()) && self.max_steps_in_flight() > 1
    }

    /// Whether an offloading connector answers lookups: the connector of the tiers or the driver's.
    pub(crate) fn has_offloading(&self) -> bool {
        self.offloads_tiers() || self.input.kv_connector.is_some_and(|connector| connector.offloading.is_some())
    }

    fn offloads_tiers(&self) -> bool {
        self.host_rules().is_connector()
    }

    /// Whether the offloading connector of the tiers also stores blocks of outputs.
    pub(crate) fn offloads_outputs(&self) -> bool {
        self.offloads_tiers() && self.input.kv_tiers.is_some_and(|tiers| !tiers.offload_prompt_only)
    }

    /// Rules of the host tier. Without a host tier: the rules of Dynamo's KV block manager.
    pub(crate) fn host_rules(&self) -> HostRules {
        self.input.kv_tiers.map_or(HostRules::Dynamo, |tiers| tiers.rules)
    }

    /// KV tiers below the device, if any.
    #[must_use]
    pub fn kv_tiers(&self) -> Option<&KvTiersConfig> {
        self.input.kv_tiers.as_ref()
    }

    /// Groups of layers with separate blocks; empty for one group of full attention.
    #[must_use]
    pub fn kv_cache_groups(&self) -> &[KvCacheGroup] {
        &self.input.kv_cache_groups
    }

    /// The engine's properties that latency models use. The tensor-parallel size is not an engine setting.
    #[must_use]
    pub fn info(&self) -> EngineInfo {
        let group = |group: &KvCacheGroup| KvGroup {
            kind: group.kind.of_models(),
            block_size_tokens: group.block_size.unwrap_or(self.block_size()),
            window_tokens: group.kind.window_tokens(),
        };
        EngineInfo {
            tensor_parallel_size: 1,
            pipeline_parallel_size: self.pipeline_parallel_size(),
            kv_total_blocks: u64::from(self.num_gpu_blocks()).saturating_sub(1),
            block_size_tokens: self.block_size().into(),
            kv_groups: self.kv_cache_groups().iter().map(group).collect(),
        }
    }

    /// Whether layers form groups with separate blocks, beyond one group of full attention.
    #[must_use]
    pub fn has_kv_cache_groups(&self) -> bool {
        !self.input.kv_cache_groups.is_empty()
    }

    /// Whether a group keeps states, as Mamba and linear attention do.
    #[must_use]
    pub fn keeps_states(&self) -> bool {
        self.input.kv_cache_groups.iter().any(|group| group.kind.is_mamba())
    }

    /// Whether the decoder has cross-attention layers, which read the encoder's outputs.
    #[must_use]
    pub fn is_encoder_decoder(&self) -> bool {
        self.input.kv_cache_groups.iter().any(|group| group.kind == KvCacheKind::CrossAttention)
    }

    /// The states that are kept, after taking prefix caching into account.
    #[must_use]
    pub fn mamba_cache_mode(&self) -> MambaCacheMode {
        self.input.mamba_cache_mode.with_prefix_caching(self.input.enable_prefix_caching)
    }

    pub(crate) fn max_in_flight_tokens(&self) -> u32 {
        self.input.max_num_batched_tokens.saturating_mul(self.max_steps_in_flight() as u32)
    }

    /// The maximum number of blocks that a request of `tokens` tokens holds at once.
    pub(crate) fn most_blocks(&self, tokens: u32) -> u64 {
        if !self.has_kv_cache_groups() {
            return tokens.div_ceil(self.input.block_size).into();
        }
        let held_kind = |kind| match kind {
            KvCacheKind::Mamba { .. } if !self.rules().has_checkpoints() => {
                KvCacheKind::Mamba { checkpoint_tokens: None }
            }
            kind => self.drafting.held_kind(kind),
        };
        let held =
            self.input.kv_cache_groups.iter().map(|group| KvCacheGroup { kind: held_kind(group.kind), ..*group });
        let sizes = EngineSizes {
            block_size: self.input.block_size,
            in_flight_tokens: self.max_in_flight_tokens(),
            max_model_len: self.max_model_len(),
            num_speculative_tokens: self.input.num_speculative_tokens,
            mamba_cache_mode: self.mamba_cache_mode(),
            encoder_tokens: self.encoder_budget_embeds(),
        };
        kind::most_blocks(held, &sizes, tokens)
    }

    /// The least common multiple of the block sizes of all groups. Every prefix hit is a multiple of it.
    #[must_use]
    pub fn aligned_tokens(&self) -> u32 {
        let aligned = kind::aligned_tokens(&self.input.kv_cache_groups, self.input.block_size);
        if self.has_kv_cache_groups() { aligned.unwrap_or(self.input.block_size) } else { self.input.block_size }
    }

    /// Embeddings of multimodal items that a step may compute, unless a larger item has arrived.
    #[must_use]
    pub fn encoder_budget_embeds(&self) -> u32 {
        self.input.max_num_encoder_input_tokens.unwrap_or(self.input.max_num_batched_tokens)
    }

    /// Capacity of the encoder cache in embeddings, unless a larger item has arrived.
    #[must_use]
    pub fn encoder_cache_embeds(&self) -> u32 {
        self.input.encoder_cache_size.unwrap_or(self.input.max_num_batched_tokens)
    }

    /// Whether an item larger than [`Self::encoder_budget_embeds`] raises the budget: true if no limit is set.
    pub(crate) fn encoder_budget_grows(&self) -> bool {
        self.input.max_num_encoder_input_tokens.is_none()
    }

    /// Whether an item larger than [`Self::encoder_cache_embeds`] raises the capacity: true if no size is set.
    pub(crate) fn encoder_cache_grows(&self) -> bool {
        self.input.encoder_cache_size.is_none()
    }

    /// Size in embeddings of the largest item that the configured limits allow.
    pub(crate) fn largest_item_embeds(&self) -> u32 {
        let limits = [self.input.max_num_encoder_input_tokens, self.input.encoder_cache_size];
        limits.into_iter().flatten().min().unwrap_or(u32::MAX)
    }

    /// Longest sequence in tokens; `u32::MAX` if only the pool limits it.
    #[must_use]
    pub fn max_model_len(&self) -> u32 {
        self.input.max_model_len.unwrap_or(u32::MAX)
    }
}
