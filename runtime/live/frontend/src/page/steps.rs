//! The latest steps of engines, and the requests of frontends in other processes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use serde::Serialize;
use vcr_core::plan::ScheduledKind;
use vcr_core::{AnyEngine, ServingEngine};
use vcr_live::{Sees, StepObserver, Submitted, finish_reason};
use vcr_wire::monotonic_ns;

use super::gist::Gist;
use super::watch::{EngineRequest, Exchange, Watch};
use crate::tee::Passed;

/// The number of steps that are kept per engine.
const STEPS: usize = 512;

/// The latest steps, by engine.
#[derive(Debug)]
pub struct StepRing {
    first_rank: u16,
    ranks: Vec<Mutex<Rank>>,
    /// Keeps requests, unless the server does.
    watch: Option<Arc<Watch>>,
}

#[derive(Debug, Default)]
struct Rank {
    steps: VecDeque<Step>,
    /// Requests in progress, by tag.
    requests: BTreeMap<u64, Arc<Exchange>>,
}

/// A step. Times are on the system's monotonic clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Step {
    #[serde(skip)]
    pub(super) end_ns: u64,
    #[serde(rename = "duration")]
    ms: f64,
    prefill_requests: u64,
    prefill_tokens: u64,
    decode_requests: u64,
    waiting: u64,
}

impl StepRing {
    /// Creates a ring for each of `num_ranks` engines, starting with `first_rank`. If there is a `watch`, it keeps
    /// their requests.
    #[must_use]
    pub fn new(first_rank: u16, num_ranks: u16, watch: Option<Arc<Watch>>) -> Arc<Self> {
        Arc::new(Self { first_rank, ranks: (0..num_ranks).map(|_| Mutex::default()).collect(), watch })
    }

    fn rank(&self, rank: u16) -> Option<MutexGuard<'_, Rank>> {
        let own = self.ranks.get(usize::from(rank.checked_sub(self.first_rank)?))?;
        Some(own.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The steps of an engine that ended after this time.
    pub(super) fn since(&self, rank: u16, ns: u64) -> Vec<Step> {
        let own = self.rank(rank);
        own.map_or_else(Vec::new, |own| own.steps.iter().filter(|step| step.end_ns > ns).copied().collect())
    }
}

impl Rank {
    fn tell(&self, tag: u64, tell: impl FnOnce(&mut EngineRequest)) {
        if let Some(exchange) = self.requests.get(&tag) {
            exchange.engine_tells(0, tell);
        }
    }

    fn end(&mut self, tag: u64, finish: &'static str, end: Passed) {
        self.tell(tag, |request| request.finish = Some(finish));
        if let Some(exchange) = self.requests.remove(&tag) {
            exchange.ended(end);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl StepObserver for StepRing {
    fn sees(&self) -> Sees {
        if self.watch.is_some() { Sees::Requests } else { Sees::Steps }
    }

    fn submitted(&self, rank: u16, request: &Submitted<'_>) {
        let Some(watch) = self.watch.as_ref().filter(|watch| watch.keeps_next()) else { return };
        let exchange = watch.begin(&Request::new(Body::empty()), ([0, 0, 0, 0], 0).into());
        _ = exchange.gist.set(Gist { stream: true, text: request.name.to_owned(), ..Gist::default() });
        exchange.engine_begins(EngineRequest {
            id: request.name.to_owned(),
            rank,
            prompt_tokens: request.prompt_tokens.into(),
            max_tokens: Some(request.max_tokens.into()),
            queued_s: Some(seconds(exchange.start_ns)),
            ..EngineRequest::default()
        });
        if let Some(mut own) = self.rank(rank) {
            own.requests.insert(request.tag, exchange);
        }
    }

    fn aborted(&self, rank: u16, tag: u64) {
        if let Some(mut own) = self.rank(rank) {
            own.end(tag, "abort", Passed::Left);
        }
    }

    fn scheduled(&self, rank: u16, engine: &dyn ServingEngine) {
        let (Some(own), plan, now_s) = (self.rank(rank), engine.plan(), seconds(monotonic_ns())) else { return };
        for &tag in &plan.preempted {
            own.tell(tag, |request| request.preempted(now_s));
        }
        // The admitted requests come after the requests that were already running.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            own.tell(entry.tag, |request| {
                if request.scheduled_s.is_none() {
                    request.scheduled_s = Some(now_s);
                    request.cached_tokens = entry.num_computed_tokens.into();
                }
            });
        }
    }

    fn ended(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &AnyEngine) {
        let shape = &engine.oldest_plan().shape;
        let step = Step {
            end_ns,
            ms: end_ns.saturating_sub(start_ns) as f64 / 1e6,
            prefill_requests: shape.prefill_requests,
            prefill_tokens: shape.prefill_tokens,
            decode_requests: shape.decode_requests,
            waiting: shape.waiting_requests,
        };
        if let Some(mut own) = self.rank(rank) {
            if own.steps.len() == STEPS {
                own.steps.pop_front();
            }
            own.steps.push_back(step);
        }
    }

    fn applied(&self, rank: u16, _: u64, end_ns: u64, engine: &dyn ServingEngine) {
        let (Some(mut own), outputs, end_s) = (self.rank(rank), engine.outputs(), seconds(end_ns)) else { return };
        for output in &outputs.outputs {
            if let Some(exchange) = own.requests.get(&output.tag).filter(|_| output.num_tokens > 0) {
                exchange.chunk(&[]);
                exchange.engine_tells(0, |request| {
                    request.output_tokens += u64::from(output.num_tokens);
                    request.first_token_s.get_or_insert(end_s);
                    request.last_token_s = Some(end_s);
                });
            }
            if let Some(finish) = output.finish.filter(|_| !outputs.continuing.contains(&output.tag)) {
                own.end(output.tag, finish_reason(finish).name(), Passed::Whole);
            }
        }
    }

    fn cache_changed(&self, _: u16, _: &dyn ServingEngine) {}

    fn stalled(&self, _: u16, _: u64, _: u64) {}

    fn closed(&self, rank: u16) {
        let Some(mut own) = self.rank(rank) else { return };
        while let Some((&tag, _)) = own.requests.first_key_value() {
            own.end(tag, "error", Passed::Failed("its engine serves no more".to_owned()));
        }
    }
}
