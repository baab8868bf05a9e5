//! Runs that are measured get the requests that virtual time has.

mod support;

use std::collections::BTreeMap;

use vcr_cluster::observe::Unobserved;
use vcr_cluster::record::RequestRecord;
use vcr_cluster::{
    Arrivals, Curve, Ending, Limit, MeasuredFacts, MeasuredRun, RequestMix, RouterConfig, RunConfig, Topology, simulate,
};
use vcr_random::Distribution;

use support::{config, constant, pool, synthetic};

/// Every answer takes so long, and as much for each of its tokens.
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

/// What a request is, whenever it comes.
fn asked(record: &RequestRecord) -> [u64; 6] {
    let RequestRecord { workload, session, turn, prompt_tokens, max_tokens, output_tokens, .. } = *record;
    [workload.into(), session, turn.into(), prompt_tokens.into(), max_tokens.into(), output_tokens.into()]
}

#[test]
fn a_measured_run_issues_the_requests_of_virtual_time() {
    let simulated = simulate(chats(), &mut Unobserved).expect("it runs");
    let mut run = MeasuredRun::new(chats(), true).expect("it is a run");
    // Ends of requests by time; a made-up server answers each at the same pace.
    let mut ends: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    while !run.is_over() {
        let due_ns = run.next_due_ns().unwrap_or(u64::MAX);
        let end = ends.first_key_value().map(|(key, tokens)| (*key, *tokens));
        if let Some(((end_ns, tag), tokens)) = end.filter(|((end_ns, _), _)| *end_ns < due_ns) {
            ends.remove(&(end_ns, tag));
            (1..=tokens).for_each(|token| run.tokens(tag, 1, end_ns - u64::from(tokens - token) * TOKEN_NS));
            run.ended(tag, Ending::Completed, end_ns, (0..tokens).collect());
            continue;
        }
        let Some(request) = run.issue(due_ns) else { continue };
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
    // Prompts of a group begin alike; the later turn of a session repeats all of the one before.
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

/// Four users come, one after another.
#[test]
fn users_come_to_a_measured_run_as_in_virtual_time() {
    let users = Curve::stages(0.0, &[(2_000_000_000, 4.0), (2_000_000_000, 4.0)]);
    let arrivals = Arrivals::Users { users, limit: Limit::default() };
    let topology = Topology::Aggregated(pool("engines", 1, 1_000, RouterConfig::RoundRobin));
    let users = synthetic("users", arrivals, RequestMix::new(constant(50.0), constant(10.0)));
    let mut run = MeasuredRun::new(config(topology, vec![users]), true).expect("it is a run");
    let mut issued = Vec::new();
    // None of them ends, so each user sends one.
    while let Some(due_ns) = run.next_due_ns() {
        issued.extend(run.issue(due_ns).map(|request| request.due_ns));
    }
    assert_eq!(issued.len(), 4, "{issued:?}");
    assert!(issued.is_sorted_by(|one, next| one < next), "{issued:?}");
}
