//! Records metrics from the engines' messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EventType, SchedulerStats, StepOutput};

use super::engine::{EngineRecorder, Iteration};
use super::lora::LoraRecorder;
use super::media::MediaCache;
use super::page::Metrics;
use super::request::RequestRecord;
use super::table::Name;
use crate::engine::{EngineObserver, RequestObserver, RequestStart, ToolParsing};

/// Records metrics from the engines' messages.
#[derive(Debug)]
pub struct EngineMetrics {
    metrics: Metrics,
    engines: BTreeMap<u16, Engine>,
    loras: LoraRecorder,
    media: MediaCache,
}

#[derive(Clone, Debug)]
struct Engine {
    recorder: EngineRecorder,
    /// Totals over the outputs of the current message.
    iteration: Arc<Mutex<Option<Iteration>>>,
}

impl EngineMetrics {
    /// Creates the metrics of these engines.
    #[must_use]
    pub fn new(metrics: &Metrics, engines: impl IntoIterator<Item = u16>) -> Self {
        let engine = |number: u16| {
            let recorder = EngineRecorder::new(metrics, u32::from(number));
            (number, Engine { recorder, iteration: Arc::default() })
        };
        Self {
            metrics: metrics.clone(),
            engines: engines.into_iter().map(engine).collect(),
            loras: LoraRecorder::new(metrics),
            media: MediaCache::default(),
        }
    }
}

impl EngineObserver for EngineMetrics {
    fn scheduler(&self, rank: u16, stats: &SchedulerStats) {
        if let Some(engine) = self.engines.get(&rank) {
            engine.recorder.scheduler(stats);
        }
    }

    fn request(&self, start: RequestStart) -> Box<dyn RequestObserver> {
        let Some(engine) = self.engines.get(&start.rank) else { return Box::new(Unobserved) };
        self.media.look_up(&start.media, &engine.recorder);
        let record = RequestRecord::new(&engine.recorder, start.arrival_s, start.prompt_tokens, start.max_tokens);
        let lora = start.adapter.map(|name| {
            self.loras.queued(&name, unix_s());
            Lora { name, recorder: self.loras.clone(), is_running: false }
        });
        Box::new(Observed { engine: engine.clone(), record, lora })
    }

    fn sleep_level(&self, level: Option<u32>) {
        for engine in self.engines.keys() {
            self.metrics.sleep_state(u32::from(*engine), level);
        }
    }

    fn rejected(&self, reason: &'static str) {
        self.metrics.counter(Name::AdmissionRejections, &self.metrics.model_labels(&[("reason", reason)])).inc();
    }

    fn tools_parsed(&self, parsed: ToolParsing) {
        let labels = self.metrics.model_labels(&[
            ("mode", if parsed.is_streamed { "streaming" } else { "non_streaming" }),
            ("outcome", if parsed.has_calls { "tool_call" } else { "no_tool_call" }),
            ("request_type", parsed.request_type),
        ]);
        self.metrics.counter(Name::ToolCallParserInvocations, &labels).inc();
    }

    fn message_ended(&self, rank: u16) {
        let Some(engine) = self.engines.get(&rank) else { return };
        let iteration = engine.iteration.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(iteration) = iteration {
            engine.recorder.iteration(&iteration);
        }
    }
}

/// A request of an engine without metrics.
struct Unobserved;

impl RequestObserver for Unobserved {
    fn output(&mut self, _: f64, _: f64, _: &StepOutput<'_>) {}

    fn finish(self: Box<Self>, _: f64, _: FinishReason) {}
}

struct Observed {
    engine: Engine,
    record: RequestRecord,
    lora: Option<Lora>,
}

struct Lora {
    name: String,
    recorder: LoraRecorder,
    is_running: bool,
}

impl RequestObserver for Observed {
    fn output(&mut self, now_s: f64, engine_s: f64, output: &StepOutput<'_>) {
        let (tokens, events, prefill) = match output {
            StepOutput::Tokens(tokens) => (tokens.len(), &[][..], None),
            StepOutput::Whole(output) => {
                let events = output.events.as_deref().unwrap_or_default();
                (output.new_token_ids.len(), events, output.prefill_stats.as_ref())
            }
        };
        let mut iteration = self.engine.iteration.lock().unwrap_or_else(PoisonError::into_inner);
        let iteration = iteration.get_or_insert_default();
        self.record.output(iteration, now_s, engine_s, tokens as u64, events, prefill);
        if let Some(lora) = &mut self.lora
            && !lora.is_running
            && events.iter().any(|event| event.kind == EventType::Scheduled)
        {
            lora.is_running = true;
            lora.recorder.running(&lora.name, unix_s());
        }
    }

    fn finish(self: Box<Self>, now_s: f64, reason: FinishReason) {
        if let Some(lora) = &self.lora {
            lora.recorder.finished(&lora.name, lora.is_running, unix_s());
        }
        let generated_tokens = self.record.finish(now_s, reason);
        self.engine.recorder.call_finished(1, generated_tokens);
    }
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
