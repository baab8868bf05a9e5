//! A steady decode has the same results as individual decodes.

use std::collections::BTreeMap;

use crate::support::{Whims, arb_config, arb_groups, arb_tiers, request};
use proptest::prelude::*;
use vcr_core::latency::DecodeSteps;
use vcr_core::plan::StepOutputs;
use vcr_core::{
    AdapterCosts, DrawnOutputs, Engine, EngineConfig, EngineConfigInput, FinishReason, HostRules, KvTier, KvTiers,
    KvTiersConfig, NamedValue, PauseState, Policy, SchedulerRules, TokenSource, seed,
};

/// Each token depends only on the request's tag and the token's index.
struct Drawn;

impl TokenSource for Drawn {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        seed::output_token(tag, output_index)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Submit {
        prompt_tokens: u32,
        shared: bool,
        max_tokens: u32,
    },
    Abort {
        which: prop::sample::Index,
    },
    ResetCache,
    Pause(PauseState),
    /// This many single steps, or a fast-forward if they can be predicted.
    Steps {
        steps: u8,
        ahead: bool,
    },
}

fn arb_act() -> impl Strategy<Value = Act> {
    let submit = (1..120u32, any::<bool>(), 1..80u32);
    let submit =
        submit.prop_map(|(prompt_tokens, shared, max_tokens)| Act::Submit { prompt_tokens, shared, max_tokens });
    let pause = prop::sample::select(&[PauseState::Unpaused, PauseState::PausedNew, PauseState::PausedAll][..]);
    prop_oneof![
        6 => submit,
        1 => any::<prop::sample::Index>().prop_map(|which| Act::Abort { which }),
        1 => Just(Act::ResetCache),
        1 => pause.prop_map(Act::Pause),
        8 => (1..40u8, any::<bool>()).prop_map(|(steps, ahead)| Act::Steps { steps, ahead }),
    ]
}

/// Tiers whose copies take many steps, so that blocks are reused before their copies end.
fn arb_slow_tiers() -> impl Strategy<Value = Option<KvTiersConfig>> {
    let connector = prop::sample::select(&[HostRules::Vllm, HostRules::Dynamo16][..]);
    (arb_tiers(), connector, prop::bool::weighted(0.8)).prop_map(|(tiers, rules, by_connector)| {
        let tiers = tiers?;
        let device_to_host_bytes_per_s = Some(50_000_000);
        Some(match by_connector {
            true => KvTiersConfig {
                rules,
                disk_blocks: if rules == HostRules::Vllm { tiers.disk_blocks } else { 0 },
                offload_prompt_only: true,
                device_to_host_bytes_per_s,
                ..tiers
            },
            false => tiers,
        })
    })
}

fn arb_adapter_costs() -> impl Strategy<Value = AdapterCosts> {
    (0..4u32).prop_map(|host_slots| AdapterCosts { host_slots, load_ns: 1000, copy_ns: 100, step_ns: 10, token_ns: 1 })
}

struct Driven {
    engine: Engine,
    /// Only called if a policy ranks the engine's requests.
    policy: Whims,
    in_steady_decode: bool,
    /// Whether the driver schedules only one step before it applies one.
    schedules_once: bool,
    reported_tokens: BTreeMap<u64, u32>,
    ended: Vec<(u64, u32, FinishReason)>,
    tokens_by_group: [u64; 3],
    now_ns: u64,
    /// Tags of requests whose loads from the tiers have ended.
    loaded: Vec<u64>,
}

const STEP_NS: u64 = 20;

impl Driven {
    fn new(config: &EngineConfig, in_steady_decode: bool) -> Self {
        let mut engine = Engine::new(config.clone());
        engine.pool_mut().record_events(true);
        Self {
            engine,
            policy: Whims::new(7),
            in_steady_decode,
            schedules_once: false,
            reported_tokens: BTreeMap::new(),
            ended: Vec::new(),
            tokens_by_group: [0; 3],
            now_ns: 0,
            loaded: Vec::new(),
        }
    }

    fn submit(&mut self, tag: u64, prompt_tokens: u32, shared: bool, max_tokens: u32) {
        if self.engine.check(prompt_tokens, max_tokens).is_ok() {
            let mut spec = request(self.engine.config(), tag, prompt_tokens, shared, max_tokens);
            spec.drawn = self.in_steady_decode.then_some(DrawnOutputs { seed: tag, group: (tag % 3) as u32 });
            self.engine.submit(spec).expect("it has been checked");
        }
    }

    fn take_unreported(&mut self) {
        for (tag, tokens) in self.engine.take_unreported() {
            *self.reported_tokens.entry(tag).or_default() += tokens;
        }
    }

    fn hear(&mut self) {
        self.take_unreported();
        let StepOutputs { outputs, steady_decode_groups, .. } = self.engine.outputs();
        for output in outputs {
            let total = self.reported_tokens.entry(output.tag).or_default();
            *total += output.num_tokens;
            self.tokens_by_group[(output.tag % 3) as usize] += u64::from(output.num_tokens);
            self.ended.extend(output.finish.map(|reason| (output.tag, *total, reason)));
        }
        for (all, &steady_decode) in self.tokens_by_group.iter_mut().zip(steady_decode_groups) {
            *all += u64::from(steady_decode);
        }
    }

    fn schedule(&mut self) {
        while self.engine.may_schedule() {
            self.engine.apply_policy(&mut self.policy, 0).expect("it says what it may");
            let is_empty = self.engine.schedule().is_empty();
            self.now_ns += self.engine.flush_for_newest(self.now_ns);
            self.take_unreported();
            if is_empty || self.schedules_once {
                break;
            }
        }
    }

    /// Makes the engine look at all waiting requests in its next step.
    fn stir(&mut self) {
        let config = self.engine.config();
        if config.policy() != Policy::Fcfs || config.kv_tiers().is_some() {
            return;
        }
        let spec = request(config, 1_000_003, 1, false, 1);
        if let Ok(id) = self.engine.submit(spec) {
            self.engine.abort(id);
        }
    }

    fn update(&mut self) {
        if self.engine.step_in_flight() {
            self.now_ns += STEP_NS;
            self.engine.offload_prompts(self.now_ns);
            self.engine.update(&mut Drawn);
            self.hear();
        } else {
            // Nothing runs until a transfer ends.
            self.now_ns = self.engine.kv_tiers().and_then(KvTiers::next_load_ns).unwrap_or(self.now_ns);
        }
        self.engine.advance_tiers(self.now_ns, &mut self.loaded);
    }

    /// Applies a fast-forward of the predictable steps. Returns their number.
    fn skip(&mut self, most: usize) -> usize {
        // Drivers skip no step in which an awaited transfer ends.
        if self.engine.kv_tiers().and_then(KvTiers::next_load_ns).is_some() {
            return 0;
        }
        let mut steps = DecodeSteps::default();
        self.engine.predict_decode_steps(most, &mut steps);
        if !steps.is_empty() {
            self.engine.decode_ahead(steps.len() as u32, &mut Drawn);
            self.now_ns += STEP_NS * steps.len() as u64;
            self.engine.advance_tiers(self.now_ns, &mut self.loaded);
            self.take_unreported();
            let StepOutputs { outputs, steady_decode_groups, .. } = self.engine.outputs();
            for output in outputs {
                *self.reported_tokens.entry(output.tag).or_default() += output.num_tokens;
                self.tokens_by_group[(output.tag % 3) as usize] += u64::from(output.num_tokens);
            }
            for (all, &steady_decode) in self.tokens_by_group.iter_mut().zip(steady_decode_groups) {
                *all += u64::from(steady_decode) * steps.len() as u64;
            }
        }
        steps.len()
    }

    /// Everything that is visible from outside.
    fn seen(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let plan = self.engine.plan();
        let events: Vec<String> =
            self.engine.pool().events().expect("recording").iter_by_group().map(|event| format!("{event:?}")).collect();
        let free: Vec<u32> = self.engine.pool().free_blocks().collect();
        let running: Vec<u64> = self.engine.running_tags().collect();
        let oldest_shape = self.engine.oldest_plan().shape;
        let preempted = plan.preempted.clone();
        let tokens = plan.total_num_scheduled_tokens;
        let plan = (plan.shape, oldest_shape, preempted, plan.admission_stop, tokens, plan.adapter_ns);
        let stats = format!("{:?}", self.engine.stats());
        let tiers = self.engine.kv_tiers().map(|tiers| {
            let evictable = [KvTier::Host, KvTier::Disk].map(|tier| tiers.evictable(tier).collect::<Vec<_>>());
            (evictable, tiers.num_blocks(), format!("{:?}", tiers.stats()))
        });
        let seen = (self.ended.clone(), self.tokens_by_group, self.loaded.clone(), self.now_ns);
        (plan, events, free, running, stats, tiers, seen)
    }
}

/// Runs the same actions on two engines, only one of which has a steady decode.
fn compare(config: &EngineConfig, acts: &[Act], tag_of: impl Fn(u64) -> u64) -> Result<(), TestCaseError> {
    let mut pair = [Driven::new(config, false), Driven::new(config, true)];
    for (tag, act) in acts.iter().enumerate() {
        let tag = tag_of(tag as u64);
        match *act {
            Act::Submit { prompt_tokens, shared, max_tokens } => {
                pair.iter_mut().for_each(|driven| driven.submit(tag, prompt_tokens, shared, max_tokens));
            }
            Act::Abort { which } => {
                let tags: Vec<u64> = pair[0].engine.running_tags().collect();
                if !tags.is_empty() {
                    for driven in &mut pair {
                        let id = driven.engine.find(*which.get(&tags)).expect("it runs in both");
                        driven.engine.abort(id);
                    }
                }
            }
            Act::ResetCache => {
                let done = pair.each_mut().map(|driven| driven.engine.reset_prefix_cache(true));
                prop_assert_eq!(done[0], done[1]);
            }
            Act::Pause(state) => pair.iter_mut().for_each(|driven| driven.engine.set_pause_state(state)),
            Act::Steps { steps, ahead } => {
                pair.iter_mut().for_each(|driven| driven.schedules_once = steps % 3 == 0);
                for step in 0..steps {
                    pair[0].stir();
                    pair.iter_mut().for_each(Driven::schedule);
                    prop_assert_eq!(pair[0].seen(), pair[1].seen());
                    let skipped = if ahead { pair[1].skip(1 + usize::from(step)) } else { 0 };
                    for _ in 0..skipped {
                        pair[0].update();
                        pair[0].stir();
                        pair[0].schedule();
                    }
                    prop_assert_eq!(pair[0].seen(), pair[1].seen());
                    // Some actions happen while a step is in flight.
                    if step + 1 < steps || steps % 2 == 0 {
                        pair.iter_mut().for_each(Driven::update);
                    }
                    prop_assert_eq!(pair[0].seen(), pair[1].seen());
                }
            }
        }
    }
    for driven in &mut pair {
        driven.engine.dissolve_steady_decode();
        driven.take_unreported();
        driven.engine.pool().assert_consistent();
    }
    let [single, steady_decode] = pair;
    prop_assert_eq!(
        &single.reported_tokens.into_iter().filter(|(_, tokens)| *tokens > 0).collect::<Vec<_>>(),
        &steady_decode.reported_tokens.into_iter().filter(|(_, tokens)| *tokens > 0).collect::<Vec<_>>()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_steady_decode_is_its_requests_one_by_one(config in arb_config(), acts in prop::collection::vec(arb_act(), 1..40)) {
        compare(&config, &acts, |tag| tag)?;
    }

    /// Settings and requests with which a steady decode is usually possible.
    #[test]
    fn a_plain_engines_steady_decode_is_its_requests_one_by_one(
        num_gpu_blocks in 8..80u32,
        block_size in prop::sample::select(&[8, 16, 64][..]),
        max_num_batched_tokens in 4..200u32,
        enable_prefix_caching in any::<bool>(),
        (max_loras, adapter_costs) in (0..4u32, prop::option::weighted(0.2, arb_adapter_costs())),
        async_scheduling in any::<bool>(),
        rules in prop::sample::select(SchedulerRules::NAMES),
        acts in prop::collection::vec(arb_act(), 1..60),
    ) {
        let input = EngineConfigInput {
            num_gpu_blocks,
            block_size,
            max_num_batched_tokens,
            max_num_seqs: max_num_batched_tokens.min(12),
            enable_prefix_caching,
            max_loras,
            adapter_costs: adapter_costs.filter(|_| max_loras > 0),
            async_scheduling,
            rules: rules.1,
            ..EngineConfigInput::default()
        };
        // Prompts with even tags keep their tokens.
        compare(&EngineConfig::new(input).expect("valid"), &acts, |tag| 2 * tag + 1)?;
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// The same with a host tier: blocks of ended requests are copied while members reuse them.
    #[test]
    fn a_steady_decode_above_tiers_is_its_requests_one_by_one(
        num_gpu_blocks in 12..40u32,
        block_size in prop::sample::select(&[8, 16][..]),
        max_num_batched_tokens in 64..200u32,
        tiers in arb_slow_tiers(),
        acts in prop::collection::vec(arb_act(), 1..60),
    ) {
        let input = EngineConfigInput {
            num_gpu_blocks,
            block_size,
            max_num_batched_tokens,
            max_num_seqs: max_num_batched_tokens.min(12),
            kv_tiers: tiers,
            ..EngineConfigInput::default()
        };
        let config = EngineConfig::new(input);
        prop_assume!(config.is_ok());
        compare(&config.expect("valid"), &acts, |tag| 2 * tag + u64::from(block_size == 8))?;
    }

    /// The same with groups of layers, so that blocks leave windows.
    #[test]
    fn a_steady_decode_with_windows_is_its_requests_one_by_one(
        num_gpu_blocks in 30..200u32,
        (block_size, kv_cache_groups) in prop::sample::select(&[8, 16][..])
            .prop_flat_map(|size| (Just(size), arb_groups(size))),
        max_num_batched_tokens in 4..200u32,
        enable_prefix_caching in any::<bool>(),
        acts in prop::collection::vec(arb_act(), 1..60),
    ) {
        let input = EngineConfigInput {
            num_gpu_blocks,
            block_size,
            max_num_batched_tokens,
            max_num_seqs: max_num_batched_tokens.min(12),
            enable_prefix_caching,
            kv_cache_groups,
            ..EngineConfigInput::default()
        };
        let config = EngineConfig::new(input);
        prop_assume!(config.is_ok());
        compare(&config.expect("valid"), &acts, |tag| 2 * tag + 1)?;
    }
}

#[test]
fn a_step_lists_only_what_happens_in_it() {
    let mut driven = Driven::new(&EngineConfig::new(EngineConfigInput::default()).expect("valid"), true);
    let tags = [1, 3, 5, 9, 11];
    for (tag, max_tokens) in tags.into_iter().zip(10..) {
        driven.submit(tag, 30, false, max_tokens);
    }
    driven.schedule();
    assert_eq!((driven.engine.plan().scheduled.len(), driven.engine.plan().steady_decode_requests), (5, 0));
    driven.update();
    assert_eq!(driven.engine.outputs().joined, tags);
    driven.schedule();
    assert_eq!((driven.engine.plan().scheduled.len(), driven.engine.plan().steady_decode_requests), (0, 5));
    // Request 1 ends with its tenth token.
    assert_eq!(driven.skip(64), 8);
    assert_eq!((driven.engine.plan().scheduled.len(), driven.engine.plan().steady_decode_requests), (1, 4));
    assert_eq!(driven.reported_tokens[&1], 9);
    driven.update();
    assert_eq!(driven.ended, [(1, 10, FinishReason::Length)]);
    assert_eq!(driven.tokens_by_group, [20, 10, 20]);
}

#[test]
fn under_async_scheduling_members_leave_and_end_a_step_apart() {
    let input = EngineConfigInput { async_scheduling: true, ..EngineConfigInput::default() };
    let mut driven = Driven::new(&EngineConfig::new(input).expect("valid"), true);
    for (tag, max_tokens) in [1, 3, 5].into_iter().zip(10..) {
        driven.submit(tag, 30, false, max_tokens);
    }
    driven.schedule();
    // The prompts, and then the second tokens, which are scheduled before the first are known.
    driven.update();
    let listed = |driven: &Driven| {
        let plans = [driven.engine.oldest_plan(), driven.engine.plan()];
        plans.map(|plan| (plan.scheduled.len(), plan.steady_decode_requests))
    };
    driven.schedule();
    assert_eq!(listed(&driven), [(0, 3); 2]);
    // Two tokens of each request are in flight. Request 1 has eight more steps, the last of which is not skipped.
    assert_eq!(driven.skip(64), 7);
    assert_eq!(listed(&driven), [(1, 2); 2]);
    assert_eq!(driven.reported_tokens[&1], 8);
    driven.update();
    driven.schedule();
    assert_eq!(listed(&driven), [(2, 1), (1, 1)]);
    driven.update();
    assert_eq!(driven.ended, [(1, 10, FinishReason::Length)]);
}

#[test]
fn steps_are_predicted_while_all_others_wait_for_an_adapter() {
    let input = EngineConfigInput { max_loras: 1, ..EngineConfigInput::default() };
    let mut driven = Driven::new(&EngineConfig::new(input).expect("valid"), true);
    // The adapters of these requests are 1, 1 and 3.
    for tag in [1, 5, 7] {
        driven.submit(tag, 30, false, 20);
    }
    driven.schedule();
    driven.update();
    driven.schedule();
    let plan = driven.engine.plan();
    assert_eq!((plan.steady_decode_requests, plan.shape.waiting_requests), (2, 1));
    assert_eq!((plan.shape.adapter_count, plan.shape.adapter_tokens), (1, 2));
    assert_eq!(driven.skip(5), 5);
    // A request with a known adapter is admitted.
    driven.submit(13, 30, false, 20);
    assert_eq!(driven.skip(64), 0);
    driven.update();
    driven.schedule();
    assert_eq!(driven.engine.running_tags().collect::<Vec<_>>(), [1, 5, 13]);
}
