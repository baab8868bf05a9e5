//! A request in the terms of the core: its prompt's hashes, when it stops, the
//! seed of its text, and its part in a transfer of KV.

use vcr_core::{KvRole, Prompt, Repetition, RequestSpec, StopRules};
use vcr_wire::{EngineCoreRequest, EventType, SamplingParams};
use xxhash_rust::xxh3::xxh3_64;

use crate::faults::{ArrivedRequest, Due};
use crate::injector::Happened;
use crate::replay::Script;
use crate::requests::{BlockKeys, Extras, LiveRequest, slot_of};
use crate::server::Server;
use crate::tokens::{Asked, content_seed};
use crate::transfer::KvParams;

/// How a request came to be as it is, in the terms of the core.
pub(crate) struct Admitted {
    pub(crate) spec: RequestSpec,
    pub(crate) live: LiveRequest,
    pub(crate) due: Option<Due>,
}

impl Server {
    /// Nothing is refused here any more.
    pub(crate) fn admit(&mut self, request: EngineCoreRequest, script: Option<&Script>, now_ns: u64) -> Admitted {
        let tag = self.requests.next_tag();
        let default = SamplingParams::default();
        let is_pooling = request.pooling_params.is_some();
        let params = request.sampling_params.as_ref().unwrap_or(&default);
        let block_keys = BlockKeys::of(&request);
        let priority = priority_of(&request);
        let prompt = request.prompt_token_ids.unwrap_or_default();
        let prompt_tokens = prompt.len() as u32;
        let images = request.mm_features.iter().flatten();
        let tenant = tenant_of(&block_keys);
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
        let max_tokens = match script {
            Some(script) => script.end.after_tokens,
            None if is_pooling => 0,
            None => params.max_tokens.unwrap_or(u32::MAX),
        };
        let recorded = script.map(|script| script.tokens.as_slice()).filter(|tokens| !tokens.is_empty());
        self.start_tokens(tag, seed, params, &prompt, max_tokens, recorded);

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
            recorded_end: script.map(|script| script.end.clone()),
            failure: planned.failure,
            engine_fault,
        };
        // A recorded answer ends where it ended.
        let stops = stop_rules(params).filter(|_| !is_pooling && script.is_none());
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
            tenant,
            // Policies are told all times on one clock.
            arrival_ns: match self.policy {
                Some(_) => since_start_ns,
                None => (request.arrival_time.max(0.0) * 1e9) as u64,
            },
            lora,
            kv_role,
            skip_reading_prefix_cache,
            ..RequestSpec::new(tag, prompt, max_tokens)
        };
        let mut live = LiveRequest {
            id: request.request_id.into_boxed_str(),
            tag,
            // Replaced when the engine has taken it.
            core: None,
            client: request.client_index,
            ticket: None,
            prompt_tokens,
            output_tokens: 0,
            local_cached_tokens: script.map_or(0, |script| script.cached_tokens.min(prompt_tokens)),
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

    fn start_tokens(
        &mut self,
        tag: u64,
        seed: u64,
        params: &SamplingParams,
        prompt: &[u32],
        max_tokens: u32,
        recorded: Option<&[u32]>,
    ) {
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
            recorded,
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
}

impl Extras {
    fn is_needed(&self) -> bool {
        self.logprobs.is_some()
            || self.prompt_logprobs.is_some()
            || self.is_pooling
            || self.is_prefill_only
            || self.remote.is_some()
            || self.block_keys.is_some()
            || self.recorded_end.is_some()
            || self.failure.is_some()
            || self.engine_fault.is_some()
    }
}

/// What the core can hold of a request's priority.
pub(crate) fn priority_of(request: &EngineCoreRequest) -> i32 {
    i32::try_from(request.priority).unwrap_or(if request.priority < 0 { i32::MIN } else { i32::MAX })
}

/// What keeps blocks of different adapters, tenants and images apart.
pub(crate) fn salt_of<'a>(keys: &BlockKeys, images: impl Iterator<Item = &'a str>) -> u64 {
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

/// Whose request it is, as far as frontends tell: what `cache_salt` says, which is
/// there to keep tenants apart, or the number of the adapter; 0 where neither is
/// given. A salt that is no number is a tenant as well, by its hash.
pub(crate) fn tenant_of(keys: &BlockKeys) -> u64 {
    match (&keys.cache_salt, &keys.lora) {
        (Some(salt), _) => salt.parse().unwrap_or_else(|_| xxh3_64(salt.as_bytes())),
        (None, Some((_, _, number))) => *number,
        (None, None) => 0,
    }
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
