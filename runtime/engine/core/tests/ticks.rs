//! An engine that schedules by ticks: its rules one by one, and compared with a simple scheduler on random requests.

use std::collections::VecDeque;

use proptest::prelude::*;
use vcr_core::plan::{AdmissionStop, StepPlan};
use vcr_core::ticks::{TickConfig, TickConfigInput, TickEngine};
use vcr_core::{KvRole, Prompt, RejectReason, RequestId, RequestSpec, ServingEngine, TokenSource};

struct Tokens;

impl TokenSource for Tokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        tag as u32 * 100 + output_index
    }
}

const SMALL: TickConfigInput = TickConfigInput {
    total_kv_pages: 10,
    page_size_tokens: 16,
    max_active: 3,
    prefill_tokens_per_tick: 64,
    decode_width: 2,
};

fn engine(input: TickConfigInput) -> TickEngine {
    TickEngine::new(TickConfig::new(input).expect("valid settings"))
}

fn spec(tag: u64, prompt_tokens: u32, max_tokens: u32) -> RequestSpec {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(tag, 0, prompt_tokens);
    RequestSpec::new(tag, prompt, max_tokens)
}

fn submit(engine: &mut TickEngine, spec: RequestSpec) -> RequestId {
    engine.submit(spec).expect("the engine takes it")
}

/// Tags of the prompts and of the decodes of a plan.
fn parts(plan: &StepPlan) -> (Vec<u64>, Vec<u64>) {
    let tags = |wanted: fn(&vcr_core::plan::ScheduledRequest) -> bool| {
        plan.scheduled.iter().filter(|entry| wanted(entry)).map(|entry| entry.tag).collect()
    };
    (tags(|entry| entry.is_prefill), tags(|entry| entry.samples))
}

/// Runs a tick. Returns the tags of admitted, decoded and ended requests.
fn tick(engine: &mut TickEngine) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let (admitted, decoded) = parts(engine.schedule());
    let ended = engine.update(&mut Tokens).outputs.iter().filter(|output| output.finish.is_some());
    let ended = ended.map(|output| output.tag).collect();
    (admitted, decoded, ended)
}

#[test]
fn tokens_come_in_turns_and_pages_return_at_the_end() {
    let mut engine = engine(SMALL);
    for tag in 0..3 {
        submit(&mut engine, spec(tag, 16, 2));
    }
    assert_eq!(tick(&mut engine), (vec![0, 1, 2], vec![0, 1], vec![]));
    assert_eq!(engine.load().num_active_blocks, 6, "a page of prompt and one of output each");
    assert_eq!(tick(&mut engine), (vec![], vec![2, 0], vec![0]));
    assert_eq!(engine.load().num_active_blocks, 4);
    assert_eq!(tick(&mut engine), (vec![], vec![1, 2], vec![1, 2]));
    assert_eq!((engine.load().num_active_blocks, engine.has_schedulable_requests()), (0, false));
    assert!(engine.schedule().is_empty() && !engine.step_in_flight());
}

#[test]
fn priority_comes_first_then_arrival_then_submission() {
    let mut engine = engine(TickConfigInput { max_active: 1, ..SMALL });
    let late = RequestSpec { arrival_ns: 5, ..spec(0, 8, 1) };
    let urgent = RequestSpec { arrival_ns: 9, priority: -4, ..spec(1, 8, 1) };
    for spec in [late, urgent, spec(2, 8, 1), spec(3, 8, 1)] {
        submit(&mut engine, spec);
    }
    let order: Vec<u64> = (0..4).flat_map(|_| tick(&mut engine).0).collect();
    assert_eq!(order, [1, 2, 3, 0]);
}

#[test]
fn what_does_not_fit_is_stepped_over() {
    let mut engine = engine(TickConfigInput { total_kv_pages: 8, ..SMALL });
    submit(&mut engine, spec(0, 32, 32));
    tick(&mut engine);
    for spec in [spec(1, 64, 16), spec(2, 60, 4), spec(3, 10, 1)] {
        submit(&mut engine, spec);
    }
    let (admitted, _) = parts(engine.schedule());
    assert_eq!(admitted, [2], "5 pages do not fit into 4; 4 do");
    assert_eq!(engine.plan().admission_stop, AdmissionStop::Blocks);
    engine.update(&mut Tokens);

    let mut engine = self::engine(TickConfigInput { total_kv_pages: 100, ..SMALL });
    for spec in [spec(0, 40, 9), spec(1, 30, 9), spec(2, 20, 9)] {
        submit(&mut engine, spec);
    }
    assert_eq!(parts(engine.schedule()).0, [0, 2], "30 tokens do not fit into the 24 left");
    assert_eq!(engine.plan().admission_stop, AdmissionStop::Budget);
    engine.update(&mut Tokens);
    assert_eq!(parts(engine.schedule()).0, [1]);
    engine.update(&mut Tokens);
    submit(&mut engine, spec(3, 1, 1));
    assert!(parts(engine.schedule()).0.is_empty());
    assert_eq!(engine.plan().admission_stop, AdmissionStop::RunningSlots);
}

#[test]
fn requests_that_could_never_end_are_refused() {
    let mut engine = engine(SMALL);
    assert_eq!(engine.check(0, 1), Err(RejectReason::EmptyPrompt));
    assert_eq!(engine.check(64, 96), Ok(()), "10 pages");
    assert_eq!(engine.check(64, 97), Err(RejectReason::ExceedsKvPool));
    assert_eq!(engine.check(65, 1), Err(RejectReason::ExceedsPrefillBudget));
    assert_eq!(engine.check(64, u32::MAX), Err(RejectReason::ExceedsKvPool));
    assert_eq!(engine.submit(spec(0, 0, 1)), Err(RejectReason::EmptyPrompt));
    let transferred = RequestSpec { kv_role: KvRole::Destination, ..spec(0, 8, 1) };
    assert_eq!(engine.submit(transferred), Err(RejectReason::KvTransfersOff));
    assert_eq!(engine.submit(RequestSpec { lora: Some(1), ..spec(0, 8, 1) }), Err(RejectReason::AdaptersOff));
    submit(&mut engine, spec(0, 8, 1));
    assert_eq!(engine.submit(spec(0, 8, 1)), Err(RejectReason::DuplicateRequest));
    assert_eq!((engine.load().num_waiting, engine.load().outstanding_prefill_tokens), (1, 8));
}

#[test]
fn a_request_without_output_takes_no_turn() {
    let mut engine = engine(TickConfigInput { decode_width: 1, ..SMALL });
    submit(&mut engine, spec(0, 8, 0));
    submit(&mut engine, spec(1, 8, 1));
    assert_eq!(tick(&mut engine), (vec![0, 1], vec![0, 1], vec![0, 1]));
    assert_eq!(engine.outputs().tokens, [100], "only one of them emits");
}

#[test]
fn a_request_aborted_in_flight_has_no_output() {
    let mut engine = engine(SMALL);
    let ids: Vec<_> = (0..4).map(|tag| submit(&mut engine, spec(tag, 8, 3))).collect();
    engine.schedule();
    engine.abort(ids[0]);
    engine.abort(ids[0]);
    engine.abort(ids[3]);
    let outputs: Vec<u64> = engine.update(&mut Tokens).outputs.iter().map(|output| output.tag).collect();
    assert_eq!(outputs, [1]);
    assert_eq!((engine.live_tags(), engine.load().num_active_blocks), (vec![1, 2], 2));
    assert_eq!(tick(&mut engine).1, [2, 1], "the turn goes on");
}

#[derive(Clone, Debug)]
struct Naive {
    tag: u64,
    prompt: u32,
    left: u32,
    pages: u32,
    key: (i32, u64, u64),
}

/// The same rules, written as simply as possible.
struct NaiveScheduler {
    config: TickConfigInput,
    waiting: Vec<Naive>,
    active: VecDeque<Naive>,
}

impl NaiveScheduler {
    fn used(&self) -> u32 {
        self.active.iter().map(|request| request.pages).sum()
    }

    fn tick(&mut self) -> (Vec<u64>, Vec<u64>, Vec<u64>, u32) {
        self.waiting.sort_by_key(|request| request.key);
        let (mut admitted, mut budget) = (Vec::new(), self.config.prefill_tokens_per_tick);
        for request in std::mem::take(&mut self.waiting) {
            let fits = self.active.len() < self.config.max_active as usize
                && self.used() + request.pages <= self.config.total_kv_pages
                && request.prompt <= budget;
            if fits {
                budget -= request.prompt;
                admitted.push(request.tag);
                self.active.push_back(request);
            } else {
                self.waiting.push(request);
            }
        }
        let used = self.used();
        let (mut decoded, mut ended) = (Vec::new(), Vec::new());
        for _ in 0..self.active.len().min(self.config.decode_width as usize) {
            let mut request = self.active.pop_front().expect("counted");
            decoded.push(request.tag);
            request.left -= 1;
            if request.left == 0 { ended.push(request.tag) } else { self.active.push_back(request) }
        }
        (admitted, decoded, ended, used)
    }
}

fn arb_config() -> impl Strategy<Value = TickConfigInput> {
    (4..40u32, 1..20u32, 1..6u32, 8..80u32, 1..5u32).prop_map(|(pages, page_size, active, prefill, width)| {
        TickConfigInput {
            total_kv_pages: pages,
            page_size_tokens: page_size,
            max_active: active,
            prefill_tokens_per_tick: prefill,
            decode_width: width,
        }
    })
}

/// Requests with prompt length, output length, priority, and ticks since the previous request.
fn arb_requests() -> impl Strategy<Value = Vec<(u32, u32, i32, u64)>> {
    proptest::collection::vec((1..70u32, 1..40u32, -3..4i32, 0..4u64), 1..40)
}

proptest! {
    /// Each request ends with its whole output or is refused. No tick exceeds pages, slots, budget or width, and no
    /// request that fits waits. Each tick is the same as in the simple scheduler.
    #[test]
    fn ticks_are_those_of_a_naive_scheduler(input in arb_config(), requests in arb_requests()) {
        let config = TickConfig::new(input.clone()).expect("valid settings");
        let mut engine = engine(input.clone());
        let mut naive = NaiveScheduler { config: input.clone(), waiting: Vec::new(), active: VecDeque::new() };
        let mut arrivals = VecDeque::new();
        let (mut at, mut refused) = (0, 0);
        for (tag, &(prompt, output, priority, gap)) in (0..).zip(&requests) {
            at += gap;
            let pages = config.reserved_pages(prompt, output);
            let never = prompt > input.prefill_tokens_per_tick || pages > input.total_kv_pages;
            prop_assert_eq!(engine.check(prompt, output).is_err(), never);
            refused += usize::from(never);
            if !never {
                arrivals.push_back(Naive { tag, prompt, left: output, pages, key: (priority, at, tag) });
            }
        }
        let (mut tokens, mut completed, mut now) = (vec![0; requests.len()], 0, 0_u64);
        while !arrivals.is_empty() || engine.has_schedulable_requests() {
            while arrivals.front().is_some_and(|request| request.key.1 <= now) {
                let request = arrivals.pop_front().expect("it is there");
                let (priority, arrival_ns, _) = request.key;
                submit(&mut engine, RequestSpec { priority, arrival_ns, ..spec(request.tag, request.prompt, request.left) });
                naive.waiting.push(request);
            }
            now += 1;
            let outstanding: u64 = naive.waiting.iter().map(|request| u64::from(request.prompt)).sum();
            prop_assert_eq!(engine.load().outstanding_prefill_tokens, outstanding);
            if !engine.has_schedulable_requests() {
                continue;
            }
            let (admitted, decoded) = parts(engine.schedule());
            prop_assert!(!engine.plan().is_empty(), "a tick with work does some");
            let (used, active) = (engine.load().num_active_blocks, engine.load().num_running);
            let prefill = engine.plan().shape.prefill_tokens;
            prop_assert!(used <= input.total_kv_pages && active <= input.max_active as usize);
            prop_assert!(prefill <= u64::from(input.prefill_tokens_per_tick));
            prop_assert!(decoded.len() <= input.decode_width as usize);
            let ended: Vec<u64> = engine.update(&mut Tokens).outputs.iter()
                .inspect(|output| tokens[output.tag as usize] += output.num_tokens)
                .filter(|output| output.finish.is_some()).map(|output| output.tag).collect();
            completed += ended.len();
            prop_assert_eq!((admitted, decoded, ended, used), naive.tick());
            for request in &naive.waiting {
                let fits = request.pages <= input.total_kv_pages - used
                    && u64::from(request.prompt) <= u64::from(input.prefill_tokens_per_tick) - prefill
                    && active < input.max_active as usize;
                prop_assert!(!fits, "{request:?} was held back");
            }
            prop_assert!(now < 20_000, "requests end");
        }
        prop_assert_eq!(completed + refused, requests.len());
        prop_assert_eq!(engine.load().num_active_blocks, 0);
        for (&(_, output, ..), tokens) in requests.iter().zip(&tokens) {
            prop_assert!(*tokens == output || *tokens == 0);
        }
    }
}
