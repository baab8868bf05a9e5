//! Tests that measured runs get the same requests as runs in virtual time.

use std::collections::BTreeMap;

use vcr_base::random::{Distribution, Weights};
use vcr_cluster::metrics::Counter;
use vcr_cluster::observe::Unobserved;
use vcr_cluster::record::{FailReason, GiveUp, Outcome, RequestRecord};
use vcr_cluster::{
    Adapters, Arrivals, CancelConfig, ClientConfig, Curve, Due, Ending, IssuedRequest, Limit, MeasuredFacts,
    MeasuredRun, Report, RequestMix, RetryConfig, RouterConfig, RunConfig, Topology, WorkloadConfig, WorkloadSource,
    simulate,
};
use vcr_core::{EngineConfig, EngineConfigInput, EngineKind};

use crate::support::{MS, config, constant, pool, synthetic};

/// Time until the first token, and between tokens.
const TOKEN_NS: u64 = 5_000_000;

fn chats() -> RunConfig {
    let mix = RequestMix {
        shared_prefix_tokens: 64,
        prefix_groups: 2,
        turns: Distribution::Uniform { min: 1.0, max: 4.0 },
        think_time_ms: constant(30.0),
        ..RequestMix::new(
            Distribution::Uniform { min: 20.0, max: 200.0 },
            Distribution::Uniform { min: 2.0, max: 20.0 },
        )
    };
    let limit = Limit { count: Some(40), duration_ns: None };
    let open = Arrivals::Poisson { rate_per_s: 20.0, limit };
    let closed = Arrivals::ClosedLoop { concurrency: 3, limit };
    let topology = Topology::Aggregated(pool("engines", 2, 1_000, RouterConfig::RoundRobin));
    config(topology, vec![synthetic("open", open, mix.clone()), synthetic("closed", closed, mix)])
}

/// Fields of a request that do not depend on times.
fn asked(record: &RequestRecord) -> [u64; 6] {
    let RequestRecord { workload, session, turn, prompt_tokens, max_tokens, output_tokens, .. } = *record;
    [workload.into(), session, turn.into(), prompt_tokens.into(), max_tokens.into(), output_tokens.into()]
}

#[test]
fn a_measured_run_issues_the_requests_of_virtual_time() {
    let simulated = simulate(chats(), &mut Unobserved).expect("it runs");
    let mut run = MeasuredRun::new(chats(), true).expect("it is a run");
    // Ends of requests by time. The test's server sends tokens at a constant pace.
    let mut ends: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    while !run.is_over() {
        let due_ns = run.next_due_ns().unwrap_or(u64::MAX);
        let end = ends.first_key_value().map(|(key, tokens)| (*key, *tokens));
        if let Some(((end_ns, tag), tokens)) = end.filter(|((end_ns, _), _)| *end_ns < due_ns) {
            ends.remove(&(end_ns, tag));
            (1..=tokens).for_each(|token| _ = run.tokens(tag, 1, end_ns - u64::from(tokens - token) * TOKEN_NS));
            run.ended(tag, Ending::Completed, end_ns, (0..tokens).collect());
            continue;
        }
        let Some(Due::Send(request)) = run.due(due_ns) else { continue };
        assert_eq!(request.due_ns, due_ns);
        ends.insert((due_ns + u64::from(request.max_tokens) * TOKEN_NS, request.tag), request.max_tokens);
        prompts.push(request.prompt);
    }
    let measured = run.finish(MeasuredFacts::default()).expect("it has requests");
    let sorted = |records: &[RequestRecord]| {
        let mut all: Vec<_> = records.iter().map(asked).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(sorted(&measured.requests), sorted(&simulated.requests));
    assert_eq!(measured.requests.len(), prompts.len());
    let lengths = measured.requests.iter().zip(&prompts);
    assert!(lengths.into_iter().all(|(record, prompt)| record.prompt_tokens as usize == prompt.len()));
    // Prompts of a group begin with the same tokens, and a later turn of a session repeats the whole previous turn.
    let begins =
        |length: usize| prompts.iter().map(|prompt| &prompt[..length]).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(begins(64).len(), 4, "two groups in each of two workloads");
    let later = measured.requests.iter().position(|record| record.turn == 1).expect("there are later turns");
    let is_before = |record: &RequestRecord| {
        let now = &measured.requests[later];
        (record.workload, record.session, record.turn) == (now.workload, now.session, 0)
    };
    let before = measured.requests.iter().position(is_before).expect("it has a turn before");
    assert!(prompts[later].starts_with(&prompts[before]));
    let answer: Vec<u32> = (0..measured.requests[before].output_tokens).collect();
    assert!(prompts[later][prompts[before].len()..].starts_with(&answer), "and its answer");
}

/// Four users arrive one after another.
#[test]
fn users_come_to_a_measured_run_as_in_virtual_time() {
    let users = Curve::stages(0.0, &[(2_000_000_000, 4.0), (2_000_000_000, 4.0)]);
    let arrivals = Arrivals::Users { users, limit: Limit::default() };
    let topology = Topology::Aggregated(pool("engines", 1, 1_000, RouterConfig::RoundRobin));
    let users = synthetic("users", arrivals, RequestMix::new(constant(50.0), constant(10.0)));
    let mut run = MeasuredRun::new(config(topology, vec![users]), true).expect("it is a run");
    let mut issued = Vec::new();
    // No request ends, so each user sends only one.
    while let Some(due_ns) = run.next_due_ns() {
        issued.extend(sent(run.due(due_ns)).map(|request| request.due_ns));
    }
    assert_eq!(issued.len(), 4, "{issued:?}");
    assert!(issued.is_sorted_by(|one, next| one < next), "{issued:?}");
}

fn sent(due: Option<Due>) -> Option<IssuedRequest> {
    match due? {
        Due::Send(request) => Some(request),
        Due::GiveUp { tag } => panic!("{tag} is given up"),
    }
}

/// One request of 100 prompt tokens and 10 output tokens, due at 0.
fn one(client: ClientConfig, mix: RequestMix) -> MeasuredRun {
    let topology = Topology::Aggregated(pool("engines", 1, 1_000, RouterConfig::RoundRobin));
    let workload = WorkloadConfig { client, ..synthetic("w", Arrivals::Burst { count: 1, over_ns: 0 }, mix) };
    MeasuredRun::new(config(topology, vec![workload]), true).expect("it is a run")
}

fn plain() -> RequestMix {
    RequestMix::new(constant(100.0), constant(10.0))
}

fn finished(run: MeasuredRun) -> Report {
    assert!(run.is_over());
    run.finish(MeasuredFacts::default()).expect("it has requests")
}

#[test]
fn a_client_gives_up_and_tries_again() {
    let retry =
        RetryConfig { max_attempts: 2, backoff_ns: 10 * MS, factor: 2.0, max_backoff_ns: 100 * MS, jitter: 0.0 };
    let client = ClientConfig { timeout_ns: Some(50 * MS), retry: Some(retry), ..ClientConfig::default() };
    let mut run = one(client, plain());
    let first = sent(run.due(0)).expect("it is due");
    assert!(first.may_give_up);
    assert!(run.tokens(first.tag, 3, 20 * MS), "it goes on waiting");
    assert_eq!((run.next_due_ns(), run.due(49 * MS).is_none()), (Some(50 * MS), true));
    assert!(matches!(run.due(50 * MS), Some(Due::GiveUp { tag }) if tag == first.tag));
    // Tokens in transit no longer count.
    assert!(!run.tokens(first.tag, 2, 51 * MS));
    run.ended(first.tag, Ending::Completed, 51 * MS, Vec::new());
    assert!(!run.is_over());
    let second = sent(run.due(60 * MS)).expect("it tries again");
    assert_eq!((second.prompt, second.max_tokens, second.due_ns), (first.prompt, 10, 60 * MS));
    assert!(run.tokens(second.tag, 10, 70 * MS));
    run.ended(second.tag, Ending::Completed, 70 * MS, Vec::new());
    let report = finished(run);
    let outcomes: Vec<_> = report.requests.iter().map(|record| (record.outcome, record.attempt)).collect();
    assert_eq!(outcomes, [(Outcome::GivenUp(GiveUp::Timeout), 0), (Outcome::Completed, 1)]);
    let count = |counter| report.metrics.count(counter);
    assert_eq!((count(Counter::WastedTokens), count(Counter::ClientRetries), count(Counter::Timeouts)), (3, 1, 1));
}

#[test]
fn a_first_token_in_time_saves_a_measured_request() {
    let client =
        ClientConfig { first_token_timeout_ns: Some(20 * MS), deadline_ns: Some(90 * MS), ..ClientConfig::default() };
    let mut run = one(client, plain());
    let request = sent(run.due(0)).expect("it is due");
    assert!(run.tokens(request.tag, 1, 19 * MS));
    assert!(run.due(20 * MS).is_none());
    assert_eq!(run.next_due_ns(), Some(90 * MS), "the deadline holds");
    run.ended(request.tag, Ending::Failed(FailReason::Connection), 30 * MS, Vec::new());
    let report = finished(run);
    assert_eq!(report.requests[0].deadline_ns, Some(90 * MS));
}

#[test]
fn a_client_has_enough_after_its_tokens() {
    let cancel = CancelConfig { share: 1.0, after_ms: None, after_tokens: Some(constant(4.0)) };
    let mut run = one(ClientConfig { cancel: Some(cancel), ..ClientConfig::default() }, plain());
    let request = sent(run.due(0)).expect("it is due");
    assert_eq!(request.max_tokens, 10, "the server does not know");
    assert!(run.tokens(request.tag, 3, 5 * MS));
    assert!(!run.tokens(request.tag, 1, 6 * MS), "that is enough");
    let report = finished(run);
    let record = &report.requests[0];
    assert_eq!((record.outcome, record.output_tokens), (Outcome::GivenUp(GiveUp::Cancelled), 4));
    assert_eq!((record.end_ns, report.metrics.count(Counter::Cancelled)), (Some(6 * MS), 1));
}

#[test]
fn answers_that_stop_early_are_asked_for_with_that_length() {
    let stops = RequestMix { stop_after: Some(vcr_cluster::Lengths::Drawn(constant(6.0))), ..plain() };
    let mut run = one(ClientConfig::default(), stops);
    let request = sent(run.due(0)).expect("it is due");
    assert_eq!((request.max_tokens, request.may_give_up), (6, false));
    run.tokens(request.tag, 6, MS);
    run.ended(request.tag, Ending::Completed, MS, Vec::new());
    assert_eq!((finished(run).requests[0].max_tokens), 10);
}

/// Engines without room for adapters refuse requests with adapters, as in virtual time.
#[test]
fn adapters_are_numbers_of_requests() {
    for max_loras in [0, 2] {
        let mut config = one(ClientConfig::default(), plain()).config().clone();
        let WorkloadSource::Synthetic { classes, .. } = &mut config.workloads[0].source else { unreachable!() };
        classes[0].adapters = Some(Adapters { first: 3, popularity: Weights::zipf(1, 0.0) });
        assert_eq!(config.adapters().into_iter().collect::<Vec<_>>(), [3]);
        let Topology::Aggregated(pool) = &mut config.topology else { unreachable!() };
        let input = EngineConfigInput { max_loras, ..EngineConfigInput::default() };
        pool.engine = EngineKind::Vllm(EngineConfig::new(input).expect("valid settings"));
        let mut run = MeasuredRun::new(config, true).expect("it is a run");
        let request = sent(run.due(0));
        assert_eq!(request.map(|request| request.adapter), (max_loras > 0).then_some(Some(3)));
    }
}
