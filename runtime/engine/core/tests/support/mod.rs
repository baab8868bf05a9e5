//! Random engines, requests and policies for property tests.

use proptest::prelude::*;
use vcr_core::policy::{EngineView, PolicyError, PolicyEvent, Preference, PreferenceCheck, SchedulingPolicy};
use vcr_core::seed::mix;
use vcr_core::{
    CapacityPolicy, DraftRange, Drafter, Engine, EngineConfig, EngineConfigInput, EvictionPolicy, HostRules,
    KvCacheGroup, KvCacheKind, KvTiersConfig, MambaCacheMode, NamedValue, Policy, Prompt, PromptItem, RequestSpec,
    Reservations, SchedulerRules, TokenSource, Victim,
};

/// Tokens depend only on request and position. Every 37th token is a stop token.
pub(crate) struct Tokens;

impl TokenSource for Tokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        (tag as u32).wrapping_mul(31).wrapping_add(output_index * 7) % 37
    }

    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        tag as u32 % (max_extra + 1)
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        (tag as u32 * 5 + 1) % (num_drafts + 1)
    }

    fn proposed_drafts(&mut self, tag: u64, most: u32) -> u32 {
        (tag as u32 * 3 + 2) % (most + 1)
    }
}

/// The load and the settings of an engine that is stuck.
pub(crate) fn situation(engine: &Engine) -> String {
    format!(
        "{} run, {} wait, {} of {} blocks free, latest stop {:?}, {:?}",
        engine.num_running(),
        engine.num_waiting(),
        engine.pool().num_free(),
        engine.pool().num_usable(),
        engine.plan().admission_stop,
        engine.config(),
    )
}

pub(crate) fn arb_config() -> impl Strategy<Value = EngineConfig> {
    let sizes = (1..20u32, 4..80u32, 1..12u32, 12..300u32);
    let policy = prop_oneof![Just(Policy::Fcfs), Just(Policy::Priority), Just(Policy::Ranked)];
    let switches = (any::<bool>(), any::<bool>(), policy, any::<bool>(), any::<bool>());
    let caps = (prop_oneof![Just(0), 5..50u32], 0.0..0.2f64, proptest::option::of(50..400u32), 0..3u32);
    let modes = prop_oneof![
        // Dynamo's bursts exclude drafts and async scheduling.
        1 => (0..3u32, Just(0), Just(false), Just(CapacityPolicy::Preempt)),
        2 => (Just(0), 0..5u32, any::<bool>(), Just(CapacityPolicy::Preempt)),
        1 => (0..3u32, Just(0), Just(false), Just(CapacityPolicy::GuaranteedNoEvict)),
    ];
    let between_steps = proptest::bool::weighted(0.3);
    let encoder = (proptest::option::of(1..60u32), proptest::option::of(1..60u32), any::<bool>());
    let stages = prop_oneof![3 => Just(1u32), 1 => 2..5u32];
    let ranges = proptest::option::weighted(0.3, (1..6u32, 0..4u32, 0..4u32));
    let others = (arb_rules(), between_steps, arb_drafter(), encoder, stages, ranges);
    let interval = prop_oneof![3 => Just(1u32), 1 => 2..6u32];
    let spacing = (interval, proptest::bool::weighted(0.3));
    (sizes, switches, caps, modes, others, arb_tiers(), spacing).prop_map(
        |(
            sizes,
            switches,
            caps,
            modes,
            (rules, between_steps, (drafter, hashes_alone), encoder, stages, ranges),
            tiers,
            (prefill_schedule_interval, has_input_room),
        )| {
            let (block_size, num_gpu_blocks, max_num_seqs, budget) = sizes;
            let (caching, chunking, policy, adaptive, reserve) = switches;
            let (threshold, watermark, max_model_len, max_loras) = caps;
            let (max_extra_tokens_per_step, num_speculative_tokens, async_scheduling, capacity) = modes;
            let drafter = match drafter {
                _ if num_speculative_tokens == 0 => Drafter::Ngram,
                // With one module per draft, the dropped block must hold all tokens that the drafts depend on.
                Drafter::MultiModuleMtp if num_speculative_tokens > block_size => Drafter::Mtp,
                drafter => drafter,
            };
            // With reservations between steps, Dynamo has bursts and no drafts.
            let between_steps = between_steps && num_speculative_tokens == 0;
            let tiers = tiers.filter(|_| !drafter.has_kv());
            let is_vllm = capacity == CapacityPolicy::Preempt && max_extra_tokens_per_step == 0 && !between_steps;
            let draft_ranges = ranges.filter(|_| num_speculative_tokens > 0).map_or(Vec::new(), |(last, few, many)| {
                let range = |first, last, tokens| DraftRange { first, last, tokens };
                vec![range(last + 2, 20, many), range(1, last, few)]
            });
            let has_early_drafts = num_speculative_tokens > 0 && !async_scheduling;
            let stages = if is_vllm && !has_early_drafts && tiers.is_none() { stages } else { 1 };
            // Without room for the longest request, a padded admission might never fit.
            let max_model_len = max_model_len.or((num_speculative_tokens > 0).then_some(300));
            let longest_blocks = max_model_len.unwrap_or(0).div_ceil(block_size) + 1;
            let mut input = EngineConfigInput {
                block_size,
                num_gpu_blocks: if num_speculative_tokens > 0 {
                    num_gpu_blocks.max(longest_blocks)
                } else {
                    num_gpu_blocks
                },
                max_num_seqs,
                // A draft model may withhold slots for the maximum number of running requests.
                max_num_batched_tokens: max_num_seqs
                    + if chunking { budget } else { budget.max(max_model_len.unwrap_or(0)) },
                max_num_scheduled_tokens: (chunking && has_input_room).then_some(budget),
                prefill_schedule_interval,
                max_model_len,
                policy,
                enable_prefix_caching: caching,
                enable_chunked_prefill: chunking,
                long_prefill_token_threshold: threshold,
                adaptive_long_prefill: adaptive,
                watermark,
                scheduler_reserve_full_isl: reserve || between_steps,
                capacity,
                victim: Victim::Newest,
                reservations: if between_steps { Reservations::BetweenSteps } else { Reservations::InSteps },
                max_num_active_seqs: None,
                max_loras,
                adapter_costs: None,
                max_extra_tokens_per_step,
                num_speculative_tokens,
                drafter,
                disable_lookahead_block_hashes: hashes_alone,
                async_scheduling,
                pipeline_parallel_size: stages,
                decode_context_parallel_size: 1,
                draft_ranges,
                rules,
                kv_connector: None,
                kv_tiers: tiers
                    .filter(|_| caching && capacity == CapacityPolicy::Preempt && max_extra_tokens_per_step == 0),
                kv_cache_groups: Vec::new(),
                mamba_cache_mode: MambaCacheMode::default(),
                prefix_cache_retention_interval: None,
                max_num_encoder_input_tokens: encoder.0,
                encoder_cache_size: encoder.1,
                disable_chunked_mm_input: encoder.2,
            };
            let fitting = HostRules::of(&input);
            let has_drafts = input.num_speculative_tokens > 0;
            let fits = |rules| match rules {
                HostRules::Vllm => fitting == HostRules::Vllm,
                HostRules::Dynamo16 => !has_drafts,
                HostRules::Dynamo => true,
            };
            if let Some(tiers) = input.kv_tiers.as_mut().filter(|tiers| !fits(tiers.rules)) {
                tiers.rules = HostRules::Dynamo;
            }
            EngineConfig::new(input).expect("drawn to be valid")
        },
    )
}

/// All releases with the same weight, except that the newest has a third.
fn arb_rules() -> impl Strategy<Value = SchedulerRules> {
    let releases = SchedulerRules::NAMES.iter().map(|(_, rules)| *rules).collect::<Vec<_>>();
    prop_oneof![2 => proptest::sample::select(releases), 1 => Just(SchedulerRules::default())]
}

/// A drafter, and whether block hashes cover only the block's own tokens.
fn arb_drafter() -> impl Strategy<Value = (Drafter, bool)> {
    let with_kv = vec![Drafter::Eagle, Drafter::Mtp, Drafter::MultiModuleMtp, Drafter::DraftModel];
    (prop_oneof![Just(Drafter::Ngram), proptest::sample::select(with_kv)], any::<bool>())
}

fn group(kind: KvCacheKind, scale: u32, block_size: u32) -> KvCacheGroup {
    KvCacheGroup { kind, block_size: Some(scale * block_size), has_drafter: false }
}

/// Groups of one or more kinds, for an engine with blocks of `block_size` tokens.
pub(crate) fn arb_groups(block_size: u32) -> impl Strategy<Value = Vec<KvCacheGroup>> {
    let windows = move |scales: Vec<u32>| {
        let kind = prop_oneof![
            2 => (1..60u32).prop_map(|window_tokens| KvCacheKind::SlidingWindow { window_tokens }),
            1 => Just(KvCacheKind::FullAttention),
        ];
        let one = (kind, proptest::sample::select(scales));
        proptest::collection::vec(one.prop_map(move |(kind, scale)| group(kind, scale, block_size)), 2..5)
    };
    let local = (1..60u32).prop_map(|chunk_tokens| KvCacheKind::ChunkedLocal { chunk_tokens });
    let with_local = (local, 1..3usize, windows(vec![1])).prop_map(move |(kind, count, mut others)| {
        others.truncate(2);
        others.extend(vec![group(kind, 1, block_size); count]);
        others
    });
    let single = (1..60u32)
        .prop_map(move |window_tokens| vec![group(KvCacheKind::SlidingWindow { window_tokens }, 1, block_size)]);
    let checkpoint = proptest::sample::select(vec![None, Some(1), Some(3)]);
    let others = (0..3usize, windows(vec![1]));
    let with_states =
        (checkpoint, 1..4usize, others).prop_map(move |(checkpoint_tokens, count, (kept, mut others))| {
            others.truncate(kept);
            others.extend(vec![group(KvCacheKind::Mamba { checkpoint_tokens }, 1, block_size); count]);
            others
        });
    prop_oneof![
        1 => windows(vec![1]),
        1 => windows(vec![1, 2, 3]),
        1 => with_local,
        1 => single,
        2 => with_states,
    ]
}

/// Tiers in which transferring a block takes a few nanoseconds or no time.
pub(crate) fn arb_tiers() -> impl Strategy<Value = Option<KvTiersConfig>> {
    let rules = proptest::sample::select(HostRules::NAMES).prop_map(|(_, rules)| rules);
    let connector = (rules, any::<bool>(), 0..3u32, any::<bool>());
    let drawn = (1..40u32, 0..20u32, any::<bool>(), connector);
    proptest::option::of(drawn.prop_map(|(host_blocks, disk_blocks, is_instant, connector)| {
        let (rules, is_adaptive, store_threshold, offload_prompt_only) = connector;
        let bytes_per_s = (!is_instant).then_some(1_000_000_000);
        KvTiersConfig {
            rules,
            eviction_policy: if is_adaptive { EvictionPolicy::Arc } else { EvictionPolicy::Lru },
            store_threshold,
            offload_prompt_only,
            host_blocks,
            disk_blocks: if rules == HostRules::Dynamo16 { 0 } else { disk_blocks },
            kv_bytes_per_token: 1,
            offload_batch_size: 3,
            device_to_host_bytes_per_s: bytes_per_s,
            host_to_device_bytes_per_s: bytes_per_s,
            host_to_disk_bytes_per_s: bytes_per_s,
            disk_to_host_bytes_per_s: bytes_per_s,
            host_latency_ns: u64::from(host_blocks % 3),
            disk_latency_ns: 5,
            shared_host: None,
            shared_disk: None,
        }
    }))
}

/// Multimodal items for a prompt with this content: none, or items of which some repeat and some are shared with
/// other prompts.
fn items(config: &EngineConfig, content: u32, prompt_tokens: u32) -> Vec<PromptItem> {
    let chunk = match config.long_prefill_token_threshold() {
        0 => config.step_tokens(),
        threshold => threshold.min(config.step_tokens()),
    };
    let drafting = config.drafting();
    let chunk = chunk.saturating_sub(drafting.draft_slots + drafting.prefill_lookahead_tokens);
    let longest = config.encoder_budget_embeds().min(config.encoder_cache_embeds()).min(chunk);
    let mut items = Vec::new();
    if longest == 0 {
        return items;
    }
    // A chunk that ends where states are kept may be too short for an item that must not be split.
    if config.kv_cache_groups().iter().any(|group| matches!(group.kind, KvCacheKind::Mamba { .. })) {
        return items;
    }
    let mut state = mix(content.into());
    let mut offset = state as u32 % 20;
    while !content.is_multiple_of(3) {
        state = mix(state);
        let identity = state % 5;
        let len = (identity as u32 * 7 + 1).min(longest);
        // With a module per draft, no chunk ends this late, even before an item that waits for space.
        if offset + len.max(drafting.prefill_lookahead_tokens) > prompt_tokens {
            break;
        }
        let item = PromptItem::new(identity, offset, len);
        items.push(if identity == 2 { item.with_embed_runs([1..3, 5..8]) } else { item });
        // In 0.32, a drafter that reads ahead keeps an item in the cache while the next item waits
        // for space. If the next item begins too early, it waits forever.
        let least = if config.rules() <= SchedulerRules::V0_32 { 2 * drafting.prefill_lookahead_tokens } else { 0 };
        offset += len + least + (state >> 32) as u32 % 9;
    }
    items
}

/// A request that depends on its tag. Two in three requests have an adapter if adapters are on. Every other prompt
/// keeps its tokens. Some requests ignore the cache, and some have multimodal items.
pub(crate) fn request(
    config: &EngineConfig,
    tag: u64,
    prompt_tokens: u32,
    shared: bool,
    max_tokens: u32,
) -> RequestSpec {
    let adapters = config.max_loras() > 0 && !tag.is_multiple_of(3);
    let lora = adapters.then_some((tag % 4) as u32);
    let salt = lora.map_or(0, |lora| u64::from(lora) + 1);
    let content = if shared { 1 } else { 1000 + tag as u32 };
    let prompt = if tag.is_multiple_of(2) {
        let tokens = (0..prompt_tokens).map(|index| content * 512 + index);
        let items = items(config, content, prompt_tokens);
        if items.is_empty() {
            Prompt::of_tokens(tokens.collect(), config.hashed_blocks(), salt)
        } else {
            Prompt::of_tokens_with_items(tokens.collect(), config.hashed_blocks(), salt, items)
        }
    } else if tag.is_multiple_of(5) {
        let tokens: Vec<u32> = (0..prompt_tokens).map(|index| content * 512 + index).collect();
        let mut prompt = Prompt::new(config.hashed_blocks(), salt);
        prompt.push_tokens_with_items(&tokens, items(config, content, prompt_tokens));
        prompt
    } else {
        let mut prompt = Prompt::new(config.hashed_blocks(), salt);
        prompt.push_run(u64::from(content), 0, prompt_tokens);
        prompt
    };
    let skip_reading_prefix_cache = tag.is_multiple_of(7);
    RequestSpec { lora, skip_reading_prefix_cache, ..RequestSpec::new(tag, prompt, max_tokens) }
}

/// A policy with random valid answers, which depend on a seed and on its input. The answers include extreme ranks and
/// caps of one token, for waiting and for running requests. The policy checks the engine's events.
pub(crate) struct Whims {
    state: u64,
    check: PreferenceCheck,
    /// For each slot, whether its request exists and runs.
    slots: Vec<Option<bool>>,
    now_ns: u64,
}

impl Whims {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, check: PreferenceCheck::default(), slots: Vec::new(), now_ns: 0 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.state = mix(self.state);
        self.state % below
    }

    fn follow(&mut self, event: &PolicyEvent) {
        self.check.note(event);
        match *event {
            PolicyEvent::Arrived { slot, prompt_tokens, .. } => {
                let slot = slot as usize;
                self.slots.resize(self.slots.len().max(slot + 1), None);
                assert_eq!(self.slots[slot].replace(false), None, "slot {slot} was given away twice");
                self.state = mix(self.state ^ u64::from(prompt_tokens));
            }
            PolicyEvent::Admitted { slot, .. } => {
                assert_eq!(self.slots[slot as usize].replace(true), Some(false), "only waiting requests are admitted");
            }
            PolicyEvent::Preempted { slot } => {
                assert_eq!(self.slots[slot as usize].replace(false), Some(true), "only running requests are preempted");
            }
            PolicyEvent::Ended { slot, computed_tokens, output_tokens } => {
                assert!(self.slots[slot as usize].take().is_some(), "a request ended twice");
                self.state = mix(self.state ^ u64::from(computed_tokens) << 32 ^ u64::from(output_tokens));
            }
        }
    }
}

impl SchedulingPolicy for Whims {
    fn name(&self) -> &str {
        "whims"
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        assert!(!batch.events.is_empty() && batch.now_ns >= self.now_ns);
        self.now_ns = batch.now_ns;
        batch.events.iter().for_each(|event| self.follow(event));
        for progress in batch.progress {
            assert_eq!(self.slots[progress.slot as usize], Some(true), "progress of a request that does not run");
            self.state =
                mix(self.state ^ u64::from(progress.computed_tokens) << 32 ^ u64::from(progress.output_tokens));
        }
        self.check.begin_answer();
        for slot in (0..self.slots.len() as u32).filter(|&slot| self.slots[slot as usize].is_some()).collect::<Vec<_>>()
        {
            let rank = [i64::MIN, -1, 0, 1, 2, i64::MAX][self.draw(6) as usize];
            let tokens = [Some(1), Some(2), Some(7), None][self.draw(4) as usize];
            let kinds = self.draw(8);
            let said = [
                Preference::AdmissionRank { slot, rank },
                Preference::EvictionRank { slot, rank: rank.wrapping_neg() },
                Preference::ChunkCap { slot, tokens },
            ];
            preferences.extend(said.into_iter().enumerate().filter(|(kind, _)| kinds >> kind & 1 == 1).map(|(_, p)| p));
        }
        for preference in preferences {
            assert_eq!(self.check.check(preference), Ok(()));
        }
        Ok(())
    }
}
