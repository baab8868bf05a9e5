//! Tests of clusters that their caller steps, with the examples.

#[path = "../examples/co_simulation.rs"]
mod co_simulation;
#[path = "../examples/planner.rs"]
mod planner;
#[path = "../examples/rl_router.rs"]
mod rl_router;
use std::sync::Arc;

use crate::support::{MS, config, mix, pool, recorded, run, synthetic};
use proptest::prelude::*;
use vcr_cluster::metrics::Counter;
use vcr_cluster::record::{GiveUp, Outcome};
use vcr_cluster::{
    Answers, Arrivals, Cluster, ClusterError, ClusterOutput, ClusterRequest, KvRouterConfig, PoolRole, RouterConfig,
    RunConfig, Topology, WorkloadConfig, WorkloadSource,
};
use vcr_trace::{AnswerEnd, AnswerTimes, ItemRange, OutputTime, Trace};

#[test]
fn an_agent_learns_to_route() {
    rl_router::main();
}

#[test]
fn a_planner_saves_engines() {
    planner::main();
}

#[test]
fn another_clock_drives() {
    co_simulation::main();
}

fn empty(engines: u32, router: RouterConfig) -> RunConfig {
    config(Topology::Aggregated(pool("engines", engines, 400, router)), Vec::new())
}

fn request(cluster: &Cluster, content: u64, prompt_tokens: u32, max_tokens: u32) -> ClusterRequest {
    let mut prompt = cluster.empty_prompt();
    prompt.push_run(content, 0, prompt_tokens);
    ClusterRequest { prompt, max_tokens, priority: 0, session: content }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Results do not depend on how the caller advances time.
    #[test]
    fn a_cluster_that_is_stepped_does_what_a_run_does(
        seed in any::<u64>(),
        is_kv: bool,
        engines in 1..4u32,
        with_tokens: bool,
        steps_ms in proptest::collection::vec(1..200u64, 1..20),
    ) {
        let router = if is_kv { RouterConfig::Kv(KvRouterConfig::default()) } else { RouterConfig::RoundRobin };
        let load = synthetic("load", Arrivals::Burst { count: 40, over_ns: 800 * MS }, mix(200.0, 25.0));
        let run_config = RunConfig {
            seed,
            ..config(Topology::Aggregated(pool("engines", engines, 400, router)), vec![load])
        };
        let expected = run(&run_config);
        let made = if with_tokens { Cluster::with_tokens(run_config) } else { Cluster::new(run_config) };
        let mut cluster = made.expect("valid");
        let (mut ended, mut tokens) = (0, 0);
        let mut hear = |output: &ClusterOutput| match output {
            ClusterOutput::Ended { .. } => ended += 1,
            ClusterOutput::Tokens { num_tokens, .. } => tokens += u64::from(*num_tokens),
        };
        for ms in steps_ms {
            cluster.step_until(cluster.now_ns() + ms * MS, &mut hear).expect("nothing fails");
            prop_assert!(cluster.step(&mut hear).is_ok());
        }
        cluster.run_to_end(&mut hear).expect("nothing fails");
        let report = cluster.into_report().expect("requests ran");
        prop_assert_eq!(format!("{:?}", report.requests), format!("{:?}", expected.requests));
        prop_assert_eq!(ended, expected.requests.len());
        prop_assert_eq!(tokens, if with_tokens { expected.metrics.count(Counter::OutputTokens) } else { 0 });
    }
}

#[test]
fn requests_go_where_they_are_sent_and_are_seen() {
    let mut cluster = Cluster::new(empty(2, RouterConfig::RoundRobin)).expect("valid");
    for content in 0..3 {
        assert_eq!(cluster.submit_to(1, request(&cluster, content, 100, 10)).expect("it is up"), content);
    }
    let over = |_: &ClusterOutput| panic!("nothing ends so soon");
    cluster.step_until(MS, over).expect("nothing ends");
    let [idle, busy] = &cluster.engines()[..] else { panic!("two engines") };
    assert_eq!((idle.sample.running, busy.sample.running, busy.role), (0, 3, PoolRole::Aggregated));
    assert!(busy.is_up && busy.sample.kv_usage > 0.0);
    assert_eq!(cluster.waiting_at_router(PoolRole::Decode), 0);
    assert!(cluster.cancel(2).expect("the run goes on"));
    assert!(!cluster.cancel(2).expect("the run goes on"), "it is over");
    assert!(!cluster.cancel(77).expect("the run goes on"), "there is no such request");
    let mut ended = Vec::new();
    cluster.run_to_end(|output| ended.push(format!("{output:?}"))).expect("nothing fails");
    assert_eq!(ended.len(), 3);
    assert_eq!(cluster.request(2).expect("it was submitted").outcome, Outcome::GivenUp(GiveUp::Cancelled));
    assert_eq!(cluster.request(0).expect("it was submitted").output_tokens, 10);
    let repeated = request(&cluster, 0, 100, 10).prompt;
    assert_eq!([0, 1, 2].map(|engine| cluster.cached_blocks(engine, &repeated)), [Some(0), Some(6), None]);
    let error = cluster.submit_to(2, request(&cluster, 9, 100, 10)).expect_err("there are two");
    assert_eq!(error.to_string(), "run `test`: invalid engine 2: expected one that is up");
    let report = cluster.into_report().expect("requests ran");
    assert_eq!((report.unfinished_requests, report.partial), (0, false));
}

/// A trace request with a recorded answer: tokens after 20 and 30 ms.
fn played() -> WorkloadConfig {
    let rows = "{\"timestamp\":0,\"input_length\":100,\"output_length\":3,\"hash_ids\":[1]}\n";
    let mut workload = recorded("rows", rows);
    let outputs = [(20 * MS, 1), (30 * MS, 2)].map(|(after_ns, num_tokens)| OutputTime { after_ns, num_tokens });
    let times = AnswerTimes {
        queue_ns: 0,
        end_ns: 31 * MS,
        cached_tokens: 0,
        end: AnswerEnd::Whole,
        outputs: ItemRange { start: 0, len: 2 },
    };
    if let WorkloadSource::Trace { trace, answers, .. } = &mut workload.source {
        let with_times =
            Trace { answer_times: vec![Some(times)], output_times: outputs.to_vec(), ..Trace::clone(trace.as_ref()) };
        (*trace, *answers) = (Arc::new(with_times), Answers::Recorded);
    }
    workload
}

#[test]
fn a_recorded_answer_that_is_taken_back_comes_no_further() {
    let topology = Topology::Aggregated(pool("engines", 1, 400, RouterConfig::RoundRobin));
    let mut cluster = Cluster::with_tokens(config(topology, vec![played()])).expect("valid");
    let (mut tokens, mut ends) = (0, 0);
    let mut hear = |output: &ClusterOutput| match output {
        ClusterOutput::Tokens { num_tokens, .. } => tokens += num_tokens,
        ClusterOutput::Ended { .. } => ends += 1,
    };
    cluster.step_until(25 * MS, &mut hear).expect("nothing fails");
    assert!(cluster.cancel(0).expect("nothing fails"));
    cluster.run_to_end(&mut hear).expect("nothing fails");
    assert_eq!((tokens, ends), (1, 1));
    let record = cluster.request(0).expect("it has come");
    assert_eq!((record.outcome, record.end_ns), (Outcome::GivenUp(GiveUp::Cancelled), Some(25 * MS)));
    assert!(!cluster.cancel(0).expect("nothing fails"), "it is over");
}

#[test]
fn a_step_beyond_the_horizon_ends_that_run_alone() {
    let mut clusters = [1, 2].map(|_| Cluster::new(empty(1, RouterConfig::RoundRobin)).expect("valid"));
    for cluster in &mut clusters {
        cluster.submit(request(cluster, 1, 100, 10)).expect("it is up");
        cluster.set_horizon_ns(Some(5 * MS));
        cluster.step_until(5 * MS, |_| {}).expect("it is within the horizon");
    }
    let [one, other] = &mut clusters;
    let error = one.step_until(6 * MS, |_| {}).expect_err("it is beyond").to_string();
    assert_eq!(error, "run `test`: invalid step to 6 ms: expected 5 ms to 5 ms");
    assert_eq!(one.submit(request(one, 2, 10, 1)).expect_err("the run is over").to_string(), error);
    other.set_horizon_ns(None);
    other.run_to_end(|_| {}).expect("it is not concerned");
    assert!(matches!(other.step_until(MS, |_| {}), Err(ClusterError::OutOfReach { .. })), "that is the past");
}

#[test]
fn a_callback_that_panics_ends_that_run_by_name() {
    let mut clusters = [1, 2].map(|_| Cluster::new(empty(1, RouterConfig::RoundRobin)).expect("valid"));
    for cluster in &mut clusters {
        cluster.submit(request(cluster, 1, 100, 10)).expect("it is up");
    }
    let [one, other] = &mut clusters;
    let error = one.run_to_end(|_| panic!("no more")).expect_err("it panics").to_string();
    assert!(error.starts_with("run `test`: a callback panicked at ") && error.ends_with("ms: no more"), "{error}");
    assert_eq!(one.next_event_ns().expect_err("the run is over").to_string(), error);
    other.run_to_end(|_| {}).expect("it is not concerned");
}

#[test]
fn an_invalid_cluster_is_refused_by_name() {
    let error = Cluster::new(empty(0, RouterConfig::RoundRobin)).err().expect("no engines").to_string();
    assert!(error.starts_with("run `test`: ") && error.contains("invalid `engines`: expected at least 1"), "{error}");
}
