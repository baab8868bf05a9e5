//! Events that a scheduling policy receives, and the effect of its preferences.

use vcr_core::policy::{EngineView, PolicyError, PolicyEvent, Preference, Progress, SchedulingPolicy, Slo};
use vcr_core::{Engine, EngineConfig, EngineConfigInput, Policy, Prompt, RequestSpec, TokenSource};

struct Zeros;

impl TokenSource for Zeros {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        0
    }
}

/// Returns one answer after another, and records what it received.
#[derive(Default)]
struct Scripted {
    answers: Vec<Vec<Preference>>,
    events: Vec<Vec<PolicyEvent>>,
    progress: Vec<Vec<Progress>>,
}

impl SchedulingPolicy for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        let call = self.events.len();
        self.events.push(batch.events.to_vec());
        self.progress.push(batch.progress.to_vec());
        preferences.extend(self.answers.get(call).into_iter().flatten());
        Ok(())
    }
}

fn engine(input: EngineConfigInput) -> Engine {
    let input = EngineConfigInput { policy: Policy::Ranked, enable_prefix_caching: false, ..input };
    Engine::new(EngineConfig::new(input).expect("valid"))
}

fn submit(engine: &mut Engine, tag: u64, prompt_tokens: u32, max_tokens: u32) -> u32 {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, prompt_tokens);
    let slo = Slo { ttft_ns: Some(5), ..Slo::default() };
    let spec = RequestSpec { tenant: 40 + tag, priority: -3, slo, ..RequestSpec::new(tag, prompt, max_tokens) };
    engine.submit(spec).expect("it fits").index() as u32
}

fn step(engine: &mut Engine, policy: &mut Scripted) -> Vec<(u64, u32)> {
    engine.apply_policy(policy, 0).expect("its answer is valid");
    let scheduled = engine.schedule().scheduled.iter().map(|entry| (entry.tag, entry.num_scheduled_tokens));
    let scheduled = scheduled.collect();
    engine.update(&mut Zeros);
    scheduled
}

fn admission(slot: u32, rank: i64) -> Preference {
    Preference::AdmissionRank { slot, rank }
}

#[test]
fn a_request_is_reported_from_its_arrival_to_its_end() {
    let mut engine = engine(EngineConfigInput::default());
    let mut policy = Scripted::default();
    let slot = submit(&mut engine, 2, 10, 3);
    for _ in 0..3 {
        step(&mut engine, &mut policy);
    }
    engine.apply_policy(&mut policy, 0).expect("an empty answer is valid");
    let arrived = PolicyEvent::Arrived {
        slot,
        arrival_ns: 0,
        prompt_tokens: 10,
        max_tokens: 3,
        priority: -3,
        adapter: None,
        tenant: 42,
        slo: Slo { ttft_ns: Some(5), ..Slo::default() },
    };
    let ended = PolicyEvent::Ended { slot, computed_tokens: 12, output_tokens: 3 };
    let admitted = PolicyEvent::Admitted { slot, cached_tokens: 0 };
    // Between the second and the third step, there was only a decode.
    assert_eq!(policy.events, [vec![arrived], vec![admitted], vec![ended]]);
    let progress = Progress { slot, computed_tokens: 10, output_tokens: 1 };
    assert_eq!(policy.progress, [vec![], vec![progress], vec![]]);
}

#[test]
fn the_lowest_rank_is_admitted_first_and_may_change_while_it_waits() {
    let mut engine = engine(EngineConfigInput { max_num_seqs: 1, ..EngineConfigInput::default() });
    let slots: Vec<u32> = (0..4).map(|tag| submit(&mut engine, tag, 8, 1)).collect();
    let mut policy = Scripted {
        answers: vec![
            vec![admission(slots[0], 5), admission(slots[1], i64::MAX), admission(slots[2], i64::MIN)],
            vec![admission(slots[1], -1)],
        ],
        ..Scripted::default()
    };
    let order: Vec<u64> = (0..4).map(|_| step(&mut engine, &mut policy)[0].0).collect();
    assert_eq!(order, [2, 1, 3, 0]);
}

#[test]
fn the_greatest_eviction_rank_is_preempted() {
    let input = EngineConfigInput { num_gpu_blocks: 7, max_num_seqs: 3, ..EngineConfigInput::default() };
    let mut engine = engine(input);
    let slots: Vec<u32> = (0..3).map(|tag| submit(&mut engine, tag, 31, 40)).collect();
    let evicted = Preference::EvictionRank { slot: slots[0], rank: 1 };
    let mut policy = Scripted { answers: vec![vec![evicted]], ..Scripted::default() };
    let preempted = (0..4).find_map(|_| {
        engine.apply_policy(&mut policy, 0).expect("its answer is valid");
        let preempted = engine.schedule().preempted.first().copied();
        engine.update(&mut Zeros);
        preempted
    });
    assert_eq!(preempted, Some(0), "the first that came has the greatest rank");
    engine.apply_policy(&mut policy, 0).expect("an empty answer is valid");
    let expected = policy.events.last().expect("it was asked");
    assert_eq!(expected[0], PolicyEvent::Preempted { slot: slots[0] });
}

#[test]
fn a_chunk_cap_holds_for_waiting_and_running_requests() {
    let mut engine = engine(EngineConfigInput { max_num_batched_tokens: 300, ..EngineConfigInput::default() });
    let slots = [submit(&mut engine, 0, 250, 1), submit(&mut engine, 1, 400, 1)];
    let cap = |tokens| Preference::ChunkCap { slot: slots[0], tokens };
    let mut policy = Scripted { answers: vec![vec![cap(Some(100))], vec![], vec![cap(None)]], ..Scripted::default() };
    assert_eq!(step(&mut engine, &mut policy), [(0, 100), (1, 200)]);
    assert_eq!(step(&mut engine, &mut policy), [(0, 100), (1, 200)]);
    submit(&mut engine, 2, 10, 1);
    assert_eq!(step(&mut engine, &mut policy), [(0, 50), (2, 10)]);
}

#[test]
fn an_invalid_answer_is_named_and_has_no_effect() {
    let cases = [
        (vec![admission(9, 1)], "its preference 0, admission rank 1 of slot 9, names no current request"),
        (
            vec![admission(0, 1), admission(0, 2)],
            "its preference 1, admission rank 2 of slot 0, is the second of its kind",
        ),
        (
            vec![admission(0, 9), Preference::ChunkCap { slot: 0, tokens: Some(0) }],
            "chunk cap 0 of slot 0, lets the request compute nothing",
        ),
    ];
    for (answer, expected) in cases {
        let mut engine = engine(EngineConfigInput { max_num_seqs: 1, ..EngineConfigInput::default() });
        submit(&mut engine, 0, 8, 1);
        submit(&mut engine, 1, 8, 1);
        let mut policy = Scripted { answers: vec![answer], ..Scripted::default() };
        let error = engine.apply_policy(&mut policy, 0).expect_err("an invalid answer").to_string();
        assert!(error.starts_with("scheduler policy `scripted` failed: "), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(engine.schedule().scheduled[0].tag, 0, "the first that came goes first");
    }
}

#[test]
fn an_engine_with_another_policy_calls_none() {
    let config = EngineConfig::new(EngineConfigInput::default()).expect("valid");
    let mut engine = Engine::new(config);
    submit(&mut engine, 0, 8, 1);
    let mut policy = Scripted::default();
    engine.apply_policy(&mut policy, 0).expect("no policy was called");
    assert!(policy.events.is_empty());
}
