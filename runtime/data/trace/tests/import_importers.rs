//! Tests every importer with small files: data that is kept, texts of errors, and data that lenient imports skip.

use std::fs;

use crate::import_common::{Read, imported, of_text};
use proptest::prelude::*;
use serde_json::json;
use vcr_trace::capture::{CaptureLine, CaptureReader, GapSummary, ReadOptions};
use vcr_trace::import::{Format, ImportOptions, import_bytes};

/// A tokenizer that fits into one line: each word is a token.
const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
"model":{"type":"WordLevel","vocab":{"?":0,"a":1,"b":2,"c":3},"unk_token":"?"}}"#;

fn lenient() -> ImportOptions {
    ImportOptions { lenient: true, ..ImportOptions::default() }
}

fn read(text: &str, format: Format) -> Read {
    of_text(text, format, &ImportOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str, format: Format) -> String {
    of_text(text, format, &ImportOptions::default()).expect_err("refused").to_string()
}

fn report(strategy: &str, lists: &str) -> String {
    format!(
        r#"{{"metadata":{{"guidellm_version":"0.6.1"}},"args":{{"model":"m"}},"benchmarks":[
        {{"requests":{{{lists}}},"config":{{"strategy":{strategy}}}}}]}}"#
    )
}

const GOOD: &str = r#"{"request_id":"a","prompt_tokens":5,"output_tokens":3,"time_to_first_token_ms":1.5,
    "inter_token_latency_ms":2,"request_start_time":1700000001.25,"request_latency":0.5}"#;

#[test]
fn guidellm_keeps_what_failed_and_says_what_it_leaves_out() {
    let lists = format!(
        r#""total":[{GOOD}],"successful":[{GOOD}],"errored":[{{"prompt_tokens":null,"info":{{"error":"boom"}}}},
        {{"prompt_tokens":7,"info":{{"error":"boom"}},"request_start_time":1700000000}}],
        "incomplete":[{{"prompt_tokens":6,"output_tokens":2,"request_start_time":1700000002}}]"#
    );
    let read = read(&report(r#"{"type_":"throughput","max_concurrency":9}"#, &lists), Format::Guidellm);
    let rows: Vec<_> =
        read.requests.iter().map(|r| (r.prompt_tokens, r.arrival_ns, r.finish_reason.as_deref())).collect();
    let expected =
        [(7, Some(0), Some("error")), (5, Some(1_250_000_000), None), (6, Some(2_000_000_000), Some("abort"))];
    assert_eq!(rows, expected);
    assert_eq!(read.requests[0].error.as_deref(), Some("boom"));
    assert_eq!(read.requests[1].gap_summary, Some(GapSummary { mean_ns: 2_000_000, count: 2 }));
    // The file has the strategy after the requests.
    assert!(read.requests.iter().all(|r| r.concurrency == Some(9)));
    assert_eq!(read.account.notes[0].what, "errored requests without the length of their prompts were left out");
}

#[test]
fn guidellm_errors_name_the_request_and_the_field() {
    let bad = GOOD.replace("\"prompt_tokens\":5", "\"prompt_tokens\":\"five\"");
    let text = report(r#"{"type_":"poisson"}"#, &format!(r#""successful":[{GOOD},{bad}]"#));
    let error = refused(&text, Format::Guidellm);
    let expected = "`file`, benchmarks[0].requests.successful[1], field `prompt_tokens`: invalid type: string";
    assert!(error.starts_with(expected), "{error}");
    let read = of_text(&text, Format::Guidellm, &lenient()).expect("the other one");
    assert_eq!((read.account.requests, read.account.skipped), (1, 1));
    assert!(read.account.first_skipped.as_deref().is_some_and(|first| first.starts_with(expected)));
    // The strategy does not state the concurrency, so the requests in progress are counted.
    assert_eq!(read.requests[0].concurrency, Some(1));
    let negative = GOOD.replace("1.5", "-1.5");
    let error = refused(&report("{}", &format!(r#""successful":[{negative}]"#)), Format::Guidellm);
    assert!(error.contains("field `time_to_first_token_ms`: invalid duration -1.5"), "{error}");
    assert!(refused("{\"benchmarks\":3}", Format::Guidellm).contains("an array of benchmarks"));
    assert!(refused("{}", Format::Guidellm).contains("holds no request"));
}

#[test]
fn guidellm_keeps_cached_tokens_and_conversations() {
    // In 0.8, the settings are here.
    let settings = r#""config":{"spec":{"backend":{"model":"n"},"profile":{"kind":"constant"}}}"#;
    let with_cache = GOOD
        .replace("\"prompt_tokens\":5", "\"prompt_tokens\":5,\"cached_tokens\":4,\"info\":{\"conversation_id\":\"c\"}");
    let text = report(r#"{"type_":"constant","rate":2}"#, &format!(r#""successful":[{with_cache}]"#));
    let read = read(&text.replace(r#""args":{"model":"m"}"#, settings), Format::Guidellm);
    let request = &read.requests[0];
    assert_eq!((request.cached_tokens, request.session.as_deref()), (4, Some("c")));
    assert_eq!((read.meta.model.as_deref(), read.meta.other["profile"].as_str()), (Some("n"), Some("constant")));
}

/// A result of `vllm bench serve --save-result --save-detailed`.
const VLLM_BENCH: &str = r#"{"date": "20260729-204850", "endpoint_type": "openai-chat", "backend": "openai-chat",
 "label": null, "model_id": "m", "tokenizer_id": "m", "num_prompts": 4, "request_rate": "inf", "burstiness": 1.0,
 "max_concurrency": 2, "duration": 1.0, "completed": 3, "failed": 1, "total_input_tokens": 50,
 "input_lens": [10, 20, 30, 40], "output_lens": [4, 3, 5, 0], "ttfts": [0.05, 0.025, 0.5, 0.0],
 "itls": [[0.01, 0.011, 0.012], [0.000002, 0.01, 0.02], [0.02, 0.04], []],
 "start_times": [1463.5, 1463.25, 1464.0, 1464.5], "generated_texts": ["a", "b", "c", ""],
 "errors": ["", "", "", "boom"], "mean_ttft_ms": NaN}"#;

#[test]
fn vllm_bench_is_read_request_by_request_with_every_gap() {
    let read = read(VLLM_BENCH, Format::VllmBench);
    assert_eq!((read.meta.model.as_deref(), read.meta.other["max_concurrency"].as_u64()), (Some("m"), Some(2)));
    let [second, first, third, failed] = &read.requests[..] else { panic!("four requests") };
    assert_eq!((first.arrival_ns, second.arrival_ns), (Some(250_000_000), Some(0)));
    assert_eq!((first.ttft_ns, &first.gap_ns[..]), (Some(50_000_000), &[10_000_000, 11_000_000, 12_000_000][..]));
    // The chat's role arrived 2 us before the first token.
    assert_eq!((second.ttft_ns, &second.gap_ns[..]), (Some(25_002_000), &[10_000_000, 20_000_000][..]));
    // Five tokens arrived in three chunks.
    assert_eq!((third.gap_ns.len(), third.gap_tokens.as_deref()), (2, Some(&[2, 2][..])));
    assert_eq!((failed.finish_reason.as_deref(), failed.error.as_deref()), (Some("error"), Some("boom")));
    assert_eq!((failed.output_tokens, failed.ttft_ns, failed.concurrency), (0, None, Some(2)));
    let notes: Vec<_> = read.account.notes.iter().map(|note| (note.count, note.what.as_str())).collect();
    assert_eq!(notes, [(1, "requests with fewer outputs than tokens, which were spread evenly over them")]);
}

#[test]
fn results_without_requests_say_how_to_record_them() {
    let totals = r#"{"endpoint_type": "vllm", "backend": "vllm", "request_rate": 1, "completed": 3}"#;
    let error = refused(totals, Format::VllmBench);
    assert!(error.contains("load 1, field `ttfts`: the file has the totals of a load"), "{error}");
    assert!(error.contains("--save-detailed"), "{error}");
    let short = VLLM_BENCH.replace("[10, 20, 30, 40]", "[10]");
    assert!(refused(&short, Format::VllmBench).contains("field `input_lens`: invalid length 1: expected 4"));
}

#[test]
fn sglang_bench_has_a_load_each_line_and_cached_tokens() {
    let line = r#"{"tag": null, "backend": "sglang", "dataset_name": "random", "request_rate": Infinity, "max_concurrency": null, "random_input_len": 8, "input_lens": [10, 12], "output_lens": [3, 2], "ttfts": [0.5, 0.25], "itls": [[0.01, 0.02], [0.03]], "generated_texts": ["x", "y"], "errors": ["", ""], "cached_tokens": [8, null]}"#;
    let read = read(&format!("{line}\n{line}\n"), Format::SglangBench);
    assert_eq!(read.requests.len(), 4);
    assert_eq!((read.requests[0].cached_tokens, &read.requests[0].gap_ns[..]), (8, &[10_000_000, 20_000_000][..]));
    assert_eq!(read.requests[0].arrival_ns, None);
    assert!(read.account.notes[0].what.contains("without an arrival"));
}

#[test]
fn aiperf_keeps_every_gap_and_leaves_out_the_warm_up() {
    let row = |phase: &str, rest: &str| {
        format!(
            r#"{{"metadata":{{"session_num":0,"x_request_id":"r","conversation_id":"c","turn_index":0,"request_start_ns":1700000000250000000,"request_end_ns":1700000001250000000,"worker_id":"w","benchmark_phase":"{phase}","was_cancelled":false}},{rest}}}"#
        )
    };
    let metrics = r#""metrics":{"input_sequence_length":{"value":20,"unit":"tokens"},"output_sequence_length":{"value":3,"unit":"tokens"},"time_to_first_token":{"value":45.5,"unit":"ms"},"inter_chunk_latency":{"value":[10.5,12],"unit":"ms"},"inter_token_latency":{"value":11.25,"unit":"ms"},"request_latency":{"value":68,"unit":"ms"}},"error":null"#;
    let failed =
        r#""metrics":{"input_sequence_length":{"value":20,"unit":"tokens"}},"error":{"code":500,"message":"no"}"#;
    let text = [row("warmup", metrics), row("profiling", metrics), row("profiling", failed)].join("\n");
    let read = read(&text, Format::Aiperf);
    let [request, failed] = &read.requests[..] else { panic!("two requests") };
    assert_eq!((request.ttft_ns, &request.gap_ns[..]), (Some(45_500_000), &[10_500_000, 12_000_000][..]));
    assert_eq!(
        (request.end_ns, request.session.as_deref(), request.external_id.as_deref()),
        (Some(68_000_000), Some("c"), Some("r"))
    );
    assert_eq!((failed.error.as_deref(), failed.end_ns), (Some("no"), Some(1_000_000_000)));
    assert_eq!(read.account.notes[0].what, "requests of the warm-up were left out");
    let wrong = metrics.replace(r#"[10.5,12],"unit":"ms""#, r#"[10.5,12],"unit":"weeks""#);
    assert!(
        refused(&row("profiling", &wrong), Format::Aiperf)
            .contains("field `metrics.inter_chunk_latency`: invalid unit `weeks`")
    );
}

#[test]
fn inference_perf_keeps_the_time_of_every_token() {
    let request = |times: &str, rest: &str| {
        format!(
            r#"{{"start_time": 100.5, "end_time": 101.0, "request": "{{}}", "response": "x", "info": {{"request_metrics": {{"text": {{"input_tokens": 204}}}}, "response_metrics": {{"output_tokens": 4, "server_usage": {{"prompt_tokens_details": {{"cached_tokens": 16}}}}, "chunk_times": [], "output_token_times": {times}}}, "lora_adapter": null, "input_tokens": 204}}, {rest}}}"#
        )
    };
    let text = format!(
        "[{},\n{},\n{}]",
        request("[100.6, 100.61, 100.61, 100.63]", r#""error": null"#),
        request("[100.6, 100.61, 100.62]", r#""error": null"#),
        request("[]", r#""error": {"error_type": "HTTP Error 500", "error_msg": "no"}"#),
    );
    let read = read(&text, Format::InferencePerf);
    let [grouped, short, failed] = &read.requests[..] else { panic!("three requests") };
    assert_eq!((grouped.prompt_tokens, grouped.cached_tokens, grouped.output_tokens), (204, 16, 4));
    // Two tokens arrived in one chunk.
    assert_eq!((grouped.ttft_ns, &grouped.gap_ns[..]), (Some(100_000_000), &[10_000_000, 20_000_000][..]));
    assert_eq!(grouped.gap_tokens.as_deref(), Some(&[2, 1][..]));
    assert_eq!(short.gap_tokens.as_deref(), Some(&[1, 2][..]));
    assert_eq!((failed.error.as_deref(), failed.end_ns), (Some("HTTP Error 500 no"), Some(500_000_000)));
    assert!(
        refused(r#"[{"start_time": 2, "end_time": 1, "error": null}]"#, Format::InferencePerf)
            .contains("request 1, field")
    );
}

#[test]
fn a_line_about_the_file_may_come_before_the_requests() {
    let text = "{\"record\":\"meta\",\"host\":\"h\"}\n{\"arrival_s\":5,\"prompt_tokens\":3,\"output_tokens\":2,\"ttft_ms\":1}\n";
    let read = read(text, Format::Requests);
    assert_eq!((read.requests.len(), read.account.notes[0].what.as_str()), (1, "first lines that are not a request"));
}

fn span(attributes: &[(&str, serde_json::Value)], start_ns: u64, end_ns: u64) -> serde_json::Value {
    let attributes: Vec<_> = attributes.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({"spanId": "5", "name": "llm_request", "startTimeUnixNano": start_ns.to_string(),
        "endTimeUnixNano": end_ns.to_string(), "attributes": attributes})
}

fn document(spans: &[serde_json::Value]) -> String {
    json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).to_string()
}

#[test]
fn spans_become_requests() {
    let full = span(
        &[
            ("gen_ai.request.model", json!({"stringValue": "m"})),
            ("gen_ai.usage.input_tokens", json!({"intValue": "12"})),
            ("gen_ai.usage.output_tokens", json!({"intValue": 5})),
            ("gen_ai.response.finish_reasons", json!({"arrayValue": {"values": [{"stringValue": "tool_calls"}]}})),
            ("gen_ai.request.max_tokens", json!({"intValue": "9"})),
            ("gen_ai.request.temperature", json!({"doubleValue": 0.5})),
            ("gen_ai.conversation.id", json!({"stringValue": "talk"})),
            ("gen_ai.latency.time_to_first_token", json!({"doubleValue": 0.25})),
            ("gen_ai.latency.time_in_queue", json!({"doubleValue": 0.125})),
            ("gen_ai.latency.e2e", json!({"doubleValue": 1.25})),
        ],
        2_000_000_100,
        9_000_000_000,
    );
    // vLLM's older names; only the span tells when the request ended.
    let plain = span(
        &[
            ("gen_ai.usage.prompt_tokens", json!({"intValue": 3})),
            ("gen_ai.usage.completion_tokens", json!({"intValue": 1})),
        ],
        2_000_000_000,
        2_000_000_500,
    );
    let other = span(&[("http.method", json!({"stringValue": "GET"}))], 1, 2);
    let text = format!("{}\n{}\n", document(&[full, other]), document(&[plain]));
    let read = read(&text, Format::Otel);
    assert_eq!((read.meta.model.as_deref(), read.meta.started_unix_ns), (Some("m"), Some(2_000_000_000)));
    let [plain, full] = &read.requests[..] else { panic!("two requests") };
    assert_eq!((plain.arrival_ns, plain.end_ns, plain.ttft_ns), (Some(0), Some(500), None));
    assert_eq!((full.arrival_ns, full.prompt_tokens, full.output_tokens), (Some(100), 12, 5));
    assert_eq!((full.ttft_ns, full.queue_ns, full.end_ns), (Some(250_000_000), Some(125_000_000), Some(1_250_000_000)));
    assert_eq!(full.gap_summary, Some(GapSummary { mean_ns: 250_000_000, count: 4 }));
    assert_eq!((full.finish_reason.as_deref(), &full.stop_reason), (Some("stop"), &Some(json!("tool_calls"))));
    assert_eq!(json!(full.params), json!({"max_tokens": 9, "temperature": 0.5}));
    assert_eq!(full.session.as_deref(), Some("talk"));
    assert_eq!(read.account.notes[0].count, 1);
}

/// Traces of agents as Exgentic publishes them: one session or one span per line.
#[test]
fn sessions_of_plain_spans_become_turns() {
    let span = |id: &str, start: &str, end: &str, more: serde_json::Value| {
        let mut attributes = json!({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 900,
            "gen_ai.usage.output_tokens": 30, "gen_ai.response.finish_reasons": "[\"tool_calls\"]"});
        attributes.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        json!({"trace_id": "t", "span_id": id, "parent_span_id": "root", "name": "chat m", "start_time": start,
            "end_time": end, "attributes": attributes, "status": {"code": 1, "message": null}})
    };
    let first = span("a", "2026-01-05T10:00:00.5", "2026-01-05T10:00:02", json!({}));
    let tool = json!({"trace_id": "t", "span_id": "b", "start_time": "2026-01-05T10:00:02Z",
        "attributes": {"gen_ai.operation.name": "execute_tool"}, "status": {"code": 0}});
    let second =
        span("c", "2026-01-05T10:00:03.5+00:00", "2026-01-05T10:00:04Z", json!({"gen_ai.conversation.id": "own"}));
    let by_session = json!({"session_id": "s", "spans": [first, tool, second]}).to_string();
    let by_span = format!("{first}\n{tool}\n{second}\n");
    for (text, session) in [(by_session, "s"), (by_span, "t")] {
        let read = read(&text, Format::Otel);
        let [first, second] = &read.requests[..] else { panic!("two requests: {:?}", read.requests) };
        assert_eq!((first.session.as_deref(), second.session.as_deref()), (Some(session), Some("own")));
        assert_eq!((first.arrival_ns, first.end_ns), (Some(0), Some(1_500_000_000)));
        assert_eq!((second.arrival_ns, second.prompt_tokens), (Some(3_000_000_000), 900));
        assert_eq!(first.stop_reason, Some(json!("tool_calls")));
        assert_eq!(read.account.notes[0].what, "spans of something else than requests");
    }
    let late = span("d", "2026-01-05T10:00:03", "2026-01-05T10:00:02", json!({})).to_string();
    assert!(refused(&late, Format::Otel).contains("field `end_time`: the span ends before it starts"));
    let never = span("d", "yesterday", "2026-01-05T10:00:02", json!({})).to_string();
    assert!(refused(&never, Format::Otel).contains("field `start_time`"));
}

#[test]
fn spans_that_cannot_be_used_are_named() {
    let without = span(&[("gen_ai.usage.input_tokens", json!({"intValue": "12"}))], 1, 2);
    let error = refused(&document(std::slice::from_ref(&without)), Format::Otel);
    assert!(
        error.contains("document 1, span 1, field `gen_ai.usage.output_tokens`: the attribute is missing"),
        "{error}"
    );
    let both = ("gen_ai.usage.output_tokens", json!({"intValue": -1}));
    let negative = span(&[("gen_ai.usage.input_tokens", json!({"intValue": "12"})), both], 1, 2);
    assert!(refused(&document(&[negative]), Format::Otel).contains("invalid count -1"));
    assert!(refused("{\"resourceSpans\":[", Format::Otel).contains("EOF"));
    assert!(
        refused("{}", Format::Otel).contains("field `resourceSpans`")
            || refused("{}", Format::Otel).contains("missing field")
    );
    let error = of_text(&document(&[without]), Format::Otel, &lenient()).expect_err("nothing is left").to_string();
    assert!(error.ends_with("holds no request that can be imported; 1 items were skipped"), "{error}");
}

#[test]
fn workloads_keep_lengths_arrivals_sessions_and_prefixes() {
    let rows = r#"{"session_id":"x","timestamp":5,"input_length":600,"output_length":4,"hash_ids":[7,8],"priority":2}
{"timestamp":9,"input_length":1024,"output_length":3,"hash_ids":[7,9],"mm_items":[{"hash":"cat","offset":1,"tokens":9,"modality":"image"}]}
{"session_id":"x","delay":2.5,"input_length":512,"output_length":0,"hash_ids":[9]}"#;
    let read = read(rows, Format::Mooncake);
    let [first, other, second] = &read.requests[..] else { panic!("three requests") };
    assert_eq!((first.arrival_ns, other.arrival_ns, second.arrival_ns), (Some(0), Some(4_000_000), None));
    assert_eq!(
        (first.session.as_deref(), other.session.as_deref(), second.think_ns),
        (Some("s0"), None, Some(2_500_000))
    );
    assert_eq!(first.block_hashes, other.block_hashes[..1]);
    let [cat] = &other.mm_items[..] else { panic!("one item") };
    assert_eq!((cat.hash.as_str(), cat.offset, cat.tokens, first.mm_items.len()), ("cat", 1, 9, 0));
    // The same block at another position means another prefix.
    assert_ne!(other.block_hashes[1], second.block_hashes[0]);
    assert_eq!((first.priority, &first.params["max_tokens"]), (2, &json!(4)));
    assert!(refused("{\"timestamp\":1}", Format::Mooncake).contains("line 1, field `hash_ids`"));
    let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,4,1\n";
    let azure = of_text(csv, Format::Azure, &ImportOptions::default()).expect("a table");
    assert_eq!((azure.requests[1].arrival_ns, azure.meta.block_size_tokens), (Some(1_000_000_000), None));
}

#[test]
fn agents_wait_for_the_turn_before_or_are_refused() {
    let row = |id: &str, wait_for: &str| {
        format!(
            r#"{{"request_id":"{id}","session_id":"s","input_length":4,"output_length":1,"hash_ids":[1],
            "wait_for":[{wait_for}],"delay":1,"tool_wait_ms":2,"timestamp":7}}"#
        )
        .replace('\n', "")
    };
    let good = format!("{}\n{}\n", row("a", ""), row("b", "\"a\""));
    let read = read(&good, Format::AgenticMooncake);
    let times: Vec<_> = read.requests.iter().map(|r| (r.arrival_ns, r.think_ns)).collect();
    assert_eq!(times, [(Some(7_000_000), None), (None, Some(3_000_000))]);
    let error = refused(&format!("{}\n{}\n", row("a", ""), row("b", "\"z\"")), Format::AgenticMooncake);
    assert!(error.contains("line 2, field `wait_for`: `b` waits for `z`"), "{error}");
    let error = refused("{\"schema\":\"dynamo.agentic_mooncake\",\"version\":3}", Format::AgenticMooncake);
    assert!(error.contains("line 1, field `version`"), "{error}");
    let long = row("a", "").replace("\"input_length\":4", "\"input_length\":513");
    assert!(refused(&long, Format::AgenticMooncake).contains("1 hash ids of 512 tokens cover 512"));
    let session = r#"{"num_turns":2,"input_prompt_length":4,"assistant_response_length":[1],
        "tool_call_output_length":[1,1],"tool_call_latency":[0.1,0.1],"final_assistant_response_length":1}"#;
    let error = refused(&session.replace('\n', ""), Format::AppliedComputeAgentic);
    assert!(error.contains("field `assistant_response_length`: 1 entries for 2 turns"), "{error}");
}

#[test]
fn logs_of_dynamo_must_agree_with_themselves() {
    let row = |length: u32, block: u32| {
        format!(
            r#"{{"event_type":"request_end","request":{{"request_id":"r","output_tokens":2,"request_received_ms":1000.5,
            "replay":{{"trace_block_size":{block},"input_length":{length},"input_sequence_hashes":[1,2]}}}}}}"#
        )
        .replace('\n', "")
    };
    let read = read(&row(7, 4), Format::Dynamo);
    let first = &read.requests[0];
    assert_eq!((first.block_hashes.len(), first.prompt_hash.map(|hash| hash.0)), (1, Some(2)));
    assert_eq!(read.meta.started_unix_ns, Some(1_000_500_000));
    let error = refused(&row(12, 4), Format::Dynamo);
    assert!(error.contains("field `request.replay.input_sequence_hashes`: 2 hashes for 12 tokens"), "{error}");
    let error = refused(&format!("{}\n{}", row(7, 4), row(7, 4).replace(":4,", ":5,")), Format::Dynamo);
    assert!(error.contains("line 2, field `request.replay.trace_block_size`"), "{error}");
    assert!(refused(&row(7, 0), Format::Dynamo).contains("field `request.replay.trace_block_size`"));
}

#[test]
fn runs_of_llmservingsim_use_the_clock_of_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let rows = r#"{"request_id":"bench-1","input_toks":2,"output_toks":3,"arrival_time":1700000000.5,"queued_ts":10.5,"scheduled_ts":10.75,"first_token_ts":11.0,"last_token_ts":12.0}
{"request_id":"bench-0","input_toks":3,"output_toks":1,"arrival_time":1700000000.0,"queued_ts":10.0,"scheduled_ts":10.0,"first_token_ts":10.25,"last_token_ts":10.25}
"#;
    fs::write(path("requests.jsonl"), rows).expect("a file");
    let meta = r#"{"model":"m","vllm_version":"0.19.0","engine_kwargs":{"seed":1},"dataset_path":"w/load.jsonl"}"#;
    fs::write(path("meta.json"), meta).expect("a file");
    let load = "{\"input_toks\":3,\"output_toks\":9,\"input_tok_ids\":[1,2,3]}\n{\"input_toks\":2,\"output_toks\":9,\"input_tok_ids\":[4,5]}\n";
    fs::write(path("load.jsonl"), load).expect("a file");
    let read = imported(folder.path(), &ImportOptions::default()).expect("a run");
    let [first, second] = &read.requests[..] else { panic!("two requests") };
    assert_eq!((first.id.as_deref(), first.arrival_ns, first.gap_summary), (Some("bench-0"), Some(0), None));
    assert_eq!(
        (second.arrival_ns, second.queue_ns, second.end_ns),
        (Some(500_000_000), Some(250_000_000), Some(1_500_000_000))
    );
    assert_eq!(second.gap_summary, Some(GapSummary { mean_ns: 500_000_000, count: 2 }));
    assert!(first.prompt_hash.is_some() && first.prompt_hash != second.prompt_hash);
    assert_eq!(read.meta.started_unix_ns, Some(1_700_000_000_000_000_000));
    fs::write(path("load.jsonl"), load.replace("\"input_toks\":3", "\"input_toks\":4")).expect("a file");
    let error = imported(folder.path(), &ImportOptions::default()).expect_err("another workload").to_string();
    assert!(error.contains("line 2, field `input_toks`: 3 prompt tokens, but"), "{error}");
    let early = rows.replace("\"first_token_ts\":11.0", "\"first_token_ts\":9.0");
    assert!(refused(&early, Format::LlmServingSim).contains("field `first_token_ts`: the time is before `queued_ts`"));
}

#[test]
fn data_sets_in_every_shape_give_the_same_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokenizer = folder.path().join("tokenizer.json");
    fs::write(&tokenizer, TOKENIZER).expect("a file");
    let options =
        ImportOptions { tokenizer: Some(tokenizer), block_size_tokens: 2.try_into().ok(), ..ImportOptions::default() };
    let shapes = [
        ("rows.jsonl", "{\"prompt\":\"a b\",\"input\":\"c\",\"response\":\"b\"}\n{\"prompt\":\"x\",\"answer\":\"\"}\n"),
        ("list.json", "[{\"prompt\":\"a b\",\"input\":\"c\",\"response\":\"b\"},\n{\"prompt\":\"x\",\"answer\":\"\"}]"),
        (
            "splits.json",
            "{\"train\":[{\"prompt\":\"a b c\",\"response\":\"b\"}],\"n\":1,\"test\":[{\"prompt\":\"x\",\"answer\":\"\"}]}",
        ),
        ("table.csv", "prompt,response\n\"a b\nc\",b\nx,\n"),
    ];
    for (name, text) in shapes {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        let read = imported(&path, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let rows: Vec<_> = read
            .requests
            .iter()
            .map(|r| (r.prompt_token_ids.clone().unwrap_or_default(), r.output_token_ids.clone().unwrap_or_default()))
            .collect();
        assert_eq!(rows, [(vec![1, 2, 3], vec![2]), (vec![0], vec![])], "{name}");
        assert_eq!(read.requests[0].block_hashes.len(), 1);
    }
    let path = folder.path().join("bad.json");
    fs::write(&path, "{\"train\":[{\"prompt\":\"a\",\"response\":\"b\"},{\"prompt\":\"a\"},7]}").expect("a file");
    let error = imported(&path, &options).expect_err("no response").to_string();
    assert!(error.contains("train[1]: the row has no response"), "{error}");
    let read = imported(&path, &ImportOptions { lenient: true, ..options }).expect("one row");
    assert_eq!((read.account.requests, read.account.skipped), (1, 2));
}

#[test]
fn parquet_files_are_read_row_by_row() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokenizer = folder.path().join("tokenizer.json");
    fs::write(&tokenizer, TOKENIZER).expect("a file");
    let path = folder.path().join("rows.parquet");
    write_parquet(&path, &[("a b", "c"), ("b", "a a")]);
    let options = ImportOptions { tokenizer: Some(tokenizer), ..ImportOptions::default() };
    let read = imported(&path, &options).expect("a table");
    let lengths: Vec<_> = read.requests.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
    assert_eq!(lengths, [(2, 1), (1, 2)]);
    let bytes = fs::read(&path).expect("a file");
    let cut = folder.path().join("cut.parquet");
    fs::write(&cut, &bytes[..bytes.len() - 9]).expect("a file");
    assert!(imported(&cut, &options).expect_err("cut").to_string().starts_with("`"));
}

fn write_parquet(path: &std::path::Path, rows: &[(&str, &str)]) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message rows { REQUIRED BYTE_ARRAY question (UTF8); REQUIRED BYTE_ARRAY answer (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(schema).expect("a schema");
    let file = fs::File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema.into(), std::sync::Arc::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    for column in [0, 1] {
        let cells = rows.iter().map(|row| ByteArray::from(if column == 0 { row.0 } else { row.1 }));
        let cells: Vec<ByteArray> = cells.collect();
        let mut out = group.next_column().expect("a column").expect("a column");
        out.typed::<ByteArrayType>().write_batch(&cells, None, None).expect("cells");
        out.close().expect("an end");
    }
    group.close().expect("an end");
    writer.close().expect("an end");
}

#[test]
fn what_importers_write_is_a_capture() {
    let rows = r#"{"timestamp":5,"input_length":600,"output_length":4,"hash_ids":[7,8]}"#;
    let spans = document(&[span(
        &[
            ("gen_ai.usage.input_tokens", json!({"intValue": 3})),
            ("gen_ai.usage.output_tokens", json!({"intValue": 4})),
            ("gen_ai.latency.time_to_first_token", json!({"doubleValue": 0.25})),
        ],
        1,
        500_000_001,
    )]);
    let report = report(r#"{"type_":"synchronous"}"#, &format!(r#""successful":[{GOOD}]"#));
    for (text, format) in
        [(rows, Format::Mooncake), (spans.as_str(), Format::Otel), (report.as_str(), Format::Guidellm)]
    {
        let read = read(text, format);
        let text: String = read.lines.iter().map(|line| serde_json::to_string(line).expect("JSON") + "\n").collect();
        let mut reader =
            CaptureReader::from_reader(text.as_bytes(), "own", &ReadOptions::default()).expect("a capture");
        while reader.next_line().unwrap_or_else(|error| panic!("{format}: {error}")).is_some() {}
        let summary = reader.summary();
        assert_eq!((summary.requests, summary.broken_off, summary.warnings.len()), (1, None, 0), "{format}");
    }
}

proptest! {
    /// Imported files come from strangers, so any content must give requests or an error.
    #[test]
    fn no_bytes_make_an_importer_panic(index in 1usize..10, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let format = Format::ALL[index];
        let mut sink = |_| Ok(());
        let _ = import_bytes(&bytes, "file", format, &lenient(), &mut sink);
    }

    /// Lengths and arrivals are kept, whatever their order in the file.
    #[test]
    fn reports_keep_every_request(rows in prop::collection::vec((1u32..9000, 0u32..900, 0u32..1_000_000), 1..20)) {
        let list: Vec<_> = rows.iter().map(|(prompt, output, at_ms)| json!({
            "prompt_tokens": prompt, "output_tokens": output, "inter_token_latency_ms": 3.5,
            "request_start_time": 1_700_000_000.0 + f64::from(*at_ms) / 1e3,
        })).collect();
        let text = report(r#"{"type_":"synchronous"}"#, &format!("\"successful\":{}", json!(list)));
        let read = of_text(&text, Format::Guidellm, &ImportOptions::default()).expect("a report");
        let first = rows.iter().map(|(_, _, at_ms)| *at_ms).min().unwrap_or(0);
        let mut expected: Vec<_> = rows.iter().map(|(prompt, output, at_ms)| {
            (Some(u64::from(at_ms - first) * 1_000_000), *prompt, *output)
        }).collect();
        expected.sort_by_key(|row| row.0);
        let found: Vec<_> = read.requests.iter().map(|r| (r.arrival_ns, r.prompt_tokens, r.output_tokens)).collect();
        prop_assert_eq!(found, expected);
        prop_assert!(matches!(read.lines.last(), Some(CaptureLine::End(end)) if end.requests == rows.len() as u64));
    }
}

/// The results of a load generator can be replayed without a conversion.
#[test]
fn results_of_load_generators_are_traces() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bench.json");
    fs::write(&path, VLLM_BENCH.replace('\n', " ")).expect("a file");
    let options = vcr_trace::TraceOptions { answer_times: true, ..Default::default() };
    let trace = vcr_trace::import::read_trace(&[&path], &options).expect("a trace");
    let arrivals: Vec<_> = trace.requests.iter().map(|request| request.arrival_ns).collect();
    assert_eq!(arrivals[..2], [Some(0), Some(250_000_000)]);
    let times = trace.answer_times[0].as_ref().expect("an answer");
    assert_eq!(trace.outputs(times).len(), 3);
    assert!(trace.warnings.iter().any(|warning| warning.to_string().contains("spread evenly")));
    // Requests without arrivals can only be replayed in closed loops.
    fs::write(&path, "prompt_tokens,output_tokens\n5,6\n").expect("a file");
    let table = folder.path().join("table.csv");
    fs::rename(&path, &table).expect("a file");
    let error = vcr_trace::import::read_trace(&[&table], &options).expect_err("no arrivals").to_string();
    assert!(error.contains("a first turn needs a timestamp"), "{error}");
    let closed = vcr_trace::TraceOptions { first_timestamp_required: false, ..options.clone() };
    assert_eq!(vcr_trace::import::read_trace(&[&table], &closed).expect("a trace").requests[0].input_tokens, 5);
    // Any other file is not a trace.
    fs::write(&path, "{\"a\": 1}").expect("a file");
    let error = vcr_trace::import::read_trace(&[&path], &options).expect_err("unknown").to_string();
    assert!(error.contains("cannot tell the format of"), "{error}");
}
