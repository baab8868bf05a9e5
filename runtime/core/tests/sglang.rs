//! An SGLang-style engine: what is promised of it, under anything a driver may do.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vcr_core::latency::DecodeSteps;
use vcr_core::plan::{ScheduledKind, StepPlan};
use vcr_core::sglang::{PassOrder, PrefixLookup, SchedulePolicy, SglangConfig, SglangConfigInput, SglangEngine};
use vcr_core::{KvRole, Prompt, RejectReason, RequestId, RequestSpec, ServingEngine, StopRules, TokenSource};

/// Tokens by request and position; every 37th or so stops those that mind it.
struct Tokens;

impl TokenSource for Tokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        (tag as u32).wrapping_mul(31).wrapping_add(output_index * 7) % 37
    }

    fn extra_tokens(&mut self, tag: u64, max_extra: u32) -> u32 {
        tag as u32 % (max_extra + 1)
    }
}

fn engine(input: SglangConfigInput) -> SglangEngine {
    SglangEngine::new(SglangConfig::new(input).expect("a valid engine"))
}

/// A prompt of `shared` tokens that others begin with, too, and own ones.
fn prompt(page_size: u32, tag: u64, shared: u32, own: u32) -> Prompt {
    let mut prompt = Prompt::new(page_size, 0);
    prompt.push_run(1, 0, shared);
    prompt.push_run(1000 + tag, 0, own);
    prompt
}

fn submit(engine: &mut SglangEngine, tag: u64, shared: u32, own: u32, max_tokens: u32) -> RequestId {
    let prompt = prompt(engine.config().page_size, tag, shared, own);
    engine.submit(RequestSpec::new(tag, prompt, max_tokens)).expect("the engine takes it")
}

/// Rows of a plan: request, kind, depth, tokens.
fn rows(plan: &StepPlan) -> Vec<(u64, ScheduledKind, u32, u32)> {
    plan.scheduled.iter().map(|e| (e.tag, e.kind, e.num_computed_tokens, e.num_scheduled_tokens)).collect()
}

fn pass(engine: &mut SglangEngine) -> Vec<(u64, ScheduledKind, u32, u32)> {
    let rows = rows(engine.schedule());
    if engine.step_in_flight() {
        engine.update(&mut Tokens);
    }
    rows
}

use ScheduledKind::{New, Resumed, Running};

#[test]
fn a_pass_prefills_or_decodes_or_does_both() {
    for (pass_order, second) in
        [(PassOrder::PrefillFirst, vec![(1, New, 0, 8)]), (PassOrder::Mixed, vec![(0, Running, 8, 1), (1, New, 0, 8)])]
    {
        let mut engine = engine(SglangConfigInput { pass_order, ..SglangConfigInput::default() });
        submit(&mut engine, 0, 0, 8, 4);
        assert_eq!(pass(&mut engine), [(0, New, 0, 8)]);
        submit(&mut engine, 1, 0, 8, 4);
        assert_eq!(pass(&mut engine), second);
        assert_eq!(pass(&mut engine).len(), 2, "both decode");
    }
}

#[test]
fn a_long_prompt_is_computed_in_chunks_before_anything_else_is_admitted() {
    let input = SglangConfigInput { page_size: 4, chunked_prefill_size: 16, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 0, 37, 2);
    submit(&mut engine, 1, 0, 4, 2);
    assert_eq!(pass(&mut engine), [(0, New, 0, 16)]);
    assert_eq!(pass(&mut engine), [(0, Running, 16, 16)]);
    assert_eq!(pass(&mut engine), [(0, Running, 32, 5), (1, New, 0, 4)]);
    assert_eq!(engine.stats().prefix.hit_tokens, 0, "its own chunks are no reuse");
}

#[test]
fn a_prompt_that_does_not_fit_is_cut_or_waits() {
    for (prefix_lookup, second) in
        [(PrefixLookup::WholePrompt, vec![(1, Running, 4, 8)]), (PrefixLookup::FirstChunk, vec![(1, New, 0, 12)])]
    {
        let own = SglangConfigInput { page_size: 4, chunked_prefill_size: 16, ..SglangConfigInput::default() };
        let mut engine = engine(SglangConfigInput { prefix_lookup, ..own });
        submit(&mut engine, 0, 0, 12, 2);
        submit(&mut engine, 1, 0, 12, 2);
        let cut = prefix_lookup == PrefixLookup::WholePrompt;
        assert_eq!(pass(&mut engine).len(), if cut { 2 } else { 1 });
        assert_eq!(pass(&mut engine), second);
    }
}

#[test]
fn only_the_first_chunk_is_looked_up_where_cached_tokens_count() {
    for (prefix_lookup, again) in [
        (PrefixLookup::WholePrompt, vec![vec![(1, New, 36, 4)]]),
        (PrefixLookup::FirstChunk, vec![vec![(1, New, 16, 0)], vec![(1, Running, 16, 16)], vec![(1, Running, 32, 8)]]),
    ] {
        let own = SglangConfigInput { page_size: 4, chunked_prefill_size: 16, ..SglangConfigInput::default() };
        let mut engine = engine(SglangConfigInput { prefix_lookup, ..own });
        submit(&mut engine, 0, 40, 0, 1);
        while engine.has_schedulable_requests() {
            pass(&mut engine);
        }
        submit(&mut engine, 1, 40, 0, 1);
        for rows in again {
            assert_eq!(pass(&mut engine), rows);
        }
        assert!(!engine.has_schedulable_requests());
    }
}

#[test]
fn a_shared_prefix_is_found_in_full_pages_and_the_last_token_is_always_computed() {
    let mut engine = engine(SglangConfigInput { page_size: 4, ..SglangConfigInput::default() });
    submit(&mut engine, 0, 16, 0, 1);
    assert_eq!(pass(&mut engine), [(0, New, 0, 16)]);
    submit(&mut engine, 1, 16, 0, 1);
    assert_eq!(pass(&mut engine), [(1, New, 12, 4)]);
    submit(&mut engine, 2, 11, 9, 1);
    assert_eq!(pass(&mut engine), [(2, New, 8, 12)], "the third page differs after 3 of its tokens");
}

#[test]
fn an_answer_is_found_by_the_next_turn() {
    let mut engine = engine(SglangConfigInput::default());
    let question: Vec<u32> = (100..110).collect();
    let spec = |tag, tokens| RequestSpec::new(tag, Prompt::of_tokens(tokens, 1, 0), 5);
    engine.submit(spec(0, question.clone())).unwrap();
    while engine.has_schedulable_requests() {
        pass(&mut engine);
    }
    let answer = (0..5).map(|index| Tokens.token(0, index));
    let next = question.into_iter().chain(answer).chain([1, 2, 3]).collect();
    engine.submit(spec(1, next)).unwrap();
    // The last token of the answer was never computed.
    assert_eq!(pass(&mut engine), [(1, New, 14, 4)]);
}

#[test]
fn the_head_that_does_not_fit_is_not_overtaken() {
    let mut engine = engine(SglangConfigInput { num_pages: 100, ..SglangConfigInput::default() });
    submit(&mut engine, 0, 0, 40, 20);
    pass(&mut engine);
    submit(&mut engine, 1, 0, 60, 20);
    submit(&mut engine, 2, 0, 1, 1);
    assert_eq!(pass(&mut engine), [(0, Running, 40, 1)]);
    assert_eq!(engine.num_waiting(), 2);
    assert_eq!(engine.stats().preemptions, 0);
}

#[test]
fn what_can_never_fit_is_refused_and_what_fits_just_so_runs() {
    let mut engine = engine(SglangConfigInput { num_pages: 100, clip_max_new_tokens: 50, ..Default::default() });
    assert_eq!(engine.check(0, 1), Err(RejectReason::EmptyPrompt));
    assert_eq!(engine.check(60, 40), Err(RejectReason::ExceedsKvReserve), "SGLang wants more than the reserve");
    assert_eq!(engine.check(40, 62), Err(RejectReason::ExceedsKvPool), "more than is reserved, and then too much");
    engine.check(40, 61).expect("its last token needs no slot");
    submit(&mut engine, 0, 0, 40, 61);
    let mut tokens = 0;
    while engine.has_schedulable_requests() {
        assert!(!pass(&mut engine).is_empty(), "a dead end");
        tokens += engine.outputs().outputs.iter().map(|output| output.num_tokens).sum::<u32>();
    }
    assert_eq!(tokens, 61);
}

#[test]
fn who_has_the_fewest_outputs_is_retracted_and_goes_on_from_its_cached_prompt() {
    let input = SglangConfigInput { num_pages: 40, schedule_conservativeness: 0.01, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 0, 10, 20);
    pass(&mut engine);
    pass(&mut engine);
    submit(&mut engine, 1, 0, 8, 15);
    let mut retracted = Vec::new();
    while retracted.is_empty() {
        retracted = engine.schedule().preempted.clone();
        engine.update(&mut Tokens);
    }
    assert_eq!(retracted, [1]);
    assert_eq!(engine.running_tags(), [0]);
    let mut resumed = None;
    while engine.has_schedulable_requests() {
        let rows = pass(&mut engine);
        resumed = resumed.or(rows.into_iter().find(|row| row.1 == Resumed));
    }
    let (tag, _, cached, computed) = resumed.expect("it is admitted again");
    assert_eq!((tag, cached), (1, 8), "the prompt is still in the tree, the outputs are not");
    assert!(computed > 1);
    assert_eq!(engine.num_active_blocks(), 0);
}

#[test]
fn the_longest_cached_prefix_goes_first_and_twins_one_after_the_other() {
    let input = SglangConfigInput { schedule_policy: SchedulePolicy::Lpm, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 100, 0, 1);
    pass(&mut engine);
    let twin = |engine: &mut SglangEngine, tag: u64, own: u32| {
        let mut prompt = Prompt::new(1, 0);
        prompt.push_run(7, 0, 40);
        prompt.push_run(1000 + tag, 0, own);
        engine.submit(RequestSpec::new(tag, prompt, 1)).unwrap();
    };
    twin(&mut engine, 1, 5);
    twin(&mut engine, 2, 5);
    submit(&mut engine, 3, 50, 5, 1);
    submit(&mut engine, 4, 80, 5, 1);
    let order: Vec<u64> = pass(&mut engine).iter().map(|row| row.0).collect();
    assert_eq!(order, [4, 3, 1, 2]);
}

#[test]
fn with_too_many_waiting_the_longest_prefix_is_not_looked_for() {
    let input =
        SglangConfigInput { schedule_policy: SchedulePolicy::Lpm, max_num_seqs: 1_000, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 100, 0, 1);
    pass(&mut engine);
    for tag in 1..=SchedulePolicy::MOST_ORDERED_REQUESTS as u64 {
        submit(&mut engine, tag, 0, 2, 1);
    }
    submit(&mut engine, 1_000, 50, 5, 1);
    assert_eq!(pass(&mut engine).last().expect("all are admitted").0, 1_000);
}

#[test]
fn certain_bursts_need_as_many_passes_as_they_save() {
    let input = SglangConfigInput { max_extra_tokens_per_step: 2, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    // Number 2 takes all that it may.
    submit(&mut engine, 2, 0, 10, 16);
    let mut tokens = Vec::new();
    while engine.has_schedulable_requests() {
        pass(&mut engine);
        tokens.push(engine.outputs().outputs[0].num_tokens);
    }
    assert_eq!(tokens, [1, 3, 3, 3, 3, 3]);
}

#[test]
fn an_abort_is_idempotent_and_leaves_nothing() {
    let mut engine = engine(SglangConfigInput { chunked_prefill_size: 8, ..SglangConfigInput::default() });
    let first = submit(&mut engine, 0, 0, 20, 4);
    let second = submit(&mut engine, 1, 0, 6, 4);
    engine.schedule();
    engine.abort(first);
    engine.abort(first);
    engine.update(&mut Tokens);
    assert!(engine.outputs().outputs.is_empty());
    pass(&mut engine);
    engine.abort(second);
    engine.abort(second);
    assert_eq!((engine.num_active_blocks(), engine.num_running(), engine.num_waiting()), (0, 0, 0));
    assert_eq!(engine.outstanding_prefill_tokens(), 0);
    assert!(!engine.has_schedulable_requests());
}

#[derive(Clone, Debug)]
enum Action {
    Submit { shared: u32, own: u32, max_tokens: u32, role: KvRole, stops: bool },
    Abort(usize),
    AbortMidPass(usize),
    Pass,
    Skip(usize),
    Deliver,
}

fn arb_action() -> impl Strategy<Value = Action> {
    let role = prop_oneof![4 => Just(KvRole::Local), 1 => Just(KvRole::Source), 1 => Just(KvRole::Destination)];
    let sizes = (0..60u32, 0..90u32, 0..40u32);
    prop_oneof![
        5 => (sizes, role, any::<bool>()).prop_map(|((shared, own, max_tokens), role, stops)| {
            Action::Submit { shared, own, max_tokens, role, stops }
        }),
        1 => any::<usize>().prop_map(Action::Abort),
        1 => any::<usize>().prop_map(Action::AbortMidPass),
        8 => Just(Action::Pass),
        3 => (1..20usize).prop_map(Action::Skip),
        2 => Just(Action::Deliver),
    ]
}

fn arb_config() -> impl Strategy<Value = SglangConfigInput> {
    let sizes = (1..9u32, 20..200u32, 1..9u32, 1..8u32, 8..200u32);
    let modes = (any::<bool>(), any::<bool>(), any::<bool>(), 0..3u32);
    (sizes, modes, 1..60u32, 0.01..2.0f64).prop_map(|(sizes, modes, clip_max_new_tokens, conservativeness)| {
        let (page_size, num_pages, max_num_seqs, chunk_pages, max_prefill_tokens) = sizes;
        let (enable_prefix_caching, mixed, lpm, max_extra_tokens_per_step) = modes;
        SglangConfigInput {
            page_size,
            num_pages,
            max_num_seqs,
            max_model_len: None,
            enable_prefix_caching,
            schedule_policy: if lpm { SchedulePolicy::Lpm } else { SchedulePolicy::Fifo },
            max_prefill_tokens: max_prefill_tokens.max(page_size),
            chunked_prefill_size: chunk_pages * page_size,
            clip_max_new_tokens,
            schedule_conservativeness: conservativeness,
            pass_order: if mixed { PassOrder::Mixed } else { PassOrder::PrefillFirst },
            prefix_lookup: if mixed { PrefixLookup::FirstChunk } else { PrefixLookup::WholePrompt },
            max_extra_tokens_per_step,
        }
    })
}

/// The driver's view of an engine, against which it is checked.
struct Driver {
    engine: SglangEngine,
    live: BTreeMap<u64, (RequestId, u32)>,
    held: Vec<RequestId>,
    loading: Vec<(u64, RequestId)>,
    emitted: BTreeMap<u64, u32>,
    next_tag: u64,
    /// Skips none of the passes, for comparison.
    single: bool,
}

impl Driver {
    fn new(input: SglangConfigInput, single: bool) -> Self {
        let mut engine = engine(input);
        engine.record_kv_events(true);
        let (live, emitted) = (BTreeMap::new(), BTreeMap::new());
        Self { engine, live, held: Vec::new(), loading: Vec::new(), emitted, next_tag: 0, single }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Submit { shared, own, max_tokens, role, stops } => {
                let tag = self.next_tag;
                self.next_tag += 1;
                if self.engine.check(shared + own, max_tokens).is_ok() {
                    let prompt = prompt(self.engine.config().page_size, tag, shared, own);
                    // A prefill engine has no more to do than the prompt.
                    let max_tokens = if role == KvRole::Source { max_tokens.min(1) } else { max_tokens };
                    let role = if max_tokens == 0 { KvRole::Local } else { role };
                    let stops = stops.then(|| Box::new(StopRules::of_token(3)));
                    let spec = RequestSpec { kv_role: role, stops, ..RequestSpec::new(tag, prompt, max_tokens) };
                    let id = self.engine.submit(spec).expect("it has been checked");
                    self.live.insert(tag, (id, max_tokens));
                }
            }
            Action::Abort(which) => self.abort(which),
            Action::AbortMidPass(which) => {
                self.schedule();
                self.abort(which);
                self.update();
            }
            Action::Pass => {
                self.schedule();
                self.update();
            }
            Action::Skip(most) => {
                if self.schedule() {
                    self.skip(most);
                }
                self.update();
            }
            Action::Deliver => self.deliver(),
        }
        self.check();
    }

    fn check(&self) {
        let engine = &self.engine;
        assert!(engine.num_running() <= engine.config().max_num_seqs as usize);
        assert!(engine.num_active_blocks() <= engine.num_usable_blocks());
        assert_eq!(engine.num_running() + engine.num_waiting(), self.live.len());
    }

    fn deliver(&mut self) {
        if let Some((tag, id)) = self.loading.pop()
            && self.live.contains_key(&tag)
        {
            self.engine.remote_kv_arrived(id);
        }
        if let Some(id) = self.held.pop() {
            self.engine.release_held_kv(id);
        }
    }

    fn abort(&mut self, which: usize) {
        let Some((&tag, &(id, _))) = self.live.iter().nth(which % self.live.len().max(1)) else { return };
        self.live.remove(&tag);
        self.engine.abort(id);
    }

    fn schedule(&mut self) -> bool {
        let input = self.engine.config().clone();
        let plan = self.engine.schedule();
        let prefill: u32 = plan.scheduled.iter().filter(|e| e.is_prefill).map(|e| e.num_scheduled_tokens).sum();
        assert!(prefill <= input.chunked_prefill_size.min(input.max_prefill_tokens), "a budget was exceeded");
        let shape = plan.shape;
        assert_eq!(shape.prefill_tokens + shape.decode_tokens, u64::from(plan.total_num_scheduled_tokens));
        if input.pass_order == PassOrder::PrefillFirst {
            assert!(shape.prefill_requests == 0 || shape.decode_requests == 0, "a pass did both");
        }
        for entry in &plan.scheduled {
            assert!(self.live.contains_key(&entry.tag), "scheduled a request that has ended");
            // Where cached tokens count, a part may be cached as a whole.
            let may_be_cached = entry.is_prefill && input.prefix_lookup == PrefixLookup::FirstChunk;
            assert!(entry.num_scheduled_tokens > 0 || may_be_cached);
        }
        self.loading.extend(plan.remote_loads.iter().map(|load| (load.tag, load.request)));
        !plan.scheduled.is_empty()
    }

    fn skip(&mut self, most: usize) {
        let mut steps = DecodeSteps::default();
        self.engine.predict_decode_steps(most, &mut steps);
        if self.single {
            for shape in steps.shapes() {
                self.update();
                self.schedule();
                assert_eq!(self.engine.plan().shape, shape, "a pass was told that did not come");
            }
        } else if !steps.is_empty() {
            self.engine.decode_ahead(steps.len() as u32, &mut Tokens);
            self.take_outputs();
        }
    }

    fn update(&mut self) {
        if self.engine.step_in_flight() {
            self.engine.update(&mut Tokens);
            self.take_outputs();
        }
    }

    fn take_outputs(&mut self) {
        for output in &self.engine.outputs().outputs {
            let (id, max_tokens) = *self.live.get(&output.tag).expect("output of a request that has ended");
            let emitted = self.emitted.entry(output.tag).or_default();
            *emitted += output.num_tokens;
            assert!(*emitted <= max_tokens, "more tokens than asked for");
            if let Some(finish) = output.finish {
                assert!(finish != vcr_core::FinishReason::Length || *emitted == max_tokens, "fewer than asked for");
                self.live.remove(&output.tag);
                if self.engine.live_tags().contains(&output.tag) {
                    self.held.push(id);
                }
            }
        }
    }

    /// Runs everything to its end, and looks at what is left: nothing.
    fn finish(&mut self) {
        let mut idle = 0;
        while !self.live.is_empty() {
            let did = self.schedule() || !self.engine.plan().preempted.is_empty();
            self.update();
            self.deliver();
            idle = if did { 0 } else { idle + 1 };
            assert!(idle < 200, "a dead end: {:?} wait", self.live.keys());
        }
        while !self.held.is_empty() {
            self.deliver();
        }
        assert_eq!(self.engine.num_active_blocks(), 0, "pages leak");
        assert_eq!(self.engine.outstanding_prefill_tokens(), 0);
        assert!(self.engine.live_tags().is_empty());
        assert!(!self.engine.has_schedulable_requests());
    }
}

proptest! {
    /// Every accepted request ends once with the tokens it asked for, within
    /// the budgets, and everything it held comes back.
    #[test]
    fn every_request_ends_once_and_every_page_comes_back(
        input in arb_config(),
        actions in proptest::collection::vec(arb_action(), 1..60),
    ) {
        let mut driver = Driver::new(input, false);
        for action in &actions {
            driver.act(action);
        }
        driver.finish();
    }

    /// A stretch that is skipped leaves what its passes would have left.
    #[test]
    fn a_skipped_stretch_is_its_passes(
        input in arb_config(),
        actions in proptest::collection::vec(arb_action(), 1..60),
    ) {
        let input = SglangConfigInput { max_extra_tokens_per_step: 0, ..input };
        let [mut skipping, mut single] = [false, true].map(|single| Driver::new(input.clone(), single));
        for action in &actions {
            skipping.act(action);
            single.act(action);
            prop_assert_eq!(&skipping.emitted, &single.emitted);
            prop_assert_eq!(skipping.engine.num_active_blocks(), single.engine.num_active_blocks());
            prop_assert_eq!(skipping.engine.stats(), single.engine.stats());
            prop_assert_eq!(rows(skipping.engine.plan()), rows(single.engine.plan()));
            prop_assert_eq!(skipping.engine.plan().shape, single.engine.plan().shape);
            let events = |driver: &Driver| format!("{:?}", driver.engine.kv_events());
            prop_assert_eq!(events(&skipping), events(&single));
        }
        skipping.finish();
        single.finish();
        prop_assert_eq!(skipping.emitted, single.emitted);
    }
}
