//! Derives the metrics of a request from its outputs.

use prometheus_client::metrics::histogram::Histogram;
use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EngineCoreEvent, EventType, PrefillStats};

use super::engine::{EngineRecorder, Finished, Iteration, Phases};

/// Records a request from arrival to end. If the request never reached an engine, drop the record: only requests
/// that reached an engine are counted.
#[derive(Debug)]
pub struct RequestRecord {
    engine: EngineRecorder,
    inter_token_latency: Histogram,
    /// In seconds on the frontend's clock.
    arrival_s: f64,
    counts: Finished,
    is_prefilling: bool,
    /// In seconds on the engine's clock.
    queued_s: f64,
    scheduled_s: Option<f64>,
    first_token_s: f64,
    last_token_s: f64,
}

impl RequestRecord {
    /// Starts the record of a request that is sent to an engine.
    ///
    /// `arrival_s` is the arrival at the server, on the clock of the other server times.
    #[must_use]
    pub fn new(engine: &EngineRecorder, arrival_s: f64, prompt_tokens: u64, max_tokens: Option<u64>) -> Self {
        Self {
            engine: engine.clone(),
            inter_token_latency: engine.inter_token_latency(),
            arrival_s,
            counts: Finished { prompt_tokens, max_tokens, ..Finished::default() },
            is_prefilling: true,
            queued_s: 0.0,
            scheduled_s: None,
            first_token_s: 0.0,
            last_token_s: 0.0,
        }
    }

    /// Output tokens so far.
    #[must_use]
    pub fn generated_tokens(&self) -> u64 {
        self.counts.generated_tokens
    }

    /// Records an output.
    ///
    /// `now_s` is on the clock of the arrival, and `engine_s` is the timestamp of the engine's message. `iteration`
    /// adds up all outputs of that message.
    pub fn output(
        &mut self,
        iteration: &mut Iteration,
        now_s: f64,
        engine_s: f64,
        new_tokens: u64,
        events: &[EngineCoreEvent],
        prefill: Option<&PrefillStats>,
    ) {
        for event in events {
            match event.kind {
                EventType::Queued => self.queued_s = event.timestamp,
                EventType::Scheduled => {
                    self.scheduled_s.get_or_insert(event.timestamp);
                }
                EventType::Preempted => {
                    self.counts.preemptions += 1;
                    iteration.preemptions += 1;
                }
            }
        }
        iteration.generated_tokens += new_tokens;
        self.counts.generated_tokens += new_tokens;
        if self.is_prefilling {
            self.is_prefilling = false;
            if let Some(prefill) = prefill {
                iteration.computed_prompt_tokens += prefill.num_computed_tokens;
                self.counts.cached_tokens = prefill.num_cached_tokens;
            }
            self.engine.first_token(now_s - self.arrival_s, prefill);
            self.first_token_s = engine_s;
        } else {
            self.inter_token_latency.observe(engine_s - self.last_token_s);
        }
        self.last_token_s = engine_s;
    }

    /// Ends the record: the engine ended the request, a stop string was found, or the client left. Returns the
    /// number of output tokens.
    pub fn finish(self, now_s: f64, reason: FinishReason) -> u64 {
        let scheduled_s = self.scheduled_s.unwrap_or(self.queued_s);
        let after_first = self.counts.generated_tokens.saturating_sub(1);
        let decode_s = self.last_token_s - self.first_token_s;
        let phases = Phases {
            e2e_s: now_s - self.arrival_s,
            queue_s: scheduled_s - self.queued_s,
            prefill_s: (self.first_token_s - scheduled_s).max(0.0),
            decode_s,
            inference_s: (self.last_token_s - scheduled_s).max(0.0),
            time_per_output_token_s: if after_first > 0 { decode_s / after_first as f64 } else { 0.0 },
        };
        self.engine.finished(reason, &self.counts, &phases);
        self.counts.generated_tokens
    }
}
