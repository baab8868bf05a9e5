//! Noise alone does not hold a release, but a regression does.

use std::num::NonZeroUsize;

use vcr_base::random::Stream;
use vcr_gate::{Decision, GateOptions, JoinBy, OBSERVATION_VERSION, Observation, Place, Policy, Side};

/// The limits are 0, so every significant increase fails.
const STRICT: &str = "policy = 1\n[required]\nmatched = 10\n[segments]\nby = []\n[limits]\nlatency_p95 = 0\nttft_p95 = 0\n\
                      error_rate_increase = 0\n[statistics]\nalpha = 0.1\nresamples = 400\n";

/// A canary with lognormal times to the first token, answers of a hundred tokens and occasional errors.
fn side(stream: &mut Stream, requests: usize, factor: f64) -> Side {
    let mut side = Side::new();
    side.begin("simulated");
    for index in 0..requests {
        let ttft_ns = (80e6 * factor * (0.4 * stream.normal()).exp()) as u64;
        let latency_ns = ttft_ns + (1e9 * (0.1 * stream.normal()).exp()) as u64;
        let observation = Observation {
            version: OBSERVATION_VERSION,
            request_id: format!("r{index}").into(),
            ok: stream.unit() > 0.01,
            latency_ns: Some(latency_ns),
            ttft_ns: Some(ttft_ns),
            text: Some("same".into()),
            ..Observation::default()
        };
        side.add(&observation, Place::File).expect("there is room");
    }
    side
}

fn decision(policy: &Policy, baseline: &Side, candidate: &Side) -> Decision {
    let options = GateOptions { join: JoinBy::Id, threads: NonZeroUsize::MIN };
    vcr_gate::judge(policy, baseline, candidate, &options).expect("they can be joined").decision
}

fn stopped(policy: &Policy, canaries: usize, requests: usize, factor: f64) -> f64 {
    let mut stream = Stream::new(11, "canaries");
    let stopped = (0..canaries).filter(|_| {
        let baseline = side(&mut stream, requests, 1.0);
        let candidate = side(&mut stream, requests, factor);
        decision(policy, &baseline, &candidate) != Decision::Promote
    });
    stopped.count() as f64 / canaries as f64
}

#[test]
fn equal_canaries_are_stopped_less_often_than_alpha() {
    let policy = Policy::parse(STRICT, "strict").expect("valid");
    let share = stopped(&policy, 2000, 60, 1.0);
    println!("{share} of 2000 equal canaries were stopped");
    assert!(share <= policy.alpha(), "{share}");
    // A gate that never stops a release would also pass the check above.
    assert!(share > 0.0);
}

/// Checks the table of docs/reference/gate.md.
#[test]
fn a_tenth_more_is_seen_with_enough_requests() {
    let text = "policy = 1\n[segments]\nby = []\n";
    let policy = Policy::parse(text, "default").expect("valid");
    let (few, many) = (stopped(&policy, 40, 500, 1.1), stopped(&policy, 40, 8000, 1.1));
    println!("500 requests: {few}, 8000 requests: {many}");
    assert!(many >= 0.9, "{many}");
    assert!(few < many, "{few} {many}");
}

#[test]
fn threads_and_repetition_change_nothing() {
    let mut stream = Stream::new(5, "threads");
    let (baseline, candidate) = (side(&mut stream, 400, 1.0), side(&mut stream, 400, 1.2));
    let of = |threads: usize| {
        let options = GateOptions { join: JoinBy::Id, threads: NonZeroUsize::new(threads).expect("not zero") };
        vcr_gate::judge(&Policy::default(), &baseline, &candidate, &options).expect("they can be joined")
    };
    assert_eq!(of(1), of(4));
    assert_eq!(of(1).decision, Decision::Hold);
}
