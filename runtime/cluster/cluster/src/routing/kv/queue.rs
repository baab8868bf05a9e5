//! Requests that wait in the router until an engine is less busy.
//!
//! Each class has a queue with its own order. Deficit round robin chooses between classes: in each round, a class
//! may send its quantum of uncached prompt tokens. A class keeps the unused rest of its quantum while requests wait
//! in its queue.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::active::Chain;
use super::{Candidate, RouteInput};
use crate::config::{QueueClass, QueueOrder};

#[derive(Debug)]
pub(super) struct Queued {
    pub(super) request: u64,
    pub(super) prompt_tokens: u32,
    /// Prompt tokens that the best cache held when the request arrived.
    pub(super) cached_tokens: u64,
    pub(super) chain: Chain,
    /// Blocks of the prompt that each engine had cached when the request arrived.
    pub(super) overlaps: Vec<Candidate>,
}

impl Queued {
    /// Number of uncached prompt tokens, at least 1.
    fn cost(&self) -> u64 {
        u64::from(self.prompt_tokens).saturating_sub(self.cached_tokens).max(1)
    }
}

/// The position in the queue; the lowest rank leaves first.
#[derive(Clone, Copy, Debug)]
struct Rank {
    strict_priority: u32,
    score: f64,
    sequence: u64,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let strict = other.strict_priority.cmp(&self.strict_priority);
        strict.then(other.score.total_cmp(&self.score)).then(self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Rank {}

#[derive(Debug, Default)]
struct ClassQueue {
    waiting: BTreeMap<Rank, Queued>,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Uncached prompt tokens that the class may still send.
    credit_tokens: u64,
}

impl ClassQueue {
    fn next_cost(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(_, queued)| queued.cost())
    }

    fn pop(&mut self) -> Option<Queued> {
        let (_, queued) = self.waiting.pop_first()?;
        self.prompt_tokens -= u64::from(queued.prompt_tokens);
        self.cached_tokens -= queued.cached_tokens;
        self.credit_tokens = if self.waiting.is_empty() { 0 } else { self.credit_tokens.saturating_sub(queued.cost()) };
        Some(queued)
    }
}

#[derive(Debug)]
pub(super) struct RouterQueue {
    classes: Vec<ClassQueue>,
    /// The class that the next round begins with.
    next_class: usize,
    /// The class that sent last and has credit left. It is served first.
    carried: Option<usize>,
    waiting: u64,
    pushed: u64,
    /// Scratch: cost of each class's first request, if it may leave.
    costs: Vec<Option<u64>>,
}

impl RouterQueue {
    pub(super) fn new(classes: usize) -> Self {
        Self {
            classes: (0..classes).map(|_| ClassQueue::default()).collect(),
            next_class: 0,
            carried: None,
            waiting: 0,
            pushed: 0,
            costs: vec![None; classes],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn has_waiting(&self, class: usize) -> bool {
        !self.classes[class].waiting.is_empty()
    }

    /// Number of waiting requests, and the sum of their prompt tokens.
    pub(super) fn load(&self) -> (u64, u64) {
        (self.waiting, self.classes.iter().map(|class| class.prompt_tokens).sum())
    }

    /// Whether the class is full while `engines` engines run. The new request does not count.
    pub(super) fn is_full(&self, class: usize, config: &QueueClass, engines: usize) -> bool {
        let waits = &self.classes[class];
        [
            (waits.waiting.len() as u64, config.request_queue_limit_per_worker),
            (waits.prompt_tokens, config.raw_isl_token_queue_limit_per_worker),
            (waits.cached_tokens, config.cached_token_queue_limit_per_worker),
        ]
        .into_iter()
        .any(|(now, limit)| limit.is_some_and(|limit| now >= limit.saturating_mul(engines as u64)))
    }

    pub(super) fn push(&mut self, request: &RouteInput<'_>, class: usize, order: QueueOrder, queued: Queued) {
        let rank = Rank {
            strict_priority: request.strict_priority,
            score: score(request, order, queued.cost()),
            sequence: self.pushed,
        };
        self.pushed += 1;
        self.waiting += 1;
        let class = &mut self.classes[class];
        class.prompt_tokens += u64::from(queued.prompt_tokens);
        class.cached_tokens += queued.cached_tokens;
        class.waiting.insert(rank, queued);
    }

    /// Takes the next request from the classes that `may_leave` admits.
    pub(super) fn pop(&mut self, configs: &[QueueClass], may_leave: impl Fn(&QueueClass) -> bool) -> Option<Queued> {
        let carried = self.carried.take();
        for ((cost, class), config) in self.costs.iter_mut().zip(&self.classes).zip(configs) {
            *cost = class.next_cost().filter(|_| may_leave(config));
        }
        let affordable = |queue: &Self, class: usize| {
            queue.costs[class].is_some_and(|cost| cost <= queue.classes[class].credit_tokens)
        };
        if let Some(class) = carried
            && affordable(self, class)
        {
            return self.pop_of(class);
        }
        let count = self.classes.len();
        for offset in 0..count {
            let class = (self.next_class + offset) % count;
            if self.costs[class].is_some() && !affordable(self, class) {
                let credit = &mut self.classes[class].credit_tokens;
                *credit = credit.saturating_add(configs[class].quantum);
            }
            if affordable(self, class) {
                return self.pop_of(class);
            }
        }
        // No class has enough credit: add the number of rounds after which the first class has enough.
        let rounds_of = |(class, cost): (usize, &Option<u64>)| {
            let missing = (*cost)?.saturating_sub(self.classes[class].credit_tokens);
            Some(missing.div_ceil(configs[class].quantum))
        };
        let rounds = self.costs.iter().enumerate().filter_map(rounds_of).min()?;
        for (class, _) in self.costs.iter().enumerate().filter(|(_, cost)| cost.is_some()) {
            let credit = &mut self.classes[class].credit_tokens;
            *credit = credit.saturating_add(configs[class].quantum.saturating_mul(rounds));
        }
        let first =
            (0..count).map(|offset| (self.next_class + offset) % count).find(|&class| affordable(self, class))?;
        self.pop_of(first)
    }

    /// Removes all requests, class by class.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Queued> {
        self.waiting = 0;
        self.carried = None;
        self.classes.iter_mut().flat_map(|class| std::iter::from_fn(|| class.pop()))
    }

    pub(super) fn leave(&mut self, request: u64) {
        for (index, class) in self.classes.iter_mut().enumerate() {
            let Some(rank) = class.waiting.iter().find(|(_, queued)| queued.request == request).map(|(&rank, _)| rank)
            else {
                continue;
            };
            let queued = class.waiting.remove(&rank).expect("it has just been found");
            class.prompt_tokens -= u64::from(queued.prompt_tokens);
            class.cached_tokens -= queued.cached_tokens;
            self.waiting -= 1;
            if class.waiting.is_empty() {
                class.credit_tokens = 0;
                self.carried = self.carried.filter(|&carried| carried != index);
            }
        }
    }

    fn pop_of(&mut self, index: usize) -> Option<Queued> {
        self.next_class = (index + 1) % self.classes.len();
        let queued = self.classes[index].pop()?;
        self.waiting -= 1;
        self.carried = (self.classes[index].credit_tokens > 0).then_some(index);
        Some(queued)
    }
}

/// A higher score leaves earlier.
fn score(request: &RouteInput<'_>, order: QueueOrder, cost_tokens: u64) -> f64 {
    let priority = f64::from(request.query.priority.max(0));
    let arrival_s = request.arrival_ns as f64 / 1e9;
    match order {
        QueueOrder::Fcfs => priority - arrival_s,
        QueueOrder::Lcfs => priority + arrival_s,
        QueueOrder::Wspt => (1.0 + priority) / cost_tokens as f64,
    }
}
