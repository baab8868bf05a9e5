//! Requests that wait in the router for an engine with less to compute.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::active::Chain;
use super::config::QueueOrder;
use super::{Candidate, KvQuery};

/// A request in the queue.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) request: u64,
    pub(super) prompt_tokens: u32,
    pub(super) chain: Chain,
    /// What the engines had cached of it when it came.
    pub(super) overlaps: Vec<Candidate>,
}

/// Who leaves first is smallest.
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

/// The queue of one router.
#[derive(Debug, Default)]
pub(super) struct RouterQueue {
    waiting: BTreeMap<Rank, Queued>,
    pushed: u64,
}

impl RouterQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many requests wait, and their prompt tokens.
    pub(super) fn load(&self) -> (u64, u64) {
        let tokens = self.waiting.values().map(|queued| u64::from(queued.prompt_tokens)).sum();
        (self.waiting.len() as u64, tokens)
    }

    /// `most_cached_tokens` is what the best cache holds of the prompt.
    pub(super) fn push(&mut self, query: &KvQuery<'_>, order: QueueOrder, most_cached_tokens: u64, queued: Queued) {
        let rank = Rank {
            strict_priority: query.strict_priority,
            score: score(query, order, most_cached_tokens),
            sequence: self.pushed,
        };
        self.pushed += 1;
        self.waiting.insert(rank, queued);
    }

    pub(super) fn pop(&mut self) -> Option<Queued> {
        self.waiting.pop_first().map(|(_, queued)| queued)
    }
}

/// The larger, the sooner.
fn score(query: &KvQuery<'_>, order: QueueOrder, most_cached_tokens: u64) -> f64 {
    let priority = f64::from(query.priority);
    let arrival_s = query.arrival_ns as f64 / 1e9;
    match order {
        QueueOrder::Fcfs => priority - arrival_s,
        QueueOrder::Lcfs => priority + arrival_s,
        QueueOrder::Wspt => {
            let uncached = u64::from(query.prompt_tokens).saturating_sub(most_cached_tokens).max(1);
            (1.0 + priority) / uncached as f64
        }
    }
}
