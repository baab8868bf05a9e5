//! Allocations of the engine: none for a token, few for a waiting request.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vcr_core::latency::DecodeSteps;
use vcr_core::policy::{EngineView, PolicyError, Preference, SchedulingPolicy};
use vcr_core::sglang::{PassOrder, SglangConfig, SglangConfigInput, SglangEngine};
use vcr_core::{
    Engine, EngineConfig, EngineConfigInput, PauseState, Policy, Prompt, PromptItem, Repetition, RequestSpec,
    ServingEngine, StopRules, TokenSource,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Counts the allocations of the calling thread.
struct Counting;

fn count(allocations: u64, bytes: i64) {
    ALLOCATIONS.with(|all| all.set(all.get() + allocations));
    BYTES.with(|all| all.set(all.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system allocator.
#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller guarantees the requirements of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, new_size as i64 - layout.size() as i64);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Tokens;

impl TokenSource for Tokens {
    fn token(&mut self, tag: u64, output_index: u32) -> u32 {
        tag as u32 * 4096 + output_index
    }

    fn accepted_drafts(&mut self, tag: u64, num_drafts: u32) -> u32 {
        tag as u32 % (num_drafts + 1)
    }
}

fn prompt(tag: u64) -> Prompt {
    Prompt::of_tokens((0..512).map(|index| tag as u32 * 4096 + index).collect(), 16, 0)
}

/// Like `prompt`, with three images of 64 placeholders each. Requests share some images.
fn prompt_with_images(tag: u64) -> Prompt {
    let items = (0..3).map(|place| PromptItem::new(tag % 50 * 3 + place, place as u32 * 100 + 20, 64)).collect();
    let tokens = (0..512).map(|index| tag as u32 * 4096 + index).collect();
    Prompt::of_tokens_with_items(tokens, 16, 0, items)
}

fn run(content: u64) -> Prompt {
    let mut prompt = Prompt::new(16, 0);
    prompt.push_run(content, 0, 512);
    prompt
}

/// An engine whose 128 requests have decoded for a while. All free blocks of its pool are cached, so every new
/// block evicts one.
fn decoding_engine(input: EngineConfigInput, stops: Option<&StopRules>) -> Engine {
    let config = EngineConfigInput { num_gpu_blocks: 128 * 110, max_model_len: Some(4_096), ..input };
    let mut engine = Engine::new(EngineConfig::new(config).expect("valid"));
    engine.pool_mut().record_events(true);
    for round in 0..3 {
        for request in 0..128 {
            let tag = round * 128 + request;
            let max_tokens = if round < 2 { 200 } else { 2_000 };
            let lora = (engine.config().max_loras() > 0).then_some(tag as u32 % 3);
            let stops = stops.map(|stops| Box::new(stops.clone()));
            // For some requests, the engine keeps no prompt tokens.
            let prompt = match tag % 2 {
                0 if stops.is_some() => run(tag),
                _ if engine.config().stated().encoder_cache_size.is_some() => prompt_with_images(tag),
                _ => prompt(tag),
            };
            engine.submit(RequestSpec { lora, stops, ..RequestSpec::new(tag, prompt, max_tokens) }).expect("it fits");
        }
        for _ in 0..400 {
            turn(&mut engine);
        }
    }
    engine
}

fn turn(engine: &mut Engine) {
    if engine.may_schedule() {
        engine.schedule();
    }
    if !engine.may_schedule() {
        engine.update(&mut Tokens);
    }
    engine.pool_mut().clear_events();
}

#[test]
fn a_token_allocates_nothing() {
    let plain = EngineConfigInput::default();
    let repetition = Repetition { max_pattern_tokens: 8, min_pattern_tokens: 1, min_count: 3 };
    let stops = StopRules { tokens: vec![u32::MAX], min_tokens: 0, repetition: Some(repetition) };
    let modes = [
        ("plain", plain.clone(), None),
        ("stops", plain.clone(), Some(&stops)),
        ("async", EngineConfigInput { async_scheduling: true, ..plain.clone() }, None),
        ("adapters", EngineConfigInput { max_loras: 3, ..plain.clone() }, None),
        ("drafts", EngineConfigInput { num_speculative_tokens: 1, ..plain.clone() }, None),
        // The images were computed with their prompts, so the encoder and its cache are idle.
        ("images", EngineConfigInput { encoder_cache_size: Some(4_096), ..plain }, None),
    ];
    for (name, input, stops) in modes {
        let mut engine = decoding_engine(input, stops);
        assert_eq!(engine.num_running(), 128, "{name}: every request decodes");
        let before = ALLOCATIONS.get();
        let mut tokens = 0;
        for _ in 0..100 {
            turn(&mut engine);
            tokens += engine.outputs().tokens.len();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{name}: {tokens} tokens allocated");
        assert!(tokens >= 100 * 128, "{name}: only {tokens} tokens came");
        assert_eq!(engine.stats().preemptions, 0, "{name}: the pool was to be large enough");
    }
}

/// Like `decoding_engine` with SGLang's scheduler: 64 decoding requests, and a tree full of other requests' pages.
fn decoding_sglang(input: SglangConfigInput) -> SglangEngine {
    let page_size = input.page_size;
    let config = SglangConfigInput { num_pages: 64 * 2_000 / page_size, ..input };
    let mut engine = SglangEngine::new(SglangConfig::new(config).expect("valid"));
    for round in 0..3 {
        for request in 0..64 {
            let tag = round * 64 + request;
            let mut prompt = Prompt::new(page_size, 0);
            prompt.push_run(tag, 0, 512);
            let max_tokens = if round < 2 { 200 } else { 1_200 };
            engine.submit(RequestSpec::new(tag, prompt, max_tokens)).expect("it fits");
        }
        for _ in 0..400 {
            turn_of_sglang(&mut engine);
        }
    }
    engine
}

fn turn_of_sglang(engine: &mut SglangEngine) {
    if engine.has_schedulable_requests() {
        engine.schedule();
        engine.update(&mut Tokens);
    }
}

/// Evictable pages are in an ordered set, which sometimes allocates a node when pages are taken
/// from the tree.
#[test]
fn a_token_of_sglang_allocates_next_to_nothing() {
    let plain = SglangConfigInput::default();
    let modes = [
        ("tokens as pages", plain.clone()),
        ("pages of 16", SglangConfigInput { page_size: 16, ..plain.clone() }),
        ("no caching", SglangConfigInput { enable_prefix_caching: false, ..plain.clone() }),
        ("mixed passes", SglangConfigInput { pass_order: PassOrder::Mixed, ..plain.clone() }),
        ("several tokens", SglangConfigInput { max_extra_tokens_per_step: 1, ..plain }),
    ];
    for (name, input) in modes {
        let mut engine = decoding_sglang(input);
        assert_eq!(engine.load().num_running, 64, "{name}: every request decodes");
        let before = ALLOCATIONS.get();
        let mut tokens = 0;
        for _ in 0..100 {
            turn_of_sglang(&mut engine);
            tokens += engine.outputs().outputs.iter().map(|output| u64::from(output.num_tokens)).sum::<u64>();
        }
        let allocations = ALLOCATIONS.get() - before;
        assert!(tokens >= 100 * 64, "{name}: only {tokens} tokens came");
        assert!(allocations <= tokens / 1_000, "{name}: {allocations} allocations for {tokens} tokens");
        assert_eq!(engine.stats().preemptions, 0, "{name}: the pool was to be large enough");
    }
}

#[test]
fn a_skipped_token_allocates_nothing() {
    let mut engine = decoding_engine(EngineConfigInput::default(), None);
    let mut steps = DecodeSteps::default();
    let mut skip = |engine: &mut Engine| {
        engine.schedule();
        engine.predict_decode_steps(16, &mut steps);
        assert_eq!(steps.len(), 16);
        engine.decode_ahead(16, &mut Tokens);
        engine.update(&mut Tokens);
        engine.pool_mut().clear_events();
    };
    // The first fast-forward allocates buffers for the others.
    skip(&mut engine);
    let before = ALLOCATIONS.get();
    (0..5).for_each(|_| skip(&mut engine));
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

/// Changes the rank of every request in each call.
struct Restless {
    slots: u32,
    calls: i64,
}

impl SchedulingPolicy for Restless {
    fn name(&self) -> &str {
        "restless"
    }

    fn decide(&mut self, batch: &EngineView<'_>, preferences: &mut Vec<Preference>) -> Result<(), PolicyError> {
        self.calls += 1;
        preferences
            .extend(batch.progress.iter().map(|of| Preference::EvictionRank { slot: of.slot, rank: self.calls }));
        let rank = |slot: u32| i64::from(slot) * self.calls % 11;
        preferences.extend((128..self.slots).map(|slot| Preference::AdmissionRank { slot, rank: rank(slot) }));
        Ok(())
    }
}

#[test]
fn asking_a_policy_allocates_nothing() {
    let input = EngineConfigInput { policy: Policy::Ranked, ..EngineConfigInput::default() };
    let mut engine = Engine::new(EngineConfig::new(input).expect("valid"));
    let running: Vec<_> =
        (0..128).map(|tag| engine.submit(RequestSpec::new(tag, prompt(tag), 500)).expect("it fits")).collect();
    let mut policy = Restless { slots: 128, calls: 0 };
    let mut turn = |engine: &mut Engine, slots: u32| {
        policy.slots = slots;
        engine.apply_policy(&mut policy, 0).expect("it says what it may");
        engine.schedule();
        engine.update(&mut Tokens);
        policy.calls
    };
    (0..20).for_each(|_| _ = turn(&mut engine, 128));
    // From here on, other requests wait, and are ranked again whenever one of the running requests leaves.
    engine.set_pause_state(PauseState::PausedNew);
    for tag in 200..400 {
        engine.submit(RequestSpec::new(tag, prompt(tag), 5)).expect("it fits");
    }
    let mut leavers = running.into_iter();
    let mut leave = |engine: &mut Engine| {
        engine.abort(leavers.next().expect("more run than leave"));
        turn(engine, 328)
    };
    // By then, the list of free slots has capacity for all of them.
    let calls = (0..70).map(|_| leave(&mut engine)).max();
    let before = ALLOCATIONS.get();
    let calls_after = (0..50).map(|_| leave(&mut engine)).max();
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(calls_after, calls.map(|calls| calls + 50), "it was asked before each step");
}

#[test]
fn a_waiting_request_costs_its_tokens_and_little_more() {
    const REQUESTS: u64 = 10_000;
    let config = EngineConfigInput { max_num_seqs: 1, max_model_len: Some(4_096), ..EngineConfigInput::default() };
    let mut engine = Engine::new(EngineConfig::new(config).expect("valid"));
    let before = BYTES.get();
    for tag in 0..REQUESTS {
        engine.submit(RequestSpec::new(tag, prompt(tag), 100)).expect("it fits");
    }
    // A step looks at the first request and lets the others wait.
    engine.schedule();
    assert_eq!(engine.num_waiting() as u64, REQUESTS - 1);
    let bytes_each = (BYTES.get() - before) as u64 / REQUESTS;
    println!("{bytes_each} bytes for each request of 512 prompt tokens that waits");
    assert!(bytes_each <= 2_300, "a waiting request costs {bytes_each} bytes");
}

#[test]
fn a_waiting_request_with_images_costs_at_most_three_kilobytes() {
    const REQUESTS: u64 = 10_000;
    let config = EngineConfigInput { max_num_seqs: 1, max_model_len: Some(4_096), ..EngineConfigInput::default() };
    let mut engine = Engine::new(EngineConfig::new(config).expect("valid"));
    let before = BYTES.get();
    for tag in 0..REQUESTS {
        engine.submit(RequestSpec::new(tag, prompt_with_images(tag), 100)).expect("it fits");
    }
    engine.schedule();
    assert_eq!(engine.num_waiting() as u64, REQUESTS - 1);
    assert!(!engine.plan().encoder_inputs.is_empty(), "the first one's images are computed");
    let bytes_each = (BYTES.get() - before) as u64 / REQUESTS;
    println!("{bytes_each} bytes for each request of 512 prompt tokens and three images that waits");
    assert!(bytes_each <= 3_000, "a waiting request with images costs {bytes_each} bytes");
}
