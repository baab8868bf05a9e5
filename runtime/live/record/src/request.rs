//! Assembles the record of a request from its messages.

use vcr_trace::MediaItem;
use vcr_trace::capture::{ExtraKeys, MediaKey, PromptHasher, RequestRecord, StepContext};
use vcr_wire::{EngineCoreOutput, EngineCoreRequest, EventType, FinishReason, MmFeature, StopReason, Value};

use crate::json;

/// The data to record of each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    pub(crate) hasher: PromptHasher,
    pub(crate) prompts: bool,
    pub(crate) tokens: bool,
}

impl Detail {
    /// For HTTP captures, whose messages have no tokens.
    pub(crate) fn none() -> Self {
        Self { hasher: PromptHasher::new(1), prompts: false, tokens: false }
    }
}

/// The time of a message on two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// When the recorder forwarded the message, on this machine's monotonic clock.
    pub(crate) at_ns: u64,
    /// When the engine sent the message, by the engine's clock, if stated.
    pub(crate) engine_ns: Option<u64>,
}

impl Stamp {
    /// The time since `earlier`, by the engine's clock if both messages state it.
    fn since_ns(self, earlier: Self) -> u64 {
        match (self.engine_ns, earlier.engine_ns) {
            (Some(now), Some(earlier)) => now.saturating_sub(earlier),
            _ => self.at_ns.saturating_sub(earlier.at_ns),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) running: u32,
    pub(crate) waiting: u32,
    /// Prompt tokens computed in the step, if known.
    pub(crate) prefill_tokens: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct OpenRequest {
    /// The request's index in order of arrival.
    pub(crate) number: u64,
    record: RequestRecord,
    arrived_ns: u64,
    /// The time of the last output with tokens.
    last: Option<Stamp>,
    /// When the engine queued the request, by its own clock, in seconds.
    queued_s: Option<f64>,
    /// The number of tokens in each output after the first.
    gap_tokens: Vec<u32>,
    /// The engine's load at each output. None if the load of any output is unknown.
    steps: Option<StepContext>,
}

impl OpenRequest {
    /// Starts a request that arrived at `arrived_ns`, which is `since_start_ns` after the start of the capture.
    pub(crate) fn new(
        request: EngineCoreRequest,
        rank: u32,
        client: usize,
        arrived_ns: u64,
        since_start_ns: u64,
        detail: &Detail,
    ) -> Self {
        let features = request.mm_features.as_deref().unwrap_or_default();
        let media: Vec<MediaKey<'_>> = features.iter().map(media_key).collect();
        let lora = request.lora_request.map(|lora| lora.name);
        let keys = ExtraKeys { lora: lora.as_deref(), cache_salt: request.cache_salt.as_deref(), media: &media };
        let chain = request.prompt_token_ids.as_deref().map(|tokens| detail.hasher.chain(tokens, &keys));
        let embeds = request.prompt_embeds.as_ref().and_then(|tensor| tensor.shape.first().copied());
        let prompt_tokens = request.prompt_token_ids.as_ref().map_or(embeds.unwrap_or(0), |tokens| tokens.len() as u64);
        let (mm_items, mm_hashes) = media_of(features, saturated(prompt_tokens));
        let transfer = request.sampling_params.as_ref().and_then(|params| params.kv_transfer_params());
        let kv_role = transfer.and_then(kv_role).map(str::to_owned);
        let params = match (&request.sampling_params, &request.pooling_params) {
            (_, Some(pooling)) => json::pooling(pooling),
            (Some(sampling), None) => json::sampling(sampling, detail.tokens),
            (None, None) => serde_json::Map::new(),
        };
        let (block_hashes, prompt_hash) = chain.map_or((Vec::new(), None), |chain| (chain.blocks, Some(chain.whole)));
        let record = RequestRecord {
            id: Some(request.request_id),
            external_id: request.external_req_id,
            client: saturated(client as u64),
            rank,
            arrival_ns: Some(since_start_ns),
            prompt_tokens: saturated(prompt_tokens),
            block_hashes,
            prompt_hash,
            prompt_token_ids: request.prompt_token_ids.filter(|_| detail.prompts),
            output_token_ids: detail.tokens.then(Vec::new),
            params,
            priority: request.priority,
            lora,
            session: request.session_id,
            mm_hashes,
            mm_items,
            kv_role,
            ..RequestRecord::default()
        };
        let steps = Some(StepContext::default());
        Self { number: 0, record, arrived_ns, last: None, queued_s: None, gap_tokens: Vec::new(), steps }
    }

    /// Sets the request's index and the number of concurrent requests.
    pub(crate) fn placed(mut self, number: u64, concurrency: u32) -> Self {
        self.number = number;
        self.record.concurrency = Some(concurrency);
        self
    }

    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.record.prompt_tokens
    }

    /// The API server that sent the request.
    pub(crate) fn client(&self) -> usize {
        self.record.client as usize
    }

    /// Adds an output. `load` is the engine's last reported load.
    pub(crate) fn output(&mut self, output: &EngineCoreOutput, stamp: Stamp, load: Option<&Load>) {
        for event in output.events.iter().flatten() {
            match event.kind {
                EventType::Queued => self.queued_s = Some(event.timestamp),
                EventType::Scheduled => self.scheduled(event.timestamp),
                EventType::Preempted => self.record.preemptions += 1,
            }
        }
        if let Some(stats) = &output.prefill_stats {
            let external = stats.num_external_cached_tokens;
            self.record.external_cached_tokens = saturated(external);
            self.record.cached_tokens = saturated(stats.num_cached_tokens.saturating_sub(external));
        }
        if !output.new_token_ids.is_empty() {
            self.tokens(&output.new_token_ids, stamp, load);
        }
        if let Some(error) = &output.error {
            self.record.error = Some(format!("{}: {}", error.code, error.message));
        }
        self.record.stop_reason = output.stop_reason.as_ref().map(|reason| match reason {
            StopReason::Token(token) => (*token).into(),
            StopReason::Text(text) => text.as_str().into(),
        });
    }

    /// Records the queue time at the first admission. Later ones follow a preemption.
    fn scheduled(&mut self, at_s: f64) {
        if let (Some(queued_s), None) = (self.queued_s, self.record.queue_ns) {
            self.record.queue_ns = Some(((at_s - queued_s) * 1e9).round().max(0.0) as u64);
        }
    }

    fn tokens(&mut self, tokens: &[u32], stamp: Stamp, load: Option<&Load>) {
        let count = saturated(tokens.len() as u64);
        match self.last.replace(stamp) {
            None => {
                self.record.ttft_ns = Some(stamp.at_ns.saturating_sub(self.arrived_ns));
                self.record.first_tokens = (count != 1).then_some(count);
            }
            Some(last) => {
                self.record.gap_ns.push(stamp.since_ns(last));
                self.gap_tokens.push(count);
            }
        }
        self.record.output_tokens = self.record.output_tokens.saturating_add(count);
        if let Some(kept) = &mut self.record.output_token_ids {
            kept.extend_from_slice(tokens);
        }
        match (&mut self.steps, load) {
            (Some(steps), Some(load)) => {
                steps.running.push(load.running);
                steps.waiting.push(load.waiting);
                steps.prefill_tokens.extend(load.prefill_tokens);
            }
            (steps, _) => *steps = None,
        }
    }

    /// Completes the record of a request that ended at `at_ns`.
    pub(crate) fn ended(mut self, at_ns: u64, reason: FinishReason) -> RequestRecord {
        self.record.end_ns = Some(at_ns.saturating_sub(self.arrived_ns));
        self.record.finish_reason = Some(reason.name().to_owned());
        self.unfinished(None)
    }

    /// Completes the record of a request whose end was not seen. `error` is the reason.
    pub(crate) fn unfinished(self, error: Option<&str>) -> RequestRecord {
        let Self { mut record, gap_tokens, steps, .. } = self;
        record.gap_tokens = gap_tokens.iter().any(|count| *count != 1).then_some(gap_tokens);
        record.steps = steps.filter(|steps| !steps.running.is_empty()).map(|mut steps| {
            // An engine reports prefill tokens for all steps or for none.
            if steps.prefill_tokens.len() != steps.running.len() {
                steps.prefill_tokens.clear();
            }
            steps
        });
        if record.error.is_none() {
            record.error = error.map(str::to_owned);
        }
        record
    }
}

/// The key of a media item in block hashes and engine caches. It uses `identifier` and not `mm_hash`: with an
/// adapter that changes the encoder, the two differ.
fn media_key(feature: &MmFeature) -> MediaKey<'_> {
    MediaKey { identifier: &feature.identifier, offset: feature.mm_position.offset }
}

/// The media items of a prompt. Returns only their identifiers if the items overlap (as the sound of a video may)
/// or are not in the order of vLLM's frontends.
fn media_of(features: &[MmFeature], prompt_tokens: u32) -> (Vec<MediaItem>, Vec<String>) {
    let items: Option<Vec<MediaItem>> = features.iter().map(media_item).collect();
    match items.filter(|items| MediaItem::are_in_place(items, prompt_tokens)) {
        Some(items) => (items, Vec::new()),
        None => (Vec::new(), features.iter().map(|feature| feature.identifier.clone()).collect()),
    }
}

/// Converts a media item. Returns none if its numbers exceed those of captures.
fn media_item(feature: &MmFeature) -> Option<MediaItem> {
    let place = &feature.mm_position;
    let runs = place.embed_runs().map(|runs| runs.iter().map(|run| [run.start, run.end]).collect());
    Some(MediaItem {
        hash: feature.identifier.clone(),
        offset: place.offset.try_into().ok()?,
        tokens: place.length.try_into().ok()?,
        modality: Some(feature.modality.clone()).filter(|modality| !modality.is_empty()),
        embeds: runs,
    })
}

/// The role of a request in disaggregated prefill.
fn kv_role(params: &Value) -> Option<&'static str> {
    let is_set = |key: &str| params.get(key).and_then(Value::as_bool).unwrap_or(false);
    if is_set("do_remote_decode") { Some("prefill") } else { is_set("do_remote_prefill").then_some("decode") }
}

/// Converts a count to the type that captures use. Real counts never reach its limit.
pub(crate) fn saturated(count: u64) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
