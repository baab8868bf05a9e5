//! Messages with arbitrary contents.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use vcr_wire::*;

pub(crate) fn text() -> impl Strategy<Value = String> {
    "[a-z0-9é-]{0,40}"
}

pub(crate) fn number() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), -1e9..1e9f64]
}

pub(crate) fn integer() -> impl Strategy<Value = Integer> {
    prop_oneof![any::<u64>().prop_map(Integer::from), any::<i64>().prop_map(Integer::from)]
}

pub(crate) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::Bool),
        integer().prop_map(Value::Int),
        number().prop_map(Value::F64),
        (-1e9..1e9f32).prop_map(Value::F32),
        text().prop_map(Value::Str),
        vec(any::<u8>(), 0..300).prop_map(Value::Bin),
        (any::<i8>(), vec(any::<u8>(), 0..20)).prop_map(|(code, bytes)| Value::Ext(code, bytes)),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..20).prop_map(Value::Array),
            vec((text().prop_map(Value::Str), inner), 0..20).prop_map(Value::Map),
        ]
    })
}

/// Any value except nil, which would mean that the field is absent.
pub(crate) fn something() -> impl Strategy<Value = Value> {
    value().prop_filter("nil is absence", |value| *value != Value::Nil)
}

pub(crate) fn raw() -> impl Strategy<Value = Raw> {
    something().prop_map(|value| Raw::of(&value))
}

pub(crate) fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec(prop_oneof![0..128u32, 0..70_000u32, any::<u32>()], 0..40)
}

pub(crate) fn tensor() -> impl Strategy<Value = Tensor> {
    let data = prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(TensorData::Inline),
        (1..9u64).prop_map(TensorData::Aux),
        raw()
            .prop_filter("a handle is a map", |raw| matches!(raw.value(), Ok(Value::Map(_))))
            .prop_map(TensorData::Shared),
    ];
    (text(), vec(any::<u64>(), 0..4), data).prop_map(|(dtype, shape, data)| Tensor { dtype, shape, data })
}

pub(crate) fn logprobs() -> impl Strategy<Value = Logprobs> {
    (tensor(), tensor(), tensor(), of(something())).prop_map(|(token_ids, logprobs, ranks, cu)| Logprobs {
        token_ids,
        logprobs,
        ranks,
        cu_num_generated_tokens: cu,
    })
}

pub(crate) fn sampling_params() -> impl Strategy<Value = SamplingParams> {
    let numbers = (number(), number(), number(), number(), number(), number(), of(integer()), any::<i64>());
    let tokens =
        (of(tokens()), of(tokens()), of(tokens()), tokens(), of(vec(tokens(), 0..3)), of(0..9u32), of(0..9u32));
    let texts = (of(vec(text(), 0..3)), of(vec(text(), 0..3)), of(something()), of(something()), of(raw()), of(raw()));
    let flags = (any::<[bool; 5]>(), of(any::<bool>()), of(any::<bool>()), of(any::<i64>()), of(any::<u64>()), 1..9u32);
    let bias = of(vec((any::<u32>(), number()), 0..4));
    let kind = prop_oneof![Just(OutputKind::Cumulative), Just(OutputKind::Delta), Just(OutputKind::FinalOnly)];
    let detection = of((any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(max, min, count)| RepetitionDetection {
        max_pattern_size: max,
        min_pattern_size: min,
        min_count: count,
    }));
    (numbers, tokens, texts, flags, bias, kind, detection).prop_map(|(n, t, x, f, bias, kind, detection)| {
        SamplingParams {
            presence_penalty: n.0,
            frequency_penalty: n.1,
            repetition_penalty: n.2,
            temperature: n.3,
            top_p: n.4,
            min_p: n.5,
            seed: n.6,
            top_k: n.7,
            stop_token_ids: t.0,
            logprob_token_ids: t.1,
            allowed_token_ids: t.2,
            all_stop_token_ids: t.3,
            bad_words_token_ids: t.4,
            max_tokens: t.5,
            eos_token_id: t.6,
            stop: x.0.map(StopStrings),
            bad_words: x.1,
            structured_outputs: x.2.map(Arc::new),
            extra_args: x.3,
            trace_decode_token_ids: x.4,
            prompt_logprob_token_ids: x.5,
            ignore_eos: f.0[0],
            flat_logprobs: f.0[1],
            detokenize: f.0[2],
            skip_clone: f.0[3],
            watermarking_skipped: f.0[4],
            skip_reading_prefix_cache: f.1,
            watermarking: f.2,
            logprobs: f.3,
            prompt_logprob_start: f.4,
            n: f.5,
            logit_bias: bias.map(LogitBias),
            output_kind: kind,
            repetition_detection: detection,
            ..SamplingParams::default()
        }
    })
}

pub(crate) fn lora() -> impl Strategy<Value = LoraRequest> {
    (text(), any::<u64>(), of(text()), of(raw()), any::<[bool; 3]>()).prop_map(|(name, int_id, base, config, flags)| {
        let layout = if flags[0] { LoraLayout::Seven } else { LoraLayout::Six };
        LoraRequest {
            path: format!("/{name}"),
            name,
            int_id,
            base_model_name: base,
            tensorizer_config: config.filter(|_| layout == LoraLayout::Seven),
            load_inplace: flags[1],
            is_3d: flags[2],
            layout,
        }
    })
}

pub(crate) fn feature() -> impl Strategy<Value = MmFeature> {
    (of(raw()), text(), text(), of(text()), of(tensor()), any::<(u64, u64)>()).prop_map(
        |(data, modality, identifier, mm_hash, is_embed, (offset, length))| {
            let mm_position = PlaceholderRange { offset, length, is_embed };
            MmFeature { data, modality, identifier, mm_position, mm_hash }
        },
    )
}

pub(crate) fn pooling() -> impl Strategy<Value = PoolingParams> {
    (of(any::<bool>()), of(0..9u32), of(text()), of(something())).prop_map(|(activation, dimensions, task, extra)| {
        PoolingParams {
            use_activation: activation,
            dimensions,
            task,
            extra_kwargs: extra,
            requires_token_ids: true,
            ..PoolingParams::default()
        }
    })
}

pub(crate) fn add() -> impl Strategy<Value = EngineCoreRequest> {
    let body = (text(), of(tokens()), of(vec(feature(), 0..2)), of(sampling_params()), of(pooling()), number());
    let place = (of(lora()), of(text()), of(any::<u32>()), of(tensor()), of(vec(any::<bool>(), 0..9)));
    let flow = (any::<[u32; 2]>(), any::<i64>(), of(raw()), any::<[bool; 2]>(), of(text()), of(any::<bool>()));
    let tail = (of(raw()), of(text()), of(something()));
    (body, place, flow, tail).prop_map(|(body, place, flow, tail)| EngineCoreRequest {
        request_id: body.0,
        prompt_token_ids: body.1,
        mm_features: body.2,
        sampling_params: body.3,
        pooling_params: body.4,
        arrival_time: body.5,
        lora_request: place.0,
        cache_salt: place.1,
        data_parallel_rank: place.2,
        prompt_embeds: place.3,
        prompt_is_token_ids: place.4,
        client_index: flow.0[0],
        current_wave: flow.0[1],
        priority: flow.1,
        trace_headers: flow.2,
        resumable: flow.3[0],
        abort_immediately: flow.3[1],
        external_req_id: flow.4,
        reasoning_ended: flow.5,
        reasoning_parser_kwargs: tail.0,
        session_id: tail.1,
        kv_hints: tail.2,
    })
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        add().prop_map(|add| Request::Add(Box::new(add))),
        vec(text(), 0..20).prop_map(Request::Abort),
        (any::<u32>(), of(any::<u32>()))
            .prop_map(|(wave, exclude_engine_index)| Request::StartDpWave(StartDpWave { wave, exclude_engine_index })),
        (any::<u32>(), integer(), text(), vec(value(), 0..4)).prop_map(|(client_index, call_id, method, args)| {
            Request::Utility(UtilityCall { client_index, call_id, method, args })
        }),
    ]
}

pub(crate) fn scheduler_stats() -> impl Strategy<Value = SchedulerStats> {
    let cache = any::<[u64; 3]>().prop_map(|[requests, queries, hits]| PrefixCacheStats {
        requests,
        queries,
        hits,
        hits_by_source: Some(HitsBySource { p2p: hits, ..HitsBySource::default() }),
        ..PrefixCacheStats::default()
    });
    let step = of((any::<[u64; 4]>(), number()).prop_map(|(n, elapsed_ms)| IterationDetails {
        iteration_index: n[0],
        num_ctx_tokens: n[1],
        num_generation_requests: n[2],
        elapsed_ms,
        is_dummy: n[3] % 2 == 0,
        ..IterationDetails::default()
    }));
    let drafts = of(vec(any::<u64>(), 0..5).prop_map(|accepted| SpecDecodingStats {
        num_spec_tokens: accepted.len() as u64,
        num_accepted_tokens_per_pos: accepted,
        ..SpecDecodingStats::default()
    }));
    let gone = vec(vec(number(), 0..3), 0..3).prop_map(|gaps| {
        let event = |reuse_gaps_seconds| KvCacheEvictionEvent { reuse_gaps_seconds, ..KvCacheEvictionEvent::default() };
        gaps.into_iter().map(event).collect()
    });
    (any::<[u64; 5]>(), 0.0..1.0f64, cache, step, drafts, gone, of(raw()), any::<bool>()).prop_map(
        |(n, kv_cache_usage, prefix_cache_stats, iteration_details, drafts, evicted, connector, has_stages)| {
            SchedulerStats {
                num_running_reqs: n[0],
                num_waiting_reqs: n[1],
                num_skipped_waiting_reqs: n[2],
                step_counter: n[3],
                current_wave: n[4],
                kv_cache_usage,
                prefix_cache_stats,
                iteration_details,
                spec_decoding_stats: drafts,
                kv_cache_eviction_events: evicted,
                kv_connector_stats: connector,
                num_kv_fetch_reqs_by_stage: has_stages.then(KvFetchStages::default),
                ..SchedulerStats::default()
            }
        },
    )
}

pub(crate) fn finish() -> impl Strategy<Value = FinishReason> {
    use FinishReason::{Abort, Error, Length, Repetition, Stop};
    prop::sample::select(vec![Stop, Length, Abort, Error, Repetition])
}

pub(crate) fn stop_reason() -> impl Strategy<Value = StopReason> {
    prop_oneof![any::<u32>().prop_map(StopReason::Token), text().prop_map(StopReason::Text)]
}

pub(crate) fn event() -> impl Strategy<Value = EngineCoreEvent> {
    let kind = prop::sample::select(vec![EventType::Queued, EventType::Scheduled, EventType::Preempted]);
    (kind, number()).prop_map(|(kind, timestamp)| EngineCoreEvent { kind, timestamp })
}

pub(crate) fn output() -> impl Strategy<Value = EngineCoreOutput> {
    let head = (text(), tokens(), of(logprobs()), of(logprobs()), of(tensor()), of(finish()), of(stop_reason()));
    let middle = (of(vec(event(), 0..3)), of(something()), of(something()), of(raw()), any::<bool>(), of(tensor()));
    let tail = (any::<u64>(), of(vec(text(), 0..3)), of(raw()), any::<bool>(), of(tensor()), of(text()));
    (head, middle, tail).prop_map(|(head, middle, tail)| EngineCoreOutput {
        request_id: head.0,
        new_token_ids: head.1,
        new_logprobs: head.2,
        new_prompt_logprobs_tensors: head.3,
        pooling_output: head.4,
        finish_reason: head.5,
        stop_reason: head.6,
        events: middle.0,
        kv_transfer_params: middle.1,
        ec_transfer_params: middle.2,
        trace_headers: middle.3,
        prefill_stats: middle.4.then(PrefillStats::default),
        routed_experts: middle.5,
        num_nans_in_logits: tail.0,
        mm_cache_miss_hashes: tail.1,
        new_sampling_mask: tail.2,
        spec_decode_metrics: tail.3.then(RequestSpecDecodeMetrics::default),
        prompt_token_id_logprobs: tail.4,
        error: tail.5.map(|code| RequestError { code, ..RequestError::default() }),
    })
}

pub(crate) fn outputs() -> impl Strategy<Value = EngineCoreOutputs> {
    let result = prop_oneof![
        (integer(), value()).prop_map(|(id, value)| UtilityOutput::returned(id, value)),
        (integer(), text()).prop_map(|(id, text)| UtilityOutput::failed(id, "sleep", &text)),
    ];
    let waves = (of(any::<u32>()), of(any::<u32>()));
    (
        0..9u32,
        vec(output(), 0..3),
        of(scheduler_stats()),
        number(),
        of(result),
        of(vec(text(), 0..3)),
        waves,
        of(text()),
    )
        .prop_map(
            |(engine_index, outputs, scheduler_stats, timestamp, utility_output, finished, waves, version)| {
                EngineCoreOutputs {
                    engine_index,
                    outputs,
                    scheduler_stats,
                    timestamp,
                    utility_output,
                    finished_requests: finished,
                    wave_complete: waves.0,
                    start_wave: waves.1,
                    weight_version: version,
                }
            },
        )
}

pub(crate) fn kv_event() -> impl Strategy<Value = KvEvent> {
    let hash = || prop_oneof![any::<u64>().prop_map(BlockHash::Int), vec(any::<u8>(), 32).prop_map(BlockHash::Digest)];
    let keys = of(vec(of(vec(value(), 0..3)), 0..3));
    let stored = (vec(hash(), 0..4), of(hash()), tokens(), any::<u64>(), of(text()), keys, of(vec(tokens(), 0..3)))
        .prop_map(|(block_hashes, parent, token_ids, block_size, text, extra_keys, ahead)| {
            KvEvent::BlockStored(Box::new(BlockStored {
                block_hashes,
                parent_block_hash: parent,
                token_ids,
                block_size,
                medium: text.clone(),
                lora_name: text.clone(),
                session_id: text,
                extra_keys,
                group_idx: Some(block_size),
                lookahead_token_ids: ahead,
                ..BlockStored::default()
            }))
        });
    let removed = (vec(hash(), 0..4), of(text())).prop_map(|(block_hashes, medium)| {
        KvEvent::BlockRemoved(Box::new(BlockRemoved { block_hashes, medium, ..BlockRemoved::default() }))
    });
    prop_oneof![stored, removed, Just(KvEvent::AllBlocksCleared)]
}

pub(crate) fn init() -> impl Strategy<Value = Init> {
    (vec(text(), 0..3), vec(text(), 0..3), of(text()), value()).prop_map(|(inputs, outputs, other, parallel_config)| {
        let addresses = Addresses {
            inputs,
            outputs,
            coordinator_input: other.clone(),
            coordinator_output: other.clone(),
            frontend_stats_publish_address: other,
        };
        Init { addresses, parallel_config }
    })
}

pub(crate) fn ready() -> impl Strategy<Value = ReadyResponse> {
    let dtype = prop::sample::select(vec![Dtype::Float16, Dtype::Bfloat16, Dtype::Float32]);
    (any::<[u64; 4]>(), dtype, text(), of(text()), of(number())).prop_map(|(n, dtype, text, other, concurrency)| {
        ReadyResponse {
            max_model_len: n[0],
            num_gpu_blocks: n[1],
            block_size: n[2],
            coord_store_port: n[3],
            dtype,
            vllm_version: text.clone(),
            instance_id: text,
            dp_stats_address: other.clone(),
            kv_cache_max_concurrency: concurrency,
            kv_events_config: other.map(|topic| KvEventsConfig { topic, ..KvEventsConfig::default() }),
            ..ReadyResponse::default()
        }
    })
}
