//! Tests of profiles: plays in lanes that start in the middle, warm up, or have a fixed duration.

use std::sync::Arc;

use crate::support::{MS, assert_conserved, config, pool, run};
use vcr_cluster::record::{GiveUp, Outcome};
use vcr_cluster::{
    Answers, ProfileConfig, Report, RouterConfig, RunConfig, Topology, TracePacing, WorkloadConfig, WorkloadSource,
};
use vcr_trace::{Format, Trace, TraceOptions};

/// Plays of an agent with three turns one second apart, whose prompts grow by a block per turn.
fn trace(plays: u32) -> Arc<Trace> {
    let mut rows =
        r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":16,"hash_id_scope":"local"}"#.to_owned();
    for play in 0..plays {
        for turn in 0..3 {
            let ids: Vec<u32> = (0..=turn).collect();
            let waits = match turn {
                0 => String::new(),
                _ => format!(r#"{{"request_id":"{play}-{}","trigger":"completion","delay_ms":900}}"#, turn - 1),
            };
            rows += &format!(
                "\n{{\"request_id\":\"{play}-{turn}\",\"play_id\":\"{play}\",\"session_id\":\"{play}\",\"not_before_ms\":{},\
                 \"recorded_api_time_ms\":100,\"output_length\":20,\"hash_ids\":{ids:?},\"dependencies\":[{waits}]}}",
                turn * 1000
            );
        }
    }
    let options = TraceOptions::default();
    Arc::new(Trace::read(rows.as_bytes(), "rows", Format::AgenticMooncake, &options).expect("a trace"))
}

fn run_config(trace: &Arc<Trace>, profile: ProfileConfig, router: RouterConfig) -> RunConfig {
    let source = WorkloadSource::Trace {
        trace: Arc::clone(trace),
        pacing: TracePacing::Profile(profile),
        copies: 1,
        stagger_ns: 0,
        answers: Answers::Simulated,
    };
    config(Topology::Aggregated(pool("pool", 2, 2000, router)), vec![WorkloadConfig::new("agents", source)])
}

fn play(plays: u32, profile: ProfileConfig) -> Report {
    let report = run(&run_config(&trace(plays), profile, RouterConfig::RoundRobin));
    assert_conserved(&report);
    report
}

const S: u64 = 1000 * MS;

#[test]
fn each_lane_has_one_play_at_a_time_and_each_play_is_played_once() {
    let report = play(5, ProfileConfig::new(2));
    assert_eq!(report.requests.len(), 15);
    let profile = report.profile.expect("it is a profile");
    assert_eq!((profile.plays_started, profile.plays_ended, profile.warmup_requests), (5, 5, 0));
    // Starts and ends of plays, by time.
    let of_play = |session: u64| report.requests.iter().filter(move |record| record.session == session);
    let mut edges: Vec<(u64, i32)> = Vec::new();
    for session in 0..5 {
        edges.push((of_play(session).map(|record| record.arrival_ns).min().expect("it has requests"), 1));
        edges.push((of_play(session).filter_map(|record| record.end_ns).max().expect("they have ended"), -1));
    }
    edges.sort_unstable();
    let mut at_once = 0;
    for (_, change) in edges {
        at_once += change;
        assert!(at_once <= 2, "two lanes hold two plays");
    }
}

#[test]
fn a_profile_repeats_the_trace_with_content_of_its_own_until_its_end() {
    let profile = ProfileConfig { duration_ns: Some(20 * S), grace_ns: S, ..ProfileConfig::new(1) };
    let report = play(2, profile);
    let counts = report.profile.expect("it is a profile");
    assert!(counts.plays_started > 4, "{counts:?}");
    assert!(report.requests.iter().all(|record| record.arrival_ns < 20 * S));
    // A turn finds cached tokens of its own play. A new play finds none.
    assert!(report.requests.iter().filter(|record| record.turn == 0).all(|record| record.cached_tokens == 0));
    assert!(report.requests.iter().any(|record| record.cached_tokens > 0));
    // Repeated plays have new sessions.
    let sessions: std::collections::BTreeSet<u64> = report.requests.iter().map(|record| record.session).collect();
    assert_eq!(sessions.len() as u64, counts.plays_started);
}

#[test]
fn requests_in_flight_after_the_grace_are_cancelled() {
    // The second turn starts at 1 s and takes more than 50 ms.
    let profile = ProfileConfig { duration_ns: Some(1001 * MS), grace_ns: 20 * MS, ..ProfileConfig::new(1) };
    let report = play(1, profile);
    let ends: Vec<(Outcome, Option<u64>)> =
        report.requests.iter().map(|record| (record.outcome, record.end_ns)).collect();
    assert_eq!(ends.len(), 2, "the third turn would be too late");
    assert_eq!(ends[0].0, Outcome::Completed);
    assert_eq!(ends[1], (Outcome::GivenUp(GiveUp::Cancelled), Some(1021 * MS)));
    let patient = ProfileConfig { grace_ns: 500 * MS, ..profile };
    let report = play(1, patient);
    assert!(report.requests.iter().all(|record| record.outcome == Outcome::Completed));
}

#[test]
fn a_warm_up_fills_the_caches_and_is_in_no_number() {
    let cold = ProfileConfig { snapshot_seed: Some(3), ..ProfileConfig::new(3) };
    let warm = ProfileConfig { warmup_requests: 2, ..cold };
    let [cold, warm] = [cold, warm].map(|profile| play(3, profile));
    let counts = warm.profile.expect("it is a profile");
    // One conversation of each lane continues. Its last request is sent, and then repeated twice.
    assert_eq!((counts.warmup_requests, warm.first_request), (9, 9));
    assert_eq!(warm.requests.len(), cold.requests.len());
    assert!(warm.requests.iter().all(|record| record.arrival_ns >= counts.began_ns && record.max_tokens == 20));
    let cached = |report: &Report| report.requests.iter().map(|record| u64::from(record.cached_tokens)).sum::<u64>();
    assert!(cached(&warm) > cached(&cold), "{} {}", cached(&warm), cached(&cold));
    let steps = |report: &Report| report.engines.iter().map(|engine| engine.steps).sum::<u64>();
    assert_eq!(steps(&warm), warm.metrics.count(vcr_cluster::metrics::Counter::Steps));
    assert_eq!(warm.metrics.count(vcr_cluster::metrics::Counter::Requests), warm.requests.len() as u64);
    let computed = |report: &Report| report.engines.iter().map(|engine| engine.computed_tokens).sum::<u64>();
    assert!(computed(&warm) < computed(&cold));
    // Apart from cached tokens, the profile takes the same time.
    assert!(warm.duration_ms < cold.duration_ms + 1.0, "{} {}", warm.duration_ms, cold.duration_ms);
    assert!(warm.engines.iter().all(|engine| engine.utilisation <= 1.0));
}

#[test]
fn idle_caps_shorten_the_run_and_nothing_else_changes() {
    let free = play(2, ProfileConfig::new(1));
    let capped = play(2, ProfileConfig { play_idle_cap_ns: Some(100 * MS), ..ProfileConfig::new(1) });
    let counts = capped.profile.expect("it is a profile");
    assert_eq!((counts.idle_cuts, free.profile.expect("it is a profile").idle_cuts), (4, 0));
    // Every turn of a play except the first starts at the idle limit.
    let waits = |report: &Report| {
        let turns = report.requests.windows(2).filter(|turns| turns[1].turn > 0);
        turns.map(|turns| turns[1].arrival_ns - turns[0].end_ns.expect("it has ended")).collect::<Vec<_>>()
    };
    assert_eq!(waits(&capped), [100 * MS; 4]);
    assert!(waits(&free).iter().all(|wait_ns| *wait_ns > 100 * MS));
    let tokens = |report: &Report| report.requests.iter().map(|record| record.output_tokens).collect::<Vec<_>>();
    assert_eq!(tokens(&free), tokens(&capped));
}

#[test]
fn sessions_of_turns_are_plays_too() {
    let rows = "{\"session_id\":\"a\",\"timestamp\":0,\"output_length\":3,\"hash_ids\":[1]}\n\
                {\"session_id\":\"a\",\"delay\":50,\"output_length\":3,\"hash_ids\":[1,2]}\n\
                {\"session_id\":\"b\",\"timestamp\":9,\"output_length\":3,\"hash_ids\":[3]}\n";
    let trace = Trace::read(rows.as_bytes(), "rows", Format::Mooncake, &TraceOptions::default()).expect("a trace");
    let report = run(&run_config(&Arc::new(trace), ProfileConfig::new(1), RouterConfig::RoundRobin));
    let at: Vec<(u64, u32)> = report.requests.iter().map(|record| (record.session, record.turn)).collect();
    assert_eq!(at, [(0, 0), (0, 1), (1, 0)]);
    let end_ns = |index: usize| report.requests[index].end_ns.expect("it has ended");
    assert_eq!(report.requests[1].arrival_ns, end_ns(0) + 50 * MS);
    assert_eq!(report.requests[2].arrival_ns, end_ns(1));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let refused = |profile: ProfileConfig, trace: &Arc<Trace>| {
        let errors = run_config(trace, profile, RouterConfig::RoundRobin).check().expect_err("it is refused");
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let wrong = ProfileConfig { grace_ns: 1, ..ProfileConfig::new(0) };
    let text = refused(wrong, &trace(1));
    assert!(
        text.contains("invalid `lanes`: expected at least 1") && text.contains("`grace` is for a `duration`"),
        "{text}"
    );
    let rows = "{\"request_id\":\"a\",\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}\n\
                {\"request_id\":\"b\",\"wait_for\":[\"a\"],\"output_length\":1,\"hash_ids\":[1]}\n";
    let first_version = Arc::new(
        Trace::read(rows.as_bytes(), "rows", Format::AgenticMooncake, &TraceOptions::default()).expect("a trace"),
    );
    let text = refused(ProfileConfig { snapshot_seed: Some(1), ..ProfileConfig::new(1) }, &first_version);
    assert!(text.contains("snapshots need to know when each request was sent"), "{text}");
}
