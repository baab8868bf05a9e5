//! The table of lines, and how lines are told apart.

use vcr_wire::{
    EngineCoreRequest, Integer, Line, LineEvidence, LoraLayout, LoraRequest, Raw, SamplingParams, SchedulerStats,
    Value, WakeUpResult,
};

#[test]
fn the_table_has_a_row_for_each_line_in_order() {
    for line in Line::ALL {
        assert_eq!(line.rules().line, line);
        assert_eq!(line.name().parse(), Ok(line));
    }
    let lengths = Line::ALL.map(|line| (line.rules().request_len, line.rules().output_len, line.rules().outputs_len));
    let expected = [(20, 14, 8), (21, 16, 8), (21, 17, 8), (21, 17, 8), (22, 18, 8), (22, 18, 9), (22, 19, 9)];
    assert_eq!(lengths, expected);
    let since = |has: &dyn Fn(Line) -> bool| Line::ALL.into_iter().find(|line| has(*line));
    assert_eq!(since(&|line| line.rules().wake_up_result == WakeUpResult::Bool), Some(Line::V0_31));
    assert_eq!(since(&|line| line.rules().engine_starts_waves), Some(Line::V0_33));
    assert_eq!(since(&|line| line.rules().lora_layout() == LoraLayout::Six), Some(Line::V0_33));
    let names_session = |line: Line| line.rules().block_stored_keys.iter().any(|key| key == "session_id");
    assert_eq!(since(&names_session), Some(Line::V0_30));
    let has_stages = |line: Line| SchedulerStats::of_line(line.rules()).num_kv_fetch_reqs_by_stage.is_some();
    assert_eq!(since(&has_stages), Some(Line::V0_32));
    let error = "0.26".parse::<Line>().unwrap_err();
    assert_eq!(error.to_string(), "the line of vLLM must be one of 0.27 to 0.33, but is \"0.26\"");
}

fn evidence(line: Line, change: impl FnOnce(&mut EngineCoreRequest)) -> (Line, Line) {
    let mut request =
        EngineCoreRequest { sampling_params: Some(SamplingParams::default()), ..EngineCoreRequest::default() };
    change(&mut request);
    let mut payload = Vec::new();
    request.encode(&mut payload, line.rules());
    let evidence = LineEvidence::from_add(&payload).expect("it is ADD");
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
    assert_eq!(evidence(Line::V0_27, |_| {}), (Line::V0_27, Line::V0_27));
    assert_eq!(evidence(Line::V0_29, |_| {}), (Line::V0_28, Line::V0_30));
    let watermarked = params(|params| params.watermarking = Some(false));
    assert_eq!(evidence(Line::V0_30, watermarked), (Line::V0_30, Line::V0_30));
    let with_experts = params(|params| params.routed_experts_prompt_start = 1);
    assert_eq!(evidence(Line::V0_30, with_experts), (Line::V0_29, Line::V0_30));
    assert_eq!(evidence(Line::V0_31, |_| {}), (Line::V0_31, Line::V0_33));
    assert_eq!(evidence(Line::V0_31, lora(LoraLayout::Seven)), (Line::V0_31, Line::V0_32));
    assert_eq!(evidence(Line::V0_32, lora(LoraLayout::Six)), (Line::V0_32, Line::V0_33));
    assert_eq!(evidence(Line::V0_32, rust), (Line::V0_31, Line::V0_33));
    let rust_with = |layout| {
        move |request: &mut EngineCoreRequest| {
            rust(request);
            lora(layout)(request);
        }
    };
    assert_eq!(evidence(Line::V0_32, rust_with(LoraLayout::Seven)), (Line::V0_31, Line::V0_32));
    assert_eq!(evidence(Line::V0_33, rust_with(LoraLayout::Six)), (Line::V0_33, Line::V0_33));

    let open = LineEvidence { oldest: Line::V0_31, newest: Line::V0_33, request_len: 22 };
    assert_eq!(open.pick(Line::V0_32), Line::V0_32);
    assert_eq!(open.pick(Line::V0_27), Line::V0_31);
    assert_eq!(open.with_utility("sleep"), open);
    assert_eq!(open.with_utility("pause_generation").pick(Line::V0_31), Line::V0_33);
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
    // Six elements of the old layout: the fifth is no boolean.
    assert_eq!(with(&[Value::Nil, true.into()]).layout, LoraLayout::Seven);
    assert_eq!(decode(head()).layout, LoraLayout::Six);
}
