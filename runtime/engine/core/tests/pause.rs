//! A paused scheduler, and steps that defer prefills.

use vcr_core::latency::DecodeSteps;
use vcr_core::plan::AdmissionStop;
use vcr_core::{
    Drafter, Engine, EngineConfig, EngineConfigInput, KvRole, PauseState, Prompt, RequestSpec, SchedulerRules,
    TokenSource,
};

struct Ones;

impl TokenSource for Ones {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        1
    }
}

fn engine() -> Engine {
    Engine::new(EngineConfig::new(EngineConfigInput::default()).expect("valid"))
}

fn request(tag: u64, kv_role: KvRole) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, 40);
    RequestSpec { kv_role, ..RequestSpec::new(tag, prompt, 50) }
}

fn step(engine: &mut Engine) -> (Vec<u64>, AdmissionStop) {
    let plan = engine.schedule();
    let found = (plan.scheduled.iter().map(|entry| entry.tag).collect(), plan.admission_stop);
    if engine.step_in_flight() {
        engine.update(&mut Ones);
    }
    found
}

#[test]
fn nothing_is_scheduled_while_all_is_paused() {
    let mut engine = engine();
    engine.submit(request(0, KvRole::Local)).expect("it fits");
    step(&mut engine);
    engine.submit(request(1, KvRole::Local)).expect("it is taken all the same");
    engine.set_pause_state(PauseState::PausedAll);
    assert_eq!(engine.pause_state(), PauseState::PausedAll);
    assert_eq!((engine.num_unfinished(), engine.has_schedulable_requests()), (0, false));
    assert_eq!(step(&mut engine), (vec![], AdmissionStop::Paused));
    assert_eq!((engine.num_running(), engine.num_waiting()), (1, 1));
    engine.set_pause_state(PauseState::Unpaused);
    assert_eq!((engine.num_unfinished(), engine.has_schedulable_requests()), (2, true));
    assert_eq!(step(&mut engine), (vec![0, 1], AdmissionStop::Drained));
}

#[test]
fn what_runs_and_what_has_its_kv_goes_on_while_new_requests_are_paused() {
    let mut engine = engine();
    engine.submit(request(0, KvRole::Local)).expect("it fits");
    let loading = engine.submit(request(1, KvRole::Destination)).expect("it fits");
    step(&mut engine);
    engine.submit(request(2, KvRole::Local)).expect("it is taken all the same");
    engine.set_pause_state(PauseState::PausedNew);
    assert_eq!(engine.num_unfinished(), 2, "one runs and one loads");
    assert_eq!(step(&mut engine), (vec![0], AdmissionStop::Paused));
    engine.remote_kv_arrived(loading);
    assert_eq!(engine.num_unfinished(), 2);
    assert_eq!(step(&mut engine), (vec![0, 1], AdmissionStop::Paused));
    for tag in [0, 1] {
        engine.abort(engine.find(tag).expect("it runs"));
    }
    assert_eq!((engine.num_unfinished(), engine.has_schedulable_requests()), (0, false));
    assert_eq!(step(&mut engine), (vec![], AdmissionStop::Paused));
    engine.set_pause_state(PauseState::Unpaused);
    assert_eq!(step(&mut engine), (vec![2], AdmissionStop::Drained));
}

#[test]
fn runs_of_decode_steps_are_predicted_as_the_pause_allows() {
    let mut engine = engine();
    engine.submit(request(0, KvRole::Local)).expect("it fits");
    step(&mut engine);
    engine.schedule();
    engine.submit(request(1, KvRole::Local)).expect("it fits");
    let predicted = |engine: &Engine| {
        let mut steps = DecodeSteps::default();
        engine.predict_decode_steps(8, &mut steps);
        steps.len()
    };
    assert_eq!(predicted(&engine), 0, "the next step admits");
    engine.set_pause_state(PauseState::PausedAll);
    assert_eq!(predicted(&engine), 0, "there is no next step");
    engine.set_pause_state(PauseState::PausedNew);
    assert_eq!(predicted(&engine), 8, "no step admits");
}

/// Tags of the requests in each of `count` steps. A prompt of `first` tokens is submitted before the first step, and
/// prompts of the lengths in `others` before the second.
fn steps(input: EngineConfigInput, first: u32, others: &[u32], count: usize) -> Vec<Vec<u64>> {
    let mut engine = Engine::new(EngineConfig::new(input).expect("valid"));
    let submit = |engine: &mut Engine, tag: u64, prompt_tokens: u32| {
        let mut prompt = Prompt::new(16, 0);
        prompt.push_run(tag, 0, prompt_tokens);
        engine.submit(RequestSpec::new(tag, prompt, 50)).expect("it fits");
    };
    submit(&mut engine, 0, first);
    let mut found = vec![step(&mut engine).0];
    for (tag, &prompt_tokens) in (1..).zip(others) {
        submit(&mut engine, tag, prompt_tokens);
    }
    found.extend((1..count).map(|_| step(&mut engine).0));
    found
}

fn spaced(prefill_schedule_interval: u32) -> EngineConfigInput {
    EngineConfigInput { prefill_schedule_interval, max_num_batched_tokens: 64, max_num_seqs: 4, ..Default::default() }
}

#[test]
fn an_engine_by_itself_prefills_once_in_an_interval() {
    let decodes = || vec![0];
    let expected = vec![decodes(), decodes(), decodes(), decodes(), vec![0, 1]];
    assert_eq!(steps(spaced(4), 40, &[40], 5), expected);
    // Later chunks of a started prompt wait, too: 63 and 57 of 120 tokens.
    let expected = [vec![0], vec![0], vec![0, 1], vec![0], vec![0, 1], vec![0, 1]];
    assert_eq!(steps(spaced(2), 40, &[120], 6), expected);
    // Earlier releases ignore the interval, unless ranks step together.
    let before = EngineConfigInput { rules: SchedulerRules::V0_32, ..spaced(4) };
    assert_eq!(steps(before, 40, &[40], 3), [vec![0], vec![0, 1], vec![0, 1]]);
}

#[test]
fn prefills_are_not_put_off_while_nothing_decodes_or_requests_find_no_room() {
    // There are only the chunks of one prompt.
    assert_eq!(steps(spaced(8), 200, &[], 4), [[0], [0], [0], [0]]);
    // The step that may prefill does not admit all waiting requests, so the next step prefills, too, and admits the
    // rest.
    let found = steps(spaced(3), 40, &[60, 60, 60], 7);
    assert_eq!(found[..3], [vec![0], vec![0], vec![0]]);
    assert_eq!(found[3..], [vec![0, 1, 2], vec![0, 1, 2, 3], vec![0, 1, 2], vec![0, 1, 2]]);
}

#[test]
fn the_budget_of_a_step_may_be_below_the_room_of_the_models_input() {
    let of = |max_num_scheduled_tokens| EngineConfigInput {
        max_num_scheduled_tokens: Some(max_num_scheduled_tokens),
        max_num_batched_tokens: 64,
        max_num_seqs: 64,
        ..EngineConfigInput::default()
    };
    let mut engine = Engine::new(EngineConfig::new(of(10)).expect("valid"));
    engine.submit(request(0, KvRole::Local)).expect("it fits");
    engine.submit(request(1, KvRole::Local)).expect("it fits");
    let totals: Vec<u32> = (0..9)
        .map(|_| {
            let total = engine.schedule().total_num_scheduled_tokens;
            engine.update(&mut Ones);
            total
        })
        .collect();
    // First 40 tokens, then in each step 9 tokens of the other prompt and one decode.
    assert_eq!(totals, [10, 10, 10, 10, 10, 10, 10, 10, 5]);
    let errors = EngineConfig::new(of(65)).expect_err("it exceeds the other");
    let text = "`max_num_scheduled_tokens` (65) must not exceed `max_num_batched_tokens` (64)";
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    // A draft model needs one slot per request, in addition to the scheduled tokens.
    let drafts = |scheduled| EngineConfigInput {
        drafter: Drafter::DraftModel,
        num_speculative_tokens: 3,
        max_model_len: Some(1000),
        ..of(scheduled)
    };
    assert_eq!(EngineConfig::new(drafts(64)).expect("valid").longest_chunk(), 63);
    let short = EngineConfig::new(drafts(3)).expect("the scheduler alone starts");
    let errors = short.check_start_up().expect_err("a request is admitted with its drafts");
    assert_eq!(errors[0].to_string(), "invalid `max_num_scheduled_tokens`: expected at least 4, got 3");
    let old = EngineConfigInput { rules: SchedulerRules::V0_27, max_num_seqs: 4, ..drafts(61) };
    let errors = EngineConfig::new(old).expect_err("0.27 withholds the slots of all requests");
    assert!(errors[0].to_string().contains("must not exceed `max_num_batched_tokens` (60)"), "{errors:?}");
}
