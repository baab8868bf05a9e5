//! Invalid bytes: no decoder panics, and each reports the problem.

use proptest::collection::vec;
use proptest::prelude::*;
use vcr_wire::Protocol as _;
use vcr_wire::*;

/// Calls every decoder of outside bytes with the same bytes.
fn decode_all(bytes: &[u8]) {
    for kind in 0..5u8 {
        _ = Request::decode(&[&[kind][..], bytes]);
    }
    _ = EngineMessage::decode(&[bytes]);
    if let Ok(EngineMessage::Outputs(outputs)) = EngineMessage::decode(&[bytes]) {
        for output in &outputs.outputs {
            _ = output.new_logprobs.as_ref().map(|logprobs| logprobs.rows(&[]));
        }
    }
    assert_eq!(
        StepOutputs::decode(bytes).map(|step| step.message.timestamp).is_ok(),
        EngineCoreOutputs::decode(bytes).is_ok()
    );
    _ = KvEventMessage::decode(&[b"", &[0; 8][..], bytes]);
    _ = Init::decode(bytes);
    _ = EngineHandshake::decode(bytes);
    _ = ReadyResponse::decode(bytes);
    _ = NixlQuery::decode(bytes);
    _ = NixlHandshake::decode(bytes);
    _ = NixlAgentMetadata::decode(bytes);
    _ = VersionEvidence::from_add(bytes);
    _ = EngineCoreRequest::peek_id(bytes);
    _ = Value::decode(bytes);
    _ = decode_sequence(bytes);
}

proptest! {
    #[test]
    fn no_bytes_panic_a_decoder(bytes in vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }

    /// A valid message with one changed byte gets deeper into a decoder than random bytes.
    #[test]
    fn no_flipped_byte_panics_a_decoder(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for mut bytes in whole_messages() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            decode_all(&bytes);
        }
    }
}

fn whole_messages() -> Vec<Vec<u8>> {
    let rows = LogprobRows { width: 2, token_ids: vec![1, 2], logprobs: vec![-0.5, -1.0], ranks: vec![1] };
    let add = EngineCoreRequest {
        request_id: "cmpl-1".to_owned(),
        prompt_token_ids: Some(vec![1, 200, 70_000]),
        sampling_params: Some(SamplingParams {
            logit_bias: Some(LogitBias(vec![(1, 0.5)])),
            ..SamplingParams::default()
        }),
        lora_request: Some(LoraRequest::default()),
        mm_features: Some(vec![MmFeature::default()]),
        ..EngineCoreRequest::default()
    };
    let outputs = EngineCoreOutputs {
        outputs: vec![EngineCoreOutput {
            new_logprobs: Some(rows.sampled()),
            prefill_stats: Some(PrefillStats::default()),
            ..EngineCoreOutput::default()
        }],
        scheduler_stats: Some(SchedulerStats::default()),
        ..EngineCoreOutputs::default()
    };
    let stored =
        KvEvent::BlockStored(Box::new(BlockStored { block_hashes: vec![BlockHash::Int(7)], ..BlockStored::default() }));
    let batch = KvEventBatch { ts: 1.0, events: vec![stored, KvEvent::AllBlocksCleared], data_parallel_rank: Some(0) };
    let call = UtilityCall { method: "sleep".to_owned(), args: vec![1u64.into()], ..UtilityCall::default() };
    let rules = VllmMinor::V0_33.rules();
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        encode(&mut out);
        out
    };
    vec![
        encoded(&|out| add.encode(out, rules)),
        encoded(&|out| outputs.encode(out, rules)),
        encoded(&|out| batch.encode(out)),
        encoded(&|out| Request::Utility(call.clone()).encode(out, rules)),
        encoded(&|out| ReadyResponse::default().encode(out)),
        encoded(&|out| Init::default().encode(out)),
    ]
}

#[test]
fn no_cut_message_is_accepted() {
    for (index, bytes) in whole_messages().into_iter().enumerate() {
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            decode_all(cut);
            let is_refused = match index {
                0 => EngineCoreRequest::decode(cut).is_err(),
                1 => EngineCoreOutputs::decode(cut).is_err(),
                2 => KvEventBatch::decode(cut).is_err(),
                3 => Request::decode(&[&[3][..], cut]).is_err(),
                4 => ReadyResponse::decode(cut).is_err(),
                _ => Init::decode(cut).is_err(),
            };
            assert!(is_refused, "message {index}, cut to {len} of {} bytes", bytes.len());
        }
    }
}

/// Lengths of four billion reserve no memory, and are refused at the end of the frame.
#[test]
fn false_lengths_are_refused_without_memory() {
    for head in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
        let mut bytes = vec![head, 0xff, 0xff, 0xff, 0xff];
        decode_all(&bytes);
        assert!(Value::decode(&bytes).is_err());
        // The same head as the list of tokens in an ADD: `["", <head>...`.
        bytes.splice(0..0, [0x92, 0xa0]);
        decode_all(&bytes);
        assert!(EngineCoreRequest::decode(&bytes).is_err());
    }
    let nested = vec![0x91; 100_000];
    decode_all(&nested);
    assert_eq!(Value::decode(&nested).unwrap_err().problem, Problem::TooDeep);
}

#[test]
fn errors_say_where_and_what() {
    let check = |error: DecodeError, expected: &str| assert_eq!(error.to_string(), expected);
    let request = |kind: u8, payload: &[u8]| Request::decode(&[&[kind][..], payload]).unwrap_err();
    check(request(9, b""), "request: expected a request type from 0 to 3, got 9 (byte 0)");
    check(Request::decode(&[b""]).unwrap_err(), "request: expected a type and a payload, got 1 frames (byte 0)");
    check(request(0, b"\x90"), "ADD, element 0 `request_id`: it is missing (byte 1)");
    check(request(0, b"\x81\xa1a\x01"), "ADD: expected an array, got a map (byte 0)");
    check(
        request(0, b"\x92\xa1a\x92\x01\xa1b"),
        "ADD, element 1 `prompt_token_ids`, item 1: expected an integer, got a text (byte 5)",
    );
    check(
        request(0, b"\x94\xa1a\xc0\xc0\x81\xaamax_tokens\xff"),
        "ADD, element 3 `sampling_params`, key `max_tokens`: \
         expected an integer from 0 to 4294967295, got -1 (byte 17)",
    );
    check(request(1, b"\x91\xa1"), "ABORT, item 0: expected a value, but the frame ends here (byte 1)");
    check(request(1, b"\x91\xa1\xff"), "ABORT, item 0: this text is not UTF-8 (byte 1)");
    check(request(1, b"\x90\x00"), "ABORT: 1 bytes follow the end of the message (byte 1)");
    check(
        request(3, b"\x92\x00\x01"),
        "UTILITY: invalid length 2, expected struct UtilityCall with 4 elements (byte 0)",
    );
    check(
        request(3, b"\x94\x00\x01\xa1a\x92\xc0\xc1"),
        "UTILITY, element 3 `args`, item 1: expected a value, got the byte c1, which MessagePack does not use (byte 7)",
    );
    check(ReadyResponse::decode(b"\x80").unwrap_err(), "ready response: missing field `max_model_len` (byte 0)");
    check(
        ReadyResponse::decode(b"\x81\xa5dtype\xabtorch.float").unwrap_err(),
        "ready response, key `dtype`: \
         unknown variant `torch.float`, expected one of `float16`, `bfloat16`, `float32` (byte 7)",
    );
    check(
        KvEventBatch::decode(b"\x92\x00\x91\x81\xa4type\xa3Odd").unwrap_err(),
        "KV event batch, element 1 `events`, item 0, key `type`: \
         unknown variant `Odd`, expected one of `BlockStored`, `BlockRemoved`, `AllBlocksCleared` (byte 9)",
    );
    check(decode_sequence(b"1234567").unwrap_err(), "sequence number: expected a frame of 8 bytes, got 7 (byte 0)");
}

/// Unknown elements at the end of arrays, and unknown keys, with any value except an endlessly nested one.
#[test]
fn what_later_versions_add_is_passed_over() {
    let deep = [vec![0x91; 100_000], vec![0xc0]].concat();
    let extension = b"\xd6\x05\0\0\0\0";
    let call = |more: &[u8]| Request::decode(&[&[3][..], &[b"\x95\x00\x01\xa1a\x90", more].concat()]);
    let hello = |more: &[u8]| EngineHandshake::decode(&[b"\x82\xa6status\xa5HELLO\xa1x", more].concat());
    let batch = |more: &[u8]| {
        KvEventBatch::decode(&[b"\x94\x00\x91\x82\xa4type\xb0AllBlocksCleared\xa1x", more, b"\xc0\x07"].concat())
    };
    assert!(matches!(call(extension), Ok(Request::Utility(call)) if call.method == "a"));
    assert_eq!(hello(extension).map(|hello| hello.status), Ok(EngineStatus::Hello));
    assert_eq!(batch(extension).map(|batch| batch.events), Ok(vec![KvEvent::AllBlocksCleared]));
    for error in [call(&deep).err(), hello(&deep).err(), batch(&deep).err()] {
        assert_eq!(error.map(|error| error.problem), Some(Problem::TooDeep));
    }
}
