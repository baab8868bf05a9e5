//! When a request ends, compared with a simple form of vLLM's `check_stop`.

use proptest::prelude::*;
use vcr_core::latency::DecodeSteps;
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, FinishReason, Prompt, Repetition, RequestSpec, StopRules, TokenSource,
};

/// Returns the same outputs for every request, and accepts every draft.
struct Script<'a>(&'a [u32]);

impl TokenSource for Script<'_> {
    fn token(&mut self, _tag: u64, output_index: u32) -> u32 {
        self.0[output_index as usize]
    }

    fn accepted_drafts(&mut self, _tag: u64, num_drafts: u32) -> u32 {
        num_drafts
    }
}

/// The outputs that a request gets from `script` with `stops`, and why it ends.
fn run(config: EngineConfigInput, prompt: Prompt, stops: StopRules, script: &[u32]) -> (Vec<u32>, FinishReason) {
    let mut engine = Engine::new(EngineConfig::new(config).expect("valid"));
    let spec = RequestSpec { stops: Some(Box::new(stops)), ..RequestSpec::new(7, prompt, script.len() as u32) };
    engine.submit(spec).expect("it fits");
    let mut tokens = Vec::new();
    loop {
        if engine.may_schedule() {
            engine.schedule();
        }
        if engine.step_in_flight() {
            let outputs = engine.update(&mut Script(script));
            tokens.extend_from_slice(&outputs.tokens);
            if let Some(finish) = outputs.outputs.first().and_then(|output| output.finish) {
                return (tokens, finish);
            }
        }
    }
}

/// A prompt that contains the beginnings of all outputs.
fn prompt(keeps_tokens: bool) -> Prompt {
    let tokens = [0, 1, 2, 1, 0, 0, 0, 0];
    if keeps_tokens {
        return Prompt::of_tokens(tokens.to_vec(), 4, 0);
    }
    let mut prompt = Prompt::new(4, 0);
    prompt.push_tokens(tokens);
    prompt
}

/// The outputs from `script` and the reason for the end, computed token by token as in vLLM's code.
fn expected(stops: &StopRules, script: &[u32]) -> (Vec<u32>, FinishReason) {
    for len in 1..=script.len() {
        let outputs = &script[..len];
        let finish = if stops.tokens.contains(&outputs[len - 1]) {
            Some(FinishReason::Stop)
        } else if len == script.len() {
            Some(FinishReason::Length)
        } else if len >= stops.min_tokens as usize && stops.repetition.is_some_and(|rule| repeats(outputs, rule)) {
            Some(FinishReason::Repetition)
        } else {
            None
        };
        if let Some(finish) = finish {
            return (outputs.to_vec(), finish);
        }
    }
    unreachable!("the last token ends it by length")
}

fn repeats(outputs: &[u32], rule: Repetition) -> bool {
    let Repetition { max_pattern_tokens: longest, min_pattern_tokens: shortest, min_count: count } = rule;
    let at_end = |pattern: u32| {
        let tail: Vec<u32> = outputs.iter().rev().take((pattern * count) as usize).copied().collect();
        let chunks: Vec<&[u32]> = tail.chunks_exact(pattern as usize).collect();
        chunks.len() == count as usize && chunks.iter().all(|chunk| *chunk == chunks[0])
    };
    count >= 2 && (shortest.max(1)..=longest).any(at_end)
}

fn arb_stops() -> impl Strategy<Value = StopRules> {
    let repetition = (0..6u32, 0..4u32, 0..5u32).prop_map(|(max_pattern_tokens, min_pattern_tokens, min_count)| {
        Repetition { max_pattern_tokens, min_pattern_tokens, min_count }
    });
    // The token 3 is rare in scripts.
    let tokens = proptest::collection::vec(3..6u32, 0..3);
    (tokens, 0..20u32, proptest::option::weighted(0.8, repetition))
        .prop_map(|(tokens, min_tokens, repetition)| StopRules { tokens, min_tokens, repetition })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For every kind of decoding, and for prompts with and without kept tokens.
    #[test]
    fn requests_end_where_vllms_would(
        stops in arb_stops(),
        script in proptest::collection::vec(prop_oneof![20 => 0..2u32, 1 => 2..4u32], 1..40),
        keeps_tokens in any::<bool>(),
        num_speculative_tokens in 0..3u32,
        async_scheduling in any::<bool>(),
    ) {
        let config = EngineConfigInput {
            block_size: 4,
            num_speculative_tokens,
            async_scheduling,
            ..EngineConfigInput::default()
        };
        let found = run(config, prompt(keeps_tokens), stops.clone(), &script);
        prop_assert_eq!(found, expected(&stops, &script));
    }
}

#[track_caller]
fn ends(stops: StopRules, script: &[u32], expected: (usize, FinishReason)) {
    let (tokens, finish) = run(EngineConfigInput::default(), prompt(true), stops, script);
    assert_eq!((tokens.len(), finish), expected);
}

#[test]
fn any_of_many_tokens_stops() {
    let stops = StopRules { tokens: (100..100_000).rev().collect(), ..StopRules::default() };
    ends(stops.clone(), &[1, 2, 99, 50_000, 1], (4, FinishReason::Stop));
    // A stop token as the last token still counts as a stop.
    ends(stops, &[1, 2, 100], (3, FinishReason::Stop));
}

#[test]
fn the_length_goes_before_a_repetition_and_min_tokens_hold_only_that_back() {
    let repetition = Some(Repetition { max_pattern_tokens: 1, min_pattern_tokens: 0, min_count: 3 });
    let stops = StopRules { repetition, ..StopRules::default() };
    ends(stops.clone(), &[8, 8, 8], (3, FinishReason::Length));
    ends(stops.clone(), &[8, 8, 8, 8], (3, FinishReason::Repetition));
    let stops = StopRules { min_tokens: 5, tokens: vec![9], ..stops };
    ends(stops.clone(), &[8; 7], (5, FinishReason::Repetition));
    ends(stops, &[8, 8, 8, 9, 8], (4, FinishReason::Stop));
}

#[test]
fn rules_that_cannot_end_a_request_cost_nothing() {
    let none = Repetition { max_pattern_tokens: 4, min_pattern_tokens: 5, min_count: 2 };
    let idle = StopRules { repetition: Some(none), min_tokens: 3, ..StopRules::default() };
    let mut engine = Engine::new(EngineConfig::new(EngineConfigInput::default()).expect("valid"));
    let spec = RequestSpec { stops: Some(Box::new(idle)), ..RequestSpec::new(0, prompt(true), 40) };
    engine.submit(spec).expect("it fits");
    for _ in 0..2 {
        engine.schedule();
        engine.update(&mut Script(&[8; 40]));
    }
    engine.schedule();
    let mut steps = DecodeSteps::default();
    engine.predict_decode_steps(8, &mut steps);
    assert_eq!(steps.len(), 8, "its steps are predicted as those of a request without rules");
}
