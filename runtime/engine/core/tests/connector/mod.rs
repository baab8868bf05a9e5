//! Engines with a KV connector: individual rules, and random answers and reports.

use proptest::prelude::*;
use vcr_core::kv_pool::BlockId;
use vcr_core::plan::ScheduledKind;
use vcr_core::{
    Drafter, Engine, EngineConfig, EngineConfigInput, ExternalHit, FinishReason, KvCacheGroup, KvConnector, KvRole,
    KvTransferReport, LoadFailures, Policy, RequestId, RequestSpec,
};

use crate::plain::{Ones, request, step};

fn engine(connector: KvConnector, input: EngineConfigInput) -> Engine {
    let input = EngineConfigInput { kv_connector: Some(connector), ..input };
    Engine::new(EngineConfig::new(input).expect("valid"))
}

fn recomputing() -> KvConnector {
    KvConnector {
        is_consumer: true,
        requires_delivery: false,
        load_failures: LoadFailures::Recompute,
        is_nixl: false,
        offloading: None,
    }
}

/// Sets the answers for the next step: tokens that are loaded while the request waits.
fn answer(engine: &mut Engine, answers: &[(u64, u32)]) {
    let hit = |tokens| ExternalHit { tokens: Some(tokens), is_async: true };
    engine.answer_lookups(answers.iter().map(|&(tag, tokens)| (tag, hit(tokens))));
}

fn report(engine: &mut Engine, report: KvTransferReport) {
    engine.report_transfers(report);
    engine.apply_transfers();
}

fn received(tags: &[u64]) -> KvTransferReport {
    KvTransferReport { finished_recving: tags.to_vec(), ..KvTransferReport::default() }
}

/// The loads end in another order than they began.
#[test]
fn loaded_requests_are_admitted_in_the_order_of_their_loads() {
    let mut engine = engine(recomputing(), EngineConfigInput::default());
    for tag in 0..3 {
        engine.submit(request(tag, tag, 40, 5)).expect("it fits");
    }
    answer(&mut engine, &[(0, 32), (1, 40), (2, 16)]);
    assert!(step(&mut engine).is_empty(), "all of them load");
    report(&mut engine, received(&[2, 1]));
    report(&mut engine, received(&[0]));
    let new = ScheduledKind::New;
    assert_eq!(step(&mut engine), [(0, new, 32, 8), (1, new, 39, 1), (2, new, 16, 24)]);
}

/// A window allocates no blocks for loaded tokens before it. Full attention allocates blocks for
/// all loaded tokens before blocks for its own tokens.
#[test]
fn loads_leave_out_what_windows_have_passed() {
    let kv_cache_groups = ["sliding_window:17", "full"].map(|text| text.parse().expect("a group")).to_vec();
    let mut engine = engine(recomputing(), EngineConfigInput { kv_cache_groups, ..EngineConfigInput::default() });
    let id = engine.submit(request(0, 0, 100, 5)).expect("it fits");
    let hit = ExternalHit { tokens: Some(64), is_async: false };
    engine.answer_lookups([(0, hit)]);
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 64, 36)]);
    let tables: Vec<_> = engine.group_block_tables(id).map(<[_]>::to_vec).collect();
    assert_eq!(tables, [[0, 0, 0, 1, 6, 7, 8], [2, 3, 4, 5, 9, 10, 11]]);
}

/// If a load for several groups fails, the request holds nothing and is looked up again.
#[test]
fn loads_of_groups_fail_as_a_whole() {
    let kv_cache_groups = ["sliding_window:17", "full"].map(|text| text.parse().expect("a group")).to_vec();
    let mut engine = engine(recomputing(), EngineConfigInput { kv_cache_groups, ..EngineConfigInput::default() });
    let id = engine.submit(request(0, 0, 100, 5)).expect("it fits");
    answer(&mut engine, &[(0, 64)]);
    assert!(step(&mut engine).is_empty());
    assert_eq!(engine.pool().num_active(), 5);
    report(&mut engine, KvTransferReport { failed_recving: vec![0], ..received(&[0]) });
    answer(&mut engine, &[(0, 32)]);
    assert!(step(&mut engine).is_empty());
    let tables: Vec<_> = engine.group_block_tables(id).map(<[_]>::len).collect();
    assert_eq!((tables, engine.pool().num_active()), (vec![2, 2], 3));
}

/// With three drafts and one module per draft, NIXL leaves two prompt tokens to the decode engine.
#[test]
fn the_last_tokens_are_left_to_the_engine_that_decodes() {
    let input = EngineConfigInput {
        drafter: Drafter::MultiModuleMtp,
        num_speculative_tokens: 3,
        ..EngineConfigInput::default()
    };
    let mut engine = engine(KvConnector { is_nixl: true, ..recomputing() }, input);
    engine.submit(RequestSpec { kv_role: KvRole::Source, ..request(0, 0, 40, 20) }).expect("it fits");
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 0, 38)]);
    let ends: Vec<_> = engine.outputs().outputs.iter().map(|output| (output.num_tokens, output.finish)).collect();
    assert_eq!((ends, engine.pool().num_active()), (vec![(1, Some(FinishReason::Length))], 3), "its KV is held");

    engine.submit(RequestSpec { kv_role: KvRole::Destination, ..request(1, 1, 40, 20) }).expect("it fits");
    engine.submit(RequestSpec { kv_role: KvRole::Destination, ..request(2, 2, 2, 20) }).expect("it fits");
    assert!(step(&mut engine).is_empty());
    report(&mut engine, received(&[1, 2]));
    // The request with one remaining token has room for drafts.
    assert_eq!(step(&mut engine), [(1, ScheduledKind::New, 38, 2), (2, ScheduledKind::New, 1, 4)]);
}

/// A load leaves the blocks free that a running prompt needs; a new request does not.
#[test]
fn loads_leave_the_blocks_that_running_prompts_need() {
    let input = EngineConfigInput {
        num_gpu_blocks: 11,
        max_num_batched_tokens: 256,
        max_num_seqs: 4,
        ..EngineConfigInput::default()
    };
    let input = EngineConfigInput { long_prefill_token_threshold: 16, ..input };
    for (external_tokens, is_admitted) in [(64, false), (0, true)] {
        let mut engine = engine(recomputing(), input.clone());
        engine.submit(request(0, 0, 120, 5)).expect("it fits");
        engine.submit(request(1, 1, 64, 5)).expect("it fits");
        answer(&mut engine, &[(1, external_tokens)]);
        engine.schedule();
        assert_eq!(engine.pool().num_active() > 1, is_admitted, "{external_tokens}");
    }
}

/// After a failed load, the valid part of the KV is kept.
#[test]
fn invalid_blocks_are_computed_here() {
    let mut engine = engine(recomputing(), EngineConfigInput::default());
    engine.submit(request(0, 0, 70, 5)).expect("it fits");
    answer(&mut engine, &[(0, 64)]);
    assert!(step(&mut engine).is_empty());
    let invalid_blocks = vec![3];
    report(&mut engine, KvTransferReport { invalid_blocks, ..received(&[0]) });
    assert_eq!(step(&mut engine), [(0, ScheduledKind::New, 32, 38)], "the third of its blocks is missing");
}

#[test]
fn requests_whose_load_fails_end() {
    let connector = KvConnector { load_failures: LoadFailures::Fail, ..recomputing() };
    let mut engine = engine(connector, EngineConfigInput::default());
    engine.submit(request(0, 0, 70, 5)).expect("it fits");
    answer(&mut engine, &[(0, 64)]);
    assert!(step(&mut engine).is_empty());
    engine.report_transfers(KvTransferReport { invalid_blocks: vec![2], ..KvTransferReport::default() });
    let ends: Vec<_> = engine.apply_transfers().outputs.iter().map(|output| (output.tag, output.finish)).collect();
    assert_eq!(ends, [(0, Some(FinishReason::Error))]);
    assert_eq!((engine.num_waiting(), engine.pool().num_active()), (0, 4), "workers may still write them");
    report(&mut engine, received(&[0]));
    assert_eq!((engine.num_requests(), engine.pool().num_active()), (0, 0));
}

#[test]
fn blocks_in_flight_are_freed_when_the_step_is_over() {
    for (is_consumer, left) in [(true, 3), (false, 0)] {
        let input = EngineConfigInput { async_scheduling: true, ..EngineConfigInput::default() };
        let mut engine = engine(KvConnector { is_consumer, ..recomputing() }, input);
        let id = engine.submit(request(0, 0, 40, 5)).expect("it fits");
        engine.schedule();
        engine.abort(id);
        assert_eq!(engine.pool().num_active(), left, "{is_consumer}");
        engine.update(&mut Ones);
        assert_eq!(engine.pool().num_active(), 0);
    }
}

#[derive(Clone, Debug)]
struct Turn {
    /// Content, prompt tokens, output tokens, role, priority.
    submissions: Vec<(u64, u32, u32, KvRole, i32)>,
    /// Answers for 100 lookups. The tokens are in eighths of the requested number; None means not yet known. The flag
    /// says whether they are loaded within the step.
    answers: Vec<(Option<u32>, bool)>,
    /// The end of each transfer in progress: complete, invalid from some block on, or failed for the request.
    ends: Vec<u8>,
    aborts: Vec<usize>,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let role = prop_oneof![3 => Just(KvRole::Local), 1 => Just(KvRole::Source), 1 => Just(KvRole::Destination)];
    let submission = (0..6u64, 1..90u32, 1..20u32, role, 0..3i32);
    let turn = (
        proptest::collection::vec(submission, 0..3),
        proptest::collection::vec((proptest::option::weighted(0.9, 0..9u32), any::<bool>()), 8),
        proptest::collection::vec(0..12u8, 4),
        proptest::collection::vec(0..40usize, 0..2),
    );
    let turn = turn.prop_map(|(submissions, answers, ends, aborts)| Turn { submissions, answers, ends, aborts });
    proptest::collection::vec(turn, 1..60)
}

fn groups() -> impl Strategy<Value = Vec<KvCacheGroup>> {
    let kinds: [&[&str]; 5] = [
        &[],
        &["sliding_window:20"],
        &["full", "sliding_window:33"],
        &["sliding_window:1", "full@32", "full"],
        &["chunked_local:24", "full"],
    ];
    let group = |text: &&str| text.parse().expect("a group");
    proptest::sample::select(kinds.map(|kinds| kinds.iter().map(group).collect::<Vec<KvCacheGroup>>()).to_vec())
}

/// An engine and the pending work of its connector's workers.
struct Driver {
    engine: Engine,
    next_tag: u64,
    /// Tags of requests with loads in progress. `held` has the tags of requests whose KV is held.
    loading: Vec<u64>,
    held: Vec<u64>,
    live: Vec<u64>,
}

impl Driver {
    fn turn(&mut self, turn: &Turn, drains: bool) {
        for &(content, prompt, outputs, kv_role, priority) in &turn.submissions {
            let spec = RequestSpec {
                kv_role,
                priority,
                arrival_ns: self.next_tag,
                ..request(self.next_tag, content, prompt, outputs)
            };
            if self.engine.check(prompt, outputs).is_ok() {
                self.engine.submit(spec).expect("it was checked");
                self.live.push(self.next_tag);
            }
            self.next_tag += 1;
        }
        for &abort in &turn.aborts {
            if let Some(&tag) = self.live.get(abort) {
                self.engine.abort(self.engine.find(tag).expect("it is live"));
                self.live.remove(abort);
            }
        }
        if self.engine.may_schedule() {
            self.schedule(turn, drains);
        }
        // Under async scheduling, two steps may be in flight.
        if self.engine.may_schedule() && turn.ends[0].is_multiple_of(3) && !drains {
            return;
        }
        self.report(turn, drains);
        if self.engine.step_in_flight() {
            self.engine.update(&mut Ones);
        } else {
            self.engine.apply_transfers();
        }
        for output in self.engine.outputs().outputs.clone() {
            if output.finish.is_some() {
                self.live.retain(|tag| *tag != output.tag);
                if self.engine.find(output.tag).is_some() && !self.loading.contains(&output.tag) {
                    self.held.push(output.tag);
                }
            }
        }
        self.engine.pool().assert_consistent();
    }

    fn schedule(&mut self, turn: &Turn, drains: bool) {
        let tags = self.live.clone();
        let answers = tags.iter().map(|&tag| {
            let (eighths, is_async) = turn.answers[tag as usize % turn.answers.len()];
            let tokens = if drains { Some(0) } else { eighths.map(|eighths| eighths * 8) };
            (tag, ExternalHit { tokens, is_async })
        });
        self.engine.answer_lookups(answers.collect::<Vec<_>>());
        let plan = self.engine.schedule();
        let scheduled: Vec<u64> = plan.scheduled.iter().map(|entry| entry.tag).collect();
        let looked_up: Vec<u64> = plan.external_lookups.iter().map(|lookup| lookup.tag).collect();
        for tag in looked_up {
            let id = self.engine.find(tag).expect("it was looked up");
            let has_blocks = !self.table(id).is_empty();
            if has_blocks && !scheduled.contains(&tag) && !self.loading.contains(&tag) {
                self.loading.push(tag);
            }
        }
    }

    /// The blocks of a request; with groups of layers, those of the first group.
    fn table(&self, id: RequestId) -> &[BlockId] {
        self.engine.group_block_tables(id).next().unwrap_or(self.engine.block_table(id))
    }

    fn report(&mut self, turn: &Turn, drains: bool) {
        let mut report = KvTransferReport::default();
        for (index, &end) in turn.ends.iter().enumerate() {
            if index < self.loading.len() && (end < 8 || drains) {
                let tag = self.loading[index];
                report.finished_recving.push(tag);
                // A request that is looked up again while it holds the block of its only token loads nothing, and may
                // have ended.
                let Some(id) = self.engine.find(tag) else { continue };
                match end {
                    0 => report.failed_recving.push(tag),
                    // Invalid blocks are only reported for one group, and windows have null blocks before their
                    // start.
                    1 | 2 if self.engine.group_block_tables(id).count() < 2 => {
                        let blocks = self.table(id).iter().skip(usize::from(end)).filter(|&&block| block != 0);
                        report.invalid_blocks.extend(blocks);
                    }
                    1 | 2 => report.failed_recving.push(tag),
                    _ => {}
                }
            }
            if end % 2 == 0 && index < self.held.len() {
                report.finished_sending.push(self.held[index]);
            }
        }
        self.loading.retain(|tag| !report.finished_recving.contains(tag));
        self.held.retain(|tag| !report.finished_sending.contains(tag));
        self.engine.report_transfers(report);
    }
}

proptest! {
    /// Whatever the connector answers and however its loads end, no block and no request is lost.
    #[test]
    fn no_block_is_lost(
        turns in turns(),
        async_scheduling in any::<bool>(),
        priority in any::<bool>(),
        is_consumer in any::<bool>(),
        requires_delivery in any::<bool>(),
        fails in any::<bool>(),
        num_gpu_blocks in 9..40u32,
        num_speculative_tokens in 0..3u32,
        groups in groups(),
        is_nixl in any::<bool>(),
    ) {
        let load_failures = if fails { LoadFailures::Fail } else { LoadFailures::Recompute };
        let input = EngineConfigInput {
            num_gpu_blocks: num_gpu_blocks * groups.len().max(1) as u32,
            kv_cache_groups: groups,
            max_num_seqs: 4,
            max_num_batched_tokens: 48,
            max_model_len: Some(112),
            policy: if priority { Policy::Priority } else { Policy::Fcfs },
            async_scheduling,
            num_speculative_tokens: if async_scheduling { 0 } else { num_speculative_tokens },
            ..EngineConfigInput::default()
        };
        let engine = engine(KvConnector { is_consumer, requires_delivery, load_failures, is_nixl, offloading: None }, input);
        let mut driver = Driver { engine, next_tag: 0, loading: Vec::new(), held: Vec::new(), live: Vec::new() };
        for turn in &turns {
            driver.turn(turn, false);
        }
        let last = Turn { submissions: Vec::new(), answers: vec![(Some(0), false)], ends: vec![4; 4], aborts: Vec::new() };
        for _ in 0..2_000 {
            if driver.engine.num_requests() == 0 {
                break;
            }
            driver.turn(&last, true);
        }
        for tag in std::mem::take(&mut driver.live) {
            driver.engine.abort(driver.engine.find(tag).expect("it is live"));
        }
        for _ in 0..200 {
            driver.turn(&last, true);
        }
        prop_assert_eq!(driver.engine.num_requests(), 0);
        prop_assert_eq!(driver.engine.pool().num_active(), 0);
        prop_assert_eq!(driver.engine.outstanding_prefill_tokens(), 0);
    }
}
