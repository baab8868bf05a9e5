//! Encodings that frontends require.

use vcr_wire::Protocol as _;
use vcr_wire::*;

fn step(version: VllmMinor, fill: impl FnOnce(&mut StepEncoder), end: StepEnd<'_>) -> Vec<u8> {
    let mut encoder = StepEncoder::new(version.rules());
    fill(&mut encoder);
    let mut frame = Vec::new();
    encoder.finish(end, &mut frame);
    frame
}

/// `[0, [["a", [7]]], nil, 0.0]`: two elements for an output with a token, four for a step.
#[test]
fn a_token_costs_few_bytes() {
    let frame = step(VllmMinor::V0_27, |step| step.tokens("a", &[7], None), StepEnd::default());
    assert_eq!(frame, b"\x94\x00\x91\x92\xa1a\x91\x07\xc0\xcb\0\0\0\0\0\0\0\0");
    let last = (FinishReason::Stop, Some(&StopReason::Token(7)));
    let frame = step(VllmMinor::V0_27, |step| step.tokens("a", &[7], Some(last)), StepEnd::default());
    assert_eq!(frame[3..15], *b"\x97\xa1a\x91\x07\xc0\xc0\xc0\x00\x07\xc0\xcb");
}

/// vllm-rs up to 0.30 drops messages with an output that is longer than it knows. Every vllm-rs drops messages that
/// are longer than it knows.
#[test]
fn nothing_is_longer_than_its_line() {
    let output = EngineCoreOutput {
        request_id: "a".to_owned(),
        finish_reason: Some(FinishReason::Error),
        num_nans_in_logits: 1,
        new_sampling_mask: Some(Raw::of(&Value::Array(Vec::new()))),
        spec_decode_metrics: Some(RequestSpecDecodeMetrics::default()),
        prompt_token_id_logprobs: Some(Tensor::default()),
        error: Some(RequestError::default()),
        ..EngineCoreOutput::default()
    };
    for version in VllmMinor::ALL {
        let rules = version.rules();
        let end = StepEnd { weight_version: Some("default"), ..StepEnd::default() };
        let frame = step(version, |step| step.output(&output), end);
        let outer = usize::from(frame[0] - 0x90);
        assert!(outer <= rules.outputs_len, "{version}: {outer}");
        assert_eq!(outer == 9, version >= VllmMinor::V0_32);
        let Ok(Value::Array(elements)) = Value::decode(&frame) else { panic!("it is an array") };
        let inner = elements[1].as_array().expect("outputs")[0].as_array().expect("an output").len();
        assert_eq!(inner, rules.output_len, "{version}");
        let mut whole = Vec::new();
        let message = EngineCoreOutputs {
            outputs: vec![output.clone()],
            weight_version: Some("default".to_owned()),
            ..EngineCoreOutputs::default()
        };
        message.encode(&mut whole, rules);
        let expected = if version >= VllmMinor::V0_32 { 9 } else { 2 };
        assert_eq!(Value::decode(&whole).expect("it is a value").as_array().map(<[_]>::len), Some(expected));
    }
}

/// vllm-rs accepts only messages of one kind.
#[test]
fn other_messages_carry_nothing_else() {
    let encoded = |message: EngineCoreOutputs| {
        let mut frame = Vec::new();
        message.encode(&mut frame, VllmMinor::V0_33.rules());
        frame
    };
    let base = || EngineCoreOutputs { engine_index: 1, ..EngineCoreOutputs::default() };
    let time = b"\xcb\0\0\0\0\0\0\0\0";
    let start = encoded(EngineCoreOutputs { start_wave: Some(2), ..base() });
    assert_eq!(start, [b"\x98\x01\x90\xc0", &time[..], b"\xc0\xc0\xc0\x02"].concat());
    let complete = encoded(EngineCoreOutputs { wave_complete: Some(2), ..base() });
    assert_eq!(complete, [b"\x97\x01\x90\xc0", &time[..], b"\xc0\xc0\x02"].concat());
    let nothing = UtilityOutput::returned(Integer::from(-1i64), Value::Nil);
    let result = encoded(EngineCoreOutputs { utility_output: Some(nothing), ..base() });
    assert_eq!(result, [b"\x95\x01\x90\xc0", &time[..], b"\x93\xff\xc0\x92\xc0\xc0"].concat());
    let failure = UtilityOutput::failed(Integer::from(1u64), "sleep", "no such level");
    assert_eq!(failure.failure_message.as_deref(), Some("Call to sleep method failed: no such level"));
}

#[test]
fn parameters_are_found_where_frontends_put_them() {
    let transfer = Value::Map(vec![("do_remote_decode".into(), true.into())]);
    let extra = |params: Value| Some(Value::Map(vec![("kv_transfer_params".into(), params)]));
    let params = SamplingParams { extra_args: extra(transfer.clone()), ..SamplingParams::default() };
    assert_eq!(params.kv_transfer_params(), Some(&transfer));
    let params = SamplingParams { extra_args: extra(Value::Nil), ..SamplingParams::default() };
    assert_eq!(params.kv_transfer_params(), None);
    // vllm-rs sends 32-bit floats, and whole numbers as integers; JSON keys are texts.
    let map = b"\x85\xabtemperature\xca\x3f\x19\x99\x9a\xa5top_p\x01\xaamax_tokens\xc0\xaalogit_bias\x81\xa15\x01\xa4stop\xa1x";
    let params = SamplingParams::decode(map).expect("they are understood");
    assert_eq!((params.temperature, params.top_p, params.max_tokens), (f64::from(0.6f32), 1.0, None));
    assert_eq!(params.logit_bias, Some(LogitBias(vec![(5, 1.0)])));
    assert_eq!(params.stop, Some(StopStrings(vec!["x".to_owned()])));
}

/// A relay changes only the addresses in INIT.
#[test]
fn init_keeps_all_but_its_addresses() {
    let init = |input: &str| {
        Value::Map(vec![
            ("new".into(), Value::F32(0.5)),
            (
                "addresses".into(),
                Value::Map(vec![
                    ("inputs".into(), Value::Array(vec![input.into()])),
                    ("outputs".into(), Value::Array(vec!["out".into()])),
                    ("coordinator_input".into(), Value::Nil),
                    ("frontend_stats_publish_address".into(), "stats".into()),
                ]),
            ),
            ("parallel_config".into(), Value::Map(vec![("data_parallel_size".into(), 2_u64.into())])),
        ])
    };
    let mut frame = Vec::new();
    init("in").encode(&mut frame);
    let ours = Addresses { inputs: vec!["ours".to_owned()], outputs: vec!["out".to_owned()], ..Addresses::default() };
    let changed = Init::readdress(&frame, &ours).expect("it is an INIT");
    assert_eq!(Value::decode(&changed), Ok(init("ours")));
    assert!(Init::readdress(b"\x80", &ours).is_err());
}
