//! Creates spans of requests from the engines' messages.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EventType, SchedulerStats, StepOutput};

use super::context::Parent;
use super::export::SpanSender;
use super::proto::{KIND_SERVER, KeyValue, Span, Value};
use crate::engine::{EngineObserver, RequestObserver, RequestStart, ToolParsing};

/// Creates spans, and forwards all events to another observer.
pub struct TracedEngines {
    inner: Arc<dyn EngineObserver>,
    spans: SpanSender,
}

impl TracedEngines {
    /// Creates the observer. `inner` gets all events, too.
    #[must_use]
    pub fn new(inner: Arc<dyn EngineObserver>, spans: SpanSender) -> Self {
        Self { inner, spans }
    }
}

impl EngineObserver for TracedEngines {
    fn scheduler(&self, rank: u16, stats: &SchedulerStats) {
        self.inner.scheduler(rank, stats);
    }

    fn request(&self, start: RequestStart) -> Box<dyn RequestObserver> {
        let parent = Parent::current();
        let inner = self.inner.request(start.clone());
        // The caller decides which requests are sampled.
        if parent.is_some_and(|parent| !parent.is_sampled) {
            return inner;
        }
        let spans = self.spans.clone();
        Box::new(Traced { inner, spans, parent, start, start_ns: unix_ns(), times: Times::default() })
    }

    fn sleep_level(&self, level: Option<u32>) {
        self.inner.sleep_level(level);
    }

    fn rejected(&self, reason: &'static str) {
        self.inner.rejected(reason);
    }

    fn tools_parsed(&self, parsed: ToolParsing) {
        self.inner.tools_parsed(parsed);
    }

    fn message_ended(&self, rank: u16) {
        self.inner.message_ended(rank);
    }
}

/// The times of a request on the engine's clock, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    queued_s: f64,
    scheduled_s: Option<f64>,
    first_token_s: Option<f64>,
    last_token_s: f64,
    /// In seconds on the server's clock.
    first_output_s: f64,
    output_tokens: u64,
}

struct Traced {
    inner: Box<dyn RequestObserver>,
    spans: SpanSender,
    parent: Option<Parent>,
    start: RequestStart,
    start_ns: u64,
    times: Times,
}

impl RequestObserver for Traced {
    fn output(&mut self, now_s: f64, engine_s: f64, output: &StepOutput<'_>) {
        let (output_tokens, events) = match output {
            StepOutput::Tokens(tokens) => (tokens.len(), &[][..]),
            StepOutput::Whole(output) => (output.new_token_ids.len(), output.events.as_deref().unwrap_or_default()),
        };
        let times = &mut self.times;
        for event in events {
            match event.kind {
                EventType::Queued => times.queued_s = event.timestamp,
                EventType::Scheduled => drop(times.scheduled_s.get_or_insert(event.timestamp)),
                EventType::Preempted => {}
            }
        }
        if times.first_token_s.is_none() {
            times.first_output_s = now_s;
        }
        times.first_token_s.get_or_insert(engine_s);
        times.last_token_s = engine_s;
        times.output_tokens += output_tokens as u64;
        self.inner.output(now_s, engine_s, output);
    }

    fn finish(self: Box<Self>, now_s: f64, reason: FinishReason) {
        // As in vLLM, a request whose client left has no span.
        if reason != FinishReason::Abort {
            self.spans.send(self.span(now_s));
        }
        self.inner.finish(now_s, reason);
    }
}

impl Traced {
    fn span(&self, now_s: f64) -> Span {
        let e2e_s = (now_s - self.start.arrival_s).max(0.0);
        let mut random = [0; 24];
        // If the system has no randomness, ids of spans are not unique.
        _ = getrandom::fill(&mut random);
        let (trace_id, span_id) = random.split_at(16);
        Span {
            trace_id: self.parent.map_or_else(|| trace_id.to_vec(), |parent| parent.trace_id.to_vec()),
            span_id: span_id.to_vec(),
            parent_span_id: self.parent.map_or_else(Vec::new, |parent| parent.span_id.to_vec()),
            name: "llm_request".to_owned(),
            kind: KIND_SERVER,
            start_time_unix_nano: self.start_ns,
            end_time_unix_nano: self.start_ns.saturating_add((e2e_s * 1e9) as u64),
            attributes: self.attributes(e2e_s),
        }
    }

    fn attributes(&self, e2e_s: f64) -> Vec<KeyValue> {
        let (start, times) = (&self.start, &self.times);
        let scheduled_s = times.scheduled_s.unwrap_or(times.queued_s);
        let first_token_s = times.first_token_s.unwrap_or(scheduled_s);
        let last_token_s = times.last_token_s.max(first_token_s);
        let seconds =
            |key: &str, value: f64| KeyValue::new(&format!("gen_ai.latency.{key}"), Value::Double(value.max(0.0)));
        let count = |key: &str, value: u64| KeyValue::new(&format!("gen_ai.{key}"), Value::Int(value as i64));
        let mut attributes = vec![
            seconds("time_to_first_token", times.first_output_s - start.arrival_s),
            seconds("e2e", e2e_s),
            seconds("time_in_queue", scheduled_s - times.queued_s),
            count("usage.prompt_tokens", start.prompt_tokens),
            count("usage.completion_tokens", times.output_tokens),
            seconds("time_in_model_prefill", first_token_s - scheduled_s),
            seconds("time_in_model_decode", last_token_s - first_token_s),
            seconds("time_in_model_inference", last_token_s - scheduled_s),
            KeyValue::new("gen_ai.request.id", Value::Text(start.id.clone())),
        ];
        let number = |key: &str, value: f64| KeyValue::new(&format!("gen_ai.request.{key}"), Value::Double(value));
        attributes.extend(start.top_p.map(|top_p| number("top_p", top_p)));
        attributes.extend(start.max_tokens.map(|max_tokens| count("request.max_tokens", max_tokens)));
        attributes.extend(start.temperature.map(|temperature| number("temperature", temperature)));
        attributes.extend(start.n.map(|n| count("request.n", n.into())));
        attributes
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
