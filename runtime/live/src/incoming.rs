//! What frontends send: requests to run, to forget, and notices of waves.

use vcr_core::{FinishReason as CoreFinish, KvRole, PauseState, Prompt, Repetition, RequestSpec, StopRules};
use vcr_wire::{
    DecodeError, EngineCoreOutputs, EngineCoreRequest, EventType, FinishReason, Request, RequestError, SamplingParams,
    Source,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::LiveError;
use crate::faults::{ArrivedRequest, Due};
use crate::injector::Happened;
use crate::requests::{BlockKeys, Extras, LiveRequest, RemoteKv, slot_of};
use crate::server::{End, Server, Shutdown};
use crate::tokens::{Asked, content_seed};
use crate::transfer::KvParams;

/// Why a request is refused.
struct Refusal {
    code: &'static str,
    message: String,
    retryable: bool,
}

impl Refusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self { code: "validation_error", message: message.into(), retryable: false }
    }
}

/// How a request came to be as it is, in the terms of the core.
struct Admitted {
    spec: RequestSpec,
    live: LiveRequest,
    due: Option<Due>,
}

impl Server {
    pub(crate) fn handle_request(&mut self, source: Source, request: Request, now_ns: u64) -> Result<(), LiveError> {
        match request {
            Request::Add(request) => self.add(*request, now_ns),
            Request::Abort(ids) => {
                self.abort(&ids);
                Ok(())
            }
            Request::Utility(call) => self.handle_utility(call, now_ns),
            Request::StartDpWave(wave) => {
                if source != Source::Coordinator {
                    self.counters.malformed += 1;
                    tracing::warn!(rank = self.rank, "START_DP_WAVE came from an API server; only a coordinator may");
                } else if let Some(waves) = &self.waves {
                    waves.start(self.index, wave.wave, wave.exclude_engine_index);
                }
                Ok(())
            }
        }
    }

    pub(crate) fn handle_malformed(
        &mut self,
        source: Source,
        error: &DecodeError,
        request_id: Option<&str>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        self.counters.malformed += 1;
        tracing::warn!(rank = self.rank, ?source, request = request_id, "a message cannot be decoded: {error}");
        match (source, request_id) {
            // Whoever sent it waits for an answer; another one of this name
            // would be ended by it.
            (Source::Client(client), Some(id)) if self.requests.find(id).is_none() => {
                let refusal = Refusal::invalid(format!("the request cannot be decoded: {error}"));
                self.refuse(client as u32, id, &refusal, now_ns)
            }
            _ => Ok(()),
        }
    }

    /// Requests of a lost API server are of no use to anybody.
    pub(crate) fn handle_loss(&mut self, client: usize) -> Result<(), LiveError> {
        self.counters.frontends_lost += 1;
        let tags: Vec<_> = self
            .requests
            .iter()
            .filter(|request| request.client as usize == client)
            .map(|request| request.tag)
            .collect();
        tracing::warn!(rank = self.rank, client, requests = tags.len(), "the frontend is gone");
        for tag in tags {
            self.abort_tag(tag);
        }
        if self.outputs.lose_client(client) {
            self.end = Some(End::FrontendLost);
        }
        self.settle_pending_calls_of(client);
        Ok(())
    }

    fn refuse(&mut self, client: u32, id: &str, refusal: &Refusal, now_ns: u64) -> Result<(), LiveError> {
        self.counters.refused += 1;
        tracing::warn!(rank = self.rank, request = id, "refused: {}", refusal.message);
        let error = RequestError {
            code: refusal.code.to_owned(),
            message: refusal.message.clone(),
            retryable: refusal.retryable,
        };
        self.finish_apart(client, id, FinishReason::Error, Some(&error), now_ns)
    }

    /// Ends a request that the engine does not know.
    fn finish_apart(
        &mut self,
        client: u32,
        id: &str,
        reason: FinishReason,
        error: Option<&RequestError>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        self.counters.finished[reason as usize] += 1;
        Ok(self.outputs.send_finish(client, &[id], reason, error, now_ns)?)
    }

    fn add(&mut self, request: EngineCoreRequest, now_ns: u64) -> Result<(), LiveError> {
        let client = request.client_index;
        if !self.outputs.has_client(client) {
            self.counters.malformed += 1;
            tracing::warn!(rank = self.rank, request = request.request_id, client, "there is no such API server");
            return Ok(());
        }
        if self.requests.find(&request.request_id).is_some() {
            // An answer would end the one that is under way.
            self.counters.malformed += 1;
            tracing::warn!(rank = self.rank, request = request.request_id, "a request of this name is under way");
            return Ok(());
        }
        if self.shutdown != Shutdown::Running {
            return self.finish_apart(client, &request.request_id, FinishReason::Abort, None, now_ns);
        }
        if let Err(refusal) = self.check(&request) {
            return self.refuse(client, &request.request_id, &refusal, now_ns);
        }
        let wave = request.current_wave;
        let abort_immediately = request.abort_immediately;
        let Admitted { spec, live, due } = self.admit(request, now_ns);
        let tag = live.tag;
        let submitted = self.engine.submit(spec);
        let core = match submitted {
            Ok(core) => core,
            Err(reason) => {
                self.tokens.end(tag);
                return self.refuse(client, &live.id, &Refusal::invalid(reason.to_string()), now_ns);
            }
        };
        self.counters.requests += 1;
        self.counters.prompt_tokens += u64::from(live.prompt_tokens);
        if self.config.stats.log_requests {
            tracing::info!(rank = self.rank, request = &*live.id, prompt_tokens = live.prompt_tokens, "started");
        }
        self.requests.insert(LiveRequest { core, ..live });
        self.may_decide = true;
        if abort_immediately {
            self.abort_tag(tag);
            return Ok(());
        }
        if let Some(due) = due {
            self.suffer(due, now_ns)?;
        }
        self.announce_wave(wave)
    }

    /// Wakes the other engines of a mixture of experts, if they sleep.
    fn announce_wave(&mut self, request_wave: u32) -> Result<(), LiveError> {
        let starts = self.line.rules().engine_starts_waves;
        let Some(waves) = self.waves.clone() else { return Ok(()) };
        if let Some(wave) = waves.request(self.index, request_wave, starts) {
            self.outputs
                .tell_coordinator(EngineCoreOutputs { start_wave: Some(wave), ..EngineCoreOutputs::default() })?;
        }
        Ok(())
    }

    /// Whether this engine can do what is asked.
    fn check(&mut self, request: &EngineCoreRequest) -> Result<(), Refusal> {
        if self.pauses.rejects_new && !request.abort_immediately {
            return Err(Refusal {
                code: "engine_paused",
                message: "Generation is paused. Please retry after it resumes.".to_owned(),
                retryable: true,
            });
        }
        if self.is_at_limit() {
            return Err(Refusal {
                code: "overloaded",
                message: format!("the engine is paused and holds its limit of {} requests", self.requests.len()),
                retryable: true,
            });
        }
        if request.prompt_embeds.is_some() {
            return Err(Refusal::invalid("prompt embeddings cannot be simulated: they say nothing about tokens"));
        }
        if request.resumable {
            return Err(Refusal::invalid("streaming input (resumable requests) is not simulated"));
        }
        if request.pooling_params.is_some() {
            if self.config.tokens.embedding_dimensions.is_none() {
                return Err(Refusal::invalid(
                    "this engine generates text; start it with --embedding-dimensions to answer pooling requests",
                ));
            }
        } else if request.sampling_params.is_none() {
            return Err(Refusal::invalid("the request has neither sampling nor pooling parameters"));
        }
        if let Some(lora) = &request.lora_request {
            let int_id = u32::try_from(lora.int_id).unwrap_or(0);
            if int_id == 0 {
                return Err(Refusal::invalid(format!("the adapter's number must be from 1, but is {}", lora.int_id)));
            }
            self.adapters
                .load(lora.int_id)
                .map_err(|reason| Refusal::invalid(format!("the adapter {}: {reason}", lora.name)))?;
        }
        Ok(())
    }

    fn admit(&mut self, request: EngineCoreRequest, now_ns: u64) -> Admitted {
        let tag = self.requests.next_tag();
        let default = SamplingParams::default();
        let is_pooling = request.pooling_params.is_some();
        let params = request.sampling_params.as_ref().unwrap_or(&default);
        let prompt = request.prompt_token_ids.unwrap_or_default();
        let prompt_tokens = prompt.len() as u32;
        let block_keys = BlockKeys {
            lora: request.lora_request.as_ref().map(|lora| (lora.name.clone(), lora.path.clone(), lora.int_id)),
            cache_salt: request.cache_salt.clone().filter(|salt| !salt.is_empty()),
            session_id: request.session_id.clone(),
        };
        let images = request.mm_features.iter().flatten();
        let salt = salt_of(&block_keys, images.map(|image| image.identifier.as_str()));
        let seed = self.content_seed(&request.request_id, params, &prompt, salt);
        let kv = params.kv_transfer_params().map_or(KvParams::Local, KvParams::of);
        let prompt_logprobs = params.prompt_logprobs.map(|k| (self.num_logprobs(k), prompt.clone()));
        let skip_reading_prefix_cache = params.skip_reading_prefix_cache.unwrap_or(prompt_logprobs.is_some());
        let kv_role = match self.kv_role(&request.request_id, &kv) {
            // What is not to be read from a cache is not fetched, either.
            KvRole::Destination if skip_reading_prefix_cache => KvRole::Local,
            role => role,
        };
        let max_tokens = if is_pooling { 0 } else { params.max_tokens.unwrap_or(u32::MAX) };
        self.start_tokens(tag, seed, params, &prompt, max_tokens);

        let arrived = ArrivedRequest {
            id: &request.request_id,
            external_id: request.external_req_id.as_deref().unwrap_or_default(),
            prompt_tokens,
            lora: request.lora_request.as_ref().map(|lora| lora.name.as_str()),
            priority: request.priority,
        };
        let since_start_ns = now_ns.saturating_sub(self.origin_ns);
        let planned = self.faults.plan(&arrived, since_start_ns);
        let lora = request.lora_request.as_ref().map(|lora| lora.int_id as u32);
        let priority =
            i32::try_from(request.priority).unwrap_or(if request.priority < 0 { i32::MIN } else { i32::MAX });
        if self.injector.is_some() {
            self.happened.push(Happened::Arrived {
                slot: slot_of(tag) as u32,
                request_id: request.request_id.clone(),
                prompt_tokens,
                max_tokens,
                priority,
                lora,
            });
        }
        let (due, engine_fault) = match planned.engine {
            Some((0, due)) => (Some(due), None),
            other => (None, other),
        };
        let extras = Extras {
            logprobs: params.logprobs.map(|k| self.num_logprobs(k)),
            prompt_logprobs,
            is_greedy: params.temperature == 0.0,
            seed,
            is_pooling,
            is_prefill_only: kv_role == KvRole::Source,
            remote: match kv {
                KvParams::PrefillElsewhere(remote) => Some(remote),
                _ => None,
            },
            block_keys: (self.kv_events.is_some() && !block_keys.is_empty()).then_some(block_keys),
            failure: planned.failure,
            engine_fault,
        };
        let stops = stop_rules(params).filter(|_| !is_pooling);
        let block_size = self.engine.config().block_size;
        let prompt = if self.kv_events.is_some() {
            Prompt::of_tokens(prompt, block_size, salt)
        } else {
            let mut hashed = Prompt::new(block_size, salt);
            hashed.push_tokens(prompt);
            hashed
        };
        let spec = RequestSpec {
            stops,
            priority,
            arrival_ns: (request.arrival_time.max(0.0) * 1e9) as u64,
            lora,
            kv_role,
            skip_reading_prefix_cache,
            ..RequestSpec::new(tag, prompt, max_tokens)
        };
        let mut live = LiveRequest {
            id: request.request_id.into_boxed_str(),
            tag,
            // Replaced when the engine has taken it.
            core: vcr_core::RequestId::default(),
            client: request.client_index,
            prompt_tokens,
            output_tokens: 0,
            local_cached_tokens: 0,
            external_tokens: 0,
            eos_token: params.eos_token_id,
            is_silent: true,
            events: Vec::new(),
            extras: extras.is_needed().then(|| Box::new(extras)),
        };
        if self.config.stats.log_stats {
            live.event(EventType::Queued, now_ns as f64 / 1e9);
        }
        Admitted { spec, live, due }
    }

    fn num_logprobs(&self, k: i64) -> u32 {
        u32::try_from(k).unwrap_or(self.tokens.vocab_size())
    }

    /// A seed of everything that a model's answer depends on.
    fn content_seed(&self, id: &str, params: &SamplingParams, prompt: &[u32], salt: u64) -> u64 {
        let seed = params.seed.map_or(0, |seed| seed.as_u64().or(seed.as_i64().map(i64::cast_unsigned)).unwrap_or(0));
        // Completions of one call have the place among them before their name.
        let place = id.split_once('_').and_then(|(place, _)| place.parse::<u64>().ok()).unwrap_or(0);
        let place = if params.n > 1 || place > 0 { place } else { 0 };
        content_seed(self.config.seed, prompt, vcr_core::seed::mix(seed ^ place.rotate_left(32)) ^ salt)
    }

    fn start_tokens(&mut self, tag: u64, seed: u64, params: &SamplingParams, prompt: &[u32], max_tokens: u32) {
        let structured_output = match &params.structured_outputs {
            Some(value) if self.tokens.wants_structure() => crate::json::of_value(value),
            _ => String::new(),
        };
        if !structured_output.is_empty() {
            tracing::debug!(rank = self.rank, structured_output, "the request wants structured output");
        }
        self.tokens.start(&Asked {
            tag,
            seed,
            prompt,
            max_tokens,
            min_tokens: params.min_tokens,
            eos_token: params.eos_token_id,
            stop_tokens: params.stop_token_ids.as_deref().unwrap_or_default(),
            allowed_tokens: params.allowed_token_ids.as_deref().unwrap_or_default(),
            structured_output: &structured_output,
        });
    }

    fn kv_role(&self, id: &str, kv: &KvParams) -> KvRole {
        match kv {
            KvParams::Local => KvRole::Local,
            KvParams::DecodeElsewhere => KvRole::Source,
            KvParams::PrefillElsewhere(_) => KvRole::Destination,
            KvParams::Incomplete(missing) => {
                tracing::warn!(
                    rank = self.rank,
                    request = id,
                    "kv_transfer_params lack {}; the prompt is computed here",
                    missing.join(", ")
                );
                KvRole::Local
            }
        }
    }

    /// Aborts what is known of `ids`; nobody is told, since who aborts knows.
    fn abort(&mut self, ids: &[String]) {
        for id in ids {
            if let Some(tag) = self.requests.find(id).map(|request| request.tag) {
                self.counters.aborted += 1;
                self.abort_tag(tag);
            }
        }
    }

    pub(crate) fn abort_tag(&mut self, tag: u64) {
        if let Some(request) = self.forget(tag, FinishReason::Abort) {
            self.engine.abort(request.core);
            self.may_decide = true;
            self.owes_stats = true;
        }
    }

    /// Takes a request out of the tables: it has ended.
    pub(crate) fn forget(&mut self, tag: u64, reason: FinishReason) -> Option<LiveRequest> {
        if let Some(events) = &mut self.kv_events {
            // While it is known what went into the names of its blocks.
            events.gather(&mut self.engine, &self.requests);
        }
        let request = self.requests.remove(tag)?;
        if let Some(remote) = request.extras.as_ref().and_then(|extras| extras.remote.as_ref()) {
            self.release_remote(remote);
        }
        self.tokens.end(tag);
        self.counters.finished[reason as usize] += 1;
        if self.injector.is_some() {
            self.happened.push(Happened::Ended { slot: slot_of(tag) as u32 });
        }
        if self.config.stats.log_requests {
            tracing::info!(
                rank = self.rank,
                request = &*request.id,
                output_tokens = request.output_tokens,
                ?reason,
                "ended"
            );
        }
        Some(request)
    }

    /// Lets the prefill engine of a request go: its KV has been read, or never
    /// will be.
    pub(crate) fn release_remote(&mut self, remote: &RemoteKv) {
        if let Err(error) = self.transfers.tell(remote) {
            tracing::warn!(rank = self.rank, address = remote.address, "the prefill engine cannot be told: {error}");
        }
    }

    /// Whether anything is paused by a frontend.
    pub(crate) fn is_paused(&self) -> bool {
        self.engine.pause_state() != PauseState::Unpaused
    }
}

impl Extras {
    fn is_needed(&self) -> bool {
        self.logprobs.is_some()
            || self.prompt_logprobs.is_some()
            || self.is_pooling
            || self.is_prefill_only
            || self.remote.is_some()
            || self.block_keys.is_some()
            || self.failure.is_some()
            || self.engine_fault.is_some()
    }
}

impl BlockKeys {
    fn is_empty(&self) -> bool {
        self.lora.is_none() && self.cache_salt.is_none() && self.session_id.is_none()
    }
}

/// What keeps blocks of different adapters, tenants and images apart.
fn salt_of<'a>(keys: &BlockKeys, images: impl Iterator<Item = &'a str>) -> u64 {
    let mut salt = 0;
    let mut fold = |purpose: u64, text: &str| {
        salt = vcr_core::seed::mix(salt ^ vcr_core::seed::mix(xxh3_64(text.as_bytes()) ^ purpose));
    };
    if let Some((name, ..)) = &keys.lora {
        fold(1, name);
    }
    if let Some(text) = &keys.cache_salt {
        fold(2, text);
    }
    images.for_each(|image| fold(3, image));
    salt
}

fn stop_rules(params: &SamplingParams) -> Option<Box<StopRules>> {
    let stops = params.stop_token_ids.iter().flatten().copied();
    let tokens: Vec<u32> = params.eos_token_id.into_iter().chain(stops).collect();
    let repetition = params.repetition_detection.as_ref().map(|detection| Repetition {
        max_pattern_tokens: detection.max_pattern_size,
        min_pattern_tokens: detection.min_pattern_size,
        min_count: detection.min_count,
    });
    if tokens.is_empty() && repetition.is_none() {
        return None;
    }
    Some(Box::new(StopRules { tokens, min_tokens: params.min_tokens, repetition }))
}

/// The core's reason on the wire, and what stopped it besides.
pub(crate) fn finish_reason(finish: CoreFinish) -> FinishReason {
    match finish {
        CoreFinish::Stop => FinishReason::Stop,
        CoreFinish::Length => FinishReason::Length,
        CoreFinish::Abort => FinishReason::Abort,
        CoreFinish::Repetition => FinishReason::Repetition,
    }
}
