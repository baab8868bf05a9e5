//! Adds the engines' reports about requests to exchanges.

use std::sync::Arc;

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EventType, SchedulerStats, StepOutput};

use super::watch::{EngineRequest, Exchange, current};
use crate::engine::{EngineObserver, RequestObserver, RequestStart, ToolParsing};

/// Adds engine reports to exchanges, and forwards them to another observer.
pub struct WatchedEngines(pub Arc<dyn EngineObserver>);

impl EngineObserver for WatchedEngines {
    fn scheduler(&self, rank: u16, stats: &SchedulerStats) {
        self.0.scheduler(rank, stats);
    }

    fn request(&self, start: RequestStart) -> Box<dyn RequestObserver> {
        let Some(exchange) = current() else { return self.0.request(start) };
        let request = EngineRequest {
            id: start.id.clone(),
            rank: start.rank,
            prompt_tokens: start.prompt_tokens,
            max_tokens: start.max_tokens,
            ..EngineRequest::default()
        };
        let inner = self.0.request(start);
        match exchange.engine_begins(request) {
            None => inner,
            Some(place) => Box::new(Watched { inner, exchange, place, output_tokens: 0, last_s: None }),
        }
    }

    fn sleep_level(&self, level: Option<u32>) {
        self.0.sleep_level(level);
    }

    fn rejected(&self, reason: &'static str) {
        self.0.rejected(reason);
    }

    fn tools_parsed(&self, parsed: ToolParsing) {
        self.0.tools_parsed(parsed);
    }

    fn message_ended(&self, rank: u16) {
        self.0.message_ended(rank);
    }
}

struct Watched {
    inner: Box<dyn RequestObserver>,
    exchange: Arc<Exchange>,
    place: usize,
    output_tokens: u64,
    last_s: Option<f64>,
}

impl RequestObserver for Watched {
    fn output(&mut self, now_s: f64, engine_s: f64, output: &StepOutput<'_>) {
        let (tokens, events, prefill) = match output {
            StepOutput::Tokens(tokens) => (tokens.len(), &[][..], None),
            StepOutput::Whole(output) => {
                let events = output.events.as_deref().unwrap_or_default();
                (output.new_token_ids.len(), events, output.prefill_stats.as_ref())
            }
        };
        let is_first = self.last_s.is_none();
        self.output_tokens += tokens as u64;
        self.last_s = Some(engine_s);
        // Most outputs only add a token. Tokens are counted at the end.
        if is_first || !events.is_empty() {
            self.exchange.engine_tells(self.place, |request| {
                for event in events {
                    match event.kind {
                        EventType::Queued => request.queued_s = Some(event.timestamp),
                        EventType::Scheduled => drop(request.scheduled_s.get_or_insert(event.timestamp)),
                        EventType::Preempted => request.preempted(event.timestamp),
                    }
                }
                if is_first {
                    request.first_token_s = Some(engine_s);
                    request.cached_tokens = prefill.map_or(0, |prefill| prefill.num_cached_tokens);
                }
            });
        }
        self.inner.output(now_s, engine_s, output);
    }

    fn finish(self: Box<Self>, now_s: f64, reason: FinishReason) {
        self.exchange.engine_tells(self.place, |request| {
            request.output_tokens = self.output_tokens;
            request.last_token_s = self.last_s;
            request.finish = Some(reason.name());
        });
        self.inner.finish(now_s, reason);
    }
}
