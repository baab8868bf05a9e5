//! Calls engines in this process directly.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vcr_cluster::record::FailReason;
use vcr_cluster::{AdapterNames, IssuedRequest};
use vcr_core::PromptItem;
use vcr_frontend::engine::RequestStream;
use vcr_frontend::{EngineClient, EngineError};
use vcr_wire::{
    EngineCoreOutput, EngineCoreRequest, EventType, FinishReason, LoraRequest, MmFeature, OutputKind, PlaceholderRange,
    SamplingParams, Tensor, TensorData,
};

use super::book::{Book, CountedOutputs, name_of};
use crate::drive::vocabulary::Vocabulary;
use crate::drive::{AnswerReporter, Answered, Service};

/// Pause between two checks whether an engine is up.
const DOWN_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Direct {
    pub(crate) engines: EngineClient,
    pub(crate) vocabulary: Vocabulary,
    /// Knows which engine has each request.
    pub(crate) book: Book,
    pub(crate) restarts: bool,
    /// The number of attempts so far. It makes the id of each attempt unique.
    pub(crate) attempts: Cell<u64>,
}

impl Service for Direct {
    async fn answer(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Answered {
        let made = self.request(request);
        reporter.sent().await;
        let mut stream = match self.submit(&made, reporter).await {
            Ok(stream) => stream,
            Err(answered) => return answered,
        };
        self.follow(&mut stream, request, reporter, CountedOutputs::All).await
    }
}

/// Whether this last output completes an answer. None if more outputs follow.
pub(crate) fn is_whole(output: &EngineCoreOutput) -> Option<bool> {
    match output.finish_reason? {
        FinishReason::Stop | FinishReason::Length | FinishReason::Repetition => Some(true),
        FinishReason::Abort | FinishReason::Error => Some(false),
    }
}

/// Reports the contents of an output.
pub(crate) fn report(output: &EngineCoreOutput, reporter: &AnswerReporter, counted: CountedOutputs) {
    let cached_tokens = output.prefill_stats.as_ref().map_or(0, |stats| stats.num_cached_tokens as u32);
    for event in output.events.iter().flatten() {
        match event.kind {
            EventType::Queued => {}
            EventType::Scheduled if counted == CountedOutputs::Output => {}
            EventType::Scheduled => reporter.admitted(event.timestamp, cached_tokens),
            EventType::Preempted => reporter.preempted(),
        }
    }
    if !output.new_token_ids.is_empty() && counted != CountedOutputs::Prompt {
        reporter.tokens(output.new_token_ids.len() as u32);
    }
}

/// The ending of a request that an engine failed.
pub(crate) fn ended(output: &EngineCoreOutput, reporter: &AnswerReporter) -> Answered {
    match &output.error {
        Some(error) if error.code == "overloaded" => Answered::Shed,
        Some(error) if error.code == "kv_load_failed" => {
            reporter.note("transfers", format!("the KV of a prompt did not arrive: {}", error.message));
            Answered::Lost(FailReason::EngineCrash)
        }
        // The engine that the router chose has crashed.
        Some(error) if error.retryable => Answered::Lost(FailReason::EngineCrash),
        Some(error) => {
            reporter.note("refusals", format!("an engine refused a request: {}", error.message));
            Answered::Failed(FailReason::Server)
        }
        None => Answered::Failed(FailReason::Injected),
    }
}

impl Direct {
    /// Reports an answer until it ends.
    pub(crate) async fn follow(
        &self,
        stream: &mut RequestStream,
        request: &IssuedRequest,
        reporter: &AnswerReporter,
        counted: CountedOutputs,
    ) -> Answered {
        let (mut answer, mut received, mut is_first) = (Vec::new(), 0, true);
        loop {
            let output = match stream.next().await {
                Ok(Some(output)) => output,
                Ok(None) => return Answered::Whole(answer),
                Err(_) => return Answered::Lost(FailReason::EngineCrash),
            };
            if std::mem::take(&mut is_first) {
                self.book.report_engine(request.tag, reporter, counted);
            }
            report(&output, reporter, counted);
            received += output.new_token_ids.len() as u32;
            if request.needs_answer {
                answer.extend_from_slice(&output.new_token_ids);
            }
            match is_whole(&output) {
                None => {}
                Some(true) if received < request.max_tokens && !request.may_end_early => {
                    return Answered::Failed(FailReason::Short);
                }
                Some(true) => return Answered::Whole(answer),
                Some(false) => return ended(&output, reporter),
            }
        }
    }

    pub(crate) async fn submit(
        &self,
        request: &EngineCoreRequest,
        reporter: &AnswerReporter,
    ) -> Result<RequestStream, Answered> {
        loop {
            return match self.engines.submit(request.clone()) {
                Ok(stream) => Ok(stream),
                // If all engines are down, the request waits for a restart, as in a simulated cluster.
                Err(EngineError::Dead) if self.restarts => {
                    tokio::time::sleep(DOWN_PAUSE).await;
                    continue;
                }
                Err(EngineError::Dead) => Err(Answered::Failed(FailReason::NoEngine)),
                Err(EngineError::Full) => Err(Answered::Shed),
                Err(error) => {
                    reporter.note("engines", error.to_string());
                    Err(Answered::Failed(FailReason::Server))
                }
            };
        }
    }

    /// Converts a request for engines, with a unique id.
    pub(crate) fn request(&self, request: &IssuedRequest) -> EngineCoreRequest {
        let mut prompt = request.prompt.clone();
        self.vocabulary.place(&mut prompt);
        let attempt = self.attempts.get();
        self.attempts.set(attempt + 1);
        let name = name_of(request.tag);
        EngineCoreRequest {
            request_id: format!("{name}-{attempt:08x}"),
            external_req_id: Some(name),
            prompt_token_ids: Some(prompt),
            mm_features: features(&request.items),
            sampling_params: Some(SamplingParams {
                max_tokens: Some(request.max_tokens),
                ignore_eos: true,
                output_kind: OutputKind::Delta,
                ..SamplingParams::default()
            }),
            arrival_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            lora_request: request.adapter.and_then(adapter),
            priority: i64::from(request.priority),
            cache_salt: (request.tenant != 0).then(|| request.tenant.to_string()),
            session_id: Some(format!("{}-{}", request.workload, request.session)),
            ..EngineCoreRequest::default()
        }
    }
}

/// The multimodal items that occupy tokens of a prompt, if there are any.
fn features(items: &[PromptItem]) -> Option<Vec<MmFeature>> {
    let features: Vec<MmFeature> = items.iter().filter(|item| item.len_tokens() > 0).map(feature).collect();
    (!features.is_empty()).then_some(features)
}

/// Converts a multimodal item, without its content.
fn feature(item: &PromptItem) -> MmFeature {
    let len = item.len_tokens() as usize;
    let mask = item.embed_runs().map(|runs| {
        let mut bytes = vec![0; len];
        runs.iter().for_each(|run| bytes[run.start as usize..run.end as usize].fill(1));
        Tensor { dtype: "bool".to_owned(), shape: vec![len as u64], data: TensorData::Inline(bytes) }
    });
    MmFeature {
        modality: "image".to_owned(),
        identifier: format!("{:016x}", item.identity()),
        mm_position: PlaceholderRange {
            offset: u64::from(item.offset_tokens()),
            length: u64::from(item.len_tokens()),
            is_embed: mask,
        },
        ..MmFeature::default()
    }
}

fn adapter(number: u32) -> Option<LoraRequest> {
    let name = AdapterNames::default().name(number)?;
    // Ids of adapters start at 1 in engines.
    Some(LoraRequest { path: name.clone(), name, int_id: u64::from(number) + 1, ..LoraRequest::default() })
}
