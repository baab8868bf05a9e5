//! Compares runs with Dynamo's results, number for number.
//!
//! Each case is a tiny trace that was replayed with `python -m dynamo.replay` 1.4.2 and with the native function of
//! 1.6.1. Results must equal the printed digits under the preset of the matching version.

use std::sync::Arc;

use crate::support::{assert_conserved, config, recorded, run};
use vcr_cluster::metrics::{Counter, Gauge, Trend};
use vcr_cluster::{
    LatencyFactory, LinkConfig, LinkSharing, PoolConfig, PrefillCancellation, Report, RunConfig, SourceOutput,
    Topology, TransferScope,
};
use vcr_core::sglang::{PassOrder, PrefixLookup, Retraction, SglangConfig, SglangConfigInput};
use vcr_core::{CapacityPolicy, EngineConfig, EngineConfigInput, EngineKind, Reservations};
use vcr_latency::{PassSemantics, Polynomial, PolynomialInput, SpeedInput, WorkerPhases};

use PassSemantics::{Dynamo1_4, Dynamo1_6};

const BOTH: [PassSemantics; 2] = [Dynamo1_4, Dynamo1_6];

/// The row of most cases: 1,000 prompt tokens and 4 output tokens.
const R: &str = r#"{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#;

fn twice(again_ms: u32, input_tokens: u32) -> String {
    let row = |at_ms| {
        format!(r#"{{"timestamp": {at_ms}, "input_length": {input_tokens}, "output_length": 4, "hash_ids": [1, 2]}}"#)
    };
    format!("{}\n{}", row(0), row(again_ms))
}

#[derive(Clone, Copy)]
enum Backend {
    Vllm,
    Trtllm,
    Sglang,
}

#[derive(Clone, Copy)]
struct Case<'a> {
    rows: &'a str,
    backend: Backend,
    block_size_tokens: u32,
    usable_blocks: u32,
    speedup_ratio: f64,
    burst: u32,
    enable_chunked_prefill: bool,
    kv_bytes_per_token: u64,
}

const DEFAULT: Case<'static> = Case {
    rows: R,
    backend: Backend::Vllm,
    block_size_tokens: 64,
    usable_blocks: 16_384,
    speedup_ratio: 1.0,
    burst: 0,
    enable_chunked_prefill: true,
    kv_bytes_per_token: 0,
};

impl Case<'_> {
    fn engine(&self, semantics: PassSemantics) -> EngineKind {
        let capacity = match self.backend {
            Backend::Vllm => CapacityPolicy::Preempt,
            Backend::Trtllm => CapacityPolicy::GuaranteedNoEvict,
            Backend::Sglang => {
                let input = SglangConfigInput {
                    page_size: self.block_size_tokens,
                    num_pages: self.usable_blocks,
                    max_extra_tokens_per_step: self.burst,
                    pass_order: match semantics {
                        Dynamo1_4 => PassOrder::Mixed,
                        Dynamo1_6 => PassOrder::PrefillFirst,
                    },
                    prefix_lookup: match semantics {
                        Dynamo1_4 => PrefixLookup::FirstChunk,
                        Dynamo1_6 => PrefixLookup::WholePrompt,
                    },
                    retraction: match semantics {
                        Dynamo1_4 => Retraction::BeforeAll,
                        Dynamo1_6 => Retraction::BehindAll,
                    },
                    ..SglangConfigInput::default()
                };
                return SglangConfig::new(input).expect("valid").into();
            }
        };
        let input = EngineConfigInput {
            block_size: self.block_size_tokens,
            num_gpu_blocks: self.usable_blocks + 1,
            capacity,
            reservations: Reservations::BetweenSteps,
            max_extra_tokens_per_step: self.burst,
            enable_chunked_prefill: self.enable_chunked_prefill,
            ..EngineConfigInput::default()
        };
        EngineConfig::new(input).expect("valid").into()
    }

    fn pool(&self, name: &str, semantics: PassSemantics, phases: WorkerPhases) -> PoolConfig {
        let input = PolynomialInput {
            semantics,
            phases,
            speculative: self.burst > 0,
            sums_contexts: matches!(self.backend, Backend::Sglang),
            speed: SpeedInput { speedup_ratio: self.speedup_ratio, ..SpeedInput::default() },
        };
        let model = Polynomial::new(input).expect("valid");
        let latency: LatencyFactory = Arc::new(move |_seed| Ok(Box::new(model)));
        PoolConfig {
            acceptance_rates: vec![1.0; self.burst as usize],
            rejects_in_queue: semantics == Dynamo1_6 && !matches!(self.backend, Backend::Sglang),
            ..PoolConfig::new(name, 1, self.engine(semantics), latency)
        }
    }

    fn config(&self, topology: Topology) -> RunConfig {
        config(topology, vec![recorded("case", self.rows)])
    }

    fn aggregated(&self, semantics: PassSemantics) -> Report {
        let report = run(&self.config(Topology::Aggregated(self.pool("engines", semantics, WorkerPhases::Both))));
        assert_conserved(&report);
        report
    }

    fn disaggregated(&self, semantics: PassSemantics) -> Report {
        let link = LinkConfig {
            bandwidth_bytes_per_s: (self.kv_bytes_per_token > 0).then_some(64_000_000_000),
            latency_ns: 0,
            kv_bytes_per_token: self.kv_bytes_per_token,
            scope: TransferScope::FullPrompt,
            sharing: LinkSharing::Shared,
            source_output: match semantics {
                Dynamo1_4 => SourceOutput::Whole,
                Dynamo1_6 => SourceOutput::FirstToken,
            },
            cancellation: PrefillCancellation::default(),
            plane: None,
        };
        let topology = Topology::Disaggregated {
            prefill: self.pool("prefill", semantics, WorkerPhases::Prefill),
            decode: self.pool("decode", semantics, WorkerPhases::Decode),
            link,
            conditional: None,
        };
        let report = run(&self.config(topology));
        assert_conserved(&report);
        report
    }
}

fn mean(report: &Report, trend: Trend) -> String {
    format!("{:.6}", report.metrics.trend(trend).expect("it has samples").mean)
}

fn duration(report: &Report) -> String {
    format!("{:.6}", report.duration_ms)
}

fn reuse(report: &Report) -> f64 {
    report.metrics.gauge(Gauge::PrefixHitRatio).expect("of every run")
}

/// Checks one result under both presets.
#[track_caller]
fn check(case: Case<'_>, figure: impl Fn(&Report) -> String, expected: [&str; 2]) {
    let got = BOTH.map(|semantics| figure(&case.aggregated(semantics)));
    assert_eq!(got, expected);
}

#[test]
fn a_lone_request() {
    check(DEFAULT, |r| mean(r, Trend::Ttft), ["37.898579", "32.105859"]);
    check(DEFAULT, |r| mean(r, Trend::Itl), ["5.792720", "5.791587"]);
    check(DEFAULT, duration, ["55.276739", "49.480621"]);
}

#[test]
fn a_request_for_one_token() {
    let case =
        Case { rows: r#"{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}"#, ..DEFAULT };
    check(case, |r| mean(r, Trend::Ttft), ["37.898579", "32.105859"]);
    check(case, duration, ["37.898579", "32.105859"]);
}

#[test]
fn a_request_for_no_token_completes_without_samples() {
    let case =
        Case { rows: r#"{"timestamp": 0, "input_length": 1000, "output_length": 0, "hash_ids": [1, 2]}"#, ..DEFAULT };
    check(case, duration, ["32.105859", "32.105859"]);
    for semantics in BOTH {
        let report = case.aggregated(semantics);
        assert_eq!(report.metrics.count(Counter::Completed), 1);
        assert!(report.metrics.trend(Trend::Ttft).is_none());
    }
}

#[test]
fn the_same_request_again_later() {
    let case = Case { rows: &twice(5000, 1000), ..DEFAULT };
    check(case, |r| mean(r, Trend::Ttft), ["30.400365", "24.607645"]);
    check(case, |r| format!("{}", reuse(r)), ["0.48", "0.48"]);
}

#[test]
fn the_same_request_twice_in_one_pass() {
    let case = Case { rows: &twice(0, 1000), ..DEFAULT };
    check(case, |r| mean(r, Trend::Ttft), ["38.543563", "32.747550"]);
    check(case, |r| format!("{}", reuse(r)), ["0.48", "0.48"]);
}

#[test]
fn a_full_hit_recomputes_its_last_block() {
    let case = Case { rows: &twice(5000, 1024), ..DEFAULT };
    check(case, |r| format!("{}", reuse(r)), ["0.46875", "0.46875"]);
}

#[test]
fn a_session_waits_for_its_answer_and_the_delay() {
    let case = Case {
        rows: concat!(
            r#"{"session_id": "a", "timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#,
            "\n",
            r#"{"session_id": "a", "delay": 250, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}"#,
        ),
        ..DEFAULT
    };
    check(case, duration, ["353.376224", "341.755799"]);
    check(case, |r| mean(r, Trend::Ttft), ["34.270440", "28.464550"]);
    check(case, |r| format!("{}", reuse(r)), ["0.384", "0.384"]);
}

#[test]
fn gaps_between_timestamps_of_a_session_count_from_the_answer() {
    let case = Case {
        rows: concat!(
            r#"{"session_id": "a", "timestamp": 1000, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#,
            "\n",
            r#"{"session_id": "a", "timestamp": 1300, "input_length": 1500, "output_length": 4, "hash_ids": [1, 2, 3]}"#,
        ),
        ..DEFAULT
    };
    check(case, duration, ["403.376224", "391.755799"]);
}

/// A prompt of 20,000 tokens with 40 ids, computed in chunks of 8,192, 8,192 and 3,616 tokens.
const LONG: &str = concat!(
    r#"{"timestamp": 0, "input_length": 20000, "output_length": 4, "hash_ids": "#,
    "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40]}",
);

#[test]
fn a_long_prompt_is_computed_in_chunks() {
    let case = Case { rows: LONG, ..DEFAULT };
    check(case, |r| mean(r, Trend::Ttft), ["421.945741", "415.183328"]);
    check(case, duration, ["442.232980", "435.466016"]);
}

#[test]
fn without_chunking_it_is_rejected_where_the_peer_ends_in_a_dead_end() {
    let rows = format!("{LONG}\n{R}");
    let case = Case { rows: &rows, enable_chunked_prefill: false, ..DEFAULT };
    for semantics in BOTH {
        let report = case.aggregated(semantics);
        assert_eq!(report.metrics.count(Counter::Rejected), 1);
        assert_eq!(report.metrics.count(Counter::Completed), 1);
        let reason = "prompt and output together exceed `max_num_batched_tokens` and chunked prefill is off";
        assert_eq!(report.metrics.rejections[reason], 1);
    }
}

#[test]
fn twice_the_speed() {
    check(Case { speedup_ratio: 2.0, ..DEFAULT }, duration, ["27.638370", "24.740311"]);
}

#[test]
fn a_prompt_larger_than_the_pool_is_rejected_and_its_neighbour_runs() {
    let case = Case {
        rows: concat!(
            r#"{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#,
            "\n",
            r#"{"timestamp": 0, "input_length": 2048, "output_length": 4, "hash_ids": [3, 4, 5, 6]}"#,
        ),
        usable_blocks: 20,
        ..DEFAULT
    };
    check(case, |r| mean(r, Trend::Itl), ["32.474400", "32.246339"]);
    for semantics in BOTH {
        let metrics = case.aggregated(semantics).metrics;
        let counts = [Counter::Completed, Counter::Rejected, Counter::Requests].map(|counter| metrics.count(counter));
        assert_eq!(counts, [1, 1, 2]);
    }
}

#[test]
fn one_prefill_and_one_decode_worker() {
    let got = BOTH.map(|semantics| {
        let report = DEFAULT.disaggregated(semantics);
        (mean(&report, Trend::Ttft), duration(&report))
    });
    let expected = [("37.898579", "55.276739"), ("37.897344", "55.272106")];
    assert_eq!(got, expected.map(|(ttft, duration)| (ttft.to_owned(), duration.to_owned())));
}

#[test]
fn a_transfer_of_a_megabyte_a_token() {
    let case = Case { kv_bytes_per_token: 1_000_000, ..DEFAULT };
    let got = BOTH.map(|semantics| mean(&case.disaggregated(semantics), Trend::Ttft));
    assert_eq!(got, ["53.523579", "53.522344"]);
}

#[test]
fn multi_token_prediction_with_certain_acceptance() {
    let case = Case {
        rows: r#"{"timestamp": 0, "input_length": 1000, "output_length": 16, "hash_ids": [1, 2]}"#,
        burst: 2,
        ..DEFAULT
    };
    check(case, duration, ["66.862179", "66.857082"]);
    check(case, |r| mean(r, Trend::Itl), ["1.930907", "1.930649"]);
    check(case, |r| r.metrics.count(Counter::Steps).to_string(), ["6", "6"]);
}

const TRTLLM: Case<'static> = Case { backend: Backend::Trtllm, block_size_tokens: 32, ..DEFAULT };

#[test]
fn a_lone_request_of_an_engine_that_never_evicts() {
    check(TRTLLM, |r| mean(r, Trend::Ttft), ["37.951249", "32.105859"]);
    check(TRTLLM, |r| mean(r, Trend::Itl), ["5.845390", "5.843128"]);
}

#[test]
fn a_full_hit_of_an_engine_that_never_evicts_is_not_prefilled() {
    let case = Case { rows: &twice(5000, 1024), ..TRTLLM };
    // The repeated prompt costs only a decode step in both versions.
    let single = Case { rows: R, ..TRTLLM };
    for semantics in BOTH {
        let second_ms = case.aggregated(semantics).metrics.trend(Trend::Ttft).expect("it has samples").min;
        let itl_ms = single.aggregated(semantics).metrics.trend(Trend::Itl).expect("it has samples").mean;
        assert!((second_ms - itl_ms).abs() < 0.1, "{second_ms} against {itl_ms}");
    }
}

const SGLANG: Case<'static> = Case { backend: Backend::Sglang, block_size_tokens: 1, ..DEFAULT };

#[test]
fn a_lone_request_of_sglang() {
    check(SGLANG, |r| mean(r, Trend::Ttft), ["41.046479", "32.105859"]);
    check(SGLANG, |r| mean(r, Trend::Itl), ["8.946829", "8.946829"]);
}

#[test]
fn what_the_pool_of_sglang_can_never_hold_is_rejected_where_the_peer_ends_in_a_dead_end() {
    let rows = format!("{LONG}\n{R}");
    let case = Case { rows: &rows, ..SGLANG };
    for semantics in BOTH {
        let metrics = case.aggregated(semantics).metrics;
        assert_eq!((metrics.count(Counter::Completed), metrics.count(Counter::Rejected)), (1, 1));
        let reason = "the prompt and the reserve for its output together need all KV pages of the engine or more";
        assert_eq!(metrics.rejections[reason], 1);
    }
}

#[test]
fn the_chunks_of_a_prompt_are_no_reuse() {
    let case = Case { rows: LONG, block_size_tokens: 64, ..SGLANG };
    for semantics in BOTH {
        assert_eq!(reuse(&case.aggregated(semantics)), 0.0);
    }
    check(case, |r| r.metrics.count(Counter::Steps).to_string(), ["6", "6"]);
}

#[test]
fn a_prefill_first_pass_lets_older_requests_wait() {
    let rows = concat!(
        r#"{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}"#,
        "\n",
        r#"{"timestamp": 33, "input_length": 1000, "output_length": 4, "hash_ids": [3, 4]}"#,
    );
    let case = Case { rows, block_size_tokens: 64, ..SGLANG };
    // 1.4 decodes both requests in four passes and takes one more pass. 1.6 has two prefill passes with one decode
    // pass of the first request between them, and then decodes both.
    check(case, |r| r.metrics.count(Counter::Steps).to_string(), ["5", "6"]);
}

#[test]
fn sglang_in_two_pools_moves_its_kv() {
    let case = Case { kv_bytes_per_token: 1_000_000, block_size_tokens: 64, ..SGLANG };
    // TTFT consists of the prefill, the transfer and the first decode step.
    for semantics in BOTH {
        let report = case.disaggregated(semantics);
        let decode_ms = report.metrics.trend(Trend::Ttft).expect("it has samples").mean - 32.105_859 - 15.625;
        assert!(
            (decode_ms - report.metrics.trend(Trend::Itl).expect("it has samples").mean).abs() < 0.001,
            "{decode_ms}"
        );
    }
}
