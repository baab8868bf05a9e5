//! The JSON Schema, the writer and the reader must describe the same format.

use jsonschema::Validator;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use vcr_trace::MediaItem;
use vcr_trace::capture::{
    Arrival, BlockHash, Break, CAPTURE_FORMAT, CAPTURE_SCHEMA, CAPTURE_VERSION, CaptureEnd, CaptureLine, CaptureMeta,
    CaptureReader, CaptureWriter, EngineRecord, GapSummary, HashScheme, Holds, HttpBytes, HttpEnd, HttpRecord,
    KvRecord, ReadOptions, RequestRecord, StepContext, StepRecord,
};

const BLOCK_TOKENS: u32 = 4;

fn validator() -> Validator {
    let schema: Value = serde_json::from_str(CAPTURE_SCHEMA).expect("the schema is JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    jsonschema::validator_for(&schema).expect("the schema is one")
}

/// Times whose sums do not overflow.
fn arb_ns() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..1u64 << 56]
}

fn arb_text() -> impl Strategy<Value = Option<String>> {
    option::of("\\PC{0,8}")
}

fn arb_map() -> impl Strategy<Value = Map<String, Value>> {
    let value = prop_oneof![any::<i64>().prop_map(Value::from), Just(json!([null, {"a": 0.5}])), Just(json!("x"))];
    proptest::collection::btree_map("x[a-z]{1,4}", value, 0..3).prop_map(|map| map.into_iter().collect())
}

fn arb_hash() -> impl Strategy<Value = BlockHash> {
    any::<u64>().prop_map(BlockHash)
}

/// Records with consistent outputs: the first output, the gaps with their tokens or their mean, and the total.
fn arb_outputs() -> impl Strategy<Value = RequestRecord> {
    let gaps = vec((arb_ns(), 1..6u32), 1..6);
    let one_by_one = (option::of(1..5u32), gaps, any::<bool>()).prop_map(|(first_tokens, gaps, in_chunks)| {
        let gap_tokens = in_chunks.then(|| gaps.iter().map(|gap| gap.1).collect::<Vec<_>>());
        let later = gap_tokens.as_ref().map_or(gaps.len() as u32, |tokens| tokens.iter().sum());
        RequestRecord {
            output_tokens: first_tokens.unwrap_or(1) + later,
            first_tokens,
            gap_ns: gaps.iter().map(|gap| gap.0).collect(),
            gap_tokens,
            ..RequestRecord::default()
        }
    });
    let as_mean = (0..1u64 << 40, 1..50u32).prop_map(|(mean_ns, count)| RequestRecord {
        output_tokens: count + 1,
        gap_summary: Some(GapSummary { mean_ns, count }),
        ..RequestRecord::default()
    });
    let without = (0..4u32).prop_map(|output_tokens| RequestRecord { output_tokens, ..RequestRecord::default() });
    prop_oneof![one_by_one, as_mean, without]
}

/// Of an item: hash, placeholders between the previous item and this one, length, modality, start of the
/// embeddings.
type Drawn = (String, u32, u32, Option<String>, Option<u32>);

/// Gives items their positions. Items for which the prompt has no room are left out.
fn placed(items: Vec<Drawn>, prompt_tokens: u32) -> Vec<MediaItem> {
    let mut end = 0;
    let item = |(hash, gap, tokens, modality, start): Drawn| {
        let offset = end + gap;
        end = offset + tokens;
        let embeds = start.map(|start| if start < tokens { vec![[start, tokens]] } else { Vec::new() });
        MediaItem { hash, offset, tokens, modality, embeds }
    };
    items.into_iter().map(item).take_while(|item| item.end() <= u64::from(prompt_tokens)).collect()
}

prop_compose! {
    fn arb_request()(
        outputs in arb_outputs(),
        prompt_tokens in 1..30u32,
        names in (arb_text(), arb_text(), arb_text(), arb_text(), arb_text(), arb_text()),
        ranks in (0..3u32, 0..3u32, option::of(1..9u32), 0..3u32, any::<i64>()),
        times in (
            option::of(arb_ns()), option::of(arb_ns()), option::of(arb_ns()), option::of(arb_ns()), option::of(arb_ns()),
        ),
        hashes in option::of(arb_hash()),
        ids in any::<(bool, bool, bool, u32)>(),
        cached in (0..30u32, 0..30u32),
        reason in option::of(proptest::sample::select(vec!["stop", "length", "abort", "error", "repetition"])),
        stop_reason in option::of(prop_oneof![Just(json!(7)), Just(json!("end"))]),
        maps in (arb_map(), arb_map()),
        mm_hashes in vec("[a-f]{1,3}", 0..3),
        mm_items in vec(("[a-f]{1,3}", 0..3u32, 1..9u32, arb_text(), option::of(0..3u32)), 0..3),
    ) -> RequestRecord {
        let (has_ids, has_prompt, has_steps, number) = ids;
        let list = |length: u32| (0..length).map(|place| number.wrapping_add(place)).collect::<Vec<u32>>();
        let outputs_with_tokens = if outputs.output_tokens == 0 { 0 } else { outputs.gap_ns.len() as u32 + 1 };
        let chain = |first: BlockHash| (0..u64::from(prompt_tokens / BLOCK_TOKENS)).map(|n| BlockHash(first.0 ^ n)).collect();
        RequestRecord {
            id: names.0,
            external_id: names.1,
            client: ranks.0,
            rank: ranks.1,
            arrival_ns: times.0,
            think_ns: times.4,
            concurrency: ranks.2,
            prompt_tokens,
            cached_tokens: cached.0.min(prompt_tokens),
            external_cached_tokens: cached.1.min(prompt_tokens),
            block_hashes: hashes.map(chain).unwrap_or_default(),
            prompt_hash: hashes,
            prompt_token_ids: has_prompt.then(|| list(prompt_tokens)),
            output_token_ids: has_ids.then(|| list(outputs.output_tokens)),
            ttft_ns: times.1,
            steps: has_steps.then(|| StepContext { running: list(outputs_with_tokens), ..StepContext::default() }),
            finish_reason: reason.map(str::to_owned),
            stop_reason,
            end_ns: times.2,
            queue_ns: times.3,
            preemptions: ranks.3,
            params: maps.0,
            priority: ranks.4,
            lora: names.2,
            session: names.3,
            mm_hashes: if mm_items.is_empty() { mm_hashes } else { Vec::new() },
            mm_items: placed(mm_items, prompt_tokens),
            kv_role: names.4,
            error: names.5,
            other: maps.1,
            ..outputs
        }
    }
}

fn arb_bytes() -> impl Strategy<Value = HttpBytes> {
    prop_oneof!["\\PC{0,8}".prop_map(String::into_bytes), vec(any::<u8>(), 0..6)].prop_map(HttpBytes)
}

prop_compose! {
    fn arb_http()(
        (id, method, path) in ("\\PC{0,8}", "[A-Z]{1,5}", "/[a-z]{0,5}"),
        (query, decoded, error) in (arb_text(), arb_text(), arb_text()),
        (request_headers, headers) in (vec(("[a-z]{1,4}", "\\PC{0,5}"), 0..3), vec(("[a-z]{1,4}", "\\PC{0,5}"), 0..3)),
        (request_body, parts) in (arb_bytes(), vec((0..1u64 << 40, arb_bytes()), 0..4)),
        (arrival_ns, end_ns, head_ns) in (arb_ns(), arb_ns(), option::of(arb_ns())),
        (request_left_out_bytes, left_out_bytes) in any::<(u64, u64)>(),
        status in option::of(100..1000u16),
        end in proptest::sample::select(vec![HttpEnd::Whole, HttpEnd::ClientGone, HttpEnd::ServerLost]),
        tool_calls in vec("\\PC{0,5}", 0..3),
        other in arb_map(),
    ) -> HttpRecord {
        let mut after_ns = 0;
        let chunks = parts.into_iter().map(|(gap_ns, bytes)| { after_ns += gap_ns; (after_ns, bytes) }).collect();
        HttpRecord {
            id, arrival_ns, method, path, query, request_headers, request_body, request_left_out_bytes, status, headers,
            head_ns, chunks, left_out_bytes, decoded, end_ns, end, tool_calls, error, other,
        }
    }
}

fn arb_line() -> impl Strategy<Value = CaptureLine> {
    let rank = || 0..4u32;
    prop_oneof![
        8 => arb_request().prop_map(|record| CaptureLine::Request(Box::new(record))),
        1 => (rank(), arb_ns(), arb_text(), arb_map(), arb_text()).prop_map(|(rank, at_ns, vllm_version, settings, fingerprint)| {
            CaptureLine::Engine(Box::new(EngineRecord { rank, at_ns, vllm_version, settings, fingerprint }))
        }),
        1 => ("\\PC{0,8}", any::<u64>(), any::<u32>())
            .prop_map(|(id, arrival_ns, prompt_tokens)| CaptureLine::Arrival(Arrival { id, arrival_ns, prompt_tokens })),
        1 => (rank(), any::<u64>(), option::of(any::<u64>()), any::<(u32, u32, u32)>(), option::of(Just(json!({"a": 1}))))
            .prop_map(|(rank, step, engine_ns, (outputs, tokens, finished), scheduler)| {
                let record = StepRecord { rank, step, at_ns: step, engine_ns, outputs, tokens, finished, scheduler };
                CaptureLine::Step(Box::new(record))
            }),
        2 => arb_http().prop_map(|record| CaptureLine::Http(Box::new(record))),
        1 => (rank(), any::<u64>(), arb_map()).prop_map(|(rank, sequence, events)| {
            CaptureLine::Kv(KvRecord { rank, at_ns: sequence, sequence, events: json!([events]) })
        }),
        1 => (option::of(rank()), any::<u64>(), "\\PC{0,8}")
            .prop_map(|(rank, at_ns, reason)| CaptureLine::Break(Break { at_ns, reason, rank })),
    ]
}

prop_compose! {
    fn arb_meta()(
        names in (arb_text(), arb_text(), arb_text(), arb_text(), arb_text()),
        started_unix_ns in option::of(any::<u64>()),
        is_fnv in any::<bool>(),
        holds in any::<(bool, bool, bool, bool, bool, bool)>(),
        redacted in (vec("[a-z]{1,4}", 0..3), vec("[a-z]{1,4}", 0..3), vec("[a-z]{1,4}", 0..3)),
        other in arb_map(),
    ) -> CaptureMeta {
        let (output_tokens, prompt_tokens, steps, kv_events, mm_items, http) = holds;
        CaptureMeta {
            format: CAPTURE_FORMAT.to_owned(),
            version: CAPTURE_VERSION,
            part: 0,
            source: names.0,
            started_unix_ns,
            model: names.1,
            gpu: names.2,
            vllm_version: names.3,
            block_size_tokens: Some(BLOCK_TOKENS),
            hash: if is_fnv { HashScheme::Fnv1a } else { HashScheme::Xxh3 },
            holds: Holds { output_tokens, prompt_tokens, steps, kv_events, mm_items, http },
            redacted_json: redacted.0,
            redacted_headers: redacted.1,
            redacted_query: redacted.2,
            fingerprint: names.4,
            other,
        }
    }
}

proptest! {
    // There is no library root next to which failing cases could be stored.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Written lines fit the schema, and are the same when they are read.
    #[test]
    fn written_lines_fit_the_schema_and_read_back(meta in arb_meta(), lines in vec(arb_line(), 0..8)) {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("c.jsonl");
        let mut writer = CaptureWriter::create(&path, meta.clone()).expect("the file is new");
        let mut lines = lines;
        let requests = lines.iter().filter(|line| matches!(line, CaptureLine::Request(_))).count() as u64;
        lines.push(CaptureLine::End(CaptureEnd { requests, ..CaptureEnd::default() }));
        for line in &lines {
            writer.write(line).expect("it is written");
        }
        writer.finish().expect("it is written");

        let validator = validator();
        let text = std::fs::read_to_string(&path).expect("there");
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).expect("JSON");
            prop_assert!(validator.is_valid(&value), "{line}: {:?}", validator.validate(&value).err());
        }
        let mut reader = CaptureReader::open(&path, &ReadOptions::default()).expect("a capture");
        prop_assert_eq!(reader.meta(), &meta);
        for line in lines {
            let read = reader.next_line().expect("whole").map(|(_, line)| line);
            prop_assert_eq!(read, Some(line));
        }
        prop_assert_eq!(reader.next_line().expect("whole"), None);
        prop_assert_eq!(reader.summary().broken_off, None);
    }
}

fn shortest_lines() -> Vec<Value> {
    vec![
        json!({"kind": "meta", "format": "vcr.capture", "version": 1}),
        json!({"kind": "engine", "rank": 0, "at_ns": 0, "settings": {}}),
        json!({"kind": "arrival", "id": "a", "arrival_ns": 0, "prompt_tokens": 1}),
        json!({"kind": "request", "prompt_tokens": 1, "output_tokens": 0}),
        json!({"kind": "step", "rank": 0, "step": 0, "at_ns": 0, "outputs": 0, "tokens": 0}),
        json!({"kind": "kv", "rank": 0, "at_ns": 0, "sequence": 0, "events": []}),
        json!({"kind": "break", "at_ns": 0, "reason": ""}),
        json!({"kind": "end", "at_ns": 0, "requests": 0, "unfinished": 0}),
    ]
}

fn is_read(line: &Value) -> bool {
    let is_meta = line["kind"] == "meta";
    let meta = shortest_lines()[0].to_string();
    let text = if is_meta { format!("{line}\n") } else { format!("{meta}\n{line}\n") };
    let reader = CaptureReader::from_reader(text.as_bytes(), "t", &ReadOptions::default());
    reader.is_ok_and(|mut reader| is_meta || reader.next_line().is_ok_and(|line| line.is_some()))
}

#[test]
fn schema_and_reader_ask_for_the_same_fields() {
    let validator = validator();
    for line in shortest_lines() {
        assert!(validator.is_valid(&line) && is_read(&line), "{line}");
        let fields = line.as_object().expect("an object");
        for field in fields.keys() {
            let mut without = fields.clone();
            without.remove(field);
            let without = Value::Object(without);
            assert!(!validator.is_valid(&without), "{field} is needed: {without}");
            assert!(!is_read(&without), "{field} is needed: {without}");
        }
    }
}

#[test]
fn schema_and_reader_refuse_the_same_types() {
    let validator = validator();
    let request = |field: &str, value: Value| {
        let mut line = json!({"kind": "request", "prompt_tokens": 1, "output_tokens": 1});
        line[field] = value;
        line
    };
    for (field, value) in [
        ("id", json!(7)),
        ("arrival_ns", json!(-1)),
        ("arrival_ns", json!(1.5)),
        ("prompt_tokens", json!(0)),
        ("prompt_tokens", json!(4_294_967_296u64)),
        ("block_hashes", json!(["12"])),
        ("block_hashes", json!([-1])),
        ("gap_ns", json!([-1])),
        ("gap_ns", json!(null)),
        ("gap_tokens", json!([0])),
        ("first_tokens", json!(0)),
        ("finish_reason", json!("tired")),
        ("params", json!([])),
        ("priority", json!("high")),
        ("mm_hashes", json!([1])),
        ("mm_items", json!([{"hash": "a", "offset": 0}])),
        ("mm_items", json!([{"hash": "", "offset": 0, "tokens": 1}])),
        ("mm_items", json!([{"hash": "a", "offset": -1, "tokens": 1}])),
        ("mm_items", json!([{"hash": "a", "offset": 0, "tokens": 0}])),
        ("mm_items", json!([{"hash": "a", "offset": 0, "tokens": 1, "embeds": [[0]]}])),
        ("steps", json!({"running": [-1]})),
        ("gap_summary", json!({"count": 1})),
    ] {
        let line = request(field, value);
        assert!(!validator.is_valid(&line), "{line}");
        assert!(!is_read(&line), "{line}");
    }
    assert!(!validator.is_valid(&json!({"kind": "other"})));
}
