//! Tests of traces: requests that wait for others, prompts given as deltas, closed loops.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::support::{MS, assert_conserved, config, pool, run};
use vcr_cluster::metrics::Counter;
use vcr_cluster::record::{Outcome, RequestRecord};
use vcr_cluster::{
    Answers, Report, RouterConfig, SyntheticInput, Topology, TracePacing, WorkloadConfig, WorkloadSource,
};
use vcr_trace::{Format, Trace, TraceOptions};

const RECORDED: TracePacing = TracePacing::Recorded { speedup: 1.0 };

fn closed(concurrency: u64) -> TracePacing {
    TracePacing::ClosedLoop { concurrency, speedup: 1.0 }
}

fn read(rows: &str, format: Format) -> Arc<Trace> {
    let options = TraceOptions { block_size_tokens: NonZeroU32::new(16), ..TraceOptions::default() };
    Arc::new(Trace::read(rows.as_bytes(), "rows", format, &options).expect("a trace"))
}

fn play(trace: &Arc<Trace>, pacing: TracePacing, engines: u32) -> Report {
    play_copies(trace, pacing, engines, 1)
}

fn play_copies(trace: &Arc<Trace>, pacing: TracePacing, engines: u32, copies: u32) -> Report {
    let source =
        WorkloadSource::Trace { trace: Arc::clone(trace), pacing, copies, stagger_ns: 0, answers: Answers::Simulated };
    let workload = WorkloadConfig::new("trace", source);
    let report =
        run(&config(Topology::Aggregated(pool("pool", engines, 2000, RouterConfig::RoundRobin)), vec![workload]));
    assert_conserved(&report);
    report
}

/// A row with one unique block and three output tokens. The prompt takes 2.16 ms and the output 4 ms.
fn row(id: u32, rest: &str) -> String {
    format!("{{\"request_id\":\"{id}\",\"output_length\":3,\"hash_ids\":[{id}]{rest}}}\n")
}

fn by_session(report: &Report) -> Vec<&RequestRecord> {
    let mut records: Vec<_> = report.requests.iter().collect();
    records.sort_by_key(|record| (record.session, record.turn));
    records
}

fn end_ns(record: &RequestRecord) -> u64 {
    record.end_ns.expect("it ended")
}

#[test]
fn a_request_waits_for_all_it_names_and_then_its_delay() {
    let rows = row(0, ",\"timestamp\":0")
        + &row(1, ",\"timestamp\":50")
        + &row(2, ",\"wait_for\":[\"0\",\"1\"],\"delay\":7,\"tool_wait_ms\":3")
        + &row(3, ",\"wait_for\":[\"0\"]");
    let trace = read(&rows, Format::AgenticMooncake);
    let report = play(&trace, RECORDED, 1);
    let records = by_session(&report);
    assert_eq!((records[0].arrival_ns, records[1].arrival_ns), (0, 50 * MS));
    assert_eq!(records[2].arrival_ns, end_ns(records[1]) + 10 * MS);
    assert_eq!(records[3].arrival_ns, end_ns(records[0]));
    // Double speed halves arrivals and delays, but not the engines' times.
    let report = play(&trace, TracePacing::Recorded { speedup: 2.0 }, 1);
    let records = by_session(&report);
    assert_eq!(records[1].arrival_ns, 25 * MS);
    assert_eq!(records[2].arrival_ns, end_ns(records[1]) + 5 * MS);
}

#[test]
fn triggers_and_times_before_which_nothing_starts() {
    let header = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":16,"hash_id_scope":"local"}"#;
    let edge = |on: u32, trigger: &str, delay_ms: u32| {
        format!("{{\"request_id\":\"{on}\",\"trigger\":\"{trigger}\",\"delay_ms\":{delay_ms}}}")
    };
    let waits = |edges: &[String]| format!(",\"dependencies\":[{}]", edges.join(","));
    let rows = format!("{header}\n")
        + &row(0, "")
        + &row(1, &waits(&[edge(0, "dispatch", 5)]))
        + &row(2, &waits(&[edge(0, "completion", 1), edge(1, "completion", 2)]))
        + &row(3, &format!(",\"not_before_ms\":400{}", waits(&[edge(0, "dispatch", 5)])))
        + &row(4, &waits(&[edge(3, "dispatch", 0)]));
    let report = play(&read(&rows, Format::AgenticMooncake), RECORDED, 1);
    let records = by_session(&report);
    assert_eq!(records[1].arrival_ns, 5 * MS, "before the end of the other");
    assert_eq!(records[2].arrival_ns, (end_ns(records[0]) + MS).max(end_ns(records[1]) + 2 * MS));
    assert_eq!((records[3].arrival_ns, records[4].arrival_ns), (400 * MS, 400 * MS));
}

#[test]
fn what_waits_for_a_rejected_request_starts_all_the_same() {
    // 40,000 tokens never fit into 2,000 blocks of 16.
    let ids: Vec<u32> = (100..2600).collect();
    let rows = format!("{{\"request_id\":\"0\",\"timestamp\":0,\"output_length\":3,\"hash_ids\":{ids:?}}}\n")
        + &row(1, ",\"wait_for\":[\"0\"],\"delay\":7");
    for pacing in [RECORDED, closed(1)] {
        let report = play(&read(&rows, Format::AgenticMooncake), pacing, 1);
        let records = by_session(&report);
        assert!(matches!(records[0].outcome, Outcome::Rejected(_)));
        assert_eq!((records[1].arrival_ns, &records[1].outcome), (7 * MS, &Outcome::Completed));
    }
}

#[test]
fn requests_of_one_instant_start_in_file_order() {
    // On three engines, three requests wait for the first one, and another arrives when they start.
    let rows = row(0, ",\"timestamp\":0")
        + &row(1, ",\"wait_for\":[\"0\"],\"delay\":100")
        + &row(2, ",\"wait_for\":[\"0\"],\"delay\":100")
        + &row(3, ",\"wait_for\":[\"0\"],\"delay\":100");
    let alone = play(&read(&rows, Format::AgenticMooncake), RECORDED, 3);
    let at_ms = alone.requests[1].arrival_ns as f64 / 1e6;
    let rows = rows + &row(4, &format!(",\"timestamp\":{at_ms}"));
    let report = play(&read(&rows, Format::AgenticMooncake), RECORDED, 3);
    let order: Vec<_> = report.requests.iter().map(|record| (record.session, record.prefill_worker)).collect();
    assert_eq!(order, [(0, Some(0)), (1, Some(1)), (2, Some(2)), (3, Some(0)), (4, Some(1))]);
    assert!(report.requests[1..].windows(2).all(|pair| pair[0].arrival_ns == pair[1].arrival_ns));
}

#[test]
fn a_closed_loop_keeps_plays_in_flight() {
    // Each of three plays has a parent with two turns, and a child for which the second turn waits.
    let rows: String = (0..3)
        .map(|play| {
            let id = |index: u32| play * 10 + index;
            row(id(0), &format!(",\"session_id\":\"{play}\",\"timestamp\":{}", 1000 * play))
                + &row(id(1), &format!(",\"wait_for\":[\"{}\"],\"delay\":20", id(0)))
                + &row(id(2), &format!(",\"session_id\":\"{play}\",\"wait_for\":[\"{}\",\"{}\"]", id(0), id(1)))
        })
        .collect();
    let trace = read(&rows, Format::AgenticMooncake);
    for concurrency in [1, 2] {
        let report = play(&trace, closed(concurrency), 1);
        let records = by_session(&report);
        // Sessions 0, 2 and 4 are parents with two turns; sessions 1, 3 and 5 are their children.
        let plays: Vec<&[&RequestRecord]> = records.chunks(3).collect();
        for (index, play) in plays.iter().enumerate() {
            let [first, join, child] = play else { panic!("three requests") };
            assert_eq!(child.arrival_ns, end_ns(first) + 20 * MS);
            assert_eq!(join.arrival_ns, end_ns(child));
            let before = index.checked_sub(concurrency as usize);
            // A play keeps its slot while none of its requests is in flight.
            assert_eq!(first.arrival_ns, before.map_or(0, |before| end_ns(plays[before][1])));
        }
    }
}

#[test]
fn a_session_keeps_its_place_between_two_turns() {
    let turn = |session: u32, rest: &str| {
        format!("{{\"session_id\":\"{session}\",\"timestamp\":0,\"output_length\":3,\"hash_ids\":[{session}]{rest}}}\n")
    };
    let rows: String = (0..2).map(|session| turn(session, "") + &turn(session, ",\"delay\":50")).collect();
    let report = play(&read(&rows, Format::Mooncake), closed(1), 1);
    let records = by_session(&report);
    assert_eq!(records[1].arrival_ns, end_ns(records[0]) + 50 * MS);
    assert_eq!(records[2].arrival_ns, end_ns(records[1]));
    let faster = play(&read(&rows, Format::Mooncake), TracePacing::ClosedLoop { concurrency: 1, speedup: 2.0 }, 1);
    let records = by_session(&faster);
    assert_eq!(records[1].arrival_ns, end_ns(records[0]) + 25 * MS);
}

#[test]
fn a_delta_goes_on_from_the_prompt_and_the_answer_before() {
    let turn = |input: u32, output: u32, rest: &str| {
        format!(
            "{{\"session_id\":\"s\",\"timestamp\":0,\"delay\":0,\"input_length\":{input},\"output_length\":{output},{rest}}}\n"
        )
    };
    let rows =
        turn(24, 20, "\"hash_ids\":[1,2]") + &turn(30, 4, "\"hash_ids\":[3,4]") + &turn(10, 1, "\"hash_ids\":[5]");
    let report = play(&read(&rows, Format::MooncakeDelta), RECORDED, 1);
    let records = by_session(&report);
    let prompts: Vec<_> = records.iter().map(|record| record.prompt_tokens).collect();
    assert_eq!(prompts, [24, 44 + 30, 78 + 10]);
    // 43 tokens have KV, because the last generated token has none. They fill two blocks; half of the second is an
    // answer.
    assert_eq!((records[1].cached_tokens, records[2].cached_tokens), (32, 64));
    // If the rows are read as complete prompts, they share nothing.
    let whole = play(&read(&rows, Format::Mooncake), RECORDED, 1);
    assert!(by_session(&whole).iter().all(|record| record.cached_tokens == 0));
}

#[test]
fn synthetic_requests_share_what_their_group_shares() {
    let input = SyntheticInput {
        input_tokens: 160,
        output_tokens: 2,
        request_count: 40,
        turns_per_session: 2,
        arrival_interval_ms: Some(50.0),
        inter_turn_delay_ms: 5.0,
        shared_prefix_ratio: 0.5,
        num_prefix_groups: 2,
        block_size_tokens: 16,
        ..SyntheticInput::default()
    };
    let workload = input.workload("synthetic").expect("a workload");
    let topology = Topology::Aggregated(pool("pool", 1, 2000, RouterConfig::RoundRobin));
    let report = run(&config(topology.clone(), vec![workload]));
    assert_conserved(&report);
    let records = by_session(&report);
    assert_eq!(records.len(), 80);
    assert_eq!(
        records.iter().filter(|record| record.cached_tokens == 80).count(),
        78,
        "all but the first of each group"
    );
    assert_eq!(records[1].arrival_ns, end_ns(records[0]) + 5 * MS);
    assert_eq!(records[78].arrival_ns, 39 * 50 * MS);
    let closed = SyntheticInput { replay_concurrency: Some(3), arrival_interval_ms: None, ..input };
    let report = run(&config(topology, vec![closed.workload("synthetic").expect("a workload")]));
    assert_eq!(report.requests.iter().filter(|record| record.arrival_ns == 0).count(), 3);
}

/// Items of rows and of captures. The encoder computes an item once for all requests, and items are part of the
/// block hashes.
#[test]
fn items_reach_the_encoder_and_the_blocks() {
    let mooncake = |at: u32, ids: &str, image: &str| {
        let item = format!("{{\"hash\":\"{image}\",\"offset\":40,\"tokens\":30}}");
        format!(
            "{{\"timestamp\":{at},\"input_length\":96,\"output_length\":2,\"hash_ids\":{ids},\"mm_items\":[{item}]}}\n"
        )
    };
    let capture = |at: u32, ids: &str, image: &str| {
        let item = format!("{{\"hash\":\"{image}\",\"offset\":40,\"tokens\":30}}");
        let at_ns = u64::from(at) * MS;
        format!(
            "{{\"kind\":\"request\",\"arrival_ns\":{at_ns},\"prompt_tokens\":96,\"output_tokens\":2,\"block_hashes\":{ids},\
             \"mm_items\":[{item}]}}\n"
        )
    };
    let meta = "{\"kind\":\"meta\",\"format\":\"vcr.capture\",\"version\":1,\"block_size_tokens\":16}\n".to_owned();
    let rows = |row: &dyn Fn(u32, &str, &str) -> String| {
        row(0, "[1,2,3,4,5,6]", "cat")
            + &row(1000, "[1,2,3,4,5,6]", "cat")
            + &row(2000, "[1,2,3,4,5,6]", "dog")
            + &row(3000, "[7,8,9,10,11,12]", "cat")
    };
    for (text, format) in [(rows(&mooncake), Format::Mooncake), (meta + &rows(&capture), Format::Capture)] {
        let trace = read(&text, format);
        let report = play(&trace, RECORDED, 1);
        let cached: Vec<u32> = by_session(&report).iter().map(|record| record.cached_tokens).collect();
        // The last token is recomputed. Blocks are shared up to the first block with another image.
        assert_eq!(cached, [0, 80, 32, 0], "{format:?}");
        let counters = [Counter::EncoderItems, Counter::EncoderTokens, Counter::EncoderHits];
        assert_eq!(counters.map(|counter| report.metrics.count(counter)), [2, 60, 1], "{format:?}");
        let twice = play_copies(&trace, RECORDED, 1, 2);
        assert_eq!(twice.metrics.count(Counter::EncoderItems), 4, "a copy has images of its own");
    }
}
