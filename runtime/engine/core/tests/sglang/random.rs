//! Random orders of arrivals, passes, fast-forwards, aborts and deliveries.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vcr_core::latency::DecodeSteps;
use vcr_core::sglang::{PassOrder, PrefixLookup, Retraction, SchedulePolicy, SglangConfigInput, SglangEngine};
use vcr_core::{KvRole, RequestId, RequestSpec, Reservations, ServingEngine, StopRules};

use crate::sglang::{Tokens, engine, prompt, rows};

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
    let orders = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let modes = (any::<bool>(), orders, 0..3u32);
    (sizes, modes, 1..60u32, 0.01..2.0f64).prop_map(|(sizes, modes, clip_max_new_tokens, conservativeness)| {
        let (page_size, num_pages, max_num_seqs, chunk_pages, max_prefill_tokens) = sizes;
        let (enable_prefix_caching, (mixed, before_all, lpm, between_steps), max_extra_tokens_per_step) = modes;
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
            reservations: if between_steps { Reservations::BetweenSteps } else { Reservations::InSteps },
            retraction: if before_all { Retraction::BeforeAll } else { Retraction::BehindAll },
            max_extra_tokens_per_step,
            // No interval in a quarter of the cases.
            prefill_decode_interval: num_pages % 4,
        }
    })
}

struct Driver {
    engine: SglangEngine,
    live: BTreeMap<u64, (RequestId, u32)>,
    held: Vec<RequestId>,
    loading: Vec<(u64, RequestId)>,
    emitted: BTreeMap<u64, u32>,
    next_tag: u64,
    /// Whether passes are never skipped, for comparison.
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
                    let prompt = prompt(self.engine.config().page_size(), tag, shared, own);
                    // On a prefill engine, a request has only its prompt to compute.
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
        assert!(engine.plan().shape.decode_requests <= u64::from(engine.config().max_num_seqs()));
        assert!(engine.load().num_active_blocks <= engine.load().num_usable_blocks);
        assert_eq!(engine.load().num_running + engine.load().num_waiting, self.live.len());
    }

    fn deliver(&mut self) {
        if let Some(load) = self.engine.reserve_remote() {
            self.loading.push((load.tag, load.request));
        }
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
        assert!(prefill <= input.chunked_prefill_size().min(input.max_prefill_tokens()), "a budget was exceeded");
        let shape = plan.shape;
        assert_eq!(shape.prefill_tokens + shape.decode_tokens, u64::from(plan.total_num_scheduled_tokens));
        if input.pass_order() == PassOrder::PrefillFirst {
            assert!(shape.prefill_requests == 0 || shape.decode_requests == 0, "a pass did both");
        }
        for entry in &plan.scheduled {
            assert!(self.live.contains_key(&entry.tag), "scheduled a request that has ended");
            // If cached tokens count, a part may consist only of cached tokens.
            let may_be_cached = entry.is_prefill && input.prefix_lookup() == PrefixLookup::FirstChunk;
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
                assert_eq!(self.engine.plan().shape, shape, "a pass was predicted that did not come");
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

    fn finish(&mut self) {
        let (mut idle, mut fruitless) = (0, 0);
        let tokens = |driver: &Self| driver.emitted.values().sum::<u32>() as usize;
        while !self.live.is_empty() {
            let before = (tokens(self), self.live.len());
            let did = self.schedule() || !self.engine.plan().preempted.is_empty();
            self.update();
            self.deliver();
            idle = if did { 0 } else { idle + 1 };
            assert!(idle < 200, "a dead end: {:?} wait", self.live.keys());
            // A prompt has far fewer chunks than this limit of passes without output.
            fruitless = if (tokens(self), self.live.len()) == before { fruitless + 1 } else { 0 };
            assert!(fruitless < 20_000, "passes without end: {:?} make no progress", self.live.keys());
        }
        while !self.held.is_empty() {
            self.deliver();
        }
        assert_eq!(self.engine.load().num_active_blocks, 0, "pages leak");
        assert_eq!(self.engine.load().outstanding_prefill_tokens, 0);
        assert!(self.engine.live_tags().is_empty());
        assert!(!self.engine.has_schedulable_requests());
    }
}

fn run(input: SglangConfigInput, actions: &[Action]) {
    let mut driver = Driver::new(input, false);
    for action in actions {
        driver.act(action);
    }
    driver.finish();
}

const fn submission(prompt_tokens: u32, max_tokens: u32, role: KvRole) -> Action {
    Action::Submit { shared: 0, own: prompt_tokens, max_tokens, role, stops: false }
}

#[test]
fn prompts_that_cannot_be_computed_together_do_not_undo_each_other() {
    use Action::{Abort, Deliver, Pass};
    let (local, destination) = (KvRole::Local, KvRole::Destination);
    // The second request is retracted while it decodes, before the first has continued.
    let input = SglangConfigInput {
        page_size: 5,
        num_pages: 25,
        max_num_seqs: 2,
        enable_prefix_caching: false,
        max_prefill_tokens: 15,
        chunked_prefill_size: 15,
        clip_max_new_tokens: 30,
        schedule_conservativeness: 0.01,
        pass_order: PassOrder::PrefillFirst,
        prefix_lookup: PrefixLookup::WholePrompt,
        retraction: Retraction::BeforeAll,
        reservations: Reservations::BetweenSteps,
        ..SglangConfigInput::default()
    };
    let before = [submission(1, 0, local), submission(21, 2, local), Abort(0), submission(27, 4, local)];
    let passes = [Pass, Pass, Pass, Abort(0), submission(36, 10, local), submission(86, 30, destination)];
    run(input, &[&[Deliver], &before[..], &passes, &[Pass, Pass, Pass, Deliver]].concat());
    // The second request goes first because more of its prompt is cached. When it is retracted, it has filled the
    // pool, and its pages go to the first request at once.
    let input = SglangConfigInput {
        page_size: 3,
        num_pages: 35,
        max_num_seqs: 1,
        max_prefill_tokens: 15,
        chunked_prefill_size: 15,
        clip_max_new_tokens: 1,
        schedule_conservativeness: 0.01,
        schedule_policy: SchedulePolicy::Lpm,
        pass_order: PassOrder::Mixed,
        prefix_lookup: PrefixLookup::FirstChunk,
        retraction: Retraction::BehindAll,
        reservations: Reservations::BetweenSteps,
        ..SglangConfigInput::default()
    };
    let with_shared = |shared, own| Action::Submit { shared, own, max_tokens: 0, role: local, stops: false };
    let cached = [with_shared(50, 11), Pass, Pass, Pass, Pass, Pass, with_shared(9, 28), Pass, Pass];
    run(input, &[&cached[..], &[submission(1, 1, destination), Pass, with_shared(43, 39)]].concat());
}

#[test]
fn the_only_token_of_a_prompt_has_no_slot_where_decodes_bring_several() {
    let input = SglangConfigInput {
        page_size: 7,
        num_pages: 24,
        max_prefill_tokens: 700,
        chunked_prefill_size: 700,
        pass_order: PassOrder::PrefillFirst,
        max_extra_tokens_per_step: 1,
        ..SglangConfigInput::default()
    };
    let mut driver = Driver::new(input, false);
    driver.act(&submission(91, 1, KvRole::Source));
    driver.act(&Action::Pass);
    assert_eq!(driver.engine.load().num_active_blocks, 13);
    driver.finish();
}

#[test]
fn retracted_requests_do_not_retract_each_other_for_ever() {
    let input = SglangConfigInput {
        page_size: 2,
        num_pages: 13,
        max_num_seqs: 8,
        chunked_prefill_size: 16,
        schedule_conservativeness: 0.3,
        schedule_policy: SchedulePolicy::Lpm,
        pass_order: PassOrder::Mixed,
        ..SglangConfigInput::default()
    };
    let mut driver = Driver::new(input, false);
    for (own, max_tokens) in [(8, 7), (17, 8), (3, 4)] {
        driver.act(&Action::Submit { shared: 6, own, max_tokens, role: KvRole::Local, stops: false });
        driver.act(&Action::Pass);
    }
    driver.finish();
}

proptest! {
    /// Every accepted request ends once with its requested tokens, within the budgets, and all its
    /// resources are freed.
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

    #[test]
    fn a_fast_forward_is_its_passes(
        input in arb_config(),
        actions in proptest::collection::vec(arb_action(), 1..60),
    ) {
        let input = SglangConfigInput { max_extra_tokens_per_step: 0, ..input };
        let [mut skipping, mut single] = [false, true].map(|single| Driver::new(input.clone(), single));
        for action in &actions {
            skipping.act(action);
            single.act(action);
            prop_assert_eq!(&skipping.emitted, &single.emitted);
            prop_assert_eq!(skipping.engine.load().num_active_blocks, single.engine.load().num_active_blocks);
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
