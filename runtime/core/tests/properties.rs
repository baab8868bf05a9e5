//! What must hold of the engine and its pool whatever is asked of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vcr_core::kv_event::KvEvent;
use vcr_core::kv_pool::BlockId;
use vcr_core::latency::StepShape;
use vcr_core::plan::{AdmissionStop, ScheduledKind};
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, FinishReason, KvRole, PauseState, Policy, Prompt, RejectReason,
    Repetition, RequestId, RequestSpec, SchedulerRules, StopRules, TokenSource,
};

/// Answers that depend on request and position alone; every 37th token is a stop token.
struct Tokens;

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

/// Rules each of which ends some requests.
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
        1 => Just(Action::FailTransfer),
        2 => any::<bool>().prop_map(|preempt_running| Action::ResetCache { preempt_running }),
        2 => prop_oneof![
            2 => Just(PauseState::Unpaused),
            2 => Just(PauseState::PausedNew),
            1 => Just(PauseState::PausedAll),
        ].prop_map(Action::Pause),
    ]
}

fn arb_config() -> impl Strategy<Value = EngineConfig> {
    let sizes = (1..20u32, 4..80u32, 1..12u32, 12..300u32);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let caps = (prop_oneof![Just(0), 5..50u32], 0.0..0.2f64, proptest::option::of(50..400u32), 0..3u32);
    let modes = prop_oneof![
        // Dynamo's bursts exclude drafts and async scheduling.
        1 => (0..3u32, Just(0), Just(false)),
        2 => (Just(0), 0..5u32, any::<bool>()),
    ];
    (sizes, switches, caps, modes, any::<bool>()).prop_map(|(sizes, switches, caps, modes, older)| {
        let (block_size, num_gpu_blocks, max_num_seqs, budget) = sizes;
        let (caching, chunking, priority, adaptive, reserve) = switches;
        let (threshold, watermark, max_model_len, max_loras) = caps;
        let (max_extra_tokens_per_step, num_speculative_tokens, async_scheduling) = modes;
        // Without room for the longest request a padded admission may never fit.
        let max_model_len = max_model_len.or((num_speculative_tokens > 0).then_some(300));
        let longest_blocks = max_model_len.unwrap_or(0).div_ceil(block_size) + 1;
        let input = EngineConfigInput {
            block_size,
            num_gpu_blocks: if num_speculative_tokens > 0 {
                num_gpu_blocks.max(longest_blocks)
            } else {
                num_gpu_blocks
            },
            max_num_seqs,
            max_num_batched_tokens: if chunking { budget } else { budget.max(max_model_len.unwrap_or(0)) },
            max_model_len,
            policy: if priority { Policy::Priority } else { Policy::Fcfs },
            enable_prefix_caching: caching,
            enable_chunked_prefill: chunking,
            long_prefill_token_threshold: threshold,
            adaptive_long_prefill: adaptive,
            watermark,
            scheduler_reserve_full_isl: reserve,
            max_num_active_seqs: None,
            max_loras,
            max_extra_tokens_per_step,
            num_speculative_tokens,
            async_scheduling,
            rules: if older { SchedulerRules::V0_32 } else { SchedulerRules::V0_33 },
        };
        EngineConfig::new(input).expect("drawn to be valid")
    })
}

/// The driver's view of an engine, against which the engine is checked.
struct Driver {
    engine: Engine,
    live: BTreeMap<u64, (RequestId, u32)>,
    held: BTreeMap<u64, RequestId>,
    loading: Vec<(u64, RequestId)>,
    /// Tags of those whose transfer has ended and that have not run since.
    loaded: BTreeSet<u64>,
    emitted: BTreeMap<u64, u32>,
    /// What the events say is cached: copies by hash.
    cached: BTreeMap<u64, u32>,
    next_tag: u64,
}

impl Driver {
    fn new(config: EngineConfig) -> Self {
        let mut engine = Engine::new(config);
        engine.pool_mut().record_events(true);
        Self {
            engine,
            live: BTreeMap::new(),
            held: BTreeMap::new(),
            loading: Vec::new(),
            loaded: BTreeSet::new(),
            emitted: BTreeMap::new(),
            cached: BTreeMap::new(),
            next_tag: 0,
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Submit { prompt_tokens, shared, max_tokens, priority, role, stops } => {
                let tag = self.next_tag;
                self.next_tag += 1;
                let adapters = self.engine.config().max_loras > 0 && !tag.is_multiple_of(3);
                let lora = adapters.then_some((tag % 4) as u32);
                let spec = RequestSpec {
                    stops: stops.then(|| Box::new(stop_rules())),
                    priority: *priority,
                    lora,
                    kv_role: *role,
                    skip_reading_prefix_cache: tag.is_multiple_of(7),
                    ..RequestSpec::new(tag, self.prompt(tag, *prompt_tokens, *shared, lora), *max_tokens)
                };
                let fits = self.engine.check(*prompt_tokens, *max_tokens);
                match fits.and_then(|()| self.engine.submit(spec)) {
                    Ok(id) => {
                        self.live.insert(tag, (id, *max_tokens));
                    }
                    Err(reason) => assert_ne!(reason, RejectReason::EmptyPrompt),
                }
            }
            Action::Abort { which } => self.abort(*which),
            Action::AbortMidStep { which } => self.step(Some(*which)),
            Action::Step => self.step(None),
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

    /// What the engine says it goes on with under its pause state.
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

    /// Every other prompt keeps its tokens, to be hashed when its turn comes.
    fn prompt(&self, tag: u64, len_tokens: u32, shared: bool, lora: Option<u32>) -> Prompt {
        let block_size = self.engine.config().block_size;
        let salt = lora.map_or(0, |lora| u64::from(lora) + 1);
        let content = if shared { 1 } else { 1000 + tag as u32 };
        if tag.is_multiple_of(2) {
            return Prompt::of_tokens((0..len_tokens).map(|index| content * 512 + index).collect(), block_size, salt);
        }
        let mut prompt = Prompt::new(block_size, salt);
        prompt.push_run(u64::from(content), 0, len_tokens);
        prompt
    }

    /// Replays the events; what they say is cached must be what the pool finds.
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

    /// One turn of vLLM's loop: a step is scheduled if another may be in
    /// flight, and the oldest is applied if no more may be or can.
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
        let budget = self.engine.config().max_num_batched_tokens;
        let pause_state = self.engine.pause_state();
        let may_find_work = self.engine.has_schedulable_requests();
        let plan = self.engine.schedule();
        assert!(may_find_work || (plan.scheduled.is_empty() && plan.remote_loads.is_empty()));
        if pause_state != PauseState::Unpaused {
            assert!(plan.remote_loads.is_empty(), "a transfer was started during a pause");
        }
        assert!(plan.total_num_scheduled_tokens <= budget, "the token budget was exceeded");
        let sum: u32 = plan.scheduled.iter().map(|entry| entry.num_scheduled_tokens).sum();
        assert_eq!(sum, plan.total_num_scheduled_tokens);
        let shape = plan.shape;
        assert_eq!(shape.prefill_tokens + shape.decode_tokens, u64::from(sum));
        assert_eq!(shape.batch_requests(), plan.scheduled.len() as u64);
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
                    // Held KV stays; the engine counts it among its requests.
                    if self.engine.live_tags().any(|tag| tag == output.tag) {
                        self.held.insert(output.tag, id);
                    }
                }
            }
        }
    }

    /// Runs on until nothing is left.
    fn drain(&mut self) {
        self.engine.set_pause_state(PauseState::Unpaused);
        for _ in 0..200_000 {
            if self.live.is_empty() && self.held.is_empty() && !self.engine.step_in_flight() {
                return;
            }
            self.act(&Action::Deliver);
            self.act(&Action::Step);
        }
        panic!("{} requests never end: {:?}", self.live.len(), self.live);
    }
}

type Requests = Vec<(u32, bool, u32)>;

/// Requests with a prompt length, whether they share a prompt, and a number of tokens.
fn arb_requests() -> impl Strategy<Value = Requests> {
    proptest::collection::vec((1..120u32, any::<bool>(), 1..60u32), 1..12)
}

fn with_requests(config: EngineConfig, requests: &Requests) -> Engine {
    let mut driver = Driver::new(config);
    for &(prompt_tokens, shared, max_tokens) in requests {
        let role = KvRole::Local;
        driver.act(&Action::Submit { prompt_tokens, shared, max_tokens, priority: 0, role, stops: false });
    }
    driver.engine
}

/// A step as a log would show it: requests with tokens, depth, kind and new
/// blocks, and the KV events up to its schedule; then tokens given.
#[derive(Debug, PartialEq)]
enum Happened {
    Scheduled {
        requests: Vec<(u64, u32, u32, ScheduledKind, Vec<BlockId>)>,
        num_events: usize,
        waiting: u64,
        stop: AdmissionStop,
    },
    Given(Vec<(u64, u32)>),
    Events(Vec<String>),
}

/// Runs all requests to their ends, skipping up to `most` steps at a time. With
/// `pauses` none is admitted before all that run have ended.
fn history(config: EngineConfig, requests: &Requests, most: Option<usize>, pauses: bool) -> Vec<Happened> {
    let mut engine = with_requests(config, requests);
    let mut history = Vec::new();
    let mut shapes = Vec::new();
    loop {
        if engine.may_schedule() {
            engine.schedule();
            history.push(scheduled(&engine));
            let empty = engine.plan().scheduled.is_empty();
            if empty && !engine.step_in_flight() && engine.plan().preempted.is_empty() {
                if engine.pause_state() == PauseState::Unpaused {
                    break;
                }
                engine.set_pause_state(PauseState::Unpaused);
            } else if pauses {
                engine.set_pause_state(PauseState::PausedNew);
            }
        }
        shapes.clear();
        engine.predict_decode_steps(most.unwrap_or(0), &mut shapes);
        if !shapes.is_empty() {
            skip(&mut engine, &shapes, &mut history);
        }
        if engine.step_in_flight() {
            engine.update(&mut Tokens);
            given(&engine, &mut history);
        }
    }
    let events = engine.pool().events().expect("recording").iter().map(|event| format!("{event:?}"));
    history.push(Happened::Events(events.collect()));
    history
}

fn scheduled(engine: &Engine) -> Happened {
    let plan = engine.plan();
    let rows = plan.scheduled.iter().map(|entry| {
        let blocks = plan.blocks_of(entry).to_vec();
        (entry.tag, entry.num_scheduled_tokens, entry.num_computed_tokens, entry.kind, blocks)
    });
    Happened::Scheduled {
        requests: rows.collect(),
        num_events: engine.pool().events().expect("recording").len(),
        waiting: engine.num_waiting() as u64,
        stop: plan.admission_stop,
    }
}

fn given(engine: &Engine, history: &mut Vec<Happened>) {
    let mut tokens = engine.outputs().tokens.iter();
    let outputs = engine.outputs().outputs.iter();
    let given = outputs.flat_map(|output| {
        let own = tokens.by_ref().take(output.num_tokens as usize);
        own.map(|&token| (output.tag, token)).collect::<Vec<_>>()
    });
    history.push(Happened::Given(given.collect()));
}

/// Skips a stretch and tells what happened in it, step by step.
fn skip(engine: &mut Engine, shapes: &[StepShape], history: &mut Vec<Happened>) {
    let before: Vec<(u64, u32)> =
        engine.plan().scheduled.iter().map(|entry| (entry.tag, entry.num_computed_tokens)).collect();
    let waiting = engine.num_waiting() as u64;
    let stretch = engine.decode_ahead(shapes, &mut Tokens);
    let (steps, grants) = (stretch.steps, stretch.grants.clone());
    let events_by_step = stretch.events_by_step.clone();
    assert_eq!(steps as usize, shapes.len());
    for step in 1..=steps {
        let outputs = engine.outputs();
        let row = outputs.tokens.chunks_exact(steps as usize).zip(&before);
        history.push(Happened::Given(row.map(|(tokens, &(tag, _))| (tag, tokens[step as usize - 1])).collect()));
        let requests = before.iter().enumerate().map(|(index, &(tag, computed))| {
            let own = grants.iter().filter(|grant| grant.step == step && grant.entry == index as u32);
            (tag, 1, computed + step, ScheduledKind::Running, own.map(|grant| grant.block).collect())
        });
        history.push(Happened::Scheduled {
            requests: requests.collect(),
            num_events: events_by_step[step as usize - 1] as usize,
            waiting,
            stop: engine.plan().admission_stop,
        });
    }
    // The plan left in flight is the last of them.
    assert_eq!(history.last(), Some(&scheduled(engine)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// No request is lost, none ends twice, and no block is.
    #[test]
    fn every_request_ends_once_and_every_block_comes_back(
        config in arb_config(),
        actions in proptest::collection::vec(arb_action(), 1..120),
    ) {
        let mut driver = Driver::new(config);
        for action in &actions {
            driver.act(action);
        }
        driver.drain();
        prop_assert_eq!(driver.engine.pool().total_references(), 0);
        prop_assert_eq!(driver.engine.pool().num_active(), 0);
        prop_assert_eq!(driver.engine.num_requests(), 0);
        prop_assert_eq!(driver.engine.num_waiting(), 0);
        prop_assert_eq!(driver.engine.num_skipped_waiting(), 0);
        prop_assert_eq!(driver.engine.outstanding_prefill_tokens(), 0);
    }

    /// Steps told in advance are the steps that come.
    #[test]
    fn predicted_steps_happen(config in arb_config(), requests in arb_requests()) {
        let mut engine = with_requests(config, &requests);
        let mut predicted = Vec::new();
        while engine.has_schedulable_requests() || engine.step_in_flight() {
            if engine.may_schedule() {
                let shape = engine.schedule().shape;
                if shape.batch_requests() > 0 && predicted.is_empty() {
                    engine.predict_decode_steps(7, &mut predicted);
                    predicted.reverse();
                } else if let Some(told) = predicted.pop() {
                    prop_assert_eq!(told, shape);
                }
            }
            if engine.step_in_flight() {
                engine.update(&mut Tokens);
            }
        }
        prop_assert_eq!(predicted.len(), 0, "steps were told that did not come");
    }

    /// A stretch applied at once is the same as its steps one by one.
    #[test]
    fn a_skipped_stretch_is_its_steps(
        config in arb_config(),
        requests in arb_requests(),
        most in 1..Engine::MOST_PREDICTED_STEPS,
        pauses in any::<bool>(),
    ) {
        let skipped = history(config.clone(), &requests, Some(most), pauses);
        prop_assert_eq!(skipped, history(config, &requests, None, pauses));
    }
}

#[test]
fn a_stretch_of_decode_is_told_up_to_its_end() {
    let mut driver = Driver::new(EngineConfig::new(EngineConfigInput::default()).expect("valid"));
    let role = KvRole::Local;
    driver.act(&Action::Submit { prompt_tokens: 30, shared: false, max_tokens: 20, priority: 0, role, stops: false });
    driver.act(&Action::Step);
    driver.engine.schedule();
    let mut shapes = Vec::new();
    driver.engine.predict_decode_steps(Engine::MOST_PREDICTED_STEPS, &mut shapes);
    // The prefill gave one token and the step in flight gives the second.
    assert_eq!(shapes.len(), 18);
    let contexts: Vec<u64> = shapes.iter().map(|shape| shape.decode_context_tokens).collect();
    assert_eq!(contexts, (32..50).collect::<Vec<u64>>());
    let blocks: Vec<u64> = shapes.iter().map(|shape| shape.kv_active_blocks).collect();
    assert_eq!((blocks[0], blocks[1], blocks[17]), (2, 3, 4));
}
