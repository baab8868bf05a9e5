use proptest::prelude::*;
use serde_json::json;
use vcr_wire::{
    EngineCoreEvent, LoraRequest, MmFeature, PlaceholderRange, PoolingParams, PrefillStats, RequestError,
    SamplingParams, Tensor, TensorData,
};

use super::*;

const DETAIL: Detail = Detail { hasher: PromptHasher::new(4), prompts: false, tokens: false };

fn arrived(request: EngineCoreRequest, detail: &Detail) -> OpenRequest {
    OpenRequest::new(request, 3, 2, 1000, 100, detail).placed(0, 5)
}

fn prompt(tokens: &[u32]) -> EngineCoreRequest {
    EngineCoreRequest {
        request_id: "a-1".to_owned(),
        external_req_id: Some("a".to_owned()),
        prompt_token_ids: Some(tokens.to_vec()),
        ..EngineCoreRequest::default()
    }
}

fn tokens(tokens: &[u32]) -> EngineCoreOutput {
    EngineCoreOutput { new_token_ids: tokens.to_vec(), ..EngineCoreOutput::default() }
}

fn stamp(at_ns: u64, engine_ns: u64) -> Stamp {
    Stamp { at_ns, engine_ns: Some(engine_ns) }
}

fn event(kind: EventType, timestamp: f64) -> EngineCoreEvent {
    EngineCoreEvent { kind, timestamp }
}

/// An image of `length` placeholders at `offset`.
fn feature(offset: u64, length: u64) -> MmFeature {
    MmFeature {
        modality: "image".to_owned(),
        identifier: "img".to_owned(),
        // The hash of the processed inputs, which is the same for all adapters.
        mm_hash: Some("processed".to_owned()),
        mm_position: PlaceholderRange { offset, length, is_embed: None },
        ..MmFeature::default()
    }
}

#[test]
fn masks_of_items_become_runs() {
    let mask = |bytes: &[u8]| {
        let data = TensorData::Inline(bytes.to_vec());
        Some(Tensor { dtype: "bool".to_owned(), shape: vec![bytes.len() as u64], data })
    };
    let mut masked = feature(1, 4);
    masked.mm_position.is_embed = mask(&[0, 1, 1, 0]);
    let items = |features: &[MmFeature], prompt_tokens: usize| {
        let request = EngineCoreRequest { mm_features: Some(features.to_vec()), ..prompt(&vec![7; prompt_tokens]) };
        let record = arrived(request, &DETAIL).unfinished(None);
        (record.mm_items, record.mm_hashes)
    };
    let (kept, hashes) = items(&[masked.clone(), feature(5, 1)], 6);
    assert_eq!((kept[0].embeds.as_deref(), kept[1].embeds.as_deref()), (Some(&[[1, 3]][..]), None));
    assert!(hashes.is_empty());
    // Items that are out of order or range are not recorded.
    let beyond = feature(u64::from(u32::MAX), u64::MAX);
    for features in [vec![masked.clone(), feature(4, 1)], vec![feature(5, 2)], vec![feature(5, 0)], vec![beyond]] {
        let (kept, hashes) = items(&features, 6);
        assert!(kept.is_empty(), "{features:?}");
        assert_eq!(hashes.len(), features.len());
    }
}

#[test]
fn what_arrives_is_kept_without_its_tokens() {
    let request = EngineCoreRequest {
        priority: -2,
        session_id: Some("s".to_owned()),
        lora_request: Some(LoraRequest { name: "ad".to_owned(), ..LoraRequest::default() }),
        mm_features: Some(vec![feature(3, 2)]),
        sampling_params: Some(SamplingParams {
            max_tokens: Some(9),
            extra_args: Some(Value::Map(vec![(
                "kv_transfer_params".into(),
                Value::Map(vec![("do_remote_decode".into(), true.into())]),
            )])),
            ..SamplingParams::default()
        }),
        ..prompt(&[1, 2, 3, 4, 5])
    };
    let record = arrived(request.clone(), &DETAIL).unfinished(None);
    let keys = ExtraKeys { lora: Some("ad"), cache_salt: None, media: &[MediaKey { identifier: "img", offset: 3 }] };
    let chain = DETAIL.hasher.chain(&[1, 2, 3, 4, 5], &keys);
    let expected = RequestRecord {
        id: Some("a-1".to_owned()),
        external_id: Some("a".to_owned()),
        client: 2,
        rank: 3,
        arrival_ns: Some(100),
        concurrency: Some(5),
        prompt_tokens: 5,
        block_hashes: chain.blocks,
        prompt_hash: Some(chain.whole),
        params: record.params.clone(),
        priority: -2,
        lora: Some("ad".to_owned()),
        session: Some("s".to_owned()),
        mm_items: vec![MediaItem {
            hash: "img".to_owned(),
            offset: 3,
            tokens: 2,
            modality: Some("image".to_owned()),
            embeds: None,
        }],
        kv_role: Some("prefill".to_owned()),
        ..RequestRecord::default()
    };
    assert_eq!(record, expected);
    assert_eq!(record.params["max_tokens"], 9);

    let mut open = arrived(request, &Detail { prompts: true, tokens: true, ..DETAIL });
    open.output(&tokens(&[7, 8]), stamp(2000, 5), None);
    let record = open.unfinished(None);
    assert_eq!(record.prompt_token_ids, Some(vec![1, 2, 3, 4, 5]));
    assert_eq!(record.output_token_ids, Some(vec![7, 8]));
}

#[test]
fn gaps_are_by_the_engines_clock_and_the_first_token_by_ours() {
    let mut open = arrived(prompt(&[1]), &DETAIL);
    for (at_ns, engine_ns, count) in [(1500, 70, 1), (1900, 100, 3), (1901, 150, 1)] {
        let load = Load { running: count, waiting: 1, prefill_tokens: Some(8) };
        open.output(&tokens(&vec![0; count as usize]), stamp(at_ns, engine_ns), Some(&load));
    }
    let record = open.ended(2500, FinishReason::Length);
    assert_eq!((record.ttft_ns, record.gap_ns), (Some(500), vec![30, 50]));
    assert_eq!((record.first_tokens, record.gap_tokens), (None, Some(vec![3, 1])));
    assert_eq!((record.output_tokens, record.end_ns), (5, Some(1500)));
    assert_eq!(record.finish_reason.as_deref(), Some("length"));
    let steps = record.steps.expect("the engine reported its load with each");
    assert_eq!((steps.running, steps.waiting, steps.prefill_tokens), (vec![1, 3, 1], vec![1; 3], vec![8; 3]));
}

#[test]
fn without_the_engines_clock_ours_counts() {
    let mut open = arrived(prompt(&[1]), &DETAIL);
    open.output(&tokens(&[1]), stamp(1500, 70), None);
    open.output(&tokens(&[1]), Stamp { at_ns: 1900, engine_ns: None }, Some(&Load::default()));
    let record = open.unfinished(Some("why"));
    assert_eq!(record.gap_ns, [400]);
    assert_eq!((record.steps, record.gap_tokens), (None, None));
    assert_eq!((record.finish_reason, record.end_ns, record.error.as_deref()), (None, None, Some("why")));
}

#[test]
fn events_tell_the_queue_and_preemptions() {
    use EventType::{Preempted, Queued, Scheduled};
    let events = |events: &[(EventType, f64)]| EngineCoreOutput {
        events: Some(events.iter().map(|(kind, at)| event(*kind, *at)).collect()),
        ..tokens(&[1])
    };
    let mut open = arrived(prompt(&[1]), &DETAIL);
    open.output(&events(&[(Queued, 1.0), (Scheduled, 1.25), (Preempted, 1.5), (Scheduled, 2.0)]), stamp(1, 1), None);
    open.output(&events(&[(Preempted, 3.0)]), stamp(2, 2), None);
    let record = open.unfinished(None);
    assert_eq!((record.queue_ns, record.preemptions), (Some(250_000_000), 2));
}

#[test]
fn cached_tokens_are_distinguished_by_where_they_came_from() {
    let stats = PrefillStats { num_cached_tokens: 48, num_external_cached_tokens: 16, ..PrefillStats::default() };
    let mut open = arrived(prompt(&[1]), &DETAIL);
    open.output(&EngineCoreOutput { prefill_stats: Some(stats), ..tokens(&[1]) }, stamp(1, 1), None);
    let record = open.unfinished(None);
    assert_eq!((record.cached_tokens, record.external_cached_tokens), (32, 16));
}

#[test]
fn errors_and_stops_are_kept() {
    let error = RequestError { code: "validation_error".to_owned(), message: "no".to_owned(), retryable: false };
    let mut open = arrived(prompt(&[1]), &DETAIL);
    open.output(&EngineCoreOutput { error: Some(error), ..EngineCoreOutput::default() }, stamp(1, 1), None);
    let record = open.ended(2000, FinishReason::Error);
    assert_eq!(record.error.as_deref(), Some("validation_error: no"));
    assert_eq!((record.ttft_ns, record.output_tokens, record.end_ns), (None, 0, Some(1000)));

    let mut open = arrived(prompt(&[1]), &DETAIL);
    open.output(&EngineCoreOutput { stop_reason: Some(StopReason::Token(7)), ..tokens(&[7]) }, stamp(1, 1), None);
    assert_eq!(open.ended(1, FinishReason::Stop).stop_reason, Some(json!(7)));
}

#[test]
fn pooling_requests_have_their_parameters() {
    let params = PoolingParams { task: Some("embed".to_owned()), ..PoolingParams::default() };
    let record = arrived(EngineCoreRequest { pooling_params: Some(params), ..prompt(&[1]) }, &DETAIL).unfinished(None);
    assert_eq!(record.params["task"], "embed");
}

proptest! {
    #[test]
    fn a_record_is_consistent(outputs in prop::collection::vec((0_usize..4, any::<u32>(), any::<bool>()), 0..30)) {
        let mut open = arrived(prompt(&[1, 2]), &Detail { tokens: true, ..DETAIL });
        for (count, at_ns, has_load) in &outputs {
            let load = Load::default();
            open.output(&tokens(&vec![1; *count]), stamp(u64::from(*at_ns), 1 + u64::from(*at_ns)), has_load.then_some(&load));
        }
        let record = open.unfinished(None);
        let with_tokens: Vec<_> = outputs.iter().filter(|(count, ..)| *count > 0).collect();
        let total: usize = with_tokens.iter().map(|(count, ..)| count).sum();
        prop_assert_eq!(record.output_tokens as usize, total);
        prop_assert_eq!(record.output_token_ids.map(|ids| ids.len()), Some(total));
        prop_assert_eq!(record.gap_ns.len(), with_tokens.len().saturating_sub(1));
        prop_assert_eq!(record.ttft_ns.is_some(), total > 0);
        let later = record.gap_tokens.map_or(record.gap_ns.len(), |counts| counts.iter().map(|count| *count as usize).sum());
        let first = if total > 0 { record.first_tokens.unwrap_or(1) as usize } else { 0 };
        prop_assert_eq!(first + later, total);
        if let Some(steps) = record.steps {
            prop_assert_eq!(steps.running.len(), with_tokens.len());
        }
    }
}
