//! Compares generated requests with those of a trace, and packed records with unpacked ones.

use std::sync::Arc;

use crate::support::pool;
use proptest::prelude::*;
use vcr_base::random::Stream;
use vcr_cluster::observe::Unobserved;
use vcr_cluster::record::RequestRecord;
use vcr_cluster::{
    Answers, PackedRows, Report, RouterConfig, RunConfig, SyntheticInput, Topology, TracePacing, WorkloadConfig,
    WorkloadSource, simulate,
};
use vcr_core::seed;
use vcr_trace::{ItemRange, Trace, TraceRequest};

fn ns_of_ms(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

fn input() -> SyntheticInput {
    SyntheticInput {
        input_tokens: 1000,
        output_tokens: 4,
        request_count: 1000,
        request_rate: Some(10.0),
        ..SyntheticInput::default()
    }
}

/// The trace with the requests that `input` generates, session by session.
fn trace(input: &SyntheticInput) -> Trace {
    let blocks = input.input_tokens.div_ceil(input.block_size_tokens);
    let shared_blocks = match input.num_prefix_groups {
        0 => 0,
        _ => ((f64::from(blocks) * input.shared_prefix_ratio).round() as u32).min(blocks),
    };
    let mut trace = Trace {
        distinct_hash_ids: input.num_prefix_groups * shared_blocks,
        block_size_tokens: input.block_size_tokens,
        sessions: input.request_count,
        ..Trace::default()
    };
    let mut gaps = Stream::new(input.arrival_seed, "arrivals");
    let mut arrival_ns: u64 = 0;
    for session in 0..input.request_count {
        if session > 0 {
            arrival_ns = match (input.request_rate, input.arrival_interval_ms) {
                (Some(rate_per_s), _) => arrival_ns + (gaps.exponential() * 1e9 / rate_per_s).round() as u64,
                (None, Some(interval_ms)) => ns_of_ms(interval_ms * f64::from(session)),
                (None, None) => 0,
            };
        }
        let draw = seed::derive(input.seed, "prefix group", u64::from(session));
        let group = ((u128::from(draw) * u128::from(input.num_prefix_groups)) >> 64) as u32;
        for turn in 0..input.turns_per_session {
            let first_shared = group * shared_blocks;
            let first_own = trace.distinct_hash_ids;
            trace.distinct_hash_ids += blocks - shared_blocks;
            let shared = first_shared..first_shared + shared_blocks;
            let hash_ids = trace.hash_ids.push(shared.chain(first_own..trace.distinct_hash_ids));
            let index = trace.requests.len() as u32;
            let (is_first, is_last) = (turn == 0, turn + 1 == input.turns_per_session);
            trace.requests.push(TraceRequest {
                request_id: None,
                line: index + 1,
                session,
                turn,
                next_turn: (!is_last).then_some(index + 1),
                arrival_ns: is_first.then_some(arrival_ns),
                delay_ns: if is_first { 0 } else { ns_of_ms(input.inter_turn_delay_ms) },
                dependencies: ItemRange::default(),
                input_tokens: input.input_tokens,
                output_tokens: input.output_tokens,
                hash_ids,
                output_token_ids: ItemRange::default(),
                items: ItemRange::default(),
                priority: 0,
                strict_priority: 0,
                policy_class: None,
            });
        }
    }
    trace
}

fn from_trace(input: &SyntheticInput) -> WorkloadConfig {
    let speedup = input.arrival_speedup_ratio;
    let pacing = match input.replay_concurrency {
        Some(concurrency) => TracePacing::ClosedLoop { concurrency, speedup },
        None => TracePacing::Recorded { speedup },
    };
    let trace = Arc::new(trace(input));
    let source = WorkloadSource::Trace { trace, pacing, copies: 1, stagger_ns: 0, answers: Answers::Simulated };
    WorkloadConfig::new("load", source)
}

fn simulated(workload: WorkloadConfig, engines: u32, packed_records: PackedRows) -> Report {
    let pool = pool("pool", engines, 4000, RouterConfig::RoundRobin);
    let config = RunConfig {
        seed: 3,
        workloads: vec![workload],
        packed_records,
        ..RunConfig::new("run", Topology::Aggregated(pool))
    };
    simulate(config, &mut Unobserved).expect("a report")
}

fn arb_input() -> impl Strategy<Value = SyntheticInput> {
    let sizes = (1u32..300, 0u32..6, 1u32..700, 1u32..4);
    let starts = prop_oneof![
        (1u64..40).prop_map(|concurrency| (Some(concurrency), None, None)),
        (1.0f64..2000.0).prop_map(|rate| (None, Some(rate), None)),
        (0.0f64..20.0).prop_map(|interval| (None, None, Some(interval))),
    ];
    let rest = (0.0f64..=1.0, 0u32..5, 0.0f64..30.0, prop_oneof![Just(1.0), 0.3f64..4.0], 1u32..40, any::<u64>());
    (sizes, starts, rest).prop_map(|((input_tokens, output_tokens, request_count, turns), starts, rest)| {
        let (replay_concurrency, request_rate, arrival_interval_ms) = starts;
        let (shared_prefix_ratio, num_prefix_groups, inter_turn_delay_ms, speedup, block_size_tokens, seed) = rest;
        SyntheticInput {
            input_tokens,
            output_tokens,
            request_count,
            turns_per_session: turns,
            replay_concurrency,
            request_rate,
            arrival_interval_ms,
            arrival_seed: seed ^ 7,
            shared_prefix_ratio,
            num_prefix_groups,
            inter_turn_delay_ms,
            arrival_speedup_ratio: speedup,
            block_size_tokens,
            seed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Generated requests give the same results as a trace with them, and packed records equal unpacked ones.
    #[test]
    fn generated_requests_run_as_those_of_a_file(input in arb_input(), engines in 1u32..5) {
        let generated = input.workload("load").expect("valid");
        let listed = simulated(from_trace(&input), engines, PackedRows::Never);
        let packed = simulated(generated, engines, PackedRows::Always);
        prop_assert_eq!(&packed.fingerprint, &listed.fingerprint);
        prop_assert!(packed.requests.is_empty() && listed.packed_requests.is_empty());
        let seen = |report: &Report| {
            let mut seen: Vec<RequestRecord> = Vec::new();
            report.for_each_request(|record| seen.push(record.clone()));
            (format!("{seen:?}"), serde_json::to_string(report).expect("JSON"))
        };
        prop_assert_eq!(packed.num_requests(), u64::from(input.request_count) * u64::from(input.turns_per_session));
        prop_assert_eq!(seen(&packed), seen(&listed));
        let rows = |report: &Report| {
            let mut out = Vec::new();
            report.write_requests(&mut out).expect("a list takes all");
            String::from_utf8(out)
        };
        prop_assert_eq!(rows(&packed), rows(&listed));
    }
}

#[test]
fn poisson_arrivals_have_the_asked_rate_and_depend_on_their_seed_alone() {
    let arrivals = |input: SyntheticInput| {
        let report = simulated(input.workload("load").expect("valid"), 1, PackedRows::Never);
        report.requests.iter().map(|record| record.arrival_ns).collect::<Vec<_>>()
    };
    let own = arrivals(input());
    let last_s = own[999] as f64 / 1e9;
    assert!((90.0..110.0).contains(&last_s), "{last_s}");
    assert_eq!(own[0], 0);
    assert_eq!(arrivals(SyntheticInput { seed: 7, ..input() }), own);
    assert_ne!(arrivals(SyntheticInput { arrival_seed: 7, ..input() }), own);
}
