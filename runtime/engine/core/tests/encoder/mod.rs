//! Individual rules of the encoder and its cache.

mod decoder;
use vcr_core::plan::AdmissionStop;
use vcr_core::{
    Drafter, Engine, EngineConfig, EngineConfigInput, Prompt, RejectReason, RequestSpec, SchedulerRules, TokenSource,
};

struct Ones;

impl TokenSource for Ones {
    fn token(&mut self, _tag: u64, _output_index: u32) -> u32 {
        1
    }
}

fn new_engine(input: EngineConfigInput) -> Engine {
    Engine::new(EngineConfig::new(input).expect("valid"))
}

fn input() -> EngineConfigInput {
    EngineConfigInput { max_num_batched_tokens: 64, max_num_seqs: 8, ..EngineConfigInput::default() }
}

/// A prompt of texts and items. A text is given by its length, an item by its identity and length.
fn spec(tag: u64, parts: &[(Option<u64>, u32)]) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    for &(identity, len) in parts {
        match identity {
            Some(identity) => prompt.push_item(identity, len),
            None => prompt.push_run(1_000 + tag, prompt.len_tokens(), len),
        }
    }
    RequestSpec::new(tag, prompt, 2)
}

const TEXT: Option<u64> = None;

/// The tokens of a step by request, and the items that it computes.
type Step = (Vec<(u64, u32)>, Vec<(u64, u32)>);

fn step(engine: &mut Engine) -> Step {
    let plan = engine.schedule();
    let tokens = plan.scheduled.iter().map(|entry| (entry.tag, entry.num_scheduled_tokens)).collect();
    let items = plan.encoder_inputs.iter().map(|input| (input.tag, input.input)).collect();
    if engine.step_in_flight() {
        engine.update(&mut Ones);
    }
    (tokens, items)
}

#[test]
fn an_item_is_computed_with_the_first_of_its_tokens_and_once() {
    let mut engine = new_engine(input());
    engine.submit(spec(0, &[(TEXT, 50), (Some(7), 40), (TEXT, 10)])).expect("it fits");
    assert_eq!(step(&mut engine), (vec![(0, 64)], vec![(0, 0)]));
    assert_eq!(engine.encoder_cache_use().referenced_embeds, 40);
    assert_eq!(step(&mut engine), (vec![(0, 36)], vec![]));
    // The item is kept for other requests.
    assert_eq!((engine.encoder_cache_use().cached_embeds, engine.encoder_cache_use().referenced_embeds), (40, 0));
    engine.submit(spec(1, &[(Some(7), 40), (TEXT, 3)])).expect("it fits");
    assert_eq!(step(&mut engine), (vec![(0, 1), (1, 43)], vec![]));
    let stats = engine.stats().encoder;
    assert_eq!((stats.queries, stats.hits, stats.computed_items, stats.computed_embeds), (2, 1, 1, 40));
}

#[test]
fn a_chunk_ends_before_an_item_that_exceeds_the_budget_of_the_step() {
    let mut engine = new_engine(EngineConfigInput { max_num_encoder_input_tokens: Some(30), ..input() });
    engine.submit(spec(0, &[(TEXT, 5), (Some(1), 20), (TEXT, 5), (Some(2), 20), (TEXT, 5)])).expect("it fits");
    assert_eq!(step(&mut engine), (vec![(0, 30)], vec![(0, 0)]));
    assert_eq!(step(&mut engine), (vec![(0, 25)], vec![(0, 1)]));
}

#[test]
fn a_chunk_ends_before_an_item_for_which_there_is_no_room() {
    let mut engine = new_engine(EngineConfigInput { encoder_cache_size: Some(30), ..input() });
    engine.submit(spec(0, &[(Some(1), 20), (Some(2), 20), (TEXT, 5)])).expect("it fits");
    assert_eq!(step(&mut engine), (vec![(0, 20)], vec![(0, 0)]));
    // The first item is no longer referenced, so it is evicted.
    let plan = engine.schedule();
    assert_eq!(plan.freed_encoder_items, [1]);
    assert_eq!((plan.shape.encoder.items, plan.shape.encoder.embeds), (1, 20));
}

#[test]
fn a_request_that_begins_with_an_item_beyond_the_budget_waits() {
    for (rules, expected, stop) in [
        (SchedulerRules::V0_32, vec![(0, 25)], AdmissionStop::Encoder),
        (SchedulerRules::V0_33, vec![(0, 25), (2, 10)], AdmissionStop::Drained),
    ] {
        let mut engine = new_engine(EngineConfigInput { max_num_encoder_input_tokens: Some(30), rules, ..input() });
        engine.submit(spec(0, &[(Some(1), 20), (TEXT, 5)])).expect("it fits");
        engine.submit(spec(1, &[(Some(2), 20), (TEXT, 5)])).expect("it fits");
        engine.submit(spec(2, &[(TEXT, 10)])).expect("it fits");
        assert_eq!(step(&mut engine), (expected, vec![(0, 0)]), "{rules:?}");
        assert_eq!(engine.plan().admission_stop, stop, "{rules:?}");
    }
}

/// With `disable_chunked_mm_input`, a chunk ends before an item that does not fit. In 0.32, an item at the start of a
/// chunk is split anyway.
#[test]
fn an_item_is_not_split_where_that_is_off() {
    for (rules, begun) in [(SchedulerRules::V0_32, vec![(0, 30), (1, 34)]), (SchedulerRules::V0_33, vec![(0, 30)])] {
        let mut engine = new_engine(EngineConfigInput { disable_chunked_mm_input: true, rules, ..input() });
        engine.submit(spec(0, &[(TEXT, 30), (Some(1), 50), (TEXT, 5)])).expect("it fits");
        assert_eq!(step(&mut engine), (vec![(0, 30)], vec![]));
        assert_eq!(step(&mut engine), (vec![(0, 55)], vec![(0, 0)]));
        let mut engine = new_engine(EngineConfigInput { disable_chunked_mm_input: true, rules, ..input() });
        engine.submit(spec(0, &[(TEXT, 30)])).expect("it fits");
        engine.submit(spec(1, &[(Some(1), 50), (TEXT, 5)])).expect("it fits");
        assert_eq!(step(&mut engine).0, begun, "{rules:?}");
    }
}

#[test]
fn blocks_are_shared_only_where_items_are_the_same_at_the_same_place() {
    let cached = |parts: &[(Option<u64>, u32)]| {
        let mut engine = new_engine(input());
        let text = |tag: u64, parts: &[(Option<u64>, u32)]| RequestSpec { tag, ..spec(0, parts) };
        engine.submit(text(0, &[(TEXT, 10), (Some(1), 20), (TEXT, 34)])).expect("it fits");
        step(&mut engine);
        engine.submit(text(1, parts)).expect("it fits");
        engine.schedule().scheduled.last().expect("it runs").num_computed_tokens
    };
    assert_eq!(cached(&[(TEXT, 10), (Some(1), 20), (TEXT, 34)]), 48);
    assert_eq!(cached(&[(TEXT, 10), (Some(2), 20), (TEXT, 34)]), 0);
    assert_eq!(cached(&[(TEXT, 11), (Some(1), 20), (TEXT, 33)]), 0);
    assert_eq!(cached(&[(TEXT, 64)]), 0);
}

#[test]
fn items_that_could_never_be_computed_are_refused() {
    let of =
        |input: EngineConfigInput, parts: &[(Option<u64>, u32)]| new_engine(input).submit(spec(0, parts)).map(|_| ());
    let item = [(Some(1), 40), (TEXT, 100)];
    assert_eq!(of(input(), &item), Ok(()));
    let narrow = EngineConfigInput { max_num_encoder_input_tokens: Some(39), ..input() };
    assert_eq!(of(narrow, &item), Err(RejectReason::ItemExceedsEncoder));
    let small = EngineConfigInput { encoder_cache_size: Some(39), ..input() };
    assert_eq!(of(small, &item), Err(RejectReason::ItemExceedsEncoder));
    // Without a configured limit, the encoder has room for the largest item.
    assert_eq!(of(input(), &[(Some(1), 65)]), Ok(()));
    let whole = |rules| EngineConfigInput {
        disable_chunked_mm_input: true,
        long_prefill_token_threshold: 39,
        rules,
        ..input()
    };
    assert_eq!(of(whole(SchedulerRules::V0_33), &item), Err(RejectReason::ItemExceedsChunk));
    assert_eq!(of(whole(SchedulerRules::V0_32), &item), Ok(()));
    assert_eq!(of(input(), &[(Some(1), 0), (TEXT, 5)]), Err(RejectReason::MisplacedItems));
}

/// A chunk ends before an item that does not fit into it. With a drafter that reads ahead, it ends earlier by that
/// number of tokens, if there are that many before the item.
#[test]
fn an_item_that_is_not_split_needs_room_for_what_a_drafter_reads_ahead() {
    let of = |rules, drafter, parts: &[(Option<u64>, u32)]| {
        let mut engine = new_engine(EngineConfigInput {
            disable_chunked_mm_input: true,
            drafter,
            num_speculative_tokens: 3,
            rules,
            ..input()
        });
        engine.submit(spec(0, parts))?;
        let mut steps = 0;
        while engine.num_unfinished() > 0 && steps < 20 {
            step(&mut engine);
            steps += 1;
        }
        assert!(steps < 20, "{rules:?}: a request that was accepted ends");
        Ok(())
    };
    let refused = Err(RejectReason::ItemExceedsChunk);
    for rules in [SchedulerRules::V0_29, SchedulerRules::V0_32, SchedulerRules::V0_33] {
        let splits_first = rules < SchedulerRules::V0_33;
        for (drafter, text, longest) in [
            (Drafter::Mtp, 0, 64),
            (Drafter::Mtp, 1, 63),
            (Drafter::Mtp, 10, 63),
            (Drafter::MultiModuleMtp, 0, 64),
            (Drafter::MultiModuleMtp, 2, 62),
            (Drafter::MultiModuleMtp, 10, 61),
            // A draft model costs one token of the budget. This matters if items are not split at all.
            (Drafter::DraftModel, 0, if splits_first { 64 } else { 63 }),
            (Drafter::DraftModel, 10, if splits_first { 64 } else { 63 }),
        ] {
            let before = [(TEXT, text)];
            let parts = |len| [&before[..usize::from(text > 0)], &[(Some(1), len), (TEXT, 9)]].concat();
            assert_eq!(of(rules, drafter, &parts(longest)), Ok(()), "{rules:?} {drafter:?} {text}");
            assert_eq!(of(rules, drafter, &parts(longest + 1)), refused, "{rules:?} {drafter:?} {text}");
        }
    }
}

#[test]
fn an_item_beyond_the_token_budget_is_computed_by_the_step_of_its_first_token() {
    let mut engine = new_engine(input());
    engine.submit(spec(0, &[(TEXT, 4), (Some(7), 150)])).expect("it fits");
    assert_eq!(step(&mut engine), (vec![(0, 64)], vec![(0, 0)]));
    assert_eq!(step(&mut engine), (vec![(0, 64)], vec![]));
    assert_eq!(engine.encoder_cache_use().referenced_embeds, 150);
    assert_eq!(step(&mut engine), (vec![(0, 26)], vec![]));
    assert_eq!(engine.encoder_cache_use().referenced_embeds, 0);
}

#[test]
fn a_reset_cache_computes_everything_again() {
    let mut engine = new_engine(EngineConfigInput { enable_prefix_caching: false, ..input() });
    engine.submit(spec(0, &[(Some(7), 40), (TEXT, 3)])).expect("it fits");
    step(&mut engine);
    engine.reset_encoder_cache();
    engine.submit(spec(1, &[(Some(7), 40), (TEXT, 3)])).expect("it fits");
    assert_eq!(step(&mut engine), (vec![(0, 1), (1, 43)], vec![(1, 0)]));
}
