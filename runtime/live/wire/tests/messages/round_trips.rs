//! Decoding reproduces encoded messages.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use vcr_wire::Protocol as _;
use vcr_wire::*;

use super::arbitrary::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn requests(request in request()) {
        let mut payload = Vec::new();
        request.encode(&mut payload, VllmMinor::V0_33.rules());
        let frames = [vec![request.kind()], payload.clone()];
        prop_assert_eq!(Request::decode(&frames), Ok(request.clone()));
        if let Request::Add(add) = &request {
            prop_assert_eq!(EngineCoreRequest::peek_id(&payload), Some(add.request_id.as_str()));
        }
    }

    /// Versions differ only in the last elements, and an older frontend or engine must see the same values in the
    /// common elements.
    #[test]
    fn requests_of_every_line(add in add()) {
        for version in VllmMinor::ALL {
            let mut payload = Vec::new();
            add.encode(&mut payload, version.rules());
            let mut expected = add.clone();
            expected.session_id = expected.session_id.filter(|_| version >= VllmMinor::V0_28);
            expected.kv_hints = expected.kv_hints.filter(|_| version >= VllmMinor::V0_31);
            prop_assert_eq!(EngineCoreRequest::decode(&payload), Ok(expected));
            let evidence = VersionEvidence::from_add(&payload).expect("it is ADD");
            let is_possible = add.lora_request.is_some() || (evidence.oldest..=evidence.newest).contains(&version);
            prop_assert!(is_possible || add.sampling_params.is_some(), "{:?}", evidence);
        }
    }

    #[test]
    fn messages_of_an_engine(outputs in outputs()) {
        let mut frame = Vec::new();
        outputs.encode(&mut frame, VllmMinor::V0_33.rules());
        prop_assert_eq!(EngineMessage::decode(&[&frame]), Ok(EngineMessage::Outputs(Box::new(outputs.clone()))));

        // Decode the same message output by output.
        let step = StepOutputs::decode(&frame).expect("it is a message");
        let mut again = step.message.clone();
        step.for_each(|request_id, output| again.outputs.push(match output {
            StepOutput::Whole(output) => *output,
            StepOutput::Tokens(tokens) => EngineCoreOutput {
                request_id: request_id.to_owned(),
                new_token_ids: tokens.to_vec(),
                ..EngineCoreOutput::default()
            },
        }));
        prop_assert_eq!(again, outputs);
    }

    #[test]
    fn events_of_the_cache(events in vec(kv_event(), 0..4), ts in number(), rank in of(any::<u32>())) {
        let batch = KvEventBatch { ts, events, data_parallel_rank: rank };
        let mut payload = Vec::new();
        batch.encode(&mut payload);
        prop_assert_eq!(KvEventBatch::decode(&payload), Ok(batch));
    }

    #[test]
    fn the_handshake(init in init(), ready in ready(), hash in of(text()), flags in any::<[bool; 3]>()) {
        let status = if flags[0] { EngineStatus::Hello } else { EngineStatus::Ready };
        let said = EngineHandshake { status, local: flags[1], headless: flags[2], parallel_config_hash: hash };
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| { let mut out = Vec::new(); encode(&mut out); out };
        prop_assert_eq!(Init::decode(&encoded(&|out| init.encode(out))), Ok(init));
        prop_assert_eq!(ReadyResponse::decode(&encoded(&|out| ready.encode(out))), Ok(ready));
        prop_assert_eq!(EngineHandshake::decode(&encoded(&|out| said.encode(out))), Ok(said));
    }

    /// The encoder of steps writes the same messages as the encoder of whole messages.
    #[test]
    fn steps_are_messages(
        outputs in vec((text(), tokens(), of((finish(), of(stop_reason())))), 0..20),
        rich in vec(output(), 0..2),
        stats in of(scheduler_stats()),
        finished in any::<bool>(),
        weight_version in of(text()),
        version in prop::sample::select(VllmMinor::ALL.to_vec()),
    ) {
        let rules = version.rules();
        let mut step = StepEncoder::new(rules);
        let mut expected = EngineCoreOutputs {
            engine_index: 3,
            // A step's message always has outputs and a time.
            timestamp: 1.5,
            scheduler_stats: stats.clone(),
            weight_version: weight_version.clone(),
            ..EngineCoreOutputs::default()
        };
        for (request_id, new_token_ids, finish) in outputs {
            step.tokens(&request_id, &new_token_ids, finish.as_ref().map(|(reason, stop)| (*reason, stop.as_ref())));
            if finished {
                step.finished(&request_id);
                expected.finished_requests.get_or_insert_default().push(request_id.clone());
            }
            let (finish_reason, stop_reason) = finish.map_or((None, None), |(reason, stop)| (Some(reason), stop));
            let output = EngineCoreOutput { request_id, new_token_ids, finish_reason, stop_reason, ..EngineCoreOutput::default() };
            expected.outputs.push(output);
        }
        for output in rich {
            step.output(&output);
            expected.outputs.push(output);
        }
        let end = StepEnd {
            engine_index: 3,
            timestamp: 1.5,
            scheduler_stats: stats.as_ref(),
            weight_version: weight_version.as_deref(),
        };
        let (mut frame, mut whole) = (Vec::new(), Vec::new());
        step.finish(end, &mut frame);
        expected.encode(&mut whole, rules);
        prop_assert_eq!(&frame, &whole);
        prop_assert!(step.is_empty());
    }
}

/// Masks of many placeholders are in separate frames.
#[test]
fn masks_behind_the_payload_are_taken_in() {
    let mask = |data| Tensor { dtype: "bool".to_owned(), shape: vec![5], data };
    let feature = |data| MmFeature {
        mm_position: PlaceholderRange { offset: 0, length: 5, is_embed: Some(mask(data)) },
        ..MmFeature::default()
    };
    let inline = TensorData::Inline(vec![1, 0, 0, 1, 0]);
    // Refers to two missing frames, and twice to one frame.
    let data = [TensorData::Aux(2), TensorData::Aux(9), TensorData::Aux(0), TensorData::Aux(2), inline];
    let add = EngineCoreRequest { mm_features: Some(data.map(feature).to_vec()), ..EngineCoreRequest::default() };
    let mut payload = Vec::new();
    add.encode(&mut payload, VllmMinor::V0_33.rules());
    let frames = [vec![0], payload, vec![7; 40], vec![0, 1, 1, 0, 1]];
    let Ok(Request::Add(read)) = Request::decode(&frames) else { panic!("it is ADD") };
    let runs: Vec<_> = read.mm_features.iter().flatten().map(|feature| feature.mm_position.embed_runs()).collect();
    assert_eq!(runs, [Some(vec![1..3, 4..5]), None, None, None, Some(vec![0..1, 3..4])]);
}
