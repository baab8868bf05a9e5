//! Tests of clients that cancel, time out and retry.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vcr_base::random::Distribution;
use vcr_cluster::metrics::Counter;
use vcr_cluster::observe::Unobserved;
use vcr_cluster::record::{GiveUp, Outcome};
use vcr_cluster::{
    Arrivals, CancelConfig, ClientConfig, Limit, Report, RequestMix, RetryConfig, RouterConfig, RunConfig, SimError,
    Topology, WhenFull, WorkloadConfig, simulate,
};

use crate::runs::random::{Case, arb_case, arb_connected_tiers, priced_in_batches, watched};
use crate::support::{MS, assert_conserved, config, constant, pool, run, synthetic};

fn retry(max_attempts: u32) -> RetryConfig {
    RetryConfig { max_attempts, backoff_ns: 10 * MS, factor: 2.0, max_backoff_ns: 100 * MS, jitter: 0.5 }
}

/// Requests of 100 prompt tokens and 100 output tokens on one engine. The prompt takes 3 ms, and each token after
/// the first 2 ms.
fn clients(client: ClientConfig, arrivals: Arrivals) -> RunConfig {
    let requests = RequestMix::new(constant(100.0), constant(100.0));
    let workload = WorkloadConfig { client, ..synthetic("w", arrivals, requests) };
    config(Topology::Aggregated(pool("engines", 1, 400, RouterConfig::RoundRobin)), vec![workload])
}

fn one(client: ClientConfig) -> Report {
    run(&clients(client, Arrivals::Burst { count: 1, over_ns: 0 }))
}

fn count(report: &Report, counter: Counter) -> u64 {
    report.metrics.count(counter)
}

#[test]
fn a_client_that_gives_up_ends_its_request_at_that_instant() {
    let report = one(ClientConfig { timeout_ns: Some(50 * MS), ..ClientConfig::default() });
    let record = &report.requests[0];
    assert_eq!((record.outcome, record.end_ns), (Outcome::GivenUp(GiveUp::Timeout), Some(50 * MS)));
    // Tokens arrive at 3, 5, ..., 49 ms.
    assert_eq!((record.output_tokens, record.last_token_ns), (24, Some(49 * MS)));
    assert_eq!((count(&report, Counter::Timeouts), count(&report, Counter::Completed)), (1, 0));
    assert_eq!((count(&report, Counter::WastedTokens), count(&report, Counter::WastedPromptTokens)), (24, 100));
    assert_eq!(count(&report, Counter::GeneratedTokens), 24);
    // The running step continues, and no step follows it.
    assert_eq!(count(&report, Counter::Steps), 25);
    // A client whose answer is complete in time gets all of it.
    let patient = one(ClientConfig { timeout_ns: Some(201 * MS), ..ClientConfig::default() });
    assert_eq!((patient.requests[0].outcome, patient.requests[0].output_tokens), (Outcome::Completed, 100));
    assert_eq!(patient.fingerprint, one(ClientConfig::default()).fingerprint);
}

#[test]
fn a_first_token_in_time_saves_a_request_from_that_timeout_only() {
    let limit = |first_ms: u64, whole_ms| {
        let limits = |ms: u64| Some(ms * MS);
        let client = ClientConfig {
            first_token_timeout_ns: limits(first_ms),
            timeout_ns: limits(whole_ms),
            ..ClientConfig::default()
        };
        let record = one(client).requests.remove(0);
        (record.outcome, record.end_ns.map(|ns| ns / MS))
    };
    assert_eq!(limit(2, 1000), (Outcome::GivenUp(GiveUp::FirstToken), Some(2)));
    assert_eq!(limit(3, 1000), (Outcome::Completed, Some(201)));
    assert_eq!(limit(3, 100), (Outcome::GivenUp(GiveUp::Timeout), Some(100)));
}

#[test]
fn a_prompt_that_is_given_up_half_way_wastes_half_of_it() {
    // 2000 tokens are computed in chunks of 512, which take 7.12 ms each.
    let requests = RequestMix::new(constant(2000.0), constant(10.0));
    let client = ClientConfig { timeout_ns: Some(10 * MS), ..ClientConfig::default() };
    let workload = WorkloadConfig { client, ..synthetic("w", Arrivals::Burst { count: 1, over_ns: 0 }, requests) };
    let topology = Topology::Aggregated(pool("engines", 1, 400, RouterConfig::RoundRobin));
    let report = run(&config(topology, vec![workload]));
    assert_eq!(count(&report, Counter::WastedPromptTokens), 1024, "the second chunk is under way");
    assert_eq!(count(&report, Counter::WastedTokens), 0);
}

#[test]
fn enough_tokens_end_an_answer_and_count_as_wasted() {
    let cancel = CancelConfig { share: 1.0, after_ms: None, after_tokens: Some(constant(7.0)) };
    let report = one(ClientConfig { cancel: Some(cancel), ..ClientConfig::default() });
    let record = &report.requests[0];
    assert_eq!((record.outcome, record.output_tokens), (Outcome::GivenUp(GiveUp::Cancelled), 7));
    assert_eq!(record.end_ns, record.last_token_ns);
    assert_eq!((count(&report, Counter::Cancelled), count(&report, Counter::WastedTokens)), (1, 7));
    // A client that has the complete answer earlier does not cancel.
    let late = CancelConfig { share: 1.0, after_ms: Some(constant(500.0)), after_tokens: Some(constant(100.0)) };
    let report = one(ClientConfig { cancel: Some(late), ..ClientConfig::default() });
    assert_eq!(report.requests[0].outcome, Outcome::Completed);
}

#[test]
fn further_attempts_ask_for_the_same_and_find_what_was_computed() {
    let client = ClientConfig { timeout_ns: Some(50 * MS), retry: Some(retry(3)), ..ClientConfig::default() };
    let report = one(client.clone());
    let rows: Vec<_> =
        report.requests.iter().map(|r| (r.attempt, r.session, r.prompt_tokens, r.cached_tokens)).collect();
    assert_eq!(rows, [(0, 0, 100, 0), (1, 0, 100, 96), (2, 0, 100, 96)]);
    let waits: Vec<u64> = report.requests.windows(2).map(|two| two[1].arrival_ns - two[0].end_ns.unwrap()).collect();
    assert!((5 * MS..=10 * MS).contains(&waits[0]) && (10 * MS..=20 * MS).contains(&waits[1]), "{waits:?}");
    assert_eq!((count(&report, Counter::ClientRetries), count(&report, Counter::Timeouts)), (2, 3));
    // No attempt starts or continues after the deadline.
    let report = one(ClientConfig { deadline_ns: Some(80 * MS), ..client });
    let last = report.requests.last().unwrap();
    assert_eq!((last.attempt, last.outcome, last.end_ns), (1, Outcome::GivenUp(GiveUp::Deadline), Some(80 * MS)));
}

#[test]
fn what_does_not_fit_in_flight_is_dropped_and_counted() {
    let limit = Limit { count: Some(20), duration_ns: None };
    let client = ClientConfig { max_in_flight: Some(2), ..ClientConfig::default() };
    let report = run(&clients(client, Arrivals::Constant { rate_per_s: 20.0, limit }));
    // One session is due every 50 ms and takes 201 ms or more, so two of five start.
    assert_eq!(count(&report, Counter::Requests) + count(&report, Counter::Dropped), 20);
    assert_eq!(count(&report, Counter::Dropped), 12);
    let sessions: Vec<u64> = report.requests.iter().map(|record| record.session).collect();
    assert_eq!(sessions[..4], [0, 1, 5, 6]);
}

#[test]
fn what_does_not_fit_in_flight_may_wait_instead() {
    let limit = Limit { count: Some(20), duration_ns: None };
    let client = ClientConfig { max_in_flight: Some(2), when_full: WhenFull::Delay, ..ClientConfig::default() };
    let report = run(&clients(client, Arrivals::Constant { rate_per_s: 20.0, limit }));
    assert_eq!((count(&report, Counter::Requests), count(&report, Counter::Dropped)), (20, 0));
    let sessions: Vec<u64> = report.requests.iter().map(|record| record.session).collect();
    assert_eq!(sessions, (0..20).collect::<Vec<_>>());
    // From the third session on, each starts when one of the two sessions in flight ends.
    for (index, record) in report.requests.iter().enumerate().skip(2) {
        let ends = report.requests[..index].iter().filter_map(|earlier| earlier.end_ns);
        assert!(ends.clone().any(|end_ns| end_ns == record.arrival_ns), "{index}: {}", record.arrival_ns);
        assert_eq!(ends.filter(|end_ns| *end_ns > record.arrival_ns).count(), 1, "{index}");
    }
}

/// No request is lost, whatever clients do. Grouping steps changes no result.
#[test]
fn impatient_clients_are_served_alike_whether_steps_are_seen_or_not() {
    assert_served_alike(48, arb_case());
}

/// The same with tiers of vLLM's connector, which stores the remaining blocks when a request ends.
#[test]
fn impatient_clients_of_engines_with_the_connector_are_served_alike() {
    let drawn = (arb_case(), arb_connected_tiers(), any::<bool>());
    assert_served_alike(48, drawn.prop_map(|(case, tiers, is_async)| case.with_connected(tiers, is_async)).boxed());
}

fn assert_served_alike(cases: u32, drawn: impl Strategy<Value = Case>) {
    let arb_client = (
        proptest::option::of(1..2_000u64),
        proptest::option::of(1..400u64),
        proptest::option::of(50..3_000u64),
        proptest::option::of((0.0..1.0f64, 1.0..500.0f64, 1.0..40.0f64)),
        proptest::option::of(1..4u32),
        0..300u64,
    );
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let (given_up, again) = (Cell::new(0), Cell::new(0));
    let result = runner.run(&(drawn, arb_client), |(case, (whole, first, deadline, cancel, attempts, backoff_ms))| {
        let ms = |limit: Option<u64>| limit.map(|ms| ms * MS);
        let cancel = cancel.map(|(share, after_ms, tokens)| CancelConfig {
            share,
            after_ms: Some(Distribution::Exponential { mean: after_ms }),
            after_tokens: Some(Distribution::Exponential { mean: tokens }),
        });
        let client = ClientConfig {
            timeout_ns: ms(whole),
            first_token_timeout_ns: ms(first),
            deadline_ns: ms(deadline),
            cancel,
            retry: attempts.map(|most| RetryConfig { backoff_ns: backoff_ms * MS, ..retry(most) }),
            max_in_flight: None,
            when_full: WhenFull::Drop,
        };
        let mut run_config = case.config();
        run_config.workloads.iter_mut().for_each(|workload| workload.client = client.clone());
        match simulate(run_config.clone(), &mut Unobserved) {
            Ok(report) => {
                assert_conserved(&report);
                prop_assert_eq!(report.unfinished_requests, 0);
                prop_assert_eq!(&report.fingerprint, &watched(&run_config).fingerprint);
                prop_assert_eq!(&report.fingerprint, &watched(&priced_in_batches(run_config)).fingerprint);
                given_up.set(given_up.get() + count(&report, Counter::Timeouts) + count(&report, Counter::Cancelled));
                again.set(again.get() + count(&report, Counter::ClientRetries));
            }
            Err(SimError::NothingFits { .. }) => {}
            Err(error) => prop_assert!(false, "{}", error),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(given_up.get() > 100 && again.get() > 20, "{} gave up, {} tried again", given_up.get(), again.get());
}
