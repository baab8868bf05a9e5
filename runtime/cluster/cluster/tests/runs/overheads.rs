//! Tests of the time that requests spend outside of steps.

use std::sync::Arc;

use proptest::prelude::*;
use vcr_cluster::metrics::Trend;
use vcr_cluster::observe::Unobserved;
use vcr_cluster::record::Outcome;
use vcr_cluster::{
    Answers, Arrivals, FaultConfig, FaultKind, Limit, Overheads, PoolConfig, PoolRole, Report, RequestMix,
    RouterConfig, RunConfig, Selection, SimError, SloMetric, Topology, WorkloadConfig, WorkloadSource, simulate,
};
use vcr_trace::{AnswerEnd, AnswerTimes, ItemRange, OutputTime, Trace};

use crate::runs::random::{arb_case, priced_in_batches, watched, watched_until, with_pools};
use crate::runs::{burst, disaggregated};
use crate::support::{MS, assert_conserved, config, constant, mix, pool, recorded, run, synthetic};

/// On arrival 8 ms and 2 us per prompt token; 1 ms for the first token; 0.5 ms for every output.
const OVERHEADS: Overheads = Overheads {
    arrival_ns: 8 * MS,
    arrival_per_prompt_token_ps: 2_000_000,
    first_token_ns: MS,
    output_ns: MS / 2,
    prefill_launch_ns: 0,
    large_launch_ns: 0,
    launch_per_request_ns: 0,
    launch_spread_permille: 0,
};

fn with_overheads(config: RunConfig, overheads: Overheads) -> RunConfig {
    with_pools(config, |pool| PoolConfig { overheads, ..pool })
}

fn one_pool(engines: u32, workload: WorkloadConfig) -> RunConfig {
    config(Topology::Aggregated(pool("engines", engines, 2000, RouterConfig::RoundRobin)), vec![workload])
}

fn exact(prompt_tokens: f64, output_tokens: f64) -> RequestMix {
    RequestMix {
        prompt_tokens: constant(prompt_tokens).into(),
        output_tokens: constant(output_tokens).into(),
        ..mix(1.0, 1.0)
    }
}

fn single(prompt_tokens: f64, output_tokens: f64) -> RunConfig {
    let arrivals = Arrivals::Burst { count: 1, over_ns: 0 };
    one_pool(1, synthetic("one", arrivals, exact(prompt_tokens, output_tokens)))
}

/// A step takes 2 ms and 10 us per prefill token.
#[test]
fn a_request_takes_its_way_to_the_queue_and_its_tokens_theirs_to_the_client() {
    let report = run(&with_overheads(single(100.0, 4.0), OVERHEADS));
    let record = &report.requests[0];
    let queued_ns = 8 * MS + 200_000;
    assert_eq!((record.arrival_ns, record.queued_ns, record.scheduled_ns), (0, queued_ns, Some(queued_ns)));
    let prefilled_ns = queued_ns + 3 * MS;
    assert_eq!(record.prefill_end_ns, Some(prefilled_ns));
    assert_eq!(record.first_token_ns, Some(prefilled_ns + 3 * MS / 2));
    assert_eq!(record.detail.second_token_ns, Some(prefilled_ns + 2 * MS + MS / 2));
    let last_ns = prefilled_ns + 3 * 2 * MS + MS / 2;
    assert_eq!((record.last_token_ns, record.end_ns), (Some(last_ns), Some(last_ns)));
    let trend = |trend| report.metrics.trend(trend).expect("it has samples");
    assert_eq!([Trend::Queue, Trend::Ttft, Trend::E2e].map(|each| trend(each).max), [0.0, 12.7, 17.7]);
    let itl = trend(Trend::Itl);
    assert_eq!((itl.min, itl.max, itl.count), (1.0, 2.0, 3));
    assert_eq!(report.duration_ms, 17.7);
    let goodput = |metric, limit_ns| report.goodput(Selection::default(), &[(metric, &|ns: u64| ns < limit_ns)]).good;
    assert_eq!((goodput(SloMetric::Queue, 1), goodput(SloMetric::Ttft, 12 * MS)), (1, 0));
}

#[test]
fn the_first_token_comes_with_the_second_at_the_latest() {
    let slow_start = Overheads { first_token_ns: 30 * MS, ..Overheads::default() };
    let report = run(&with_overheads(single(100.0, 4.0), slow_start));
    let record = &report.requests[0];
    assert_eq!((record.first_token_ns, record.detail.second_token_ns), (Some(5 * MS), Some(5 * MS)));
    let itl = report.metrics.trend(Trend::Itl).expect("it has samples");
    assert_eq!((itl.min, record.end_ns), (0.0, Some(9 * MS)));
    // Without a second token, only the first token's delay counts.
    let report = run(&with_overheads(single(100.0, 1.0), slow_start));
    let record = &report.requests[0];
    assert_eq!(
        (record.first_token_ns, record.last_token_ns, record.end_ns),
        (Some(33 * MS), Some(33 * MS), record.first_token_ns)
    );
}

#[test]
fn a_closed_loop_and_its_sessions_wait_for_what_the_client_sees() {
    let requests = RequestMix { turns: constant(2.0), think_time_ms: constant(5.0), ..exact(100.0, 3.0) };
    let limit = Limit { count: Some(3), duration_ns: None };
    let arrivals = Arrivals::ClosedLoop { concurrency: 1, limit };
    let report = run(&with_overheads(one_pool(1, synthetic("loop", arrivals, requests)), OVERHEADS));
    assert_eq!(report.requests.len(), 6);
    for (number, pair) in report.requests.windows(2).enumerate() {
        let think_ns = if number.is_multiple_of(2) { 5 * MS } else { 0 };
        assert_eq!(pair[1].arrival_ns, pair[0].end_ns.expect("it ended") + think_ns);
        assert_eq!(pair[0].end_ns, pair[0].last_token_ns);
    }
}

/// The run is cut off while the answer is on its way.
#[test]
fn an_answer_that_comes_too_late_is_unfinished() {
    let cut = |at_ns| RunConfig { max_time_ns: Some(at_ns), ..with_overheads(single(100.0, 4.0), OVERHEADS) };
    let report = run(&cut(17 * MS + 699_999));
    assert_conserved(&report);
    assert_eq!((report.unfinished_requests, report.requests[0].outcome), (1, Outcome::Unfinished));
    let report = run(&cut(17 * MS + 700_000));
    assert_eq!((report.unfinished_requests, report.requests[0].outcome), (0, Outcome::Completed));
    // The run is cut off before the request reaches the queue.
    let report = run(&cut(8 * MS));
    assert_eq!((report.unfinished_requests, report.requests[0].scheduled_ns), (1, None));
}

#[test]
fn refusals_take_both_ways() {
    let arrivals = Arrivals::Burst { count: 2, over_ns: 0 };
    let fitting = synthetic("fits", arrivals.clone(), exact(100.0, 4.0));
    let large = synthetic("large", arrivals, exact(50_000.0, 4.0));
    let mut config = one_pool(1, fitting);
    config.workloads.push(large);
    let report = run(&with_overheads(config, OVERHEADS));
    assert_conserved(&report);
    let refused = || report.requests.iter().filter(|record| matches!(record.outcome, Outcome::Rejected(_)));
    assert_eq!(refused().count(), 2);
    assert!(refused().all(|record| record.end_ns == Some(8 * MS + 100 * MS + MS / 2)));
}

#[test]
fn short_prompts_overtake_long_ones_on_the_way() {
    let at_once = || Arrivals::Burst { count: 1, over_ns: 0 };
    let mut config = one_pool(1, synthetic("long", at_once(), exact(4_000.0, 2.0)));
    config.workloads.push(synthetic("short", at_once(), exact(10.0, 2.0)));
    let report = run(&with_overheads(config, OVERHEADS));
    assert!(report.requests[1].scheduled_ns < report.requests[0].scheduled_ns);
}

/// The first pool adds the arrival overhead, and the last pool the output overhead.
#[test]
fn each_pool_pays_for_its_own_side() {
    let Topology::Disaggregated { prefill, decode, link, .. } = disaggregated(2000, None) else { unreachable!() };
    let topology = Topology::Disaggregated {
        prefill: PoolConfig { overheads: OVERHEADS, ..prefill },
        decode: PoolConfig { overheads: Overheads { output_ns: 3 * MS, ..Overheads::default() }, ..decode },
        link,
        conditional: None,
    };
    let arrivals = Arrivals::Burst { count: 1, over_ns: 0 };
    let work = || vec![synthetic("one", arrivals.clone(), exact(100.0, 4.0))];
    let plain = run(&config(disaggregated(2000, None), work()));
    let report = run(&config(topology, work()));
    let later = |of: fn(&Report) -> Option<u64>, by_ns: u64| assert_eq!(of(&report), of(&plain).map(|ns| ns + by_ns));
    let way_ns = 8 * MS + 200_000;
    later(|report| report.requests[0].transfer_end_ns, way_ns);
    later(|report| report.requests[0].first_token_ns, way_ns + 3 * MS);
    later(|report| report.requests[0].end_ns, way_ns + 3 * MS);
}

/// A retried request does not take the arrival overhead again, and a lost attempt takes no output overhead.
#[test]
fn a_request_that_is_tried_again_has_come_already() {
    let mut config = with_overheads(single(100.0, 10.0), OVERHEADS);
    config.faults = vec![FaultConfig {
        at_ns: 15 * MS,
        pool: PoolRole::Aggregated,
        engine: 0,
        kind: FaultKind::Crash { restart_after_ns: Some(5 * MS) },
    }];
    config.max_retries = 1;
    let report = run(&config);
    assert_conserved(&report);
    let record = &report.requests[0];
    assert_eq!((record.retries, record.queued_ns), (1, 8 * MS + 200_000));
    assert_eq!((record.scheduled_ns, record.first_token_ns), (Some(20 * MS), Some(24 * MS + MS / 2)));
}

/// Recorded times are client times, so no overhead is added.
#[test]
fn recorded_answers_keep_their_times() {
    let mut workload =
        recorded("rows", "{\"timestamp\":5,\"input_length\":100,\"output_length\":3,\"hash_ids\":[1]}\n");
    let WorkloadSource::Trace { trace, answers, .. } = &mut workload.source else { unreachable!() };
    let outputs = [(20 * MS, 1), (30 * MS, 2)].map(|(after_ns, num_tokens)| OutputTime { after_ns, num_tokens });
    let times = AnswerTimes {
        queue_ns: 3 * MS,
        end_ns: 31 * MS,
        cached_tokens: 0,
        end: AnswerEnd::Whole,
        outputs: ItemRange { start: 0, len: 2 },
    };
    let played =
        Trace { answer_times: vec![Some(times)], output_times: outputs.to_vec(), ..Trace::clone(trace.as_ref()) };
    (*trace, *answers) = (Arc::new(played), Answers::Recorded);
    let report = run(&with_overheads(one_pool(1, workload), OVERHEADS));
    let record = &report.requests[0];
    assert_eq!((record.arrival_ns, record.queued_ns, record.scheduled_ns), (0, 0, Some(3 * MS)));
    assert_eq!((record.first_token_ns, record.last_token_ns), (Some(20 * MS), Some(30 * MS)));
    assert_eq!((record.end_ns, record.outcome), (Some(31 * MS), Outcome::Completed));
}

fn arb_ns() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 1 => Just(2 * MS), 3 => 0..20 * MS]
}

fn arb_overheads() -> impl Strategy<Value = Overheads> {
    let per_token_ps = prop_oneof![Just(0), 0..200_000_000u64];
    let launches = (arb_ns(), arb_ns(), prop_oneof![Just(0), 0..300_000u64], 0..=1000u32);
    (arb_ns(), per_token_ps, arb_ns(), arb_ns(), launches).prop_map(
        |(arrival_ns, arrival_per_prompt_token_ps, first_token_ns, output_ns, launches)| {
            let (prefill_launch_ns, large_launch_ns, launch_per_request_ns, launch_spread_permille) = launches;
            Overheads {
                arrival_ns,
                arrival_per_prompt_token_ps,
                first_token_ns,
                output_ns,
                prefill_launch_ns,
                large_launch_ns,
                launch_per_request_ns,
                launch_spread_permille,
            }
        },
    )
}

/// Checks that the gaps between tokens add up to the time between each request's first and last token.
fn assert_gaps_add_up(report: &Report) {
    let Some(itl) = report.metrics.trend(Trend::Itl) else { return };
    let spans = report.requests.iter().filter_map(|record| Some(record.last_token_ns? - record.first_token_ns?));
    let spans_ms = spans.sum::<u64>() as f64 / 1e6;
    assert!((itl.mean * itl.count as f64 - spans_ms).abs() < 1e-6 * spans_ms.max(1.0), "{itl:?} {spans_ms}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, source_file: Some(file!()), ..ProptestConfig::default() })]

    /// Clients see the same whether steps are grouped, single or priced in batches.
    #[test]
    fn any_run_with_overheads_is_the_same_however_it_is_gone_through(
        case in arb_case(),
        overheads in arb_overheads(),
        max_time_ms in proptest::option::of(1..800u64),
    ) {
        let max_time_ns = max_time_ms.map(|ms| ms * MS);
        let run_config = RunConfig { max_time_ns, ..with_overheads(case.config(), overheads) };
        let report = match simulate(run_config.clone(), &mut Unobserved) {
            Ok(report) => report,
            Err(SimError::NothingFits { .. }) => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        assert_conserved(&report);
        if max_time_ns.is_none() {
            prop_assert_eq!(report.unfinished_requests, 0);
        }
        if run_config.faults.is_empty() {
            assert_gaps_add_up(&report);
        }
        for record in &report.requests {
            prop_assert_eq!(record.queued_ns, record.arrival_ns + overheads.arrival_of_ns(record.prompt_tokens));
            prop_assert!(record.scheduled_ns.is_none_or(|ns| ns >= record.queued_ns));
            prop_assert!(record.first_token_ns <= record.last_token_ns);
            if record.outcome == Outcome::Completed {
                prop_assert_eq!(record.end_ns, record.last_token_ns);
            }
        }
        prop_assert_eq!(&report.fingerprint, &watched(&run_config).fingerprint);
        prop_assert_eq!(&report.fingerprint, &watched_until(&run_config, 20).fingerprint);
        prop_assert_eq!(report.fingerprint, watched(&priced_in_batches(run_config)).fingerprint);
    }

    /// Without queueing, overheads shift client times and leave the steps unchanged.
    #[test]
    fn steps_do_not_depend_on_the_way_back(seed in any::<u64>(), overheads in arb_overheads(), count in 1..60u64) {
        let overheads = Overheads {
            arrival_per_prompt_token_ps: 0,
            prefill_launch_ns: 0,
            large_launch_ns: 0,
            launch_per_request_ns: 0,
            ..overheads
        };
        let plain = RunConfig { seed, ..one_pool(2, synthetic("load", burst(count), mix(200.0, 40.0))) };
        let report = run(&with_overheads(plain.clone(), overheads));
        for (record, plain) in report.requests.iter().zip(&run(&plain).requests) {
            let later = |ns: Option<u64>, by_ns: u64| ns.map(|ns| ns + by_ns);
            prop_assert_eq!(record.arrival_ns, plain.arrival_ns);
            prop_assert_eq!(record.scheduled_ns, later(plain.scheduled_ns, overheads.arrival_ns));
            if record.output_tokens > 1 {
                prop_assert_eq!(record.end_ns, later(plain.end_ns, overheads.arrival_ns + overheads.output_ns));
            }
        }
    }
}
