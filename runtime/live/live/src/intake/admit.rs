//! Translates requests for the engine core: block hashes of the prompt, stop rules, the seed of the text, and the
//! role in a KV transfer.

use vcr_core::{KvRole, Prompt, Repetition, RequestSpec, StopRules};
use vcr_wire::{EngineCoreRequest, EventType, LoraRequest, SamplingParams};
use xxhash_rust::xxh3::xxh3_64;

use crate::answers::embedding::EmbeddingSpace;
use crate::faults::active::{ArrivedRequest, EngineFault};
use crate::faults::injector::InjectorEvent;
use crate::kv_transfer::pages::group_contents;
use crate::kv_transfer::params::KvParams;
use crate::playback::capture::Script;
use crate::requests::{BlockKeys, Extras, LiveRequest, slot_of};
use crate::serving::Serving;
use crate::tokens::{SourceRequest, content_seed};

/// A request as the core and this driver need it.
pub(crate) struct Admitted {
    pub(crate) spec: RequestSpec,
    pub(crate) live: LiveRequest,
    pub(crate) arrival: Arrival,
}

/// Properties of an accepted request for fault rules and failure injectors.
pub(crate) struct Arrival {
    external_id: Option<String>,
    max_tokens: u32,
    lora: Option<LoraRequest>,
    /// Priority as the frontend sent it; may be beyond the core's range.
    priority: i64,
    core_priority: i32,
}

/// Translates a request and registers it with the token source. After that only the core may refuse it.
pub(crate) fn admit(
    serving: &mut Serving,
    request: Box<EngineCoreRequest>,
    script: Option<&Script>,
    now_ns: u64,
) -> Admitted {
    let tag = serving.requests.next_tag();
    let default = SamplingParams::default();
    let is_pooling = request.pooling_params.is_some();
    let resumable = request.resumable;
    let params = request.sampling_params.as_ref().unwrap_or(&default);
    let block_keys = BlockKeys::of(&request);
    let priority = priority_of(&request);
    let prompt = request.prompt_token_ids.unwrap_or_default();
    let prompt_tokens = prompt.len() as u32;
    let tenant = tenant_of(&block_keys);
    let (salt, marks) = (salt_of(&block_keys), block_keys.marks());
    let items = block_keys.items(prompt_tokens, !serving.context.config.engine.is_encoder_decoder());
    let seed =
        request_seed(serving.context.config.seed, &request.request_id, params, &prompt, media_salt(salt, &marks));
    let embedding = request.pooling_params.as_ref().map(|params| {
        let dimensions = serving.context.config.tokens.embedding_dimensions.unwrap_or(1);
        let space =
            EmbeddingSpace::new(serving.context.config.seed, block_keys.lora.as_ref().map(|lora| &*lora.0), dimensions);
        let vector = space.embed(&prompt, &block_keys.media);
        space.shortened(vector, params.dimensions, params.use_activation.unwrap_or(true))
    });
    let allowed = serving.transfers.allowed_peers();
    let meetings = serving.transfers.meeting_settings();
    let kv = params.kv_transfer_params().map_or(KvParams::Local, |params| KvParams::of(params, allowed, meetings));
    let prompt_logprobs = params.prompt_logprobs.map(|k| (num_logprobs(serving, k), prompt.clone()));
    let skips = match &request.pooling_params {
        Some(params) => params.skip_reading_prefix_cache,
        None => params.skip_reading_prefix_cache,
    };
    let skip_reading_prefix_cache = skips.unwrap_or(prompt_logprobs.is_some());
    let kv_role = match kv_role(serving, &request.request_id, &kv) {
        // A request that must not read a cache fetches no KV either.
        KvRole::Destination if skip_reading_prefix_cache => KvRole::Local,
        role => role,
    };
    let engine_config = &serving.context.config.engine;
    let blocks = engine_config.hashed_blocks();
    let moves = serving.transfers.moves_bytes() && kv_role != KvRole::Local;
    let contents = if moves { group_contents(&prompt, engine_config, salt, &marks) } else { Vec::new() };
    let max_tokens = match script {
        Some(script) => script.end.after_tokens,
        None if is_pooling => 0,
        // The decode engine of the room gets the same request and computes the rest.
        None if matches!(kv, KvParams::RemoteDecode(Some(_))) => params.max_tokens.unwrap_or(u32::MAX).min(1),
        None => params.max_tokens.unwrap_or(u32::MAX),
    };
    let recorded = script.map(|script| script.tokens.as_slice()).filter(|tokens| !tokens.is_empty());
    start_tokens(serving, tag, seed, params, &prompt, max_tokens, recorded);

    let structured = params.structured_outputs.is_some() && waits_for_grammars(serving) && !resumable;
    let lora = request.lora_request.as_ref().map(|lora| lora.int_id as u32);
    let arrival = Arrival {
        external_id: request.external_req_id,
        max_tokens,
        lora: request.lora_request,
        priority: request.priority,
        core_priority: priority,
    };
    let (room, meeting, remote) = match kv {
        KvParams::RemoteDecode(room) => (room, None, None),
        KvParams::MeetPrefill(meeting) => (None, Some(meeting).filter(|_| kv_role == KvRole::Destination), None),
        KvParams::RemotePrefill(remote) => (None, None, Some(remote)),
        KvParams::Incomplete(_) | KvParams::Refused(_) | KvParams::Local => (None, None, None),
    };
    let extras = Extras {
        logprobs: params.logprobs.map(|k| num_logprobs(serving, k)),
        prompt_logprobs,
        is_greedy: params.temperature == 0.0,
        seed,
        embedding,
        is_prefill_only: kv_role == KvRole::Source,
        room,
        meeting,
        remote,
        contents,
        block_keys: (serving.egress.has_kv_events() && !block_keys.is_empty()).then_some(block_keys),
        recorded_end: script.map(|script| script.end.clone()),
        failure: None,
        engine_fault: None,
        turns: resumable.then(Box::default),
    };
    // A recorded answer ends where the capture says.
    let stops = stop_rules(params).filter(|_| !is_pooling && script.is_none());
    let prompt = if serving.egress.has_kv_events() || resumable {
        if marks.is_empty() {
            Prompt::of_tokens(prompt, blocks, salt)
        } else {
            Prompt::of_marked_tokens(prompt, blocks, salt, &marks)
        }
    } else {
        let mut hashed = Prompt::new(blocks, salt);
        hashed.push_marked_tokens(&prompt, &marks);
        hashed
    };
    let spec = RequestSpec {
        stops,
        priority,
        tenant,
        // Policies need all times on one clock.
        arrival_ns: if serving.stepper.has_policy() {
            serving.context.since_start_ns(now_ns)
        } else {
            (request.arrival_time.max(0.0) * 1e9) as u64
        },
        lora,
        kv_role,
        skip_reading_prefix_cache,
        resumable,
        structured,
        ..RequestSpec::new(tag, prompt.with_items(items), max_tokens)
    };
    let mut live = LiveRequest {
        id: request.request_id.into_boxed_str(),
        tag,
        // Set when the engine has taken the request.
        core: None,
        client: request.client_index,
        handle: None,
        prompt_tokens,
        output_tokens: 0,
        local_cached_tokens: script.map_or(0, |script| script.cached_tokens.min(prompt_tokens)),
        external_tokens: 0,
        eos_token: params.eos_token_id,
        is_first_output: true,
        events: Vec::new(),
        extras: extras.is_needed().then(|| Box::new(extras)),
    };
    if serving.context.config.stats.log_stats {
        live.event(EventType::Queued, now_ns as f64 / 1e9);
    }
    Admitted { spec, live, arrival }
}

/// Applies the fault rules to an accepted request and announces it to the failure injector. Returns the fault that
/// the engine must apply at once.
///
/// Must not be called for rejected requests: they would use up rules, and the injector would never see the end of a
/// slot that is used again.
pub(crate) fn announce_arrival(
    serving: &mut Serving,
    live: &mut LiveRequest,
    arrival: Arrival,
    now_ns: u64,
) -> Option<EngineFault> {
    let arrived = ArrivedRequest {
        id: &live.id,
        external_id: arrival.external_id.as_deref().unwrap_or_default(),
        prompt_tokens: live.prompt_tokens,
        lora: arrival.lora.as_ref().map(|lora| lora.name.as_str()),
        priority: arrival.priority,
    };
    let planned = serving.faults.plan(&arrived, serving.context.since_start_ns(now_ns));
    serving.injector.record(|| InjectorEvent::Arrived {
        slot: slot_of(live.tag) as u32,
        request_id: String::from(&*live.id),
        prompt_tokens: live.prompt_tokens,
        max_tokens: arrival.max_tokens,
        priority: arrival.core_priority,
        adapter: arrival.lora.map(|lora| lora.int_id as u32),
    });
    let (at_once, engine_fault) = match planned.engine {
        Some((0, due)) => (Some(due), None),
        later => (None, later),
    };
    if planned.failure.is_some() || engine_fault.is_some() {
        let extras = live.extras.get_or_insert_default();
        (extras.failure, extras.engine_fault) = (planned.failure, engine_fault);
    }
    at_once
}

/// Whether requests with structured outputs wait for their grammar. Paced requests do not: their times include that.
fn waits_for_grammars(serving: &Serving) -> bool {
    serving.context.grammar_compile_ns() > 0
        && serving
            .stepper
            .engine()
            .as_vllm()
            .is_some_and(|engine| engine.config().simulates_structured_outputs() && !engine.has_request_times())
}

fn num_logprobs(serving: &Serving, k: i64) -> u32 {
    u32::try_from(k).unwrap_or(serving.tokens.vocab_size())
}

/// A seed from everything that determines a model's answer.
fn request_seed(base_seed: u64, id: &str, params: &SamplingParams, prompt: &[u32], salt: u64) -> u64 {
    let seed = params.seed.map_or(0, |seed| seed.as_u64().or(seed.as_i64().map(i64::cast_unsigned)).unwrap_or(0));
    // The IDs of the completions of one call start with the index of the completion.
    let place = id.split_once('_').and_then(|(place, _)| place.parse::<u64>().ok()).unwrap_or(0);
    let place = if params.n > 1 || place > 0 { place } else { 0 };
    content_seed(base_seed, prompt, vcr_core::seed::mix(seed ^ place.rotate_left(32)) ^ salt)
}

fn start_tokens(
    serving: &mut Serving,
    tag: u64,
    seed: u64,
    params: &SamplingParams,
    prompt: &[u32],
    max_tokens: u32,
    recorded: Option<&[u32]>,
) {
    let structured_output = serving.tokens.structure_text(params.structured_outputs.as_ref());
    if !structured_output.is_empty() {
        tracing::debug!(
            rank = serving.context.rank,
            structured_output = &*structured_output,
            "the request wants structured output"
        );
    }
    serving.tokens.start(&SourceRequest {
        tag,
        seed,
        prompt,
        max_tokens,
        min_tokens: params.min_tokens,
        eos_token: params.eos_token_id,
        stop_tokens: params.stop_token_ids.as_deref().unwrap_or_default(),
        allowed_tokens: params.allowed_token_ids.as_deref().unwrap_or_default(),
        structured_output: &structured_output,
        // -1 means no limit.
        thinking_token_budget: params.thinking_token_budget.and_then(|budget| u32::try_from(budget).ok()),
        recorded,
    });
}

fn kv_role(serving: &mut Serving, id: &str, kv: &KvParams) -> KvRole {
    match kv {
        KvParams::Local => KvRole::Local,
        _ if serving.context.config.engine.keeps_states() => {
            tracing::warn!(
                rank = serving.context.rank,
                request = id,
                "states of Mamba and linear attention are not transferred; the prompt is computed here"
            );
            KvRole::Local
        }
        KvParams::RemoteDecode(_) => KvRole::Source,
        KvParams::MeetPrefill(_) | KvParams::RemotePrefill(_) => KvRole::Destination,
        KvParams::Incomplete(missing) => {
            tracing::warn!(
                rank = serving.context.rank,
                request = id,
                "kv_transfer_params lack a usable {}; the prompt is computed here",
                missing.join(", ")
            );
            KvRole::Local
        }
        KvParams::Refused(host) => {
            serving.counters.remote_kv_refused += 1;
            tracing::warn!(
                rank = serving.context.rank,
                request = id,
                "host `{host}` is not an allowed KV peer; the prompt is computed here (hint: allow it with \
                     --allow-remote-kv {host}, or all pods of a cluster with their CIDR, such as --allow-remote-kv \
                     10.0.0.0/8)"
            );
            KvRole::Local
        }
    }
}

impl Extras {
    fn is_needed(&self) -> bool {
        self.logprobs.is_some()
            || self.prompt_logprobs.is_some()
            || self.embedding.is_some()
            || self.is_prefill_only
            || self.remote.is_some()
            || self.meeting.is_some()
            || self.block_keys.is_some()
            || self.recorded_end.is_some()
            || self.turns.is_some()
    }
}

/// A request's priority, within the range of the core's.
pub(crate) fn priority_of(request: &EngineCoreRequest) -> i32 {
    i32::try_from(request.priority).unwrap_or(if request.priority < 0 { i32::MIN } else { i32::MAX })
}

/// Salt of the block hashes. It separates adapters and tenants, but not images: these affect only the blocks from their
/// position on; see [`BlockKeys::marks`].
pub(crate) fn salt_of(keys: &BlockKeys) -> u64 {
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
    salt
}

/// The salt combined with all media of a prompt, since they affect the answer.
fn media_salt(salt: u64, marks: &[(u32, u64)]) -> u64 {
    marks.iter().fold(salt, |salt, (_, content)| vcr_core::seed::mix(salt ^ vcr_core::seed::mix(content ^ 3)))
}

/// The tenant of a request: its `cache_salt`, or else the number of its adapter, or else 0. A salt that is not a
/// number is hashed.
pub(crate) fn tenant_of(keys: &BlockKeys) -> u64 {
    match (&keys.cache_salt, &keys.lora) {
        (Some(salt), _) => salt.parse().unwrap_or_else(|_| xxh3_64(salt.as_bytes())),
        (None, Some((_, _, number))) => *number,
        (None, None) => 0,
    }
}

pub(super) fn stop_rules(params: &SamplingParams) -> Option<Box<StopRules>> {
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
