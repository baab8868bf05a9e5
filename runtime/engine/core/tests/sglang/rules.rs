//! Individual rules of the engine.

use vcr_core::plan::ScheduledKind::{New, Resumed, Running};
use vcr_core::sglang::{PassOrder, PrefixLookup, Retraction, SchedulePolicy, SglangConfigInput, SglangEngine};
use vcr_core::{Prompt, RejectReason, RequestSpec, ServingEngine, TokenSource};

use crate::sglang::{Tokens, engine, pass, submit};

#[test]
fn a_pass_prefills_or_decodes_or_does_both() {
    for (pass_order, second) in
        [(PassOrder::PrefillFirst, vec![(1, New, 0, 8)]), (PassOrder::Mixed, vec![(0, Running, 8, 1), (1, New, 0, 8)])]
    {
        let mut engine = engine(SglangConfigInput { pass_order, ..SglangConfigInput::default() });
        submit(&mut engine, 0, 0, 8, 4);
        assert_eq!(pass(&mut engine), [(0, New, 0, 8)]);
        submit(&mut engine, 1, 0, 8, 4);
        assert_eq!(pass(&mut engine), second);
        assert_eq!(pass(&mut engine).len(), 2, "both decode");
    }
}

#[test]
fn a_long_prompt_is_computed_in_chunks_before_anything_else_is_admitted() {
    let input = SglangConfigInput { page_size: 4, chunked_prefill_size: 16, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 0, 37, 2);
    submit(&mut engine, 1, 0, 4, 2);
    assert_eq!(pass(&mut engine), [(0, New, 0, 16)]);
    assert_eq!(pass(&mut engine), [(0, Running, 16, 16)]);
    assert_eq!(pass(&mut engine), [(0, Running, 32, 5), (1, New, 0, 4)]);
    assert_eq!(engine.stats().prefix.hit_tokens, 0, "its own chunks are not reuse");
}

#[test]
fn a_prompt_that_does_not_fit_is_cut_or_waits() {
    for (prefix_lookup, second) in
        [(PrefixLookup::WholePrompt, vec![(1, Running, 4, 8)]), (PrefixLookup::FirstChunk, vec![(1, New, 0, 12)])]
    {
        let own = SglangConfigInput { page_size: 4, chunked_prefill_size: 16, ..SglangConfigInput::default() };
        let mut engine = engine(SglangConfigInput { prefix_lookup, ..own });
        submit(&mut engine, 0, 0, 12, 2);
        submit(&mut engine, 1, 0, 12, 2);
        let cut = prefix_lookup == PrefixLookup::WholePrompt;
        assert_eq!(pass(&mut engine).len(), if cut { 2 } else { 1 });
        assert_eq!(pass(&mut engine), second);
    }
}

#[test]
fn only_the_first_chunk_is_looked_up_where_cached_tokens_count() {
    for (prefix_lookup, again) in [
        (PrefixLookup::WholePrompt, vec![vec![(1, New, 36, 4)]]),
        (PrefixLookup::FirstChunk, vec![vec![(1, New, 16, 0)], vec![(1, Running, 16, 16)], vec![(1, Running, 32, 8)]]),
    ] {
        let own = SglangConfigInput { page_size: 4, chunked_prefill_size: 16, ..SglangConfigInput::default() };
        let mut engine = engine(SglangConfigInput { prefix_lookup, ..own });
        submit(&mut engine, 0, 40, 0, 1);
        while engine.has_schedulable_requests() {
            pass(&mut engine);
        }
        submit(&mut engine, 1, 40, 0, 1);
        for rows in again {
            assert_eq!(pass(&mut engine), rows);
        }
        assert!(!engine.has_schedulable_requests());
    }
}

#[test]
fn a_shared_prefix_is_found_in_full_pages_and_the_last_token_is_always_computed() {
    let mut engine = engine(SglangConfigInput { page_size: 4, ..SglangConfigInput::default() });
    submit(&mut engine, 0, 16, 0, 1);
    assert_eq!(pass(&mut engine), [(0, New, 0, 16)]);
    submit(&mut engine, 1, 16, 0, 1);
    assert_eq!(pass(&mut engine), [(1, New, 12, 4)]);
    submit(&mut engine, 2, 11, 9, 1);
    assert_eq!(pass(&mut engine), [(2, New, 8, 12)], "the third page differs after 3 of its tokens");
}

#[test]
fn an_answer_is_found_by_the_next_turn() {
    let mut engine = engine(SglangConfigInput::default());
    let question: Vec<u32> = (100..110).collect();
    let spec = |tag, tokens| RequestSpec::new(tag, Prompt::of_tokens(tokens, 1, 0), 5);
    engine.submit(spec(0, question.clone())).unwrap();
    while engine.has_schedulable_requests() {
        pass(&mut engine);
    }
    let answer = (0..5).map(|index| Tokens.token(0, index));
    let next = question.into_iter().chain(answer).chain([1, 2, 3]).collect();
    engine.submit(spec(1, next)).unwrap();
    assert_eq!(pass(&mut engine), [(1, New, 15, 3)]);
}

#[test]
fn the_head_that_does_not_fit_is_not_overtaken() {
    let mut engine = engine(SglangConfigInput { num_pages: 100, ..SglangConfigInput::default() });
    submit(&mut engine, 0, 0, 40, 20);
    pass(&mut engine);
    submit(&mut engine, 1, 0, 60, 20);
    submit(&mut engine, 2, 0, 1, 1);
    assert_eq!(pass(&mut engine), [(0, Running, 40, 1)]);
    assert_eq!(engine.load().num_waiting, 2);
    assert_eq!(engine.stats().preemptions, 0);
}

#[test]
fn what_can_never_fit_is_refused_and_what_fits_just_so_runs() {
    let mut engine = engine(SglangConfigInput { num_pages: 100, clip_max_new_tokens: 50, ..Default::default() });
    assert_eq!(engine.check(0, 1), Err(RejectReason::EmptyPrompt));
    assert_eq!(engine.check(60, 40), Err(RejectReason::ExceedsKvReserve), "SGLang wants more than the reserve");
    assert_eq!(engine.check(40, 61), Err(RejectReason::ExceedsKvPool), "more than is reserved, and then too much");
    engine.check(40, 60).expect("each token has a slot");
    submit(&mut engine, 0, 0, 40, 60);
    let mut tokens = 0;
    while engine.has_schedulable_requests() {
        assert!(!pass(&mut engine).is_empty(), "a dead end");
        tokens += engine.outputs().outputs.iter().map(|output| output.num_tokens).sum::<u32>();
    }
    assert_eq!(tokens, 60);
}

#[test]
fn who_has_the_fewest_outputs_is_retracted_and_goes_on_from_what_is_cached_of_it() {
    let input = SglangConfigInput { num_pages: 40, schedule_conservativeness: 0.01, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 0, 10, 20);
    pass(&mut engine);
    pass(&mut engine);
    submit(&mut engine, 1, 0, 8, 15);
    assert_eq!(until_retracted(&mut engine), [1]);
    assert_eq!(engine.running_tags(), [0]);
    let mut resumed = None;
    while engine.has_schedulable_requests() {
        let rows = pass(&mut engine);
        resumed = resumed.or(rows.into_iter().find(|row| row.1 == Resumed));
    }
    let (tag, _, cached, computed) = resumed.expect("it is admitted again");
    assert_eq!((tag, cached, computed), (1, 17, 1), "its prompt and its outputs but the last are still in the tree");
    assert_eq!(engine.load().num_active_blocks, 0);
}

#[test]
fn what_is_retracted_waits_before_all_or_behind_all() {
    for (retraction, order) in [(Retraction::BeforeAll, [1, 2]), (Retraction::BehindAll, [2, 1])] {
        let input = SglangConfigInput { num_pages: 40, schedule_conservativeness: 0.01, ..Default::default() };
        let mut engine = engine(SglangConfigInput { retraction, ..input });
        submit(&mut engine, 0, 0, 10, 20);
        pass(&mut engine);
        pass(&mut engine);
        submit(&mut engine, 1, 0, 8, 15);
        pass(&mut engine);
        submit(&mut engine, 2, 0, 12, 15);
        assert_eq!(until_retracted(&mut engine), [1]);
        let mut admitted = Vec::new();
        while engine.has_schedulable_requests() {
            let rows = pass(&mut engine);
            admitted.extend(rows.iter().filter(|row| row.1 != Running).map(|row| row.0));
        }
        admitted.dedup();
        assert_eq!(admitted, order, "{retraction:?}");
    }
}

#[test]
fn a_retraction_tells_what_those_that_stay_need() {
    for (retraction, next) in [(Retraction::BeforeAll, (2, New)), (Retraction::BehindAll, (0, Running))] {
        let input = SglangConfigInput { num_pages: 60, schedule_conservativeness: 0.001, ..Default::default() };
        let mut engine = engine(SglangConfigInput { retraction, ..input });
        submit(&mut engine, 0, 0, 10, 40);
        pass(&mut engine);
        pass(&mut engine);
        let second = submit(&mut engine, 1, 0, 8, 30);
        assert_eq!(until_retracted(&mut engine), [1]);
        engine.abort(second);
        // The request fits into the remaining pages if almost nothing is reserved, but not together with the future
        // outputs of the first request, which has had half of its outputs.
        submit(&mut engine, 2, 0, 9, 5);
        let rows = pass(&mut engine);
        assert_eq!((rows[0].0, rows[0].1), next, "{retraction:?}");
    }
}

fn until_retracted(engine: &mut SglangEngine) -> Vec<u64> {
    loop {
        let retracted = engine.schedule().preempted.clone();
        engine.update(&mut Tokens);
        if !retracted.is_empty() {
            return retracted;
        }
    }
}

#[test]
fn the_longest_cached_prefix_goes_first_and_twins_one_after_the_other() {
    let input = SglangConfigInput { schedule_policy: SchedulePolicy::Lpm, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 100, 0, 1);
    pass(&mut engine);
    let twin = |engine: &mut SglangEngine, tag: u64, own: u32| {
        let mut prompt = Prompt::new(1, 0);
        prompt.push_run(7, 0, 40);
        prompt.push_run(1000 + tag, 0, own);
        engine.submit(RequestSpec::new(tag, prompt, 1)).unwrap();
    };
    twin(&mut engine, 1, 5);
    twin(&mut engine, 2, 5);
    submit(&mut engine, 3, 50, 5, 1);
    submit(&mut engine, 4, 80, 5, 1);
    let order: Vec<u64> = pass(&mut engine).iter().map(|row| row.0).collect();
    assert_eq!(order, [4, 3, 1, 2]);
}

#[test]
fn with_too_many_waiting_the_longest_prefix_is_not_looked_for() {
    let input =
        SglangConfigInput { schedule_policy: SchedulePolicy::Lpm, max_num_seqs: 1_000, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 0, 100, 0, 1);
    pass(&mut engine);
    for tag in 1..=SchedulePolicy::MAX_ORDERED_REQUESTS as u64 {
        submit(&mut engine, tag, 0, 2, 1);
    }
    submit(&mut engine, 1_000, 50, 5, 1);
    assert_eq!(pass(&mut engine).last().expect("all are admitted").0, 1_000);
}

#[test]
fn certain_bursts_need_as_many_passes_as_they_save() {
    let input = SglangConfigInput { max_extra_tokens_per_step: 2, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    // Request 2 emits all tokens that it may have.
    submit(&mut engine, 2, 0, 10, 16);
    let mut tokens = Vec::new();
    while engine.has_schedulable_requests() {
        pass(&mut engine);
        tokens.push(engine.outputs().outputs[0].num_tokens);
    }
    assert_eq!(tokens, [1, 3, 3, 3, 3, 3]);
}

#[test]
fn an_abort_is_idempotent_and_leaves_nothing() {
    let mut engine = engine(SglangConfigInput { chunked_prefill_size: 8, ..SglangConfigInput::default() });
    let first = submit(&mut engine, 0, 0, 20, 4);
    let second = submit(&mut engine, 1, 0, 6, 4);
    engine.schedule();
    engine.abort(first);
    engine.abort(first);
    engine.update(&mut Tokens);
    assert!(engine.outputs().outputs.is_empty());
    pass(&mut engine);
    engine.abort(second);
    engine.abort(second);
    assert_eq!((engine.load().num_active_blocks, engine.load().num_running, engine.load().num_waiting), (0, 0, 0));
    assert_eq!(engine.load().outstanding_prefill_tokens, 0);
    assert!(!engine.has_schedulable_requests());
}

/// After a pass that prefills, the configured number of decode passes follows, while any request decodes.
#[test]
fn prompts_wait_for_the_interval_of_decodes() {
    let input = SglangConfigInput { prefill_decode_interval: 2, ..SglangConfigInput::default() };
    let mut engine = engine(input);
    submit(&mut engine, 1, 0, 10, 5);
    let is_prefill = |rows: &[(u64, vcr_core::plan::ScheduledKind, u32, u32)]| rows.iter().any(|row| row.3 > 1);
    assert!(is_prefill(&pass(&mut engine)));
    submit(&mut engine, 2, 0, 10, 2);
    // Two passes decode the first request. Then comes the second prompt, and then two decode passes again.
    let passes: Vec<bool> = (0..4).map(|_| is_prefill(&pass(&mut engine))).collect();
    assert_eq!(passes, [false, false, true, false]);
    // Both requests have ended after the next pass, so a third prompt does not wait.
    assert_eq!(pass(&mut engine).len(), 1);
    submit(&mut engine, 3, 0, 10, 2);
    assert!(is_prefill(&pass(&mut engine)));
}
