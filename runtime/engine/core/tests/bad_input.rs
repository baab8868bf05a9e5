//! Settings and requests that vLLM refuses are refused with a hint; those that it ignores are ignored.

use vcr_core::{
    ConfigError, Drafter, Engine, EngineConfig, EngineConfigInput, FinishReason, KvRole, Prompt, RejectReason,
    RequestSpec, ServingEngine, StopRules, TokenSource,
};

struct Ones;

impl TokenSource for Ones {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        1
    }
}

fn input() -> EngineConfigInput {
    EngineConfigInput { num_gpu_blocks: 33, max_model_len: Some(256), ..EngineConfigInput::default() }
}

fn engine(input: EngineConfigInput) -> Engine {
    Engine::new(EngineConfig::new(input).expect("a valid configuration"))
}

fn request(tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    RequestSpec::new(tag, Prompt::of_tokens((0..prompt_tokens).collect(), 16, 0), max_tokens)
}

fn refusal(input: EngineConfigInput) -> String {
    let errors = match EngineConfig::new(input) {
        Ok(config) => config.check_start_up().expect_err("it is to be refused"),
        Err(errors) => errors,
    };
    assert_eq!(errors.len(), 1, "one thing is wrong: {errors:?}");
    let text = errors[0].to_string();
    assert!(text.contains(&format!("`{}`", errors[0].field())), "\"{text}\" is not about {}", errors[0].field());
    text
}

#[test]
fn configurations_with_which_vllm_does_not_start_are_refused_by_name() {
    let cases: [(EngineConfigInput, &[&str]); 9] = [
        (EngineConfigInput { block_size: 0, ..input() }, &["`block_size`", "at least 1"]),
        (EngineConfigInput { num_gpu_blocks: 1, ..input() }, &["`num_gpu_blocks`", "null block"]),
        (
            EngineConfigInput { num_gpu_blocks: 16, ..input() },
            &["`max_model_len` (256)", "needs 16 KV blocks", "only 15 are usable"],
        ),
        (
            EngineConfigInput { max_num_batched_tokens: 100, ..input() },
            &["`max_num_batched_tokens` (100)", "`max_num_seqs` (256)"],
        ),
        (
            EngineConfigInput {
                max_num_batched_tokens: 255,
                max_num_seqs: 8,
                enable_chunked_prefill: false,
                ..input()
            },
            &["`max_num_batched_tokens` (255)", "`max_model_len` (256)", "`enable_chunked_prefill`"],
        ),
        (
            EngineConfigInput { max_num_active_seqs: Some(257), ..input() },
            &["`max_num_active_seqs` (257)", "`max_num_seqs` (256)"],
        ),
        (
            EngineConfigInput { long_prefill_token_threshold: 257, ..input() },
            &["`long_prefill_token_threshold` (257)", "`max_model_len` (256)"],
        ),
        (EngineConfigInput { watermark: 1.0, ..input() }, &["`watermark`", "below 1"]),
        (
            EngineConfigInput { max_num_seqs: 4, max_num_batched_tokens: 4, num_speculative_tokens: 4, ..input() },
            &["`max_num_batched_tokens` (4)", "`num_speculative_tokens` (4)"],
        ),
    ];
    for (input, words) in cases {
        let text = refusal(input);
        for word in words {
            assert!(text.contains(word), "\"{text}\" does not say {word}");
        }
    }
}

#[test]
fn bursts_of_dynamo_exclude_drafts_and_async_scheduling() {
    let both = EngineConfigInput {
        max_extra_tokens_per_step: 1,
        num_speculative_tokens: 2,
        async_scheduling: true,
        ..input()
    };
    let errors = EngineConfig::new(both).expect_err("neither goes together");
    let fields: Vec<&str> = errors
        .iter()
        .map(|error| match error {
            ConfigError::Exclusive { other_field, .. } => *other_field,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(fields, ["num_speculative_tokens", "async_scheduling"]);
}

#[test]
fn a_prompt_must_leave_room_for_an_answer() {
    let mut engine = engine(input());
    assert_eq!(engine.submit(request(0, 0, 1)), Err(RejectReason::EmptyPrompt));
    assert_eq!(engine.submit(request(0, 257, 1)), Err(RejectReason::PromptTooLong));
    assert_eq!(engine.submit(request(0, 256, 1)), Err(RejectReason::PromptTooLong));
    engine.submit(request(0, 255, 1)).expect("one token is left");
}

#[test]
fn an_answer_ends_at_the_model_length() {
    let mut engine = engine(input());
    engine.submit(request(0, 250, 1_000)).expect("it is cut, not refused");
    let mut tokens = 0;
    let finish = loop {
        engine.schedule();
        let output = engine.update(&mut Ones).outputs[0];
        tokens += output.num_tokens;
        if let Some(finish) = output.finish {
            break finish;
        }
    };
    assert_eq!((tokens, finish), (6, FinishReason::Length));
}

#[test]
fn a_request_that_can_never_end_by_itself_is_reported() {
    let mut engine = engine(EngineConfigInput { max_model_len: None, ..input() });
    assert_eq!(engine.check(500, 14), Err(RejectReason::ExceedsKvPool));
    assert_eq!(engine.check(500, 13), Ok(()), "the last token needs no slot");
    // vLLM's scheduler accepts it, too: a stop may end it before the pool is full.
    let spec = RequestSpec { stops: Some(Box::new(StopRules::of_token(1))), ..request(0, 500, 1_000) };
    engine.submit(spec).expect("the prompt fits");
    engine.schedule();
    assert_eq!(engine.update(&mut Ones).outputs[0].finish, Some(FinishReason::Stop));
}

/// vLLM issue 47971: a later chunk never computes the last position of `max_model_len`.
#[test]
fn the_last_token_of_a_split_prompt_that_fills_the_model_is_never_computed() {
    let mut engine = engine(EngineConfigInput { max_num_seqs: 8, max_num_batched_tokens: 100, ..input() });
    assert_eq!(engine.check(256, 0), Err(RejectReason::LastTokenNeverComputed));
    assert_eq!(engine.check(255, 0), Ok(()));
    let id = engine.submit(request(0, 256, 0)).expect("vLLM takes it");
    for chunk in [100, 100, 55] {
        engine.schedule();
        assert_eq!(engine.plan().total_num_scheduled_tokens, chunk);
        assert!(engine.update(&mut Ones).outputs.is_empty());
    }
    engine.schedule();
    assert!(engine.plan().scheduled.is_empty(), "one token is left for ever");
    engine.abort(id);
    assert_eq!((engine.num_requests(), engine.pool().num_active()), (0, 0));
    // The prompt fits into one step, but the threshold splits it even without chunked prefill.
    let whole = EngineConfigInput { max_num_batched_tokens: 256, enable_chunked_prefill: false, ..input() };
    let split = EngineConfigInput { long_prefill_token_threshold: 100, ..whole.clone() };
    let split = Engine::new(EngineConfig::new(split).expect("a valid configuration"));
    assert_eq!(split.check(256, 0), Err(RejectReason::LastTokenNeverComputed));
    let mut engine = Engine::new(EngineConfig::new(whole).expect("a valid configuration"));
    assert_eq!(engine.check(256, 0), Ok(()));
    engine.submit(request(0, 256, 0)).expect("it fits");
    engine.schedule();
    assert_eq!(engine.update(&mut Ones).outputs[0].num_tokens, 0);
    assert_eq!(engine.num_requests(), 0);
}

#[test]
fn an_adapter_needs_an_engine_with_adapters() {
    let spec = RequestSpec { lora: Some(3), ..request(0, 10, 1) };
    assert_eq!(engine(input()).submit(spec.clone()), Err(RejectReason::AdaptersOff));
    engine(EngineConfigInput { max_loras: 1, ..input() }).submit(spec).expect("now it has one");
}

#[test]
fn a_step_counts_its_adapters_and_the_tokens_that_they_compute() {
    let mut engine = engine(EngineConfigInput { max_loras: 2, ..input() });
    for (tag, lora) in [(0, None), (1, Some(3)), (2, Some(3)), (3, Some(5))] {
        engine.submit(RequestSpec { lora, ..request(tag, 20, 9) }).expect("it fits");
    }
    let mut counts = || {
        let shape = engine.schedule().shape;
        engine.update(&mut Ones);
        (shape.tokens(), shape.adapter_count, shape.adapter_tokens)
    };
    // The first block of 16 tokens is computed once.
    assert_eq!([counts(), counts(), counts()], [(32, 2, 12), (4, 2, 3), (4, 2, 3)]);
}

#[test]
fn a_second_request_of_the_same_number_is_refused_and_the_first_goes_on() {
    let mut engine = engine(input());
    let id = engine.submit(request(7, 20, 2)).expect("it fits");
    assert_eq!(engine.submit(request(7, 20, 2)), Err(RejectReason::DuplicateRequest));
    assert_eq!(engine.find(7), Some(id));
    for _ in 0..2 {
        engine.schedule();
        engine.update(&mut Ones);
    }
    assert_eq!(engine.find(7), None);
    engine.submit(request(7, 20, 2)).expect("the number is free again");
}

#[test]
fn names_that_mean_nothing_abort_nothing() {
    let mut engine = engine(input());
    let id = engine.submit(request(7, 20, 2)).expect("it fits");
    assert_eq!(engine.find(8), None);
    engine.abort(id);
    assert_eq!(engine.find(7), None);
    engine.abort(id);
    assert_eq!((engine.num_waiting(), engine.num_requests()), (0, 0));
}

/// As in Dynamo 1.6's mocker, if the driver marks the request.
#[test]
fn a_request_that_can_never_run_leaves_the_queue_in_its_turn() {
    let mut engine = engine(EngineConfigInput { max_num_seqs: 1, max_model_len: None, ..input() });
    let refused = |tag| RequestSpec { is_refused: true, ..request(tag, 600, 1) };
    for spec in [request(0, 32, 2), refused(1), refused(2), request(3, 16, 1), refused(4)] {
        engine.submit(spec).expect("it waits");
    }
    // The only running slot is taken for two steps.
    for _ in 0..2 {
        let plan = engine.schedule();
        assert_eq!((&plan.refused[..], plan.scheduled[0].tag), (&[][..], 0));
        engine.update(&mut Ones);
    }
    let plan = engine.schedule();
    assert_eq!((&plan.refused[..], plan.scheduled[0].tag), (&[1, 2][..], 3));
    engine.update(&mut Ones);
    let plan = engine.schedule();
    assert!(plan.is_empty());
    assert_eq!(plan.refused, [4]);
    let load = engine.load();
    assert_eq!((load.num_waiting, load.outstanding_prefill_tokens, load.num_active_blocks), (0, 0, 0));
    assert!(!engine.has_schedulable_requests());
}

/// Even in an empty engine, a load must leave blocks free for drafts (vLLM's `_spec_decode_step_blocks`).
#[test]
fn a_load_that_leaves_nothing_for_drafts_never_starts() {
    let drafting = EngineConfigInput {
        num_gpu_blocks: 17,
        max_model_len: Some(256),
        num_speculative_tokens: 1,
        drafter: Drafter::Eagle,
        ..input()
    };
    let mut engine = engine(drafting);
    assert_eq!(engine.check(241, 0), Ok(()), "it could be computed here");
    assert_eq!(engine.check_load(241), Err(RejectReason::LoadNeverFits));
    assert_eq!(engine.check_load(240), Ok(()));
    for (tag, prompt_tokens, loads) in [(0, 241, 0), (1, 240, 1)] {
        let spec = RequestSpec { kv_role: KvRole::Destination, ..request(tag, prompt_tokens, 0) };
        let id = engine.submit(spec).expect("vLLM takes it");
        engine.schedule();
        assert_eq!(engine.plan().remote_loads.len(), loads);
        engine.abort(id);
    }
}
