//! Decisions whose results were computed by hand: one for each rule and each boundary.

mod common;

use common::{Decided, Line, decide, judged, lines, refused, same};
use vcr_gate::{Decision, Signal, Verdict};

/// Limits that suit a few requests; no segments.
const FEW: &str = "policy = 1\n[required]\nmatched = 10\n[segments]\nby = []\n";

/// Judges a candidate by [`FEW`] and further policy lines.
fn case(policy: &str, baseline: &[Line], candidate: &[Line]) -> Decided {
    decide(&format!("{FEW}{policy}"), baseline, candidate)
}

/// Twenty requests, of which the first `changed` are changed.
fn changed(changed: usize, change: impl Fn(&mut Line)) -> Vec<Line> {
    let mut all = lines(20);
    all.iter_mut().take(changed).for_each(change);
    all
}

fn promotes(decided: &Decided) {
    assert_eq!(decided.decision(), Decision::Promote, "{}", decided.reason());
}

fn holds(decided: &Decided, signal: Signal) {
    assert_eq!(decided.decision(), Decision::Hold, "{}", decided.reason());
    assert_eq!(decided.failed(), [signal]);
}

fn rolls_back(decided: &Decided, signal: Signal) {
    assert_eq!(decided.decision(), Decision::Rollback, "{}", decided.reason());
    assert_eq!(decided.failed(), [signal]);
}

#[test]
fn equal_sides_are_promoted() {
    promotes(&case("", &lines(20), &lines(20)));
    // The order of lines does not matter, and a faster candidate is fine.
    promotes(&case("", &lines(20), &lines(20).into_iter().rev().collect::<Vec<_>>()));
    promotes(&case("", &lines(20), &same(20, |line| line.latency_ns /= 2)));
}

#[test]
fn different_answers_are_counted() {
    let other = |line: &mut Line| line.set("token_ids", "[9,9]");
    let limit = "[limits]\noutput_mismatch = 0.05\n";
    rolls_back(&case("", &lines(20), &changed(1, other)), Signal::OutputMismatch);
    // The limit is one different answer of twenty, so two break it.
    promotes(&case(limit, &lines(20), &changed(1, other)));
    rolls_back(&case(limit, &lines(20), &changed(2, other)), Signal::OutputMismatch);
    promotes(&case("[limits]\noutput_mismatch = false\n", &lines(20), &changed(20, other)));
    rolls_back(&case("", &lines(20), &changed(1, |line| line.set("token_ids", "[0,1,2,3]"))), Signal::OutputMismatch);
}

#[test]
fn material_in_common_decides() {
    let only = |field: &'static str, value: &'static str| {
        same(20, move |line| {
            line.unset("token_ids");
            line.set(field, value);
        })
    };
    rolls_back(&case("", &only("text", "\"a\""), &only("text", "\"b\"")), Signal::OutputMismatch);
    promotes(&case("", &only("text", "\"\""), &only("text", "\"\"")));
    rolls_back(&case("", &only("fingerprint", "\"1\""), &only("fingerprint", "\"2\"")), Signal::OutputMismatch);
    // The source's fingerprint takes precedence over a text.
    let both = |text: &'static str| {
        let mut all = only("fingerprint", "\"1\"");
        all.iter_mut().for_each(|line| line.set("text", text));
        all
    };
    promotes(&case("", &both("\"a\""), &both("\"b\"")));
    // Token ids cannot be compared with texts.
    let (ids, text) = (lines(20), only("text", "\"a\""));
    holds(&case("", &ids, &text), Signal::IncomparableOutputs);
    promotes(&case("[limits]\nincomparable_outputs = 1\n", &ids, &text));
}

/// Requests whose only output is a vector.
fn vectors(vector: &'static str) -> Vec<Line> {
    same(20, move |line| {
        line.unset("token_ids");
        line.set("vector", vector);
        line.set("accelerator", "\"h100\"");
        line.set("backend", "\"vllm\"");
    })
}

#[test]
fn numbers_have_tolerances_by_scope() {
    let half = "[[tolerance]]\naccelerator = \"h100\"\nabsolute = 0.5\n";
    promotes(&case("", &vectors("[1.0,0.0]"), &vectors("[1.0,-0.0]")));
    rolls_back(&case("", &vectors("[1.0]"), &vectors("[1.0000000001]")), Signal::NumericDrift);
    // A difference at the tolerance passes; a slightly larger one fails.
    let tolerated = case(half, &vectors("[1.0,2.0]"), &vectors("[1.5,1.5]"));
    promotes(&tolerated);
    assert_eq!(tolerated.judgement.totals.tolerated, 20);
    rolls_back(&case(half, &vectors("[1.0]"), &vectors("[1.5000001]")), Signal::NumericDrift);
    let relative = "[[tolerance]]\nbackend = \"vllm\"\nrelative = 0.25\n";
    promotes(&case(relative, &vectors("[-4.0]"), &vectors("[-5.0]")));
    rolls_back(&case(relative, &vectors("[-4.0]"), &vectors("[-5.01]")), Signal::NumericDrift);
    // A tolerance for another accelerator does not apply.
    let other = half.replace("h100", "a100");
    rolls_back(&case(&other, &vectors("[1.0]"), &vectors("[1.5]")), Signal::NumericDrift);
    rolls_back(
        &case(&half.replace("accelerator = \"h100\"", "model = \"m\""), &vectors("[1.0]"), &vectors("[1.5]")),
        Signal::NumericDrift,
    );
    rolls_back(&case(half, &vectors("[1.0]"), &vectors("[1.0,1.0]")), Signal::NumericDrift);
    // The share of answers with numeric drift has its own limit.
    let mut one = vectors("[1.0]");
    one[0].set("vector", "[3.0]");
    promotes(&case("[limits]\nnumeric_drift = 0.05\n", &vectors("[1.0]"), &one));
    one[1].set("vector", "[3.0]");
    rolls_back(&case("[limits]\nnumeric_drift = 0.05\n", &vectors("[1.0]"), &one), Signal::NumericDrift);
}

#[test]
fn vectors_beside_exact_material() {
    let with = |ids: &'static str, vector: &'static str| {
        same(20, move |line| {
            line.set("token_ids", ids);
            line.set("vector", vector);
        })
    };
    let half = "[[tolerance]]\nabsolute = 0.5\n";
    // Different token ids with close numbers are tolerated only with a tolerance.
    promotes(&case(half, &with("[1]", "[0.0]"), &with("[2]", "[0.25]")));
    rolls_back(&case("", &with("[1]", "[0.0]"), &with("[2]", "[0.25]")), Signal::OutputMismatch);
    rolls_back(&case(half, &with("[1]", "[0.0]"), &with("[2]", "[0.75]")), Signal::OutputMismatch);
    // Equal token ids with distant numbers are drift only with a tolerance.
    promotes(&case("", &with("[1]", "[0.0]"), &with("[1]", "[0.75]")));
    rolls_back(&case(half, &with("[1]", "[0.0]"), &with("[1]", "[0.75]")), Signal::NumericDrift);
}

#[test]
fn errors_are_tested_against_chance() {
    let fails = |line: &mut Line| line.fail("\"timeout\"");
    // By chance, 8 failures of 20 requests are all on one side with probability 1/256. Alpha is divided by 2 tests.
    let few =
        "[limits]\nttft_p95 = false\ntoken_gap_p95 = false\nmemory_pressure = false\nerror_rate_increase = 0.35\n";
    rolls_back(&case(few, &lines(20), &changed(8, fails)), Signal::ErrorRateIncrease);
    promotes(&case(&few.replace("0.35", "0.4"), &lines(20), &changed(8, fails)));
    // For 5 failures the probability is 1/32, which is more than 0.025.
    let noise = case(&few.replace("0.35", "0.1"), &lines(20), &changed(5, fails));
    promotes(&noise);
    assert_eq!(noise.verdict(Signal::ErrorRateIncrease), Verdict::WithinNoise);
    // For 6 failures the probability is 1/64.
    rolls_back(&case(&few.replace("0.35", "0.1"), &lines(20), &changed(6, fails)), Signal::ErrorRateIncrease);
    // A candidate with equal or fewer failures passes.
    promotes(&case("", &changed(8, fails), &changed(8, fails)));
    let fewer = case("", &changed(8, fails), &lines(20));
    promotes(&fewer);
    let signals = &fewer.judgement.segments[0].signals;
    let found = signals.iter().find(|signal| signal.signal == Signal::ErrorRateIncrease).expect("it is tested");
    assert!(found.text.contains("40 points fewer, at most "), "{}", found.text);
    // Answers of failed requests are not compared.
    let failed = case("[limits]\nerror_rate_increase = 1\n", &lines(20), &changed(20, fails));
    assert_eq!((failed.decision(), failed.judgement.totals.answered), (Decision::Promote, 0));
}

#[test]
fn percentiles_have_their_limits() {
    for (signal, set) in [
        (Signal::LatencyP95, Line::set_latency as fn(&mut Line, u64)),
        (Signal::TtftP95, Line::set_ttft),
        (Signal::TokenGapP95, Line::set_gap),
    ] {
        let of = |ns: u64| same(20, |line| set(line, ns));
        let limit = format!("[limits]\n{} = 0.05\n", signal.name());
        // All requests are equal, so the interval is a single value and only the limit decides.
        promotes(&case(&limit, &of(100_000_000), &of(105_000_000)));
        holds(&case(&limit, &of(100_000_000), &of(105_000_001)), signal);
        promotes(&case(&limit.replace("0.05", "false"), &of(100_000_000), &of(200_000_000)));
        holds(&case(&limit, &of(0), &of(1)), signal);
        promotes(&case(&limit, &of(0), &of(0)));
    }
}

#[test]
fn a_single_slow_request_is_noise() {
    // The 95th percentile of 20 values has rank round(19 * 0.95) = 18, the second largest, so one slow request does
    // not change it.
    promotes(&case("", &lines(20), &changed(1, |line| line.set_latency(900_000_000))));
    let two = case("", &lines(20), &changed(2, |line| line.set_latency(900_000_000)));
    promotes(&two);
    assert_eq!(two.verdict(Signal::LatencyP95), Verdict::WithinNoise);
    holds(&case("", &lines(20), &changed(12, |line| line.set_latency(900_000_000))), Signal::LatencyP95);
}

#[test]
fn memory_pressure_is_in_points() {
    let of = |usage: &'static str| same(20, move |line| line.set("kv_usage", usage));
    let limit = "[limits]\nmemory_pressure = 0.25\n";
    promotes(&case(limit, &of("0.25"), &of("0.5")));
    holds(&case(limit, &of("0.25"), &of("0.5000001")), Signal::MemoryPressure);
    let unknown = case(limit, &of("0.25"), &lines(20));
    promotes(&unknown);
    assert_eq!(unknown.verdict(Signal::MemoryPressure), Verdict::NotObserved);
}

#[test]
fn means_of_gaps_are_not_compared_with_single_ones() {
    let mean = same(20, |line| line.set("mean_gap_ns", "900"));
    let single = same(20, |line| line.set("gap_ns", "[1,1,1]"));
    let decided = case("", &single, &mean);
    promotes(&decided);
    assert_eq!(decided.verdict(Signal::TokenGapP95), Verdict::NotObserved);
    holds(&case("", &same(20, |line| line.set("mean_gap_ns", "800")), &mean), Signal::TokenGapP95);
}

#[test]
fn evidence_is_required_of_the_candidate() {
    for (signal, field, value) in [
        (Signal::Route, "route", "\"a\""),
        (Signal::Scheduler, "scheduler", "\"fcfs\""),
        (Signal::Stream, "event_ns", "[1,2]"),
    ] {
        let with = |count: usize| changed(count, |line| line.set(field, value));
        let required = |share: &str| format!("[required]\nmatched = 10\n{} = {share}\n", signal.name());
        let few = "policy = 1\n[segments]\nby = []\n";
        let case = |share: &str, count: usize| decide(&format!("{few}{}", required(share)), &lines(20), &with(count));
        promotes(&case("1.0", 20));
        holds(&case("1.0", 19), signal);
        promotes(&case("0.5", 10));
        holds(&case("0.5", 9), signal);
        promotes(&case("0", 0));
        promotes(&case("false", 0));
    }
}

#[test]
fn matched_traffic_is_required() {
    promotes(&case("", &lines(10), &lines(10)));
    holds(&case("", &lines(9), &lines(9)), Signal::Matched);
    // 95 % of the larger side are 19 of 20 requests.
    let shifted = |from: usize| lines(40).split_off(from);
    promotes(&case("", &lines(20), &shifted(1)[..20]));
    promotes(&case("", &lines(20), &lines(20)[1..]));
    holds(&case("", &lines(20), &lines(20)[2..]), Signal::MatchedShare);
    holds(&case("", &lines(20), &shifted(0)), Signal::MatchedShare);
    holds(&case("", &lines(20), &shifted(2)[..20]), Signal::MatchedShare);
    // A candidate with only a sample of the traffic needs another limit.
    let sampled = FEW.replace("matched = 10", "matched = 10\nmatched_share = 0.25");
    promotes(&decide(&sampled, &lines(40), &lines(10)));
    let nothing = case("", &lines(20), &shifted(20));
    assert_eq!((nothing.decision(), nothing.failed()), (Decision::Hold, vec![Signal::Matched, Signal::MatchedShare]));
    let reason = nothing.reason();
    assert!(reason.starts_with("matched of all: 0, at least 10 required; no request id is on both sides"), "{reason}");
}

#[test]
fn other_ids_are_joined_by_content() {
    let with = |prefix: &'static str| {
        same(20, move |line| {
            line.set("content", &format!("\"{}\"", line.id));
            line.id = format!("{prefix}{}", line.id);
        })
    };
    let decided = case("", &with("a"), &with("b"));
    promotes(&decided);
    assert_eq!(decided.judgement.totals.matched, 20);
    let mut other = with("b");
    other[3].set("token_ids", "[8]");
    rolls_back(&case("", &with("a"), &other), Signal::OutputMismatch);
}

#[test]
fn segments_are_judged_alone() {
    let by = "policy = 1\n[required]\nmatched = 10\n[segments]\nby = [\"tenant\"]\nmin_matched = 10\n";
    let tenants = |slow_ns: u64, small: usize| {
        let mut all = same(200, |line| line.set("tenant", "\"a\""));
        for (index, line) in all.iter_mut().enumerate().take(small) {
            line.set("tenant", "\"b\"");
            line.set_latency(slow_ns + index as u64);
        }
        all
    };
    // All ten requests of tenant b are slow. Among all two hundred requests the change is not significant.
    let decided = decide(by, &tenants(100_000_000, 10), &tenants(200_000_000, 10));
    assert_eq!(decided.decision(), Decision::Hold);
    assert!(decided.reason().starts_with("latency_p95 of tenant=b: "), "{}", decided.reason());
    // Nine requests are too few to be tested by themselves.
    promotes(&decide(by, &tenants(100_000_000, 9), &tenants(200_000_000, 9)));
    // Different answers are counted even in a segment that is too small for tests.
    let mut different = tenants(100_000_000, 9);
    different[0].set("token_ids", "[5]");
    let limit = format!("{by}[limits]\noutput_mismatch = 0.1\n");
    let decided = decide(&limit, &tenants(100_000_000, 9), &different);
    assert!(decided.reason().starts_with("output_mismatch of tenant=b: 11.11 %"), "{}", decided.reason());
    // The candidate has no request of this tenant.
    let rest = tenants(100_000_000, 10).split_off(10);
    let decided = decide(by, &tenants(100_000_000, 10), &rest);
    assert!(decided.reason().starts_with("matched of tenant=b: 0"), "{}", decided.reason());
    promotes(&decide(by, &tenants(100_000_000, 9), &tenants(100_000_000, 9).split_off(9)));
}

#[test]
fn segments_without_end_are_refused() {
    let by = "policy = 1\n[segments]\nby = [\"model\", \"tenant\"]\n";
    let all = |tenants: usize| {
        let mut all = lines(tenants);
        all.iter_mut().enumerate().for_each(|(index, line)| line.set("tenant", &format!("\"t{index}\"")));
        all
    };
    assert!(judged(by, &all(50), &all(50)).is_ok());
    let error = judged(by, &all(10_001), &all(10_001)).expect_err("too many").to_string();
    assert!(error.starts_with("invalid segments: expected at most 10000, got 10001 by model, tenant; "), "{error}");
}

#[test]
fn the_candidate_backend_is_part_of_a_segment() {
    let by = "policy = 1\n[required]\nmatched = 10\n[segments]\nby = [\"backend\"]\nmin_matched = 5\n";
    let of = |split: usize| {
        let mut all = same(20, |line| line.set("backend", "\"vllm\""));
        all.iter_mut().take(split).for_each(|line| line.set("backend", "\"sglang\""));
        all
    };
    let decided = decide(by, &of(0), &of(8));
    promotes(&decided);
    let names: Vec<&str> = decided.judgement.segments.iter().map(|segment| segment.name.as_str()).collect();
    assert_eq!(names, ["all", "backend=vllm", "backend=vllm->sglang"]);
    let transitions: Vec<_> =
        decided.judgement.version_transitions.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(transitions, [("backend=vllm", 12), ("backend=vllm->sglang", 8)]);
}

#[test]
fn rollback_precedes_hold() {
    let worse = same(20, |line| {
        line.set_latency(900_000_000);
        line.set("token_ids", "[7]");
    });
    let decided = case("", &lines(20), &worse);
    assert_eq!(decided.decision(), Decision::Rollback);
    assert_eq!(decided.failed(), [Signal::OutputMismatch, Signal::LatencyP95]);
    assert!(decided.reason().starts_with("output_mismatch of all: 100 %, at most 0 % allowed"), "{}", decided.reason());
}

#[test]
fn repetitions_count_once_and_contradictions_not_at_all() {
    let mut repeated = lines(20);
    repeated.push(repeated[3].clone());
    let decided = case("", &lines(20), &repeated);
    promotes(&decided);
    assert_eq!(decided.judgement.totals.candidate_duplicates, 1);
    repeated[20].latency_ns += 1;
    refused(&repeated, &["line 21, field `request_id`", "`r3` is observed twice", "line 4"]);
}

#[test]
fn observations_that_cannot_be_are_refused() {
    let one = |change: &dyn Fn(&mut Line)| changed(1, change);
    refused(&one(&|line| line.set("vector", "[1.0,NaN]")), &["line 1, field `vector"]);
    refused(&one(&|line| line.set("vector", "[1e400]")), &["line 1", "vector"]);
    refused(&one(&|line| line.set("event_ns", "[5,4]")), &["line 1, field `event_ns`", "goes back"]);
    refused(&one(&|line| line.set("ttft_ns", "-1")), &["line 1, field `ttft_ns`", "-1"]);
    // The clocks of two machines disagree, so the first token seems to arrive after the end.
    refused(&one(&|line| line.set("ttft_ns", "100000001")), &["field `ttft_ns`", "after the end at 100000000 ns"]);
    refused(&one(&|line| line.unset("token_ids")), &["line 1", "output material"]);
    refused(&one(&|line| line.set("latency", "1")), &["line 1", "unknown field `latency`"]);
    refused(&one(&|line| line.version = 3), &["field `observation`", "unknown schema version 3: expected 1"]);
    refused(&[], &["holds no observation"]);
}
