//! The rows of `requests.jsonl`.

use serde::Serialize;

use super::record::{RequestRecord, ns_to_ms};

/// A row of `requests.jsonl`. Times in milliseconds; absent where they do not apply.
#[derive(Debug, Serialize)]
pub struct RequestRow<'a> {
    id: u64,
    workload: &'a str,
    session: u64,
    turn: u32,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    prompt_tokens: u32,
    max_tokens: u32,
    output_tokens: u32,
    cached_tokens: u32,
    arrival_ms: f64,
    /// Where that is later.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_end_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_end_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_token_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e2e_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_engine: Option<&'a str>,
    preemptions: u32,
    retries: u32,
    #[serde(skip_serializing_if = "is_zero")]
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    wasted_tokens: u32,
    #[serde(skip_serializing_if = "is_zero")]
    wasted_prompt_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    slo_class: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl<'a> RequestRow<'a> {
    /// The row of a request that its trace gives a name.
    #[must_use]
    pub fn named(self, name: Option<&'a str>) -> Self {
        Self { name, ..self }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl RequestRecord {
    /// The row of request `id`, of the workload called `workload` and of the
    /// class `slo_class`.
    #[must_use]
    pub fn row<'a>(
        &self,
        id: u64,
        workload: &'a str,
        slo_class: Option<&'a str>,
        engine_names: &'a [String],
    ) -> RequestRow<'a> {
        let engine = |worker: Option<u32>| worker.map(|worker| engine_names[worker as usize].as_str());
        let ms = |ns: Option<u64>| ns.map(ns_to_ms);
        let since_arrival = |ns: Option<u64>| ns.map(|ns| ns_to_ms(ns - self.arrival_ns));
        RequestRow {
            id,
            workload,
            session: self.session,
            turn: self.turn,
            status: self.outcome.status(),
            reason: self.outcome.reason(),
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            arrival_ms: ns_to_ms(self.arrival_ns),
            queued_ms: ms(Some(self.queued_ns).filter(|queued_ns| *queued_ns > self.arrival_ns)),
            scheduled_ms: ms(self.scheduled_ns),
            prefill_end_ms: ms(self.prefill_end_ns),
            transfer_end_ms: ms(self.transfer_end_ns),
            first_token_ms: ms(self.first_token_ns),
            last_token_ms: ms(self.last_token_ns),
            end_ms: ms(self.end_ns),
            ttft_ms: since_arrival(self.first_token_ns),
            e2e_ms: since_arrival(self.last_token_ns),
            engine: engine(self.prefill_worker),
            decode_engine: engine(self.decode_worker),
            preemptions: self.preemptions,
            retries: self.retries,
            attempt: self.attempt,
            deadline_ms: ms(self.deadline_ns),
            wasted_tokens: self.wasted_tokens,
            wasted_prompt_tokens: self.wasted_prompt_tokens,
            slo_class,
            adapter: self.adapter,
            name: None,
        }
    }
}
