//! A paused scheduler.

use vcr_core::latency::DecodeSteps;
use vcr_core::plan::AdmissionStop;
use vcr_core::{Engine, EngineConfig, EngineConfigInput, KvRole, PauseState, Prompt, RequestSpec, TokenSource};

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
