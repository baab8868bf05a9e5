//! The table of versions, and how versions are distinguished.

use vcr_wire::{
    EngineCoreRequest, Integer, LoraLayout, LoraRequest, Protocol, Raw, SamplingParams, SchedulerStats, Value,
    VersionEvidence, VllmMinor, WakeUpResult,
};

#[test]
fn the_table_has_a_row_for_each_line_in_order() {
    for version in VllmMinor::ALL {
        assert_eq!(version.rules().version, version);
        assert_eq!(version.name().parse(), Ok(version));
    }
    let lengths = VllmMinor::ALL
        .map(|version| (version.rules().request_len, version.rules().output_len, version.rules().outputs_len));
    let expected = [(20, 14, 8), (21, 16, 8), (21, 17, 8), (21, 17, 8), (22, 18, 8), (22, 18, 9), (22, 19, 9)];
    assert_eq!(lengths, expected);
    let since = |has: &dyn Fn(VllmMinor) -> bool| VllmMinor::ALL.into_iter().find(|version| has(*version));
    assert_eq!(since(&|version| version.rules().wake_up_result == WakeUpResult::Bool), Some(VllmMinor::V0_31));
    assert_eq!(since(&|version| version.rules().engine_starts_waves), Some(VllmMinor::V0_33));
    assert_eq!(since(&|version| version.rules().lora_layout() == LoraLayout::Six), Some(VllmMinor::V0_33));
    let names_session = |version: VllmMinor| version.rules().block_stored_keys.iter().any(|key| key == "session_id");
    assert_eq!(since(&names_session), Some(VllmMinor::V0_30));
    let has_stages =
        |version: VllmMinor| SchedulerStats::of_version(version.rules()).num_kv_fetch_reqs_by_stage.is_some();
    assert_eq!(since(&has_stages), Some(VllmMinor::V0_32));
    let error = "0.26".parse::<VllmMinor>().unwrap_err();
    assert_eq!(error.to_string(), "invalid vLLM version \"0.26\": expected 0.27 to 0.33");
}

fn evidence(version: VllmMinor, change: impl FnOnce(&mut EngineCoreRequest)) -> (VllmMinor, VllmMinor) {
    let mut request =
        EngineCoreRequest { sampling_params: Some(SamplingParams::default()), ..EngineCoreRequest::default() };
    change(&mut request);
    let mut payload = Vec::new();
    request.encode(&mut payload, version.rules());
    let evidence = VersionEvidence::from_add(&payload).expect("it is ADD");
    (evidence.oldest, evidence.newest)
}

#[test]
fn an_add_reveals_its_line() {
    let lora = |layout| {
        move |request: &mut EngineCoreRequest| {
            request.lora_request = Some(LoraRequest { layout, ..LoraRequest::default() });
        }
    };
    let rust = |request: &mut EngineCoreRequest| {
        let kwargs = Value::Map(vec![("chat_template_kwargs".into(), Value::Map(Vec::new()))]);
        request.reasoning_parser_kwargs = Some(Raw::of(&kwargs));
    };
    let params = |change: fn(&mut SamplingParams)| {
        move |request: &mut EngineCoreRequest| change(request.sampling_params.as_mut().expect("it samples"))
    };
    assert_eq!(evidence(VllmMinor::V0_27, |_| {}), (VllmMinor::V0_27, VllmMinor::V0_27));
    assert_eq!(evidence(VllmMinor::V0_29, |_| {}), (VllmMinor::V0_28, VllmMinor::V0_30));
    let watermarked = params(|params| params.watermarking = Some(false));
    assert_eq!(evidence(VllmMinor::V0_30, watermarked), (VllmMinor::V0_30, VllmMinor::V0_30));
    let with_experts = params(|params| params.routed_experts_prompt_start = 1);
    assert_eq!(evidence(VllmMinor::V0_30, with_experts), (VllmMinor::V0_29, VllmMinor::V0_30));
    assert_eq!(evidence(VllmMinor::V0_31, |_| {}), (VllmMinor::V0_31, VllmMinor::V0_33));
    assert_eq!(evidence(VllmMinor::V0_31, lora(LoraLayout::Seven)), (VllmMinor::V0_31, VllmMinor::V0_32));
    assert_eq!(evidence(VllmMinor::V0_32, lora(LoraLayout::Six)), (VllmMinor::V0_32, VllmMinor::V0_33));
    assert_eq!(evidence(VllmMinor::V0_32, rust), (VllmMinor::V0_31, VllmMinor::V0_33));
    let rust_with = |layout| {
        move |request: &mut EngineCoreRequest| {
            rust(request);
            lora(layout)(request);
        }
    };
    assert_eq!(evidence(VllmMinor::V0_32, rust_with(LoraLayout::Seven)), (VllmMinor::V0_31, VllmMinor::V0_32));
    assert_eq!(evidence(VllmMinor::V0_33, rust_with(LoraLayout::Six)), (VllmMinor::V0_33, VllmMinor::V0_33));

    let open = VersionEvidence { oldest: VllmMinor::V0_31, newest: VllmMinor::V0_33, request_len: 22 };
    assert_eq!(open.pick(VllmMinor::V0_32), VllmMinor::V0_32);
    assert_eq!(open.pick(VllmMinor::V0_27), VllmMinor::V0_31);
    assert_eq!(open.with_utility("sleep"), open);
    assert_eq!(open.with_utility("pause_generation").pick(VllmMinor::V0_31), VllmMinor::V0_33);
}

#[test]
fn both_layouts_of_an_adapter_are_read_alike() {
    let decode = |values: Vec<Value>| LoraRequest::from_value(&Value::Array(values)).expect("it is an adapter");
    let head = || vec![Value::from("ad1"), Value::Int(Integer::from(1u64)), "/path".into(), Value::Nil];
    let with = |tail: &[Value]| decode([head(), tail.to_vec()].concat());
    let six = with(&[true.into(), false.into()]);
    let seven = with(&[Value::Nil, true.into(), false.into()]);
    assert_eq!((six.layout, seven.layout), (LoraLayout::Six, LoraLayout::Seven));
    assert_eq!(LoraRequest { layout: LoraLayout::Six, ..seven }, six);
    assert!(six.load_inplace && !six.is_3d);
    // Six elements of the layout of seven: the fifth is not a boolean.
    assert_eq!(with(&[Value::Nil, true.into()]).layout, LoraLayout::Seven);
    assert_eq!(decode(head()).layout, LoraLayout::Six);
}
