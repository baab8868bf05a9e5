//! Per-request times: when tokens are emitted, and that scheduling decisions do not change.

use std::collections::BTreeMap;

use crate::support::{Tokens, arb_config, request};
use proptest::prelude::*;
use vcr_core::request_times::{NextToken, RequestTimes};
use vcr_core::seed::mix;
use vcr_core::{Engine, EngineConfig, EngineConfigInput, Policy};

/// The first token takes 100. Every later token takes 10 plus its position times a factor.
#[derive(Debug)]
struct Times {
    step: u64,
}

impl RequestTimes for Times {
    fn until_next_ns(&self, token: &NextToken) -> u64 {
        match token.prefill_tokens {
            Some(tokens) => 100 + u64::from(tokens),
            None => 10 + self.step * (mix(token.request ^ u64::from(token.position)) % 5),
        }
    }
}

/// Emission times of each request's tokens.
type Seen = BTreeMap<u64, Vec<u64>>;

struct Driver {
    engine: Engine,
    now_ns: u64,
    seen: Seen,
    ended: Vec<(u64, u64)>,
    steps: u64,
}

impl Driver {
    fn new(config: EngineConfig, times: Times) -> Self {
        let mut engine = Engine::new(config);
        engine.set_request_times(Some(Box::new(times)));
        Self { engine, now_ns: 0, seen: Seen::new(), ended: Vec::new(), steps: 0 }
    }

    fn submit(&mut self, tag: u64, prompt_tokens: u32, max_tokens: u32) {
        let spec = request(self.engine.config(), tag, prompt_tokens, false, max_tokens);
        self.engine.submit(spec).expect("it is accepted");
    }

    /// Runs all steps that are possible now.
    fn settle(&mut self) {
        self.engine.advance_clock(self.now_ns);
        for _ in 0..100_000 {
            if self.engine.may_schedule() {
                let plan = self.engine.schedule();
                if plan.is_empty() && self.engine.steps_in_flight() == 0 {
                    if self.engine.plan().preempted.is_empty() {
                        return;
                    }
                    continue;
                }
            }
            self.steps += 1;
            let outputs = self.engine.update(&mut Tokens).clone();
            for output in outputs.outputs {
                let seen = self.seen.entry(output.tag).or_default();
                seen.extend((0..output.num_tokens).map(|_| self.now_ns));
                self.ended.extend(output.finish.map(|_| (output.tag, self.now_ns)));
            }
            self.engine.advance_clock(self.now_ns);
        }
        panic!("time stands still at {}", self.now_ns);
    }

    fn run_to(&mut self, until_ns: u64) {
        self.settle();
        while let Some(due_ns) = self.engine.next_token_ns()
            && due_ns < until_ns
        {
            assert!(due_ns > self.now_ns, "a due token was not computed at {due_ns}");
            self.now_ns = due_ns;
            self.settle();
        }
        self.now_ns = until_ns;
    }

    fn run(&mut self) {
        self.run_to(u64::MAX);
    }
}

fn config(input: EngineConfigInput) -> EngineConfig {
    EngineConfig::new(input).expect("it is valid")
}

fn small() -> EngineConfigInput {
    EngineConfigInput { num_gpu_blocks: 200, max_num_seqs: 8, max_num_batched_tokens: 64, ..Default::default() }
}

#[test]
fn each_request_has_its_own_times() {
    for async_scheduling in [false, true] {
        let mut driver = Driver::new(config(EngineConfigInput { async_scheduling, ..small() }), Times { step: 0 });
        driver.submit(1, 200, 4);
        driver.run_to(103);
        // The prompt is larger than the budget of a step, and arrives while the first request waits.
        driver.submit(3, 300, 3);
        driver.run();
        assert_eq!(driver.seen[&1], [300, 310, 320, 330], "async scheduling: {async_scheduling}");
        assert_eq!(driver.seen[&3], [503, 513, 523]);
        assert_eq!(driver.ended, [(1, 330), (3, 523)]);
        assert_eq!(driver.engine.num_requests(), 0);
        assert_eq!(driver.engine.pool().num_active(), 0);
    }
}

#[test]
fn running_slots_still_queue_requests() {
    let mut driver = Driver::new(config(EngineConfigInput { max_num_seqs: 1, ..small() }), Times { step: 0 });
    driver.submit(1, 10, 2);
    driver.submit(3, 10, 2);
    driver.run();
    assert_eq!(driver.seen[&1], [110, 120]);
    assert_eq!(driver.seen[&3], [230, 240], "its times begin with its admission");
}

#[test]
fn a_request_that_leaves_wakes_nobody() {
    let mut driver = Driver::new(config(small()), Times { step: 0 });
    driver.submit(1, 10, 5);
    driver.run_to(50);
    let id = driver.engine.find(1).expect("it runs");
    driver.engine.abort(id);
    driver.run();
    assert_eq!(driver.engine.next_token_ns(), None);
    assert!(driver.seen.is_empty());
}

#[test]
fn a_late_token_does_not_delay_the_next() {
    let mut driver = Driver::new(config(small()), Times { step: 0 });
    driver.submit(1, 10, 4);
    driver.settle();
    driver.now_ns = 113;
    driver.settle();
    driver.run();
    assert_eq!(driver.seen[&1], [113, 120, 130, 140]);
}

#[test]
fn a_delay_moves_what_is_due() {
    let mut driver = Driver::new(config(small()), Times { step: 0 });
    driver.submit(1, 10, 2);
    driver.run_to(50);
    driver.engine.delay_tokens(1000);
    driver.engine.set_request_time_factor(3.0);
    driver.run();
    assert_eq!(driver.seen[&1], [1110, 1140]);
}

#[test]
fn times_end_when_they_are_taken_away() {
    let mut driver = Driver::new(config(small()), Times { step: 0 });
    driver.submit(1, 10, 4);
    driver.run_to(50);
    driver.engine.set_request_times(None);
    driver.settle();
    assert_eq!(driver.seen[&1], [50; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// In every engine, all requests end with the same tokens as without per-request times. The result is the same each
    /// time, and no output is early.
    #[test]
    fn all_requests_end_with_their_tokens(
        config in arb_config().prop_filter("policies are driven elsewhere", |config| config.policy() != Policy::Ranked && config.kv_tiers().is_none()),
        requests in proptest::collection::vec((1..60u32, 1..30u32, 0..200u64), 1..15),
        step in 0..20u64,
    ) {
        let run = || {
            let mut driver = Driver::new(config.clone(), Times { step });
            let mut ordered: Vec<(u64, usize)> = requests.iter().enumerate().map(|(index, each)| (each.2, index)).collect();
            ordered.sort_unstable();
            let mut accepted = Vec::new();
            for (at_ns, index) in ordered {
                let (prompt_tokens, max_tokens, _) = requests[index];
                driver.run_to(at_ns.max(driver.now_ns));
                if driver.engine.check(prompt_tokens, max_tokens).is_ok() {
                    driver.submit(index as u64, prompt_tokens, max_tokens);
                    accepted.push((index as u64, max_tokens, at_ns));
                }
            }
            driver.run();
            (driver, accepted)
        };
        let (driver, accepted) = run();
        prop_assert_eq!(driver.ended.len(), accepted.len());
        for (tag, max_tokens, at_ns) in accepted {
            let seen = &driver.seen[&tag];
            prop_assert!(seen.len() as u32 <= max_tokens);
            prop_assert!(seen[0] >= at_ns + 10);
            prop_assert!(seen.windows(2).all(|pair| pair[0] <= pair[1]));
        }
        prop_assert_eq!(driver.engine.pool().num_active(), 0);
        prop_assert_eq!(driver.engine.next_token_ns(), None);
        let (again, _) = run();
        prop_assert_eq!(&driver.seen, &again.seen);
        prop_assert_eq!(driver.steps, again.steps);
    }
}
