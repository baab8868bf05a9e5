//! Engines with groups of layers: blocks by group, windows, prefix hits and events, with random
//! settings and requests.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Tokens, Whims, arb_config, arb_groups, request, situation};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vcr_core::kv_event::KvEvent;
use vcr_core::{
    CapacityPolicy, Engine, EngineConfig, EngineConfigInput, KvCacheGroup, KvCacheKind, KvRole, MambaCacheMode,
    RequestId, RequestSpec, Reservations, StopRules,
};

/// Settings of an engine with groups, large enough for most requests.
fn arb_engine() -> impl Strategy<Value = EngineConfig> {
    let own = |config: &EngineConfig| {
        let plain = EngineConfigInput {
            capacity: CapacityPolicy::Preempt,
            reservations: Reservations::InSteps,
            max_extra_tokens_per_step: 0,
            kv_tiers: None,
            num_gpu_blocks: config.num_gpu_blocks() * 4,
            ..config.stated()
        };
        EngineConfig::new(plain).expect("it is valid without groups")
    };
    let with_groups = |config: EngineConfig| {
        let intervals = proptest::sample::select(vec![None, None, Some(0), Some(1), Some(3)]);
        let drawn = (arb_groups(config.block_size()), intervals, any::<u8>(), any::<bool>());
        drawn.prop_filter_map("vLLM would start", move |(mut groups, interval, with_drafter, keeps_all)| {
            for (index, group) in groups.iter_mut().enumerate() {
                group.has_drafter = config.drafter().is_eagle_like() && with_drafter >> index & 1 == 1;
            }
            let keeps_all = keeps_all && config.rules().keeps_all_states();
            let mamba_cache_mode = if keeps_all { MambaCacheMode::All } else { MambaCacheMode::None };
            let input = EngineConfigInput { kv_cache_groups: groups, mamba_cache_mode, ..config.stated() };
            let aligned = EngineConfig::new(input.clone()).ok()?.aligned_tokens();
            let prefix_cache_retention_interval = interval.map(|segments| segments * aligned);
            EngineConfig::new(EngineConfigInput { prefix_cache_retention_interval, ..input }).ok()
        })
    };
    arb_config().prop_map(move |config| own(&config)).prop_flat_map(with_groups)
}

#[derive(Clone, Debug)]
enum Action {
    Submit {
        prompt_tokens: u32,
        shared: bool,
        max_tokens: u32,
        stops: bool,
        kv_role: KvRole,
    },
    Abort(usize),
    /// A transfer ends, successfully or not, or a held prompt is fetched.
    EndTransfer(usize, bool),
    Step,
    ResetCache(bool),
}

fn arb_action() -> impl Strategy<Value = Action> {
    let role = prop_oneof![6 => Just(KvRole::Local), 1 => Just(KvRole::Source), 2 => Just(KvRole::Destination)];
    let submission = (1..150u32, any::<bool>(), 1..60u32, any::<bool>(), role);
    prop_oneof![
        4 => submission.prop_map(|(prompt_tokens, shared, max_tokens, stops, kv_role)| {
            Action::Submit { prompt_tokens, shared, max_tokens, stops, kv_role }
        }),
        1 => any::<usize>().prop_map(Action::Abort),
        2 => (any::<usize>(), proptest::bool::weighted(0.8)).prop_map(|(which, arrives)| Action::EndTransfer(which, arrives)),
        12 => Just(Action::Step),
        1 => any::<bool>().prop_map(Action::ResetCache),
    ]
}

struct Driver {
    engine: Engine,
    policy: Whims,
    live: BTreeMap<u64, RequestId>,
    /// Tags of the live requests whose KV will be held at their end.
    sources: BTreeSet<u64>,
    /// Tags of requests that wait for KV.
    loading: BTreeSet<u64>,
    /// Tags of requests whose KV is held.
    held: BTreeSet<u64>,
    transfers: u64,
    steps: u64,
    next_tag: u64,
    /// Keys that are cached according to the events: group and content, with the number of blocks.
    cached: BTreeMap<(u32, u64), u32>,
    freed_in_windows: u64,
}

impl Driver {
    fn new(config: EngineConfig, seed: u64) -> Self {
        let mut engine = Engine::new(config);
        engine.pool_mut().record_events(true);
        Self {
            engine,
            policy: Whims::new(seed),
            live: BTreeMap::new(),
            sources: BTreeSet::new(),
            loading: BTreeSet::new(),
            held: BTreeSet::new(),
            transfers: 0,
            steps: 0,
            next_tag: 0,
            cached: BTreeMap::new(),
            freed_in_windows: 0,
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Submit { prompt_tokens, shared, max_tokens, stops, kv_role } => {
                let tag = self.next_tag;
                self.next_tag += 1;
                // Drivers do not transfer states.
                let kv_role = if self.engine.config().keeps_states() { KvRole::Local } else { kv_role };
                let stops = stops.then(|| Box::new(StopRules::of_token(5)));
                let max_tokens = if kv_role == KvRole::Source { 1 } else { max_tokens };
                let plain = request(self.engine.config(), tag, prompt_tokens, shared, max_tokens);
                let spec = RequestSpec { stops, kv_role, ..plain };
                if self.engine.check(prompt_tokens, max_tokens).is_ok() {
                    self.live.insert(tag, self.engine.submit(spec).expect("it was checked"));
                    self.sources.extend((kv_role == KvRole::Source).then_some(tag));
                }
            }
            Action::Abort(which) => {
                if let Some((&tag, &id)) = self.live.iter().nth(which % self.live.len().max(1)) {
                    self.live.remove(&tag);
                    self.loading.remove(&tag);
                    self.held.remove(&tag);
                    self.engine.abort(id);
                }
            }
            Action::EndTransfer(which, arrives) => self.end_transfer(which, arrives),
            Action::Step => self.step(),
            Action::ResetCache(preempt_running) => {
                let in_use = self.engine.pool().num_active() > 0;
                assert!(self.engine.reset_prefix_cache(preempt_running) || in_use);
            }
        }
        self.check_tables();
        self.follow_events();
        self.engine.pool().assert_consistent();
    }

    fn end_transfer(&mut self, which: usize, arrives: bool) {
        let pending: Vec<u64> = self.loading.union(&self.held).copied().collect();
        let Some(&tag) = pending.get(which % pending.len().max(1)) else { return };
        let id = self.live[&tag];
        if self.held.remove(&tag) {
            self.live.remove(&tag);
            self.engine.release_held_kv(id);
            return;
        }
        self.loading.remove(&tag);
        self.transfers += 1;
        if arrives {
            self.engine.remote_kv_arrived(id);
        } else {
            self.engine.remote_kv_failed(id);
        }
    }

    fn step(&mut self) {
        let scheduled = self.engine.may_schedule() && {
            self.steps += 1;
            self.engine.apply_policy(&mut self.policy, self.steps).expect("it says what it may");
            self.engine.schedule();
            self.freed_in_windows += self.engine.plan().freed_block_ids.len() as u64;
            self.loading.extend(self.engine.plan().remote_loads.iter().map(|load| load.tag));
            !self.engine.plan().scheduled.is_empty()
        };
        self.check_tables();
        if self.engine.step_in_flight() && !(scheduled && self.engine.may_schedule()) {
            for output in self.engine.update(&mut Tokens).outputs.clone() {
                if output.finish.is_none() {
                    continue;
                }
                if self.sources.contains(&output.tag) && self.live.contains_key(&output.tag) {
                    self.held.insert(output.tag);
                } else {
                    self.live.remove(&output.tag);
                }
            }
        }
    }

    /// Every reference belongs to a table entry. A table has null blocks only at the front, before a window,
    /// except for states, which are only in some places.
    fn check_tables(&self) {
        let groups = self.engine.config().kv_cache_groups();
        let block_size = self.engine.config().block_size();
        let caching = self.engine.config().enable_prefix_caching();
        let mut references = 0;
        let mut owners: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
        for (&tag, &id) in &self.live {
            let tables: Vec<&[u32]> = self.engine.group_block_tables(id).collect();
            for (index, table) in tables.iter().enumerate() {
                let nulls = match groups[index].kind {
                    KvCacheKind::Mamba { .. } => table.iter().filter(|&&block| block == 0).count(),
                    _ => table.iter().take_while(|&&block| block == 0).count(),
                };
                let held: BTreeSet<u32> = table.iter().copied().filter(|&block| block != 0).collect();
                assert_eq!(held.len(), table.len() - nulls, "request {tag}, group {index}: {table:?}");
                assert!(groups[index].kind != KvCacheKind::FullAttention || nulls == 0);
                references += held.len() as u64;
                for block in held {
                    let (owner, other) = *owners.entry(block).or_insert((index, tag));
                    assert!(owner == index && (caching || other == tag), "block {block} is used for two things");
                }
            }
            let slots =
                |(table, group): (&&[u32], &KvCacheGroup)| table.len() as u32 * group.block_size.unwrap_or(block_size);
            let with_slots = tables.iter().zip(groups).filter(|(_, group)| !group.kind.is_mamba());
            let all: Vec<u32> = with_slots.map(slots).collect();
            let most = groups.iter().filter_map(|group| group.block_size).max().unwrap_or(block_size);
            if let (Some(least), Some(longest)) = (all.iter().min(), all.iter().max()) {
                assert!(longest - least < most, "groups are of different lengths: {all:?}");
            }
        }
        assert_eq!(self.engine.pool().total_references(), references);
    }

    /// Checks that blocks that events remove were stored before.
    fn follow_events(&mut self) {
        let log = self.engine.pool().events().expect("recording");
        for (group, event) in log.iter_by_group() {
            match event {
                KvEvent::Stored { blocks, .. } => {
                    blocks.iter().for_each(|&hash| *self.cached.entry((group, hash)).or_default() += 1);
                }
                KvEvent::Removed(hash) => {
                    let copies = self.cached.get_mut(&(group, hash)).expect("removed what was stored");
                    *copies = copies.checked_sub(1).expect("removed as often as stored");
                }
                KvEvent::Cleared => self.cached.clear(),
            }
        }
        self.engine.pool_mut().clear_events();
    }

    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.live.is_empty() && !self.engine.step_in_flight() {
                return;
            }
            self.act(&Action::EndTransfer(0, true));
            self.act(&Action::Step);
        }
        panic!("these never end: {:?}, {}", self.live, situation(&self.engine));
    }
}

#[test]
fn groups_keep_their_blocks_apart_and_give_all_back() {
    let config = ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() };
    let cases = (arb_engine(), proptest::collection::vec(arb_action(), 1..100), any::<u64>());
    let totals = Cell::new([0u64; 5]);
    let result = TestRunner::new(config).run(&cases, |(config, actions, whims)| {
        let mut driver = Driver::new(config, whims);
        actions.iter().for_each(|action| driver.act(action));
        driver.drain();
        prop_assert_eq!(driver.engine.pool().num_active(), 0);
        prop_assert_eq!(driver.engine.num_requests(), 0);
        prop_assert_eq!(driver.engine.outstanding_prefill_tokens(), 0);
        let stats = driver.engine.stats();
        let hits = stats.prefix.hit_tokens + stats.preempted_prefix.hit_tokens;
        let own = [driver.next_tag, stats.preemptions, driver.freed_in_windows, hits, driver.transfers];
        let before = totals.get();
        totals.set(std::array::from_fn(|index| before[index] + own[index]));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let [requests, preemptions, freed, hits, transfers] = totals.get();
    assert!(
        preemptions > 20 && freed > 300 && hits > 300 && transfers > 100,
        "{requests} {preemptions} {freed} {hits} {transfers}"
    );
}

fn engine(groups: &[&str], caching: bool) -> Engine {
    let kv_cache_groups = groups.iter().map(|group| group.parse().expect("a group of layers")).collect();
    let input = EngineConfigInput {
        block_size: 4,
        num_gpu_blocks: 100,
        max_num_batched_tokens: 64,
        max_num_seqs: 8,
        enable_prefix_caching: caching,
        kv_cache_groups,
        ..EngineConfigInput::default()
    };
    Engine::new(EngineConfig::new(input).expect("a valid engine"))
}

fn run_to_end(engine: &mut Engine) {
    while engine.num_running() + engine.num_waiting() > 0 {
        engine.schedule();
        engine.update(&mut Tokens);
    }
}

#[test]
fn a_window_gives_back_the_blocks_that_it_has_passed() {
    let mut engine = engine(&["full", "sliding_window:6"], true);
    let spec = request(engine.config(), 1, 20, false, 8);
    let id = engine.submit(spec).unwrap();
    engine.schedule();
    assert_eq!(engine.plan().blocks_of_group(&engine.plan().scheduled[0], 1), [6, 7, 8, 9, 10]);
    engine.update(&mut Tokens);
    engine.schedule();
    // The next token, at position 20, needs the tokens from 15 on.
    let plan = engine.plan();
    assert_eq!(
        (plan.window_frees.len(), plan.window_frees[0].group, &plan.freed_block_ids[..]),
        (1, 1, &[6, 7, 8][..])
    );
    let tables: Vec<&[u32]> = engine.group_block_tables(id).collect();
    assert_eq!((tables[0].len(), &tables[1][..5]), (6, &[0, 0, 0, 9, 10][..]));
}

/// The chunks of a single request, and its table of the second group after each chunk.
fn chunks(groups: &[&str], caching: bool, prompt_tokens: u32) -> Vec<(u32, Vec<u32>)> {
    let mut engine = engine(groups, caching);
    let id = engine.submit(request(engine.config(), 1, prompt_tokens, false, 3)).expect("it fits");
    let mut chunks = Vec::new();
    while engine.num_running() + engine.num_waiting() > 0 {
        let tokens = engine.schedule().total_num_scheduled_tokens;
        let tables: Vec<&[u32]> = engine.group_block_tables(id).collect();
        chunks.push((tokens, tables[1].to_vec()));
        engine.update(&mut Tokens);
    }
    chunks
}

#[test]
fn states_are_kept_where_chunks_end() {
    // The last boundary before the end of the prompt is at 12; a later request can resume there.
    assert_eq!(
        chunks(&["full", "mamba"], true, 14),
        [(12, vec![0, 0, 4]), (2, vec![0, 0, 4, 6]), (1, vec![0, 0, 0, 6]), (1, vec![0, 0, 0, 6]),]
    );
    // Mamba 2 leaves the state at 12 inside the chunk that computes the whole prompt.
    assert_eq!(
        chunks(&["full", "mamba:1"], true, 14),
        [(14, vec![0, 0, 5, 6]), (1, vec![0, 0, 0, 6]), (1, vec![0, 0, 0, 6])]
    );
    // Without prefix caching, there is only one state.
    assert_eq!(chunks(&["full", "mamba"], false, 14), [(14, vec![5]), (1, vec![5]), (1, vec![5])]);
}

#[test]
fn a_state_is_read_in_the_step_after_the_one_that_offers_it() {
    let mut engine = engine(&["full", "mamba"], true);
    for tag in [1, 3] {
        engine.submit(request(engine.config(), tag, 14, true, 1)).unwrap();
    }
    assert_eq!(engine.schedule().scheduled.len(), 1);
    engine.update(&mut Tokens);
    engine.schedule();
    let computed: Vec<u32> = engine.plan().scheduled.iter().map(|entry| entry.num_computed_tokens).collect();
    assert_eq!(computed, [12, 12]);
}

#[test]
fn a_prefix_is_hit_as_far_as_every_group_holds_it() {
    let mut engine = engine(&["full", "sliding_window:6"], true);
    engine.submit(request(engine.config(), 1, 40, true, 1)).unwrap();
    run_to_end(&mut engine);
    let prompt = request(engine.config(), 1, 41, true, 1).prompt;
    assert_eq!(engine.cached_prefix_blocks(prompt.block_hashes()), 10);
    engine.submit(request(engine.config(), 3, 33, true, 1)).unwrap();
    engine.schedule();
    let plan = engine.plan();
    assert_eq!(plan.scheduled[0].num_computed_tokens, 32);
    assert_eq!(plan.blocks_of_group(&plan.scheduled[0], 1)[..6], [0; 6], "the window needs two blocks of the hit");
}

#[test]
fn one_group_of_full_attention_is_no_group() {
    assert!(!engine(&["full"], true).config().has_kv_cache_groups());
    assert!(!engine(&["full@4"], true).config().has_kv_cache_groups());
    assert!(engine(&["sliding_window:4"], true).config().has_kv_cache_groups());
}

#[test]
fn groups_with_which_vllm_would_not_start_are_refused() {
    let problems = |groups: &[&str], change: fn(&mut EngineConfigInput)| -> Vec<String> {
        let kv_cache_groups = groups.iter().map(|group| group.parse().unwrap()).collect();
        let mut input = EngineConfigInput { block_size: 16, kv_cache_groups, ..EngineConfigInput::default() };
        change(&mut input);
        EngineConfig::new(input).unwrap_err().iter().map(ToString::to_string).collect()
    };
    let nothing = |_: &mut EngineConfigInput| {};
    assert_eq!(
        problems(&["full", "sliding_window:64@24"], nothing),
        ["invalid `kv_cache_groups`: expected block sizes that are multiples of `block_size` (16), but one is 24"]
    );
    assert_eq!(
        problems(&["full@32", "chunked_local:64"], nothing),
        ["invalid `kv_cache_groups`: vLLM looks up chunked local attention only where all blocks have the same size"]
    );
    assert_eq!(
        problems(&["sliding_window:64@32"], nothing),
        ["invalid `kv_cache_groups`: the blocks of a single group have `block_size` tokens"]
    );
    let larger = "with prefix caching the blocks of Mamba, and of groups beside it, have `block_size` tokens";
    assert_eq!(problems(&["full@32", "mamba@32"], nothing), [format!("invalid `kv_cache_groups`: {larger}")]);
    let uncached = |input: &mut EngineConfigInput| input.enable_prefix_caching = false;
    assert_eq!(
        problems(&["full@32", "mamba@32"], uncached),
        ["invalid `kv_cache_groups`: without prefix caching a block of Mamba is as long as a sequence"]
    );
    assert_eq!(
        problems(&["full", "mamba"], |input| input.enable_chunked_prefill = false),
        ["`kv_cache_groups` needs `enable_chunked_prefill`: with prefix caching chunks of Mamba end where states are \
          kept"]
    );
    assert_eq!(
        problems(&["full", "mamba"], |input| input.mamba_cache_mode = MambaCacheMode::All),
        [
            "invalid `mamba_cache_mode`: expected none or align, got all: vLLM 0.33 keeps only the states at the ends of steps"
        ]
    );
    let modules = |input: &mut EngineConfigInput| {
        (input.drafter, input.num_speculative_tokens) = (vcr_core::Drafter::MultiModuleMtp, 2);
    };
    assert_eq!(
        problems(&["full", "mamba"], modules),
        ["`kv_cache_groups` cannot be combined with `drafter`: a chunk that ends where a state is kept may not leave \
          enough tokens for all modules"]
    );
    let interval = |input: &mut EngineConfigInput| input.prefix_cache_retention_interval = Some(40);
    assert_eq!(
        problems(&["full", "sliding_window:64"], interval),
        [
            "invalid `prefix_cache_retention_interval` (40): expected a multiple of the length that prefix hits are multiples of (16)"
        ]
    );
    assert_eq!(
        problems(&["full"], interval),
        ["`prefix_cache_retention_interval` needs `kv_cache_groups`: it only applies to sliding windows and Mamba"]
    );
    let bursts = |input: &mut EngineConfigInput| input.max_extra_tokens_per_step = 2;
    assert_eq!(
        problems(&["full", "sliding_window:64"], bursts),
        [
            "`kv_cache_groups` cannot be combined with `max_extra_tokens_per_step`: Dynamo's mocker has one group of full \
          attention"
        ]
    );
}
