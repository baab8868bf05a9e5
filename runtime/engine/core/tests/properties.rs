//! Invariants of the engine and its pool under random requests, aborts, transfers and pauses.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Tokens, Whims, arb_config, request, situation};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vcr_core::kv_event::KvEvent;
use vcr_core::plan::ScheduledKind;
use vcr_core::{
    CapacityPolicy, Engine, EngineConfig, FinishReason, KvRole, PauseState, RejectReason, Repetition, RequestId,
    RequestSpec, Reservations, StopRules,
};

fn stop_rules() -> StopRules {
    let repetition = Repetition { max_pattern_tokens: 40, min_pattern_tokens: 2, min_count: 2 };
    StopRules { tokens: vec![36, 5], min_tokens: 3, repetition: Some(repetition) }
}

#[derive(Clone, Debug)]
enum Action {
    Submit { prompt_tokens: u32, shared: bool, max_tokens: u32, priority: i32, role: KvRole, stops: bool },
    Abort { which: usize },
    AbortMidStep { which: usize },
    Step,
    Deliver,
    Reserve,
    FailTransfer,
    AbortAll,
    ResetCache { preempt_running: bool },
    Pause(PauseState),
}

fn arb_action() -> impl Strategy<Value = Action> {
    let role = prop_oneof![4 => Just(KvRole::Local), 1 => Just(KvRole::Source), 1 => Just(KvRole::Destination)];
    let submit = (1..200u32, any::<bool>(), 0..40u32, -2..3i32, role, any::<bool>()).prop_map(
        |(prompt_tokens, shared, max_tokens, priority, role, stops)| Action::Submit {
            prompt_tokens,
            shared,
            max_tokens,
            priority,
            role,
            stops,
        },
    );
    prop_oneof![
        6 => submit,
        2 => any::<usize>().prop_map(|which| Action::Abort { which }),
        2 => any::<usize>().prop_map(|which| Action::AbortMidStep { which }),
        12 => Just(Action::Step),
        1 => Just(Action::AbortAll),
        2 => Just(Action::Deliver),
        2 => Just(Action::Reserve),
        1 => Just(Action::FailTransfer),
        2 => any::<bool>().prop_map(|preempt_running| Action::ResetCache { preempt_running }),
        2 => prop_oneof![
            2 => Just(PauseState::Unpaused),
            2 => Just(PauseState::PausedNew),
            1 => Just(PauseState::PausedAll),
        ].prop_map(Action::Pause),
    ]
}

struct Driver {
    engine: Engine,
    /// Called before each step. Has an effect only if a policy ranks the engine's requests.
    policy: Whims,
    steps: u64,
    /// Advances by two nanoseconds with each action.
    now_ns: u64,
    live: BTreeMap<u64, (RequestId, u32)>,
    held: BTreeMap<u64, RequestId>,
    loading: Vec<(u64, RequestId)>,
    /// Tags of requests whose transfer has ended and which have not run since.
    loaded: BTreeSet<u64>,
    emitted: BTreeMap<u64, u32>,
    /// Number of cached copies by hash, according to the events.
    cached: BTreeMap<u64, u32>,
    next_tag: u64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    accepted: u32,
    rejected: u32,
    /// Number of requests whose blocks were allocated between steps.
    reserved: u32,
    preempted: u64,
    /// Number of multimodal items computed. `found` is the number found in the encoder cache.
    encoded: u64,
    found: u64,
}

/// Bounds on the KV of a request, computed without the engine.
struct Bounds {
    prompt_tokens: u64,
    /// 1, or 0 for pooling requests, which have no output.
    first_token: u64,
    max_model_len: u64,
    /// Maximum number of tokens in a step, if prompts are not chunked.
    whole_step_tokens: Option<u64>,
    /// Whether the prompt has no output, may be split, and fills `max_model_len`.
    never_ends: bool,
    pool_tokens: u64,
    /// Minimum number of tokens with KV, if the request ends by its length.
    least_tokens: u64,
    /// Maximum number of tokens with KV. Drafts and bursts need slots, too.
    most_tokens: u64,
    /// Number of tokens, in whole blocks, that a load of the prompt needs or leaves free. Only with drafts.
    load_tokens: Option<u64>,
}

impl Bounds {
    fn of(config: &EngineConfig, prompt_tokens: u32, max_tokens: u32, is_split: bool) -> Self {
        let [prompt_tokens, max_tokens] = [prompt_tokens, max_tokens].map(u64::from);
        let max_model_len = u64::from(config.max_model_len());
        let drafting = config.drafting();
        let drafts = config.num_speculative_tokens() + drafting.lookahead_tokens;
        let beyond = u64::from(config.max_extra_tokens_per_step() + drafts);
        let step_tokens = u64::from(config.step_tokens() - drafting.draft_slots);
        let block_size = u64::from(config.block_size());
        // The last output token has no KV.
        let least_tokens = (prompt_tokens + max_tokens.saturating_sub(1)).min(max_model_len - 1);
        let most_tokens = (prompt_tokens + max_tokens + beyond).min(max_model_len);
        Self {
            prompt_tokens,
            first_token: max_tokens.min(1),
            max_model_len,
            never_ends: is_split && max_tokens == 0 && prompt_tokens == max_model_len,
            whole_step_tokens: (!config.enable_chunked_prefill()).then_some(step_tokens),
            pool_tokens: u64::from(config.num_gpu_blocks() - 1) * block_size,
            least_tokens,
            most_tokens,
            load_tokens: (drafts > 0).then(|| {
                let blocks = prompt_tokens.div_ceil(block_size) + u64::from(1 + drafts).div_ceil(block_size);
                blocks * block_size
            }),
        }
    }

    fn check_accepted(&self) {
        assert!(self.prompt_tokens + self.first_token <= self.max_model_len, "no room for output");
        assert!(!self.never_ends, "its last token is never computed");
        assert!(self.least_tokens <= self.pool_tokens, "accepted a request larger than the pool");
        assert!(self.whole_step_tokens.is_none_or(|step| self.least_tokens <= step), "it can never be recomputed");
    }

    fn check_rejected(&self, reason: RejectReason) {
        match reason {
            RejectReason::PromptTooLong => assert!(self.prompt_tokens >= self.max_model_len),
            RejectReason::LastTokenNeverComputed => assert!(self.never_ends, "it would end"),
            RejectReason::ExceedsKvPool => assert!(self.most_tokens > self.pool_tokens, "it would fit"),
            RejectReason::LoadNeverFits => {
                assert!(self.load_tokens.is_some_and(|load| load > self.pool_tokens), "its load would start");
            }
            RejectReason::ExceedsTokenBudget => {
                assert!(self.whole_step_tokens.is_some_and(|step| self.most_tokens > step), "it would fit a step");
            }
            RejectReason::EmptyPrompt
            | RejectReason::ExceedsKvReserve
            | RejectReason::ExceedsPrefillBudget
            | RejectReason::KvTransfersOff
            | RejectReason::DuplicateRequest
            | RejectReason::AdaptersOff
            | RejectReason::SessionNotSimulated
            | RejectReason::StructuredNotSimulated
            | RejectReason::GrammarFailed
            | RejectReason::MisplacedItems
            | RejectReason::NotOneEncoderPrompt
            | RejectReason::ItemExceedsEncoder
            | RejectReason::ItemExceedsChunk => panic!("no such request was submitted: {reason}"),
        }
    }
}

impl Driver {
    fn new(config: EngineConfig, seed: u64) -> Self {
        let mut engine = Engine::new(config);
        engine.pool_mut().record_events(true);
        Self {
            engine,
            policy: Whims::new(seed),
            steps: 0,
            now_ns: 0,
            live: BTreeMap::new(),
            held: BTreeMap::new(),
            loading: Vec::new(),
            loaded: BTreeSet::new(),
            emitted: BTreeMap::new(),
            cached: BTreeMap::new(),
            next_tag: 0,
            counts: Counts::default(),
        }
    }

    fn act(&mut self, action: &Action) {
        self.now_ns += 2;
        self.advance_tiers();
        match action {
            Action::Submit { prompt_tokens, shared, max_tokens, priority, role, stops } => {
                let tag = self.next_tag;
                self.next_tag += 1;
                let spec = RequestSpec {
                    stops: stops.then(|| Box::new(stop_rules())),
                    priority: *priority,
                    kv_role: *role,
                    ..request(self.engine.config(), tag, *prompt_tokens, *shared, *max_tokens)
                };
                // An item splits a prompt even without chunked prefill, which the lengths alone do
                // not show.
                let has_items = !spec.prompt.items().is_empty();
                let config = self.engine.config();
                let is_split =
                    config.enable_chunked_prefill() || config.long_prefill_token_threshold() > 0 || has_items;
                let bounds = Bounds::of(config, *prompt_tokens, *max_tokens, is_split);
                let mut fits = self.engine.check(*prompt_tokens, *max_tokens);
                if has_items && bounds.never_ends {
                    fits = Err(RejectReason::LastTokenNeverComputed);
                }
                if *role == KvRole::Destination {
                    fits = fits.and_then(|()| self.engine.check_load(*prompt_tokens));
                }
                match fits.and_then(|()| self.engine.submit(spec)) {
                    Ok(id) => {
                        bounds.check_accepted();
                        self.live.insert(tag, (id, *max_tokens));
                        self.counts.accepted += 1;
                    }
                    Err(reason) => {
                        bounds.check_rejected(reason);
                        self.counts.rejected += 1;
                    }
                }
            }
            Action::Abort { which } => self.abort(*which),
            Action::AbortMidStep { which } => self.step(Some(*which)),
            Action::Step => self.step(None),
            Action::Reserve => self.reserve(),
            Action::Deliver => {
                if let Some((tag, id)) = self.loading.pop()
                    && self.live.contains_key(&tag)
                {
                    self.engine.remote_kv_arrived(id);
                    self.loaded.insert(tag);
                }
                if let Some((_, id)) = self.held.pop_first() {
                    self.engine.release_held_kv(id);
                }
            }
            Action::FailTransfer => {
                if let Some((tag, id)) = self.loading.pop()
                    && self.live.contains_key(&tag)
                {
                    self.engine.remote_kv_failed(id);
                }
            }
            Action::AbortAll => {
                let mut aborted = Vec::new();
                self.engine.abort_all(|tag| aborted.push(tag));
                assert!(aborted.iter().eq(self.live.keys()), "all that live are aborted in order of their arrival");
                self.live.clear();
            }
            Action::ResetCache { preempt_running } => {
                let in_use = self.engine.pool().num_active() > 0;
                let reset = self.engine.reset_prefix_cache(*preempt_running);
                assert!(reset || in_use, "a cache of which no block is in use is reset");
            }
            Action::Pause(state) => self.engine.set_pause_state(*state),
        }
        self.check_unfinished();
        self.follow_events();
        self.engine.pool().assert_consistent();
        assert!(self.engine.num_running() <= self.engine.config().max_running());
    }

    /// Allocates blocks, between two steps, for requests whose KV another engine computes.
    fn reserve(&mut self) {
        if self.engine.config().reservations() == Reservations::InSteps {
            return;
        }
        while let Some(load) = self.engine.reserve_remote() {
            assert!(self.live.contains_key(&load.tag), "reserved for a request that has ended");
            self.loading.push((load.tag, load.request));
            self.counts.reserved += 1;
        }
    }

    /// Advances the tiers and records the requests whose loads are complete.
    fn advance_tiers(&mut self) {
        let mut loaded = Vec::new();
        self.engine.advance_tiers(self.now_ns, &mut loaded);
        assert!(loaded.iter().all(|tag| self.live.contains_key(tag)), "loaded for a request that has ended");
        self.loaded.extend(loaded);
        if let Some(tiers) = self.engine.kv_tiers() {
            tiers.assert_consistent();
        }
    }

    /// Checks the number of requests that the engine continues in its pause state.
    fn check_unfinished(&self) {
        let unfinished = self.engine.num_unfinished();
        let running = self.engine.num_running();
        let loading = self.loading.iter().filter(|(tag, _)| self.live.contains_key(tag)).count();
        assert!((loading..=self.engine.num_waiting()).contains(&self.engine.num_skipped_waiting()));
        match self.engine.pause_state() {
            PauseState::Unpaused => assert_eq!(unfinished, self.live.len()),
            PauseState::PausedNew => assert!((running..=self.live.len()).contains(&unfinished)),
            PauseState::PausedAll => assert_eq!(unfinished, 0),
        }
    }

    /// Replays the events. The resulting cache must match the pool's lookups.
    fn follow_events(&mut self) {
        let pool = self.engine.pool_mut();
        for event in pool.events().expect("recording").iter() {
            match event {
                KvEvent::Stored { parent, blocks, .. } => {
                    let known = parent.is_none_or(|parent| self.cached.get(&parent).is_some_and(|&copies| copies > 0));
                    assert!(known, "stored after a block that is not cached");
                    blocks.iter().for_each(|&hash| *self.cached.entry(hash).or_default() += 1);
                }
                KvEvent::Removed(hash) => {
                    let copies = self.cached.get_mut(&hash).expect("removed what was stored");
                    *copies = copies.checked_sub(1).expect("removed as often as stored");
                }
                KvEvent::Cleared => self.cached.values_mut().for_each(|copies| *copies = 0),
            }
        }
        pool.clear_events();
        for (&hash, &copies) in &self.cached {
            assert_eq!(pool.cached_prefix_blocks(&[hash]), u32::from(copies > 0), "events and cache disagree");
        }
    }

    fn abort(&mut self, which: usize) {
        let Some((&tag, &(id, _))) = self.live.iter().nth(which % self.live.len().max(1)) else { return };
        self.live.remove(&tag);
        self.engine.abort(id);
    }

    /// One iteration of vLLM's loop: schedules a step if another may be in flight, and applies the oldest step if
    /// no further step may or can be scheduled.
    fn step(&mut self, abort_mid_step: Option<usize>) {
        let scheduled = self.engine.may_schedule() && self.schedule();
        if let Some(which) = abort_mid_step {
            self.abort(which);
        }
        if self.engine.step_in_flight() && !(scheduled && self.engine.may_schedule()) {
            self.update();
        }
    }

    fn schedule(&mut self) -> bool {
        let budget = self.engine.config().max_num_batched_tokens();
        let pause_state = self.engine.pause_state();
        let may_find_work = self.engine.has_schedulable_requests();
        self.steps += 1;
        self.engine.apply_policy(&mut self.policy, self.steps).expect("it says what it may");
        let preemptions = self.engine.stats().preemptions;
        self.engine.schedule();
        let never_evicts = self.engine.config().capacity() == CapacityPolicy::GuaranteedNoEvict;
        assert!(!never_evicts || self.engine.stats().preemptions == preemptions, "its blocks were guaranteed");
        let plan = self.engine.plan();
        let no_loads = plan.remote_loads.is_empty() && plan.tier_loads.is_empty();
        assert!(may_find_work || (plan.scheduled.is_empty() && no_loads));
        if pause_state != PauseState::Unpaused {
            assert!(no_loads, "a transfer was started during a pause");
        }
        // With reservations between steps, the last token of an arrived prompt costs no budget.
        let free = match self.engine.config().reservations() {
            Reservations::InSteps => 0,
            Reservations::BetweenSteps => {
                plan.scheduled.iter().filter(|entry| self.loaded.contains(&entry.tag)).count() as u32
            }
        };
        assert!(plan.total_num_scheduled_tokens <= budget + free, "the token budget was exceeded");
        let sum: u32 = plan.scheduled.iter().map(|entry| entry.num_scheduled_tokens).sum();
        assert_eq!(sum, plan.total_num_scheduled_tokens);
        let shape = plan.shape;
        assert_eq!(shape.prefill_tokens + shape.decode_tokens, u64::from(sum));
        assert_eq!(shape.batch_requests(), plan.scheduled.len() as u64);
        let embeds: u32 = plan.encoder_inputs.iter().map(|input| input.num_embeds).sum();
        assert_eq!((shape.encoder.items, shape.encoder.embeds), (plan.encoder_inputs.len() as u64, embeds.into()));
        // No random item exceeds the budget.
        assert!(embeds <= self.engine.config().encoder_budget_embeds(), "the encoder's budget was exceeded");
        let cache = self.engine.encoder_cache_use();
        assert!(cache.cached_embeds <= self.engine.config().encoder_cache_embeds(), "the encoder cache is too full");
        for input in &plan.encoder_inputs {
            let is_scheduled = plan.scheduled.iter().any(|entry| entry.tag == input.tag);
            assert!(is_scheduled, "computed an item for a request without a part in the step");
        }
        for entry in &plan.scheduled {
            assert!(entry.num_scheduled_tokens > u32::from(entry.num_draft_tokens), "drafts follow a known token");
            assert!(self.live.contains_key(&entry.tag), "scheduled a request that has ended");
            let goes_on = entry.kind == ScheduledKind::Running || self.loaded.contains(&entry.tag);
            match pause_state {
                PauseState::Unpaused => {}
                PauseState::PausedNew => assert!(goes_on, "admitted a request during a pause"),
                PauseState::PausedAll => panic!("scheduled a request during a pause"),
            }
            self.loaded.remove(&entry.tag);
        }
        self.loading.extend(plan.remote_loads.iter().map(|load| (load.tag, load.request)));
        !plan.scheduled.is_empty()
    }

    fn update(&mut self) {
        self.engine.offload_prompts(self.now_ns);
        let outputs = self.engine.update(&mut Tokens).outputs.clone();
        for output in outputs {
            let (id, max_tokens) = *self.live.get(&output.tag).expect("output of a request that has ended");
            assert_eq!(id, output.request);
            let emitted = self.emitted.entry(output.tag).or_default();
            *emitted += output.num_tokens;
            assert!(*emitted <= max_tokens, "more tokens than asked for");
            match output.finish {
                None => {}
                Some(FinishReason::Abort) => panic!("aborted requests have no output"),
                Some(_) => {
                    self.live.remove(&output.tag);
                    // Held KV stays, and the engine still counts its request.
                    if self.engine.live_tags().any(|tag| tag == output.tag) {
                        self.held.insert(output.tag, id);
                    }
                }
            }
        }
    }

    fn drain(&mut self) {
        self.engine.set_pause_state(PauseState::Unpaused);
        for _ in 0..20_000 {
            if self.live.is_empty() && self.held.is_empty() && !self.engine.step_in_flight() {
                // Copies into blocks of aborted requests end.
                self.now_ns += 1_000_000_000;
                self.advance_tiers();
                return;
            }
            self.act(&Action::Deliver);
            self.act(&Action::Reserve);
            self.act(&Action::Step);
        }
        panic!("these never end: {:?}, {}", self.live, situation(&self.engine));
    }
}

#[test]
fn every_request_ends_once_and_every_block_comes_back() {
    let config = ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() };
    let cases = (arb_config(), proptest::collection::vec(arb_action(), 1..120), any::<u64>());
    let total = Cell::new(Counts::default());
    let result = TestRunner::new(config).run(&cases, |(config, actions, whims)| {
        let mut driver = Driver::new(config, whims);
        for action in &actions {
            driver.act(action);
        }
        driver.drain();
        prop_assert_eq!(driver.engine.pool().total_references(), 0);
        prop_assert_eq!(driver.engine.pool().num_active(), 0);
        prop_assert_eq!(driver.engine.num_requests(), 0);
        prop_assert_eq!(driver.engine.encoder_cache_use().referenced_embeds, 0);
        prop_assert_eq!(driver.engine.num_waiting(), 0);
        prop_assert_eq!(driver.engine.num_skipped_waiting(), 0);
        prop_assert_eq!(driver.engine.outstanding_prefill_tokens(), 0);
        let before = total.get();
        total.set(Counts {
            accepted: before.accepted + driver.counts.accepted,
            rejected: before.rejected + driver.counts.rejected,
            reserved: before.reserved + driver.counts.reserved,
            preempted: before.preempted + driver.engine.stats().preemptions,
            encoded: before.encoded + driver.engine.stats().encoder.computed_items,
            found: before.found + driver.engine.stats().encoder.hits,
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // Without enough of these events, the test would prove nothing.
    let total = total.get();
    assert!(total.accepted > 2 * total.rejected, "{total:?}");
    assert!(total.reserved > 30 && total.preempted > 200, "{total:?}");
    assert!(total.encoded > 1_000 && total.found > 1_000, "{total:?}");
}
