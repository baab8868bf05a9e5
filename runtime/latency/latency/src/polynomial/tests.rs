//! Compares prices with the published engine's numbers, to their last printed digit.
//!
//! Each case prices the steps of one worker by hand, with blocks of 64 tokens and a pool of 16384 blocks. Row R is a
//! prompt of 1000 tokens with 4 output tokens. Measured values, in ms, come from `ai-dynamo` 1.4.2 and 1.6.1.

use super::*;
use PassSemantics::{Dynamo1_4, Dynamo1_6};
use proptest::prelude::*;

const POOL_BLOCKS: u64 = 16384;

fn model(semantics: PassSemantics) -> Polynomial {
    checked(PolynomialInput { semantics, ..PolynomialInput::default() })
}

fn checked(input: PolynomialInput) -> Polynomial {
    Polynomial::new(input).expect("valid")
}

fn ms(model: &Polynomial, shapes: &[StepShape]) -> f64 {
    let mut durations_ns = Vec::new();
    let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes };
    let mut model = *model;
    model.price(&batch, &mut durations_ns).expect("priced");
    durations_ns.iter().sum::<u64>() as f64 / 1e6
}

#[track_caller]
fn assert_ms(actual: f64, published: &str) {
    assert_eq!(format!("{actual:.6}"), published);
}

/// One prefill chunk. It completes the prompt if `completes`, and emits a token if `emits`.
fn chunk(depth: u64, tokens: u64, completes: bool, emits: bool) -> StepShape {
    let end = depth + tokens;
    StepShape {
        prefill_requests: 1,
        prefill_tokens: tokens,
        prefill_context_tokens: depth,
        prefill_completions: u64::from(completes),
        prefill_completion_context_tokens: if completes { end } else { 0 },
        sampled_requests: u64::from(emits),
        kv_active_blocks: end.div_ceil(64),
        kv_total_blocks: POOL_BLOCKS,
        block_size_tokens: 64,
        ..StepShape::default()
    }
}

fn decode(context: u64) -> StepShape {
    StepShape {
        decode_requests: 1,
        decode_tokens: 1,
        decode_context_tokens: context,
        sampled_requests: 1,
        kv_active_blocks: context.div_ceil(64),
        kv_total_blocks: POOL_BLOCKS,
        block_size_tokens: 64,
        ..StepShape::default()
    }
}

/// The steps of row R, from its prefill to its last token.
fn row_r() -> [StepShape; 4] {
    [chunk(0, 1000, true, true), decode(1001), decode(1002), decode(1003)]
}

fn in_pool(blocks: u64, shapes: &[StepShape]) -> Vec<StepShape> {
    shapes.iter().map(|shape| StepShape { kv_total_blocks: blocks, ..*shape }).collect()
}

#[test]
fn a_lone_request() {
    for (semantics, ttft, itl, duration) in
        [(Dynamo1_4, "37.898579", "5.792720", "55.276739"), (Dynamo1_6, "32.105859", "5.791587", "49.480621")]
    {
        let model = model(semantics);
        assert_ms(ms(&model, &row_r()[..1]), ttft);
        assert_ms(ms(&model, &row_r()[1..]) / 3.0, itl);
        assert_ms(ms(&model, &row_r()), duration);
        // Without an output token nothing is emitted, so 1.4 charges no decode.
        assert_ms(ms(&model, &[chunk(0, 1000, true, false)]), "32.105859");
    }
}

#[test]
fn a_repeated_request_hits_the_cache() {
    for (semantics, mean_ttft) in [(Dynamo1_4, "30.400365"), (Dynamo1_6, "24.607645")] {
        let model = model(semantics);
        let first = ms(&model, &[chunk(0, 1000, true, true)]);
        let second = ms(&model, &[chunk(960, 40, true, true)]);
        assert_ms((first + second) / 2.0, mean_ttft);
    }
}

#[test]
fn two_equal_requests_in_one_step() {
    // The second prompt hits 15 blocks of the first. Only its last block is its own.
    let both = StepShape {
        prefill_requests: 2,
        prefill_tokens: 1040,
        prefill_context_tokens: 960,
        prefill_completions: 2,
        prefill_completion_context_tokens: 2000,
        sampled_requests: 2,
        kv_active_blocks: 17,
        ..chunk(0, 1000, true, true)
    };
    assert_ms(ms(&model(Dynamo1_4), &[both]), "38.543563");
    assert_ms(ms(&model(Dynamo1_6), &[both]), "32.747550");
}

#[test]
fn a_session_of_two_turns() {
    // The second turn, 250 ms later, finds 15 of its 24 blocks.
    let second = [chunk(960, 540, true, true), decode(1501), decode(1502), decode(1503)];
    for (semantics, duration, mean_ttft) in
        [(Dynamo1_4, "353.376224", "34.270440"), (Dynamo1_6, "341.755799", "28.464550")]
    {
        let model = model(semantics);
        assert_ms(ms(&model, &row_r()) + 250.0 + ms(&model, &second), duration);
        let ttft_sum = ms(&model, &row_r()[..1]) + ms(&model, &second[..1]);
        assert_ms(ttft_sum / 2.0, mean_ttft);
    }
}

#[test]
fn a_long_prompt_in_chunks() {
    let chunks = [chunk(0, 8192, false, false), chunk(8192, 8192, false, false), chunk(16384, 3616, true, true)];
    let decodes = [decode(20001), decode(20002), decode(20003)];
    for (semantics, ttft, duration) in
        [(Dynamo1_4, "421.945741", "442.232980"), (Dynamo1_6, "415.183328", "435.466016")]
    {
        let model = model(semantics);
        assert_ms(ms(&model, &chunks), ttft);
        assert_ms(ms(&model, &chunks) + ms(&model, &decodes), duration);
    }
}

#[test]
fn twice_the_speed() {
    for (semantics, duration) in [(Dynamo1_4, "27.638370"), (Dynamo1_6, "24.740311")] {
        let model = checked(PolynomialInput {
            semantics,
            speed: SpeedInput { speedup_ratio: 2.0, ..SpeedInput::default() },
            ..PolynomialInput::default()
        });
        assert_ms(ms(&model, &row_r()), duration);
    }
}

#[test]
fn a_nearly_full_pool() {
    let decodes = in_pool(20, &row_r()[1..]);
    assert_ms(ms(&model(Dynamo1_4), &decodes) / 3.0, "32.474400");
    assert_ms(ms(&model(Dynamo1_6), &decodes) / 3.0, "32.246339");
}

#[test]
fn a_disaggregated_pair() {
    // The decode worker starts from the 1000 tokens that the prefill worker sent.
    let first = decode(1000);
    for (semantics, ttft, duration) in [(Dynamo1_4, "37.898579", "55.276739"), (Dynamo1_6, "37.897344", "55.272106")] {
        let prefill_worker =
            checked(PolynomialInput { semantics, phases: WorkerPhases::Prefill, ..PolynomialInput::default() });
        let prefill = ms(&prefill_worker, &row_r()[..1]);
        assert_ms(prefill, "32.105859");
        let decode_worker = model(semantics);
        assert_ms(prefill + ms(&decode_worker, &[first]), ttft);
        let rest = ms(&decode_worker, &row_r()[1..]);
        assert_ms(prefill + ms(&decode_worker, &[first]) + rest, duration);
    }
}

#[test]
fn a_decode_worker_is_charged_nothing_for_what_it_computes_again() {
    let again = StepShape { prefill_requests: 1, prefill_tokens: 500, ..decode(1000) };
    for semantics in [Dynamo1_4, Dynamo1_6] {
        let decode_worker =
            checked(PolynomialInput { semantics, phases: WorkerPhases::Decode, ..PolynomialInput::default() });
        assert_eq!(ms(&decode_worker, &[again]), ms(&model(semantics), &[decode(1000)]));
        assert!(ms(&model(semantics), &[again]) > ms(&decode_worker, &[again]));
    }
}

#[test]
fn drafts_of_two_that_are_always_accepted() {
    // 16 tokens in 6 passes: three tokens in each pass and one in the last. A pass starts with `known` tokens and
    // computes the last of them and two drafts.
    let verify = |known: u64| StepShape {
        decode_tokens: 3,
        decode_context_tokens: known + 2,
        // Blocks are reserved for the whole burst before it is verified.
        kv_active_blocks: (known + 3).div_ceil(64),
        ..decode(known)
    };
    let mut passes = vec![chunk(0, 1000, true, true)];
    passes.extend([1003, 1006, 1009, 1012, 1015].map(verify));
    for (semantics, duration) in [(Dynamo1_4, "66.862179"), (Dynamo1_6, "66.857082")] {
        let model = checked(PolynomialInput { semantics, speculative: true, ..PolynomialInput::default() });
        assert_ms(ms(&model, &passes), duration);
    }
}

#[test]
fn contexts_beyond_the_pool_count_as_full_in_1_6() {
    let shared = in_pool(8, &[decode(5000)]);
    assert_ms(ms(&model(Dynamo1_6), &shared), "34.010000");
}

#[test]
fn nonsense_is_refused() {
    let error = Polynomial::new(PolynomialInput {
        speed: SpeedInput { speedup_ratio: 0.0, decode_speedup_ratio: f64::NAN },
        ..PolynomialInput::default()
    })
    .expect_err("no speed");
    assert_eq!(
        error.to_string(),
        "the `polynomial` latency model cannot be set up: invalid `speedup_ratio`: expected above 0, got \
         0; invalid `decode_speedup_ratio`: expected a finite number, got NaN"
    );
    let no_pool = in_pool(0, &[decode(5)]);
    let error = model(Dynamo1_6).price_one(&no_pool[0]).expect_err("no pool");
    assert!(error.to_string().contains("KV cache of 0 tokens"));
}

proptest! {
    /// Consecutive decodes cost the same as single ones, up to the horizon.
    #[test]
    fn decodes_in_a_row_cost_what_they_cost(
        requests in 0u64..300,
        context_tokens in 1u64..3_000_000,
        blocks in prop::collection::vec(0u64..40_000, 0..40),
        is_1_4: bool,
        speedup_ratio in prop_oneof![Just(1.0), 0.5..3.0f64],
        horizon_ns in prop_oneof![Just(u64::MAX), 0..2_000_000_000u64],
    ) {
        let before = StepShape {
            prefill_requests: 0,
            decode_requests: requests,
            decode_tokens: requests,
            sampled_requests: requests,
            decode_context_tokens: context_tokens,
            ..chunk(0, 0, false, false)
        };
        let mut steps = DecodeSteps::default();
        steps.restart(&before, 3);
        blocks.iter().for_each(|&blocks| steps.push(blocks));
        let mut model = checked(PolynomialInput {
            semantics: if is_1_4 { Dynamo1_4 } else { Dynamo1_6 },
            speed: SpeedInput { speedup_ratio, ..SpeedInput::default() },
            ..PolynomialInput::default()
        });
        let (mut in_a_row, mut single) = (vec![7], vec![7]);
        model.price_decodes(5, horizon_ns, &steps, &mut in_a_row).unwrap();
        let shapes: Vec<StepShape> = steps.shapes().collect();
        prop_assert!(shapes.iter().all(|shape| shape.waiting_requests == 3));
        model.price(&StepBatch { start_ns: 5, horizon_ns, shapes: &shapes }, &mut single).unwrap();
        prop_assert_eq!(in_a_row, single);
    }

    /// Outputs recomputed after a preemption are not prompt tokens. Once they are complete, they cost only a decode.
    #[test]
    fn recomputed_outputs_cost_their_decode(outputs in 1u64..500, cached_outputs in 0u64..500, tokens in 1u64..2_000) {
        let decodes = |semantics, shape: StepShape, context: u64| {
            let resident = StepShape { kv_active_blocks: shape.kv_active_blocks, ..decode(context) };
            (ms(&model(semantics), &[shape]), ms(&model(semantics), &[resident]))
        };
        for semantics in [Dynamo1_4, Dynamo1_6] {
            // A complete prompt with its outputs.
            let mut whole = chunk(0, tokens + outputs, true, true);
            whole.recompute.output_tokens = outputs;
            whole.recompute.completions = 1;
            whole.recompute.completion_context_tokens = tokens + outputs;
            let (all_ms, decode_ms) = decodes(semantics, whole, tokens + outputs);
            let prompt_ms = ms(&model(Dynamo1_6), &[chunk(0, tokens, true, true)]);
            prop_assert!((all_ms - decode_ms - prompt_ms).abs() < 1e-9);
            // The rest of the outputs, complete or not.
            let depth = tokens + cached_outputs;
            let mut rest = chunk(depth, outputs, false, false);
            rest.recompute.output_tokens = outputs;
            rest.recompute.promptless_chunks = 1;
            rest.recompute.promptless_context_tokens = depth;
            prop_assert_eq!(ms(&model(semantics), &[rest]), 0.0);
            let mut last = StepShape { recompute: rest.recompute, ..chunk(depth, outputs, true, true) };
            last.recompute.completions = 1;
            last.recompute.completion_context_tokens = depth + outputs;
            let (last_ms, decode_ms) = decodes(semantics, last, depth + outputs);
            prop_assert!((last_ms - decode_ms).abs() < 1e-9);
        }
    }

    /// A faster engine is never slower, in any step.
    #[test]
    fn more_speed_never_costs_time(
        depth in 0u64..100_000,
        tokens in 0u64..10_000,
        contexts in proptest::option::of(1u64..1_000_000),
        slow in 0.01f64..10.0,
        faster in 1.0f64..10.0,
        is_1_4: bool,
    ) {
        let shape = StepShape {
            decode_requests: u64::from(contexts.is_some()),
            decode_tokens: u64::from(contexts.is_some()),
            decode_context_tokens: contexts.unwrap_or(0),
            ..chunk(depth, tokens, true, true)
        };
        let price = |speedup_ratio| {
            checked(PolynomialInput {
                semantics: if is_1_4 { Dynamo1_4 } else { Dynamo1_6 },
                speed: SpeedInput { speedup_ratio, ..SpeedInput::default() },
                ..PolynomialInput::default()
            })
            .price_one(&shape)
            .unwrap()
        };
        prop_assert!(price(slow * faster) <= price(slow));
    }
}
